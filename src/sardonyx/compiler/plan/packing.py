"""Packing of weights by a kernel, for packed forms that only move elements.

The order of the elements is found once, by packing the numbers of the elements. A packed weight consists of blocks
whose elements have the same distances from the first element in the weight, so that one table of distances serves many
blocks. Vectors of a block are written in the order in which the weight is read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sardonyx.base.recycled_arrays import RecycledArrays
from sardonyx.compiler.executor.thread_pool import Pool
from sardonyx.compiler.llvm.elf_loader import Code, MappedCode, loaded
from sardonyx.compiler.llvm.object_code import LoadedCode, compiled, module_text
from sardonyx.compiler.lower.launch import PackingKernel
from sardonyx.compiler.target.alignment import aligned_zeros
from sardonyx.compiler.target.description import Target

_EXACT = 1 << 24
"""Numbers below are exact in float32."""

_LEAST_BLOCK, _MOST_BLOCK = 64, 1 << 14
"""Elements of a block: smaller ones have many addresses, the tables of larger ones do not fit L2."""

_MOST_RUNS = 4
"""Runs of equal blocks in a packed weight; most have one, or another of smaller blocks at the end."""

_CHUNK = 1 << 14
"""Elements that a thread claims at a time."""


@dataclass(frozen=True)
class Run:
    """Adjacent blocks of a packed weight with the same order of elements.

    Distances count from the start of a block in the weight; vectors of a block are numbered in packed order, and listed
    in the order in which the weight is read.

    Attributes:
        first: Index of the first element.
        size: Elements of a block.
        starts: The element of the weight from which distances count, of each block, int64.
        squares: Vectors that are columns of contiguous rows, int32 [squares, 2 * lanes]: the numbers of the vectors,
            then the distances of the rows.
        copies: Contiguous vectors, int32 [copies, 2]: the number of the vector, and its distance.
        others: The numbers of all other vectors, int32.
        distances: The distance of each element of ``others``; -1 for a zero, int32 [others, lanes].
    """

    first: int
    size: int
    starts: np.ndarray
    squares: np.ndarray
    copies: np.ndarray
    others: np.ndarray
    distances: np.ndarray

    @classmethod
    def of(cls, first: int, starts: np.ndarray, distances: np.ndarray) -> Run:
        """Return a run by the distances of the elements of a block, int32 [vectors, lanes]."""
        lanes = distances.shape[1]
        reads = np.where(distances < 0, np.iinfo(np.int32).max, distances).min(axis=1)
        turns = np.argsort(reads, kind="stable")
        numbers = {row.tobytes(): number for number, row in enumerate(distances)}
        squares, copies, others, listed = list[list[int]](), list[tuple[int, int]](), list[int](), set[int]()
        for number in turns.tolist():
            row = distances[number]
            if number in listed:
                continue
            if row[0] >= 0 and (np.diff(row) == 1).all():
                copies.append((number, int(row[0])))
                continue
            # Later columns of a square are later in the order of reads, so that they are not listed yet.
            columns = [numbers.get((row + np.int32(step)).tobytes(), number) for step in range(1, lanes)]
            if (row >= 0).all() and len({number, *columns} - listed) == lanes:
                squares.append([number, *columns, *row.tolist()])
                listed.update(columns)
            else:
                others.append(number)
        return cls(
            first, distances.size, starts.astype(np.int64), np.array(squares, np.int32).reshape(-1, 2 * lanes),
            np.array(copies, np.int32).reshape(-1, 2), np.array(others, np.int32), distances[others],
        )  # fmt: skip


class _Tables(NamedTuple):
    """The tables of a run as a kernel reads them.

    Attributes:
        arrays: The tables.
        addresses: Their addresses, int64.
    """

    arrays: tuple[np.ndarray, ...]
    addresses: np.ndarray

    @classmethod
    def of(cls, run: Run) -> _Tables:
        parts = run.squares, run.copies, run.others
        numbers = np.array([run.size, run.first, *map(len, parts)], np.int64)
        arrays = run.starts, *parts, np.ascontiguousarray(run.distances), numbers
        return cls(arrays, np.array([array.ctypes.data for array in arrays], np.int64))


class Packing:
    """The order of elements of a packed weight.

    Args:
        shape: The shape of the packed weight.
        runs: All blocks.
        order: See the attribute.

    Attributes:
        order: The order of the weight's axes from which elements are read: that of memory, see
            :func:`in_memory_order`.
    """

    def __init__(self, shape: tuple[int, ...], runs: Sequence[Run], order: tuple[int, ...]) -> None:
        self.order = order
        self._runs = [(run, _Tables.of(run)) for run in runs]
        self._memory = RecycledArrays(lambda: aligned_zeros(shape, np.float32))

    @classmethod
    def of(cls, move: Callable[[np.ndarray], np.ndarray], source: np.ndarray, target: Target) -> Packing | None:
        """Return the packing of a weight; None if the weight is not float32, or has no equal blocks.

        Args:
            move: Returns elements of an array, and zeros, in another order.
            source: The weight; other weights are best in the same order of memory.
            target: The processor.
        """
        if source.dtype != np.float32 or not 0 < source.size < _EXACT:
            return None
        memory, order = in_memory_order(source)
        numbers = np.arange(1, source.size + 1, dtype=np.float32).reshape(memory.shape)
        packed = move(numbers.transpose(np.argsort(order)))
        if packed.dtype != np.float32:
            return None
        runs = _runs(packed.reshape(-1).astype(np.int32) - 1, target.lanes(32))
        return None if runs is None else cls(packed.shape, runs, order)

    def packed(self, source: np.ndarray, target: Target, pool: Pool, denormal: np.ndarray) -> np.ndarray:
        """Return the packed form of a weight.

        Args:
            source: The weight with its axes in the order of :attr:`order`, contiguous.
            target: The processor.
            pool: The threads.
            denormal: int32 [1]; set to 1 if the weight has a denormal number.
        """
        result = self._memory.lend()
        arguments, code = np.empty(9, np.int64), _code(target).address("pack")
        arguments[[0, 1, 8]] = [array.ctypes.data for array in (result, source, denormal)]
        for run, tables in self._runs:
            arguments[2:8] = tables.addresses
            pool.parallel(code, arguments.ctypes.data, len(run.starts), max(1, _CHUNK // run.size))
        return result


def in_memory_order(array: np.ndarray) -> tuple[np.ndarray, tuple[int, ...]]:
    """Return an array with its axes in the order of memory, contiguous, and this order of its axes.

    An array whose elements are not contiguous in any order of axes is copied in its own order.
    """
    own = tuple(range(array.ndim))
    if array.flags.c_contiguous:
        return array, own
    order = tuple(sorted(own, key=lambda axis: -array.strides[axis]))
    memory = array.transpose(order)
    return (memory, order) if memory.flags.c_contiguous else (np.ascontiguousarray(array), own)


class TransformedPacking:
    """The packed form of a weight that a kernel computes.

    Args:
        kernel: The kernel.
    """

    def __init__(self, kernel: PackingKernel, target: Target) -> None:
        self._kernel = kernel
        self._memory = RecycledArrays(functools.partial(aligned_zeros, kernel.shape(target), np.float32))

    def packed(self, source: np.ndarray, target: Target, pool: Pool, denormal: np.ndarray) -> np.ndarray:
        """Return the packed form of a weight; see :meth:`Packing.packed`."""
        result = self._memory.lend()
        arguments = np.array([array.ctypes.data for array in (result, source, denormal)], np.int64)
        address = _code_of(self._kernel, target).address("pack")
        pool.parallel(address, arguments.ctypes.data, self._kernel.items(target), 1)
        return result


def _runs(order: np.ndarray, lanes: int) -> list[Run] | None:
    """Return the blocks of an order of elements, as large as possible; None if too many blocks differ."""
    runs: list[Run] = []
    first = 0
    while first < order.size:
        run = _run(order, first, lanes) if len(runs) < _MOST_RUNS else None
        if run is None:
            return None
        runs.append(run)
        first += len(run.starts) * run.size
    return runs


def _run(order: np.ndarray, first: int, lanes: int) -> Run | None:
    """Return the blocks from an element on, at least half of all remaining elements; None if there are none."""
    rest = order[first:]
    largest = min(_MOST_BLOCK, rest.size) // lanes * lanes
    for size in range(largest, max(lanes, min(_LEAST_BLOCK, largest)) - 1, -lanes):
        blocks = rest[: rest.size // size * size].reshape(-1, size)
        if len(blocks) > 1 and not _has_second(blocks):
            continue
        is_zero = blocks[0] < 0
        if is_zero.all():
            continue
        start = blocks[0][~is_zero].min()
        distances = np.where(is_zero, -1, blocks[0] - start)
        one = int(np.argmin(np.where(is_zero, np.iinfo(np.int32).max, distances)))
        starts = blocks[:, one]
        same = _same(blocks, starts, distances)
        count = len(same) if same.all() else int(np.argmin(same))
        if 2 * count * size < rest.size:
            continue
        return Run.of(first, starts[:count], distances.astype(np.int32).reshape(-1, lanes))
    return None


def _has_second(blocks: np.ndarray) -> bool:
    """Return True if the second block is like the first, which decides most candidates."""
    away = blocks[1] - blocks[0]
    is_zero = blocks[0] < 0
    return bool((away == away[np.argmin(is_zero)])[~is_zero].all() and (blocks[1] < 0)[is_zero].all())


def _same(blocks: np.ndarray, starts: np.ndarray, distances: np.ndarray) -> np.ndarray:
    """Return which blocks have these starts and distances."""
    expected = np.where(distances < 0, -1, starts[: len(blocks), np.newaxis] + distances)
    return np.asarray((blocks == expected).all(axis=1) & (starts[: len(blocks)] >= 0))


@functools.lru_cache(maxsize=256)
def _code_of(packing: PackingKernel, target: Target) -> MappedCode | LoadedCode:
    from sardonyx.compiler.codegen.kernel_builder import Kernel

    kernel = Kernel(target)
    packing.emit(kernel, target)
    text = module_text(target, [kernel.definition("pack")], kernel.emitter.declarations)
    return loaded(Code([compiled(text, target)]), target)


@functools.cache
def _code(target: Target) -> MappedCode | LoadedCode:
    # Imported here: a program from the store packs only weights that change.
    from sardonyx.compiler.codegen.denormal_flags import DenormalFlag
    from sardonyx.compiler.codegen.kernel_builder import Kernel
    from sardonyx.compiler.kernels.gemm.packing import transpose_square

    kernel, lanes = Kernel(target), target.lanes(32)
    e = kernel.emitter
    packed, source, starts, squares, copies, others, distances, numbers, denormal = (
        kernel.buffer(shared=True) for _ in range(9)
    )
    ints, floats, mask = f"<{lanes} x i32>", f"<{lanes} x float>", f"<{lanes} x i1>"
    size, first, *counts = (e.load("i64", e.address(numbers, "i64", i), 8) for i in range(5))
    own = e.address(packed, "float", first)
    flag = DenormalFlag(e, lanes)
    gather = f"llvm.masked.gather.v{lanes}f32.v{lanes}p0"
    e.declarations[f"declare {floats} @{gather}(<{lanes} x ptr>, i32, {mask}, {floats})"] = None

    def number(table: str, index: str | int) -> str:
        return e.let(f"zext i32 {e.load('i32', e.address(table, 'i32', index), 4)} to i64")

    with e.loop("%first", "%last") as block:
        start = e.address(source, "float", e.load("i64", e.address(starts, "i64", block), 8))
        target_block = e.address(own, "float", e.mul(block, size))

        def put(vector: str, elements: str) -> None:
            e.store(floats, elements, e.address(target_block, "float", e.mul(vector, lanes)), 4)

        with e.loop(0, counts[0]) as i:
            entry = e.mul(i, 2 * lanes)
            offsets = [number(squares, e.add(entry, lanes + lane)) for lane in range(lanes)]
            rows = [e.load(floats, e.address(start, "float", offset), 4) for offset in offsets]
            for row in rows:
                flag.add(row)
            for step, column in enumerate(transpose_square(e, rows, "float")):
                put(number(squares, e.add(entry, step)), column)
        with e.loop(0, counts[1]) as i:
            entry = e.mul(i, 2)
            elements = e.load(floats, e.address(start, "float", number(copies, e.add(entry, 1))), 4)
            flag.add(elements)
            put(number(copies, entry), elements)
        with e.loop(0, counts[2]) as i:
            away = e.load(ints, e.address(distances, "i32", e.mul(i, lanes)), 4)
            is_element = e.let(f"icmp sge {ints} {away}, zeroinitializer")
            pointers = e.let(f"getelementptr float, ptr {start}, {ints} {away}")
            elements = e.let(
                f"call {floats} @{gather}(<{lanes} x ptr> {pointers}, i32 4, {mask} {is_element},"
                f" {floats} zeroinitializer)"
            )
            flag.add(elements)
            put(number(others, i), elements)
    flag.store(denormal)
    text = module_text(target, [kernel.definition("pack")], e.declarations)
    return loaded(Code([compiled(text, target)]), target)
