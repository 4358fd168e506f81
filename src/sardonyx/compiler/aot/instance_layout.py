"""What a C library is made of, and where in an instance everything is."""

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
"""The name of a byte that is 1."""

POOL = "sardonyx_pool"
"""Stands for the pool of the instance's threads."""


class State(IntEnum):
    """What is at the beginning of an instance, in bytes."""

    BUSY = 0  # i32
    READY = 4  # i32: whether the tape is ready for sizes
    STARTED = 8  # i64: threads, with the caller
    THREADS = 64  # for each thread, i64: what pthread_create gave; then a worker's own two words: pool, number


@dataclass(frozen=True)
class Address:
    """An address that the linker knows.

    Attributes:
        symbol: The name.
        offset: How far behind it, in bytes.
    """

    symbol: str
    offset: int = 0


@dataclass(frozen=True)
class InTape:
    """A tensor of sizes, by its first word of the tape."""

    word: int


@dataclass(frozen=True)
class Copy:
    """An output that no kernel writes where it is wanted.

    Attributes:
        output: Its number.
        source: The number of the input, or, behind the inputs, of the output that it is; else a constant, or sizes.
    """

    output: int
    source: int | Address | InTape


@dataclass(frozen=True)
class Parts:
    """What a library is made of.

    Attributes:
        prefix: What its names begin with.
        target: What its kernels are compiled for.
        threads: Most threads.
        inputs: Its inputs, in order.
        outputs: Its outputs, in order.
        plan: What a run does.
        sizes: The registers of open sizes, by name, in order.
        shapes: The registers of the sizes of inputs and, behind them, of outputs.
        links: Words of the tape that are addresses of what the library holds, and of what.
        feeds: Words of the tape that are addresses of inputs or outputs, and of which: outputs are behind inputs.
        copies: What is copied after the kernels, in order.
        flushes: Whether denormal numbers are taken for zero.
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
    def pool_at(self) -> int:
        """Where the pool is in an instance."""
        return _aligned(State.THREADS + 24 * self.threads)

    @property
    def tape_at(self) -> int:
        """Where the tape is."""
        return _aligned(self.pool_at + Field.THREAD_IDS + 4 * self.threads)

    @property
    def planned_at(self) -> dict[PlanWord, int]:
        """Where what planning writes is."""
        plan = self.plan
        at, found = _aligned(self.tape_at + 8 * len(plan.words)), {}
        for word, count in (
            (PlanWord.REGISTERS, len(plan.start)),
            (PlanWord.ORDER, len(plan.buffers)),
            (PlanWord.PLACED, PLACED_WORDS * len(plan.buffers)),
            (PlanWord.OFFSETS, len(plan.buffers)),
        ):
            found[word] = at
            at = _aligned(at + 8 * count)
        return found

    @property
    def table_at(self) -> int:
        """Where planning reads everything, see :class:`.PlanWord`."""
        return _aligned(self.planned_at[PlanWord.OFFSETS] + 8 * len(self.plan.buffers))

    @property
    def bytes(self) -> int:
        """How much an instance is, without its arena."""
        return _aligned(self.table_at + 8 * len(PlanWord))

    @property
    def functions(self) -> list[str]:
        """The names of what the header declares."""
        names = ["input", "output", "create", "run", "destroy", "message"]
        names += ["resize", "input_shape", "output_shape"] if self.sizes else []
        return [f"{self.prefix}_{name}" for name in names]

    def of_tensor(self, number: int) -> Tensor:
        """An input or, behind the inputs, an output."""
        return [*self.inputs, *self.outputs][number]


def _aligned(bytes: int) -> int:
    return -(-bytes // ALIGNMENT) * ALIGNMENT


def planning_rows(plan: Plan) -> dict[PlanWord, np.ndarray]:
    """What planning reads and never writes."""
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
"""The words for how many rows there are, of those that are counted."""
