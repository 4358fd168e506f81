"""Planning in native code: sizes as expressions say, buffers where they disturb nobody, words where they belong."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.random_cases import cases

from sardonyx.compiler.call.call_context import Context, Linked
from sardonyx.compiler.executor.size_program import SizeTable
from sardonyx.compiler.executor.tape_planner import BUFFER_WORDS, ELEMENT_WORDS, LAYOUT_WORDS, WORD_WORDS
from sardonyx.compiler.executor.tape_player import player
from sardonyx.compiler.plan.tape import Plan
from sardonyx.compiler.target.alignment import ALIGNMENT
from sardonyx.compiler.target.description import host
from sardonyx.core.dim import Dim, Size, broadcast, dim_max, dim_min, floor_div
from sardonyx.errors import ShapeError, SizeLimitError, UnsupportedError

N, M = Dim.symbol("N"), Dim.symbol("M")


def rows(values: Sequence[Sequence[int]], words: int) -> np.ndarray:
    return np.array(values, np.int64).reshape(-1, words)


def context(
    table: SizeTable, buffers: Any = (), layouts: Any = (), words: int = 2, **more: Sequence[Sequence[int]]
) -> Context:
    """A context of a plan that has no kernels: a fault flag, a limit, and what is given."""
    plan = Plan(
        words=np.zeros(words, np.int64), kernels=0, instructions=table.rows(), start=table.start(),
        symbols=table.symbols, dims=list(table.dims), buffers=rows(buffers, BUFFER_WORDS),
        layouts=rows(layouts, LAYOUT_WORDS), size_words=rows(more.get("sizes", ()), WORD_WORDS),
        arena_words=rows(more.get("inside", ()), WORD_WORDS), elements=rows(more.get("elements", ()), ELEMENT_WORDS),
        tape_words=rows((), WORD_WORDS), links=[], value_words=(np.zeros(0, np.int64), []), makes=[], shapes={},
        size_tensors={}, count=None, fault=0, limit=1,
    )  # fmt: skip
    return Context(Linked(plan, player(host()), 0, {}, {}))


# Sizes.


def combined(draw: st.DrawFn, sizes: Sequence[Size]) -> Size:
    a, b = (draw(st.sampled_from(sizes)) for _ in range(2))
    match draw(st.sampled_from(["+", "-", "*", "//", "min", "max"])):
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "//":
            return floor_div(a, b) if b != 0 else a
        case "min":
            return dim_min(a, b)
    return dim_max(a, b)


@st.composite
def expressions(draw: st.DrawFn) -> list[Size]:
    sizes: list[Size] = [N, M, *draw(st.lists(st.integers(-9, 9), min_size=1, max_size=4))]
    for _ in range(draw(st.integers(1, 12))):
        try:
            sizes.append(combined(draw, sizes))
        except ShapeError:  # It passes the limits on expressions.
            continue
    return sizes


@settings(deadline=None, max_examples=cases(200))
@given(sizes=expressions(), n=st.integers(0, 1000), m=st.integers(0, 1000))
def test_registers_are_what_expressions_evaluate_to(sizes: list[Size], n: int, m: int) -> None:
    table = SizeTable()
    registers = [table.register(size) for size in sizes]
    planned = context(table)
    values = {"N": n, "M": m}
    try:
        expected = [size.evaluate(values) if isinstance(size, Dim) else size for size in sizes]
    except ShapeError as error:
        with pytest.raises(ShapeError, match="divided by 0"):
            planned.prepare(values)
        assert "divided by 0" in str(error)
        return
    if max(map(abs, expected)) < 1 << 40:  # Sums in between may be longer.
        planned.prepare(values)
        assert [planned.registers[register] for register in registers] == expected


def test_equal_parts_are_computed_once() -> None:
    table = SizeTable()
    first = table.register((N + 1) // 2 * 3)
    known = len(table.rows())
    assert table.register((N + 1) // 2 * 3) == first
    table.register((N + 1) // 2)
    assert len(table.rows()) == known


def test_constants_are_computed_before() -> None:
    table = SizeTable()
    assert table.number(table.round_up(table.product([table.register(3), table.register(7)]), 8)) == 24


def test_sizes_that_do_not_broadcast_are_refused_and_others_go_on() -> None:
    table = SizeTable()
    wide = table.register(broadcast(N, M))
    planned = context(table)
    for n, m, expected in ((3, 1, 3), (1, 5, 5), (4, 4, 4), (0, 1, 0), (1, 1, 1)):
        planned.prepare({"N": n, "M": m})
        assert planned.registers[wide] == expected
        with pytest.raises(ShapeError, match="do not broadcast"):
            planned.prepare({"N": 2, "M": 3})


def test_numbers_of_more_than_64_bits_are_refused() -> None:
    table = SizeTable()
    table.register(N * N * N)
    planned = context(table)
    planned.prepare({"N": 1 << 20})
    with pytest.raises(SizeLimitError, match="64 bits"):
        planned.prepare({"N": 1 << 22})
    with pytest.raises(UnsupportedError, match="64 bits"):
        table.register(N * (1 << 64))


# Places.


def placed(lifetimes: Sequence[tuple[int, int, int]]) -> tuple[list[int], int]:
    """Where buffers of so many bytes, alive from a step to a step, go by the rule, and the bytes of all."""
    offsets = [0] * len(lifetimes)
    done: list[tuple[int, int, int, int]] = []
    total = 0
    for number in sorted(range(len(lifetimes)), key=lambda i: -lifetimes[i][0]):
        size, first, last = lifetimes[number]
        size, at = -(-size // ALIGNMENT) * ALIGNMENT, 0
        for start, end, born, dies in sorted(done):
            if born <= last and first <= dies:
                if at + size <= start:
                    break
                at = max(at, end)
        offsets[number] = at
        total = max(total, at + size)
        done.append((at, at + size, first, last))
    return offsets, total


lifetimes = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 20), st.integers(0, 6)).map(lambda x: (x[0], x[1], x[1] + x[2])),
    max_size=40,
)


@settings(deadline=None)
@given(inner=lifetimes, outer=lifetimes, scales=st.lists(st.integers(0, 5), min_size=1, max_size=3))
def test_buffers_are_placed_largest_first_in_the_lowest_gap(
    inner: list[tuple[int, int, int]], outer: list[tuple[int, int, int]], scales: list[int]
) -> None:
    """One layout lies in a buffer of the other, and some buffers grow with a size."""
    table = SizeTable()

    def registers(spans: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        return [(table.register(size * N if size % 2 else size), first, last) for size, first, last in spans]

    bytes_, total = table.reserve(), table.reserve()
    buffers = [*registers(inner), (bytes_, 3, 5), *registers(outer)]
    layouts = [[0, len(inner), bytes_, len(inner)], [len(inner), len(buffers), total, 0]]
    planned = context(table, buffers, layouts)
    for scale in scales:
        planned.prepare({"N": scale} if "N" in table.symbols else {})
        mine, theirs = ([(s * scale if s % 2 else s, f, last) for s, f, last in spans] for spans in (inner, outer))
        inside, size = placed(mine)
        outside, whole = placed([(size, 3, 5), *theirs])
        assert planned.offsets.tolist() == [*(at + outside[0] for at in inside), *outside]
        assert planned.registers[total] == whole


def test_the_arena_grows_and_stays() -> None:
    table = SizeTable()
    planned = context(table, [(table.register(1000 * N), 0, 0)], [[0, 1, table.reserve(), 0]], inside=[(1, 0)])
    planned.prepare({"N": 10})
    first = planned.buffer_address(0)
    assert first % ALIGNMENT == 0
    planned.prepare({"N": 3})
    assert planned.buffer_address(0) == first
    planned.prepare({"N": 1000})
    ctypes.memset(planned.buffer_address(0), 1, 1_000_000)
    assert planned.tape[1] == planned.buffer_address(0)


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_tensors_of_sizes_are_written_to_the_tape(width: int) -> None:
    table = SizeTable()
    sizes = [N, 7, N - 40, M * 2]
    elements = [(16 + width * i, width, table.register(size)) for i, size in enumerate(sizes)]
    planned = context(table, words=2 + 4, elements=elements)
    for n, m in ((3, 4), (50, 9)):
        planned.prepare({"N": n, "M": m})
        written = planned.tape[2:].view(f"i{width}")[: len(sizes)]
        assert written.tolist() == [n, 7, n - 40, 2 * m]
