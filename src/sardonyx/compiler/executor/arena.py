"""Blocks: memory for large arenas, which belongs to the process; a call has one for as long as it runs.

Calls that do not run at the same time use the same block, whichever programs they are of: what many idle sessions hold
is what the largest needs. A call finds nothing in it that it reads: kernels read what kernels of the same call wrote.
Small arenas stay with their contexts, where a call has nothing to take.

Who seizes a block and who leaves it has Python's lock, generated code too; so nothing but the word needs to be atomic.
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
"""Bytes of an arena above which it is a block: to take one costs some nanoseconds, and to be given another the words of
the tape are written anew, which is little beside a run that touches so much."""

Seize = Callable[[int], int]
"""``i64 seize(ptr words)``: takes a block that nobody has; whether it did."""


def memory_of(capacity: int) -> tuple[np.ndarray, int]:
    """Memory that is not written yet, and the first aligned address in it."""
    memory = np.empty(capacity + ALIGNMENT, np.uint8)
    return memory, -(-memory.ctypes.data // ALIGNMENT) * ALIGNMENT


class Block:
    """Memory that one call at a time may use; it is made seized.

    Attributes:
        address: Of its words, see :class:`.BlockWord`.
    """

    def __init__(self) -> None:
        self._words = np.array([1, 0, 0], np.int64)
        self._memory = np.empty(0, np.uint8)
        self.address = int(self._words.ctypes.data)
        self._busy = ctypes.c_int64.from_address(self.address)

    @property
    def capacity(self) -> int:
        """Bytes that are there."""
        return int(self._words[BlockWord.CAPACITY])

    @property
    def place(self) -> int:
        """The address of the first byte."""
        return int(self._words[BlockWord.ADDRESS])

    def resize(self, capacity: int) -> None:
        """Have so many bytes from now on; only who has seized it may ask for that.

        Raises:
            MemoryError: There are not as many; it has none then.
        """
        # What it replaces goes first.
        self._memory = np.empty(0, np.uint8)
        self._words[BlockWord.ADDRESS :] = 0
        if capacity:
            self._memory, self._words[BlockWord.ADDRESS] = memory_of(capacity)
            self._words[BlockWord.CAPACITY] = capacity

    def leave(self) -> None:
        """Let others seize it."""
        self._busy.value = 0


class Blocks:
    """The blocks of the process; one goes when nothing that used it last is left."""

    def __init__(self) -> None:
        self._blocks: weakref.WeakSet[Block] = weakref.WeakSet()
        self._lock = threading.Lock()

    def take(self, wanted: int, room: int, seize: Seize) -> Block:
        """Seize a block of at least so many bytes.

        Args:
            wanted: How many are needed.
            room: How many to have where more memory is to be taken.
            seize: Takes a block.

        Raises:
            MemoryError: There is no more memory.
        """
        with self._lock:
            blocks = sorted(self._blocks, key=lambda block: block.capacity)
            # The smallest that is enough, else the largest of the others.
            enough = [block for block in blocks if block.capacity >= wanted]
            for block in [*enough, *(block for block in reversed(blocks) if block.capacity < wanted)]:
                if seize(block.address):
                    break
            else:
                block = Block()
                self._blocks.add(block)
        if block.capacity < wanted:
            try:
                block.resize(room)
            except MemoryError:
                block.leave()
                raise
        return block

    def shrink(self, blocks: set[Block], seize: Seize) -> None:
        """Give memory back that no call uses.

        Args:
            blocks: Those of which.
            seize: Takes a block.
        """
        for block in blocks:
            if seize(block.address):
                block.resize(0)
                block.leave()


BLOCKS = Blocks()
