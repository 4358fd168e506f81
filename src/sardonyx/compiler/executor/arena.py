"""Shared arenas: *blocks* of memory that belong to the process and that one call at a time uses.

Calls that do not overlap use the same block, whichever programs they execute: many idle sessions hold as much memory as
the largest of them needs. A call never reads memory that the same call has not written. Small arenas stay with their
contexts: such a call claims nothing.

A block is claimed and released under Python's lock, by generated code too: only the claim word is atomic.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable

import numpy as np

from sardonyx.compiler.executor.tape_planner import BlockWord
from sardonyx.compiler.target.alignment import ALIGNMENT

SHARED = 1 << 20
"""Size in bytes above which an arena is a shared block.

A claim costs some nanoseconds. If the block is not the one of the call before, the words of the tape are rewritten:
little beside a run that touches so much memory.
"""

Seize = Callable[[int], int]
"""``i64 seize(ptr words)``: claim a block if it is free; return 1 if the claim succeeded."""


def allocate_aligned(capacity: int) -> tuple[np.ndarray, int]:
    """Allocate uninitialized memory; return its owner and the first aligned address."""
    memory = np.empty(capacity + ALIGNMENT, np.uint8)
    return memory, -(-memory.ctypes.data // ALIGNMENT) * ALIGNMENT


class Block:
    """Memory that one call at a time may use; a new block is claimed by its creator.

    Attributes:
        address: Address of the block's words, see :class:`.BlockWord`.
    """

    def __init__(self) -> None:
        self._words = np.array([1, 0, 0], np.int64)
        self._memory = np.empty(0, np.uint8)
        self.address = int(self._words.ctypes.data)
        self._busy = ctypes.c_int64.from_address(self.address)

    @property
    def capacity(self) -> int:
        """Size of the memory in bytes."""
        return int(self._words[BlockWord.CAPACITY])

    @property
    def memory_address(self) -> int:
        """Address of the first byte of the memory."""
        return int(self._words[BlockWord.ADDRESS])

    def resize(self, capacity: int) -> None:
        """Replace the memory by new memory of another size; only the owner of the claim may call this.

        Raises:
            MemoryError: The system has too little memory; the block is empty then.
        """
        # Frees the old memory first.
        self._memory = np.empty(0, np.uint8)
        self._words[BlockWord.ADDRESS :] = 0
        if capacity:
            self._memory, self._words[BlockWord.ADDRESS] = allocate_aligned(capacity)
            self._words[BlockWord.CAPACITY] = capacity

    def release(self) -> None:
        """Release the claim."""
        self._busy.value = 0


class Blocks:
    """The blocks of the process; a block is freed with the last context that used it."""

    def __init__(self) -> None:
        self._blocks: weakref.WeakSet[Block] = weakref.WeakSet()
        self._lock = threading.Lock()

    def live(self) -> list[Block]:
        """Return the blocks that a context still refers to, smallest capacity first."""
        return sorted(self._blocks, key=lambda block: block.capacity)

    def claim(self, required: int, room: int, seize: Seize) -> Block:
        """Claim a block of at least the required size.

        Args:
            required: Minimum size in bytes.
            room: Size in bytes if memory must be allocated.
            seize: Claims a block.

        Raises:
            MemoryError: The system has too little memory.
        """
        with self._lock:
            blocks = self.live()
            # The smallest sufficient block, else the largest of the others.
            enough = [block for block in blocks if block.capacity >= required]
            for block in [*enough, *(block for block in reversed(blocks) if block.capacity < required)]:
                if seize(block.address):
                    break
            else:
                block = Block()
                self._blocks.add(block)
        if block.capacity < required:
            try:
                block.resize(room)
            except MemoryError:
                block.release()
                raise
        return block

    def shrink(self, blocks: set[Block], seize: Seize) -> None:
        """Free the memory of the blocks that no call uses.

        Args:
            blocks: The blocks to free.
            seize: Claims a block.
        """
        for block in blocks:
            if seize(block.address):
                block.resize(0)
                block.release()


BLOCKS = Blocks()
