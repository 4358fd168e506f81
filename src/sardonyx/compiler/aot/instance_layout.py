"""Contents of a C library, and the memory layout of an instance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from sardonyx.compiler.aot.c_interface import Tensor
from sardonyx.compiler.executor.fork_join import Field
from sardonyx.compiler.executor.tape_planner import PLACED_WORDS, PlanWord
from sardonyx.compiler.plan.tape import Plan
from sardonyx.compiler.target.alignment import ALIGNMENT
from sardonyx.compiler.target.description import Target

TRUE = "sardonyx_true"
"""Symbol of a byte of value 1."""

POOL = "sardonyx_pool"
"""Placeholder symbol for the thread pool of an instance."""


class State(IntEnum):
    """Offsets of the fields at the beginning of an instance, in bytes."""

    BUSY = 0  # i32
    READY = 4  # i32: 1 if the tape is prepared for the current sizes
    STARTED = 8  # i64: number of threads, including the caller
    THREADS = 64  # for each thread, i64: the pthread_t; then for each thread two words: pool, number


@dataclass(frozen=True)
class Address:
    """An address that the linker resolves.

    Attributes:
        symbol: The symbol.
        offset: Offset from the symbol, in bytes.
    """

    symbol: str
    offset: int = 0


@dataclass(frozen=True)
class InTape:
    """A tensor of sizes in the tape, by its first word."""

    word: int


@dataclass(frozen=True)
class Copy:
    """A copy to an output that no kernel writes directly.

    Attributes:
        output: Index of the output.
        source: A constant, a tensor of sizes, or the index of an input or output; outputs are counted after inputs.
    """

    output: int
    source: int | Address | InTape


@dataclass(frozen=True)
class Parts:
    """The contents of a library.

    Attributes:
        prefix: Prefix of all names.
        target: The processor of the kernels.
        threads: Maximum number of threads.
        inputs: The inputs, in order.
        outputs: The outputs, in order.
        plan: The plan of the whole program.
        sizes: Registers of the open sizes, by name, in order.
        shapes: Registers of the sizes of inputs, followed by outputs.
        links: Words of the tape with addresses in the library, and the addresses.
        feeds: Words of the tape with addresses of inputs or outputs, and their index; outputs are counted after inputs.
        copies: Copies after the kernels, in order.
        flushes: True if denormal numbers are treated as zero.
    """

    prefix: str
    target: Target
    threads: int
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    plan: Plan
    sizes: Mapping[str, int]
    shapes: Sequence[Sequence[int]]
    links: Sequence[tuple[int, Address]]
    feeds: Sequence[tuple[int, int]]
    copies: Sequence[Copy]
    flushes: bool

    @property
    def pool_offset(self) -> int:
        """Offset of the thread pool in an instance."""
        return _aligned(State.THREADS + 24 * self.threads)

    @property
    def tape_offset(self) -> int:
        """Offset of the tape."""
        return _aligned(self.pool_offset + Field.THREAD_IDS + 4 * self.threads)

    @property
    def planner_offsets(self) -> dict[PlanWord, int]:
        """Offsets of the arrays that planning writes."""
        plan = self.plan
        at, offsets = _aligned(self.tape_offset + 8 * len(plan.words)), {}
        for word, count in (
            (PlanWord.REGISTERS, len(plan.start)),
            (PlanWord.ORDER, len(plan.buffers)),
            (PlanWord.PLACED, PLACED_WORDS * len(plan.buffers)),
            (PlanWord.OFFSETS, len(plan.buffers)),
        ):
            offsets[word] = at
            at = _aligned(at + 8 * count)
        return offsets

    @property
    def table_offset(self) -> int:
        """Offset of the table for planning, see :class:`.PlanWord`."""
        return _aligned(self.planner_offsets[PlanWord.OFFSETS] + 8 * len(self.plan.buffers))

    @property
    def bytes(self) -> int:
        """Bytes of an instance, without its arena."""
        return _aligned(self.table_offset + 8 * len(PlanWord))

    @property
    def functions(self) -> list[str]:
        """Names of the functions that the header declares."""
        names = ["input", "output", "create", "run", "destroy", "message"]
        names += ["resize", "input_shape", "output_shape"] if self.sizes else []
        return [f"{self.prefix}_{name}" for name in names]

    def tensor(self, number: int) -> Tensor:
        """Return an input or output; outputs are counted after inputs."""
        return [*self.inputs, *self.outputs][number]


def _aligned(bytes: int) -> int:
    return -(-bytes // ALIGNMENT) * ALIGNMENT


def planning_rows(plan: Plan) -> dict[PlanWord, np.ndarray]:
    """Return the arrays that planning only reads."""
    return {
        PlanWord.ROWS: plan.instructions,
        PlanWord.BUFFERS: plan.buffers,
        PlanWord.LAYOUTS: plan.layouts,
        PlanWord.SIZE_WORDS: plan.size_words,
        PlanWord.PLACE_WORDS: plan.arena_words,
        PlanWord.ELEMENTS: plan.elements,
    }


COUNTS = {
    PlanWord.ROWS: PlanWord.ROW_COUNT,
    PlanWord.LAYOUTS: PlanWord.LAYOUT_COUNT,
    PlanWord.SIZE_WORDS: PlanWord.SIZE_WORD_COUNT,
    PlanWord.PLACE_WORDS: PlanWord.PLACE_WORD_COUNT,
    PlanWord.ELEMENTS: PlanWord.ELEMENT_COUNT,
}
"""For arrays with a count, the word of the number of rows."""
