"""Packing of weights by a kernel, for packed forms that only move elements.

The order of the elements is found once, by packing the numbers of the elements. A packed weight consists of blocks
whose elements have the same distances from the first element in the weight, so that one table of distances serves many
blocks. Vectors of a block are written in the order in which the weight is read.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sardonyx.compiler.executor.thread_pool import Pool
from sardonyx.compiler.llvm.elf_loader import Code, MappedCode, loaded
from sardonyx.compiler.llvm.object_code import LoadedCode, compiled, module_text
from sardonyx.compiler.target.alignment import aligned_zeros
from sardonyx.compiler.target.description import Target

_EXACT = 1 << 24
"""Numbers below are exact in float32."""

_LEAST_BLOCK, _MOST_BLOCK = 64, 1 << 14
"""Elements of a block: smaller ones have many addresses, the tables of larger ones do not fit L2."""

_MOST_RUNS = 4
"""Runs of equal blocks in a packed weight; most have one, or another at the end."""

_CHUNK = 1 << 14
"""Elements that a thread claims at a time."""


@dataclass(frozen=True)
class Run:
    """Adjacent blocks of a packed weight with the same order of elements.

    Attributes:
        first: Index of the first block.
        starts: The element of the weight from which distances count, of each block, int64.
        distances: The distance of each element of a block; -1 for a zero, int32.
        order: Vectors of a block in the order in which the weight is read, int32.
    """

    first: int
    starts: np.ndarray
    distances: np.ndarray
    order: np.ndarray


class Packing:
    """The order of elements of a packed weight.

    Args:
        shape: The shape of the packed weight.
        runs: All blocks.
    """

    def __init__(self, shape: tuple[int, ...], runs: Sequence[Run]) -> None:
        self._shape, self._runs = shape, runs
        self._free: list[np.ndarray] = []

    @classmethod
    def of(cls, move: Callable[[np.ndarray], np.ndarray], source: np.ndarray, target: Target) -> Packing | None:
        """Return the packing of a weight; None if the weight is not float32, or has no equal blocks.

        Args:
            move: Returns elements of an array, and zeros, in another order.
            source: The weight.
            target: The processor.
        """
        if source.dtype != np.float32 or not 0 < source.size < _EXACT:
            return None
        packed = move(np.arange(1, source.size + 1, dtype=np.float32).reshape(source.shape))
        if packed.dtype != np.float32:
            return None
        runs = _runs(packed.reshape(-1).astype(np.int32) - 1, target.lanes(32))
        return None if runs is None else cls(packed.shape, runs)

    def packed(self, source: np.ndarray, target: Target, pool: Pool, denormal: np.ndarray) -> np.ndarray:
        """Return the packed form of a weight.

        Args:
            source: The weight, contiguous.
            target: The processor.
            pool: The threads.
            denormal: int32 [1]; set to 1 if the weight has a denormal number.
        """
        result = self._buffer()
        for run in self._runs:
            size = len(run.distances)
            numbers = np.array([size, run.first], np.int64)
            arrays = (result, source, run.starts, run.distances, run.order, numbers, denormal)
            arguments = np.array([array.ctypes.data for array in arrays], np.int64)
            grain = max(1, _CHUNK // size)
            pool.parallel(_code(target).address("pack"), arguments.ctypes.data, len(run.starts), grain)
        return result

    def _buffer(self) -> np.ndarray:
        """Return memory for the packed weight: that of a former one that no program holds any more, or new memory."""
        try:
            memory = self._free.pop()
        except IndexError:
            memory = aligned_zeros(self._shape, np.float32)
        # A view of a view refers to the owner of the memory alone; a view of an array over a memoryview, to that array.
        lent = np.asarray(memory.data)
        weakref.finalize(lent, self._free.append, memory).atexit = False
        return lent


def _runs(order: np.ndarray, lanes: int) -> list[Run] | None:
    """Return the blocks of an order of elements, as large as possible; None if too many blocks differ."""
    largest = min(_MOST_BLOCK, order.size) // lanes * lanes
    for size in range(largest, _LEAST_BLOCK - 1, -lanes):
        if order.size % size == 0:
            runs = _runs_of_size(order.reshape(-1, size), lanes)
            if runs is not None:
                return runs
    return None


def _runs_of_size(blocks: np.ndarray, lanes: int) -> list[Run] | None:
    runs: list[Run] = []
    first = 0
    while first < len(blocks):
        if len(runs) == _MOST_RUNS:
            return None
        is_zero = blocks[first] < 0
        if is_zero.all():
            return None
        start = blocks[first][~is_zero].min()
        distances = np.where(is_zero, -1, blocks[first] - start)
        one = int(np.argmin(np.where(is_zero, np.iinfo(np.int32).max, distances)))
        starts = blocks[first:, one]
        # The second block alone decides most candidates.
        second = blocks[first : first + 2]
        if len(second) == 2 and first == 0 and len(blocks) > 2 * _MOST_RUNS and not _same(second, starts, distances)[1]:
            return None
        same = _same(blocks[first:], starts, distances)
        count = len(same) if same.all() else int(np.argmin(same))
        vectors = distances.reshape(-1, lanes)
        order = np.argsort(np.where(vectors < 0, np.iinfo(np.int32).max, vectors).min(axis=1), kind="stable")
        runs.append(Run(first, starts[:count].astype(np.int64), distances.astype(np.int32), order.astype(np.int32)))
        first += count
    return runs


def _same(blocks: np.ndarray, starts: np.ndarray, distances: np.ndarray) -> np.ndarray:
    """Return which blocks have these starts and distances."""
    expected = np.where(distances < 0, -1, starts[: len(blocks), np.newaxis] + distances)
    return np.asarray((blocks == expected).all(axis=1) & (starts[: len(blocks)] >= 0))


@functools.cache
def _code(target: Target) -> MappedCode | LoadedCode:
    # Imported here: a program from the store packs only weights that change.
    from sardonyx.compiler.codegen.kernel_builder import Kernel

    kernel, lanes = Kernel(target), target.lanes(32)
    e = kernel.emitter
    packed, source, starts, distances, order, numbers, denormal = (kernel.buffer(shared=True) for _ in range(7))
    ints, floats, mask = f"<{lanes} x i32>", f"<{lanes} x float>", f"<{lanes} x i1>"
    size = e.load("i64", numbers, 8)
    first = e.load("i64", e.address(numbers, "i64", 1), 8)
    seen = e.variable(mask, "zeroinitializer")
    gather = f"llvm.masked.gather.v{lanes}f32.v{lanes}p0"
    e.declarations[f"declare {floats} @{gather}(<{lanes} x ptr>, i32, {mask}, {floats})"] = None
    with e.loop("%first", "%last") as block:
        start = e.address(source, "float", e.load("i64", e.address(starts, "i64", block), 8))
        start_of_block = e.address(packed, "float", e.mul(e.add(block, first), size))
        with e.loop(0, e.div(size, lanes)) as i:
            number = e.let(f"zext i32 {e.load('i32', e.address(order, 'i32', i), 4)} to i64")
            offset = e.mul(number, lanes)
            away = e.load(ints, e.address(distances, "i32", offset), 4)
            is_element = e.let(f"icmp sge {ints} {away}, zeroinitializer")
            pointers = e.let(f"getelementptr float, ptr {start}, {ints} {away}")
            elements = e.let(
                f"call {floats} @{gather}(<{lanes} x ptr> {pointers}, i32 4, {mask} {is_element},"
                f" {floats} zeroinitializer)"
            )
            e.store(floats, elements, e.address(start_of_block, "float", offset), 4)
            # Doubling drops the sign bit: below 1 << 24 the exponent is 0, and subtracting 1 wraps zero around.
            bits = e.let(f"bitcast {floats} {elements} to {ints}")
            doubled = e.let(f"shl {ints} {bits}, splat (i32 1)")
            less = e.let(f"sub {ints} {doubled}, splat (i32 1)")
            small = e.let(f"icmp ult {ints} {less}, splat (i32 {(1 << 24) - 1})")
            seen.set(e.let(f"or {mask} {seen.get()}, {small}"))
    with e.when(e.let(f"icmp ne i{lanes} {e.let(f'bitcast {mask} {seen.get()} to i{lanes}')}, 0")):
        e.store("i32", "1", denormal, 4)
    text = module_text(target, [kernel.definition("pack")], e.declarations)
    return loaded(Code([compiled(text, target)]), target)
