"""Plans of segments: the tape and the arena of a segment, for any sizes.

A tape is an array of machine words. The entries of kernels are first; their arguments, and the tapes of loop bodies and
branches, follow in the same array. A word that depends on sizes is described by a register of the size program
(:mod:`sardonyx.compiler.executor.size_program`) or by a buffer in the arena, and is written when the sizes of a call
differ from the call before (:mod:`sardonyx.compiler.call.call_context`). The addresses of inputs and results change
from call to call.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from sardonyx.compiler.analysis.shape_guards import Equal
from sardonyx.compiler.lower.launch import Prepared
from sardonyx.core.dim import Dim
from sardonyx.core.ir.graph import Value

UNLIMITED = (1 << 63) - 1
"""Iteration limit of a loop without a limit."""


class Part(enum.Enum):
    """Parts of the runtime that every tape may refer to."""

    POOL = "pool"  # the thread pool
    ALONE = "alone"  # a pool of the calling thread alone, for kernels of concurrent loops
    LOOP = "loop"  # the function that executes a loop
    LOOPS = "loops"  # the function that executes concurrent loops
    CHOICE = "choice"  # the function that executes a choice
    TRUE = "true"  # a byte of value 1


@dataclass(frozen=True)
class Kernel:
    """The code of a kernel, by its text."""

    text: str


@dataclass(frozen=True)
class Constant:
    """A constant, or the prepared form of one."""

    buffer: Value | Prepared


Link = Part | Kernel | Constant
"""Memory outside of tape and arena with one address for all calls; resolved when a plan is loaded."""


@dataclass
class Plan:
    """A segment, for any sizes.

    Arrays with several columns have one row per item, with the index of the word in the tape first.

    Attributes:
        words: The words of the tape; 0 for words that the other tables fill in.
        kernels: Number of entries of the tape.
        instructions: The size program, see :mod:`sardonyx.compiler.executor.size_program`.
        start: Initial values of the registers.
        symbols: Registers of the size symbols, by name.
        dims: The expressions of the size program.
        buffers: Buffers in the arena, ``BUFFER_WORDS`` each.
        layouts: Layouts of the arena, ``LAYOUT_WORDS`` each.
        size_words: Words with sizes, and their registers.
        arena_words: Words with addresses in the arena, and their buffers.
        elements: Elements of size tensors in the tape, ``ELEMENT_WORDS`` each.
        tape_words: Words with addresses of words of the tape, and the index of the other word.
        links: Words with one address for all calls, and the referenced memory.
        value_words: Words with addresses of values outside of the arena, and the values.
        makes: Values computed by the segment outside of the arena.
        shapes: Registers of the sizes of ``makes`` and of inputs.
        size_tensors: First word of each requested size tensor.
        count: Buffer of the number of results, or of the iterations of a counting loop; None without.
        fault: Word for the fault flag, set by kernels if data have no result.
        limit: Word with the iteration limit of loops.
        titles: Description of each buffer, for reports.
        equal: Pairs of sizes, equal in every call.
    """

    words: np.ndarray
    kernels: int
    instructions: np.ndarray
    start: np.ndarray
    symbols: dict[str, int]
    dims: list[Dim]
    buffers: np.ndarray
    layouts: np.ndarray
    size_words: np.ndarray
    arena_words: np.ndarray
    elements: np.ndarray
    tape_words: np.ndarray
    links: list[tuple[int, Link]]
    value_words: tuple[np.ndarray, list[Value]]
    makes: list[Value]
    shapes: dict[Value, list[int]]
    size_tensors: dict[Value, int]
    count: int | None
    fault: int
    limit: int
    titles: list[str] = field(default_factory=list)
    equal: Sequence[Equal] = ()


# Values of words.


@dataclass(frozen=True)
class ArenaAddress:
    """The address of a buffer in the arena."""

    buffer: int


@dataclass(frozen=True)
class RegisterValue:
    """A size, by its register."""

    register: int


@dataclass(frozen=True)
class Literal:
    """A number that is the same in every call."""

    number: int


@dataclass(frozen=True)
class TapeAddress:
    """The address of a word of the tape."""

    word: int


@dataclass(frozen=True)
class ValueAddress:
    """The address of a value outside of the arena."""

    value: Value


@dataclass(frozen=True)
class RowAddress:
    """An address that advances with each iteration of a loop.

    Attributes:
        first: The address in the first iteration.
        step: Bytes between two iterations.
        patches: Collects the words with such addresses: word, ``first`` and ``step``.
    """

    first: Word
    step: Word
    patches: list[tuple[int, Word, Word]] = field(compare=False)


Word = ArenaAddress | RegisterValue | Literal | TapeAddress | ValueAddress | RowAddress | Part | Kernel | Constant
"""The value of a word of the tape."""

Locate = Callable[[int, object], Word]
"""Returns the address of a buffer of a launch; the launch is given by index."""

Copy = tuple[Word, Word, Word, Word]
"""Destination, source, bytes, and bytes by which the destination advances with each iteration."""
