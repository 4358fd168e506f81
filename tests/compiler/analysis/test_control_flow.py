"""Control flow in native code equals the interpreter, and is in native code."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest
from tests.compiler.program_checks import assert_close, check, restored_copy
from tests.core.programs import computed

from sardonyx.compiler.call.fault import Fault
from sardonyx.compiler.program import Program
from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.run_context import RunContext
from sardonyx.core.eval.tensor import bind
from sardonyx.core.eval.trace import cond, trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import TensorType
from sardonyx.core.transform.simplify import simplify
from sardonyx.errors import ResourceError, ShapeError

N, M, K = map(Dim.symbol, "NMK")
FLOATS = TensorType(t.FLOAT, (N, M))
COUNT = TensorType(t.INT64, ())
FLAG = TensorType(t.BOOL, ())


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def test_a_recurrence_over_rows() -> None:
    def layer(x: L.Tensor, w: L.Tensor) -> list[L.Tensor]:
        def step(i: L.Tensor, h: L.Tensor) -> tuple[None, list[L.Tensor], list[L.Tensor]]:
            new = L.tanh(L.take(x, i, 0) + h * 0.5)
            return None, [new], [new, new * 2]

        (last,), (all_of, twice) = L.loop(L.size_tensor([N], ()), None, [L.full((M,), 0, t.FLOAT)], step)
        return [last, all_of, twice + w]

    function = trace("f", layer, [FLOATS, FLOATS])
    check(function, *[[normal(n, m), normal(n, m)] for n, m in ((5, 7), (1, 40), (0, 3), (8, 1))])


def test_products_in_a_recurrence() -> None:
    def layer(x: L.Tensor, w: L.Tensor, h: L.Tensor) -> list[L.Tensor]:
        def step(i: L.Tensor, h: L.Tensor, c: L.Tensor) -> tuple[None, list[L.Tensor], list[L.Tensor]]:
            gates = L.take(x, i, 0) + L.matmul(h, w)
            a, b = L.slice_(gates, -1, 0, M), L.slice_(gates, -1, M, 2 * M)
            c = L.sigmoid(a) * c + L.tanh(b)
            h = L.tanh(c)
            return None, [h, c], [h]

        (h, c), (rows,) = L.loop(L.size_tensor([K], ()), None, [h, h * 0], step)
        return [h, c, rows]

    types = [TensorType(t.FLOAT, shape) for shape in ((K, N, 2 * M), (M, 2 * M), (N, M))]
    sizes = ((4, 3, 5), (7, 1, 32), (1, 2, 16))
    check(trace("f", layer, types), *[[normal(k, n, 2 * m), normal(m, 2 * m), normal(n, m)] for k, n, m in sizes])


def test_a_loop_that_data_end() -> None:
    def grow(x: L.Tensor, most: L.Tensor, go: L.Tensor) -> list[L.Tensor]:
        def step(i: L.Tensor, x: L.Tensor, n: L.Tensor) -> tuple[L.Tensor, list[L.Tensor], list[L.Tensor]]:
            x = x * 2
            return L.reduce_max(x) < 100, [x, n + i], []

        return list(L.loop(most, go, [x, L.constant(3, t.INT64)], step)[0])

    function = trace("f", grow, [FLOATS, COUNT, FLAG])
    x = np.abs(normal(3, 4))
    calls = [[x, np.array(most), np.array(go)] for most in (0, 1, 2, 1000, -1) for go in (True, False)]
    check(function, *calls)


def test_what_a_loop_carries_may_change_places_or_stay() -> None:
    def swapping(x: L.Tensor, y: L.Tensor, most: L.Tensor) -> list[L.Tensor]:
        def step(i: L.Tensor, a: L.Tensor, b: L.Tensor, c: L.Tensor, d: L.Tensor):  # type: ignore[no-untyped-def]
            return None, [b, a, c, x], [a, c, a, d, y]

        # The count is open, so that nothing is collected whose length only a run tells.
        return list(L.loop(most, None, [x, y, x * y, y], lambda i, *s: (None, step(i, *s)[1], []))[0])

    function = trace("f", swapping, [FLOATS, FLOATS, COUNT])
    check(function, *[[normal(2, 3), normal(2, 3) + 1, np.array(most)] for most in range(4)])

    def collecting(x: L.Tensor, y: L.Tensor) -> list[L.Tensor]:
        def step(i: L.Tensor, a: L.Tensor, b: L.Tensor, c: L.Tensor):  # type: ignore[no-untyped-def]
            new = a + c
            return None, [b, new, c], [a, c, new, new, y, L.full((N, M), 2, t.FLOAT), L.take(x, i, 0)]

        state, rows = L.loop(L.size_tensor([N], ()), None, [x, y, x * y], step)
        return [*state, *rows]

    function = trace("f", collecting, [FLOATS, FLOATS])
    check(function, *[[normal(n, m), normal(n, m) + 1] for n, m in ((1, 3), (2, 17), (5, 2), (0, 2))])


def test_loops_in_loops() -> None:
    def outer(x: L.Tensor, y: L.Tensor) -> list[L.Tensor]:
        def step(i: L.Tensor, total: L.Tensor) -> tuple[None, list[L.Tensor], list[L.Tensor]]:
            def inner(j: L.Tensor, row: L.Tensor) -> tuple[None, list[L.Tensor], list[L.Tensor]]:
                new = L.sin(row) + L.take(L.take(y, i, 0), j, 0)
                return None, [new], [new + total]

            (last,), (rows,) = L.loop(L.size_tensor([M], ()), None, [L.take(x, i, 0)], inner)
            return None, [total + L.reduce_sum(rows, [0])], [rows, last]

        (total,), (rows, last) = L.loop(L.size_tensor([N], ()), None, [L.full((M,), 0, t.FLOAT)], step)
        return [total, rows, last]

    function = trace("f", outer, [FLOATS, FLOATS])
    check(function, *[[normal(n, m), normal(n, m) + 1] for n, m in ((1, 3), (4, 5), (3, 20))])


def test_choices() -> None:
    def choose(x: L.Tensor, y: L.Tensor) -> list[Value]:
        def first() -> list[Value]:
            return [L.tanh(x) * y, x, y]

        def second() -> list[Value]:
            again = cond(L.reduce_sum(y) < 0, lambda: [x + y], lambda: [x * 2])
            return [again[0], y, y]

        a, b, c = cond(L.reduce_sum(x) < 0, first, second)
        return [a, b, c + a]  # type: ignore[operator]

    function = trace("f", choose, [FLOATS, FLOATS])
    x, y = np.abs(normal(3, 4)), np.abs(normal(3, 4))
    check(function, *[[a * x, b * y] for a in (-1, 1) for b in (-1, 1)])


def test_a_choice_in_a_loop() -> None:
    def walk(x: L.Tensor) -> list[L.Tensor]:
        def step(i: L.Tensor, state: L.Tensor) -> tuple[None, list[L.Tensor], list[L.Tensor]]:
            row = L.take(x, i, 0)
            (new,) = cond(L.reduce_sum(row) < 0, lambda: [state - row], lambda: [state])
            return None, [new], [new]  # type: ignore[list-item]

        (last,), (rows,) = L.loop(L.size_tensor([N], ()), None, [L.full((M,), 1, t.FLOAT)], step)
        return [last, rows]

    check(trace("f", walk, [FLOATS]), [normal(9, 3)], [normal(2, 40)])


def test_a_loop_that_data_end_tells_how_long_it_was() -> None:
    def grow(x: L.Tensor, most: L.Tensor) -> list[L.Tensor]:
        def step(i: L.Tensor, x: L.Tensor) -> tuple[L.Tensor, list[L.Tensor], list[L.Tensor]]:
            return L.reduce_max(x) < 200, [x + 1], [x, L.reduce_sum(x)]

        (last,), (rows, sums) = L.loop(most, None, [L.exp(x)], step)
        return [last, rows, sums, L.reduce_sum(rows * 2, [0]), L.size_tensor([rows.shape[0]], ())]

    function = simplify(trace("f", grow, [FLOATS, COUNT]))
    program = Program.compile(function)
    assert not program.grouping.host
    for shape in ((3, 4), (1, 1), (40, 100)):
        for most in (0, 1, 5, 17, 400, (1 << 63) - 1, -3):
            arrays = [normal(*shape), np.array(most)]
            expected = computed(function, arrays)
            for _ in range(2):
                assert_close(program.run(arrays), expected)
    with pytest.raises(Fault):
        program.run([normal(2, 2), np.array(100)], RunContext(max_loop_iterations=99))


def test_a_loop_of_open_length_that_needs_more_room_begins_again() -> None:
    def count(x: L.Tensor) -> list[L.Tensor]:
        def step(i: L.Tensor, x: L.Tensor) -> tuple[L.Tensor, list[L.Tensor], list[L.Tensor]]:
            return x > 0, [x - 1], [L.broadcast_to(x, (4096,))]

        return list(L.loop(None, None, [x], step)[1])

    function = trace("f", count, [COUNT])
    program = Program.compile(function)
    for most in (0, 30, 31, 32, 200, 5):
        np.testing.assert_array_equal(program.run([np.array(most)])[0][:, 7], np.arange(most, -1, -1))
    with pytest.raises(Fault):
        program.run([np.array(1000)], RunContext(max_loop_iterations=500))
    with pytest.raises(ResourceError):
        program.run([np.array(10000)], RunContext(max_memory=16 << 20))


def test_the_body_of_a_loop_that_carries_more_and_more_is_compiled() -> None:
    def grow(x: L.Tensor, y: L.Tensor, most: L.Tensor) -> list[L.Tensor]:
        def step(i: L.Tensor, rows: L.Tensor) -> tuple[L.Tensor, list[L.Tensor], list[L.Tensor]]:
            more = L.concat([rows, L.tanh(y) + L.reduce_sum(rows, [0], keepdims=True)], 0)
            return L.reduce_max(more) < 1e4, [more], [L.reduce_sum(more)]

        (rows,), (sums,) = L.loop(most, None, [x], step)
        return [rows, sums, L.reduce_sum(rows * y, [1])]

    function = simplify(trace("f", grow, [FLOATS, TensorType(t.FLOAT, (1, M)), COUNT]))
    program = Program.compile(function)
    assert [value.op for value in program.host if value.op != "get"] == ["loop"]
    assert all(not body.host for body in itertools.chain(*program.bodies.values()))
    for n, m, most in ((2, 3, 4), (1, 1, 0), (2, 3, 4), (3, 20, 50)):
        arrays = [normal(n, m), normal(1, m), np.array(most)]
        assert_close(program.run(arrays), computed(function, arrays))


def test_choices_of_other_sizes_have_compiled_branches() -> None:
    def choose(x: L.Tensor, keep: L.Tensor, most: L.Tensor) -> list[L.Tensor]:
        def longer() -> list[L.Tensor]:
            return [L.tanh(L.concat([x, x * 2], 0)), L.reduce_sum(x, [1])]

        def otherwise() -> list[L.Tensor]:
            def step(i: L.Tensor, rows: L.Tensor) -> tuple[L.Tensor, list[L.Tensor], list[L.Tensor]]:
                return L.reduce_max(rows) < 1e4, [L.concat([rows, rows * 3], 0)], []

            (rows,), _ = L.loop(most, None, [L.exp(x)], step)
            return [rows, L.reduce_max(x, [1])]

        rows, sums = cond(keep, longer, otherwise)
        return [L.reduce_sum(rows, [0]), rows + 1, sums]

    function = simplify(trace("f", choose, [FLOATS, FLAG, COUNT]))
    program = Program.compile(function)
    assert [value.op for value in program.host if value.op != "get"] == ["cond"]
    then, otherwise = program.bodies[next(value for value in program.host if value.op == "cond")]
    assert not (then.host or otherwise.host)
    restored = restored_copy(program)
    for n, m, keep, most in ((3, 4, True, 1), (3, 4, False, 2), (1, 7, True, 0), (0, 2, False, 0), (20, 33, False, 3)):
        arrays = [normal(n, m), np.array(keep), np.array(most)]
        results = program.run(arrays)
        assert_close(results, computed(function, arrays))
        for again, expected in zip(restored.run(arrays), results, strict=True):
            np.testing.assert_array_equal(again, expected)


def test_sizes_read_from_data() -> None:
    def shaped(x: L.Tensor, shape: L.Tensor) -> list[L.Tensor]:
        return [L.reshape(x * 2, [bind(shape, (0,)), bind(shape, (1,))])]

    function = simplify(trace("f", shaped, [TensorType(t.FLOAT, (N,)), TensorType(t.INT64, (2,))]))
    program = Program.compile(function)
    for shape in ((2, 6), (3, 4), (12, 1), (2, 6)):
        arrays = [normal(12), np.array(shape)]
        assert_close(program.run(arrays), computed(function, arrays))
    with pytest.raises(ShapeError):
        program.run([normal(12), np.array([-3, -4])])


def test_a_fault_in_a_loop_ends_it() -> None:
    def walk(x: L.Tensor, start: L.Tensor) -> list[L.Tensor]:
        def step(i: L.Tensor, at: L.Tensor) -> tuple[L.Tensor, list[L.Tensor], list[L.Tensor]]:
            return L.take(x, at, 0) < 1e9, [at + 1], []

        return list(L.loop(None, None, [start], step)[0])

    function = simplify(trace("f", walk, [TensorType(t.FLOAT, (N,)), COUNT]))
    program = Program.compile(function)
    assert not program.grouping.host
    x = np.zeros(5, np.float32)
    with pytest.raises(Fault):
        program.run([x, np.array(0)])
    x[3] = np.inf
    assert_close(program.run([x, np.array(0)]), [np.array(4)])


def test_a_limit_on_iterations_is_a_fault() -> None:
    def count(most: L.Tensor) -> list[L.Tensor]:
        return list(L.loop(most, None, [most], lambda i, x: (None, [x + i], []))[0])

    program = Program.compile(simplify(trace("f", count, [COUNT])))
    assert_close(program.run([np.array(10)], RunContext(max_loop_iterations=10)), [np.array(55)])
    with pytest.raises(Fault):
        program.run([np.array(11)], RunContext(max_loop_iterations=10))
    assert_close(program.run([np.array(11)], RunContext()), [np.array(66)])


def endless(nested: bool) -> Program:
    """Counts to a number, in steps of one or of a loop of its own, unless it is ended."""

    def count(most: L.Tensor) -> list[L.Tensor]:
        def one(i: L.Tensor, x: L.Tensor) -> tuple[None, list[L.Tensor], list[L.Tensor]]:
            return None, [x + 1], []

        def many(i: L.Tensor, x: L.Tensor) -> tuple[None, list[L.Tensor], list[L.Tensor]]:
            return None, list(L.loop(most, None, [x], one)[0]), []

        return list(L.loop(most, None, [L.full((), 0, t.INT64)], many if nested else one)[0])

    program = Program.compile(simplify(trace("f", count, [COUNT])))
    assert not program.grouping.host
    return program


@pytest.mark.parametrize("nested", [False, True])
def test_a_loop_ends_when_its_time_is_over(nested: bool) -> None:
    program = endless(nested)
    expected = 36 if nested else 6
    assert program.run([np.array(6)], RunContext(timeout=1000)) == [expected]
    for _ in range(2):
        with pytest.raises(ResourceError, match=r"longer than 0\.1 s"):
            program.run([np.array(1 << 62)], RunContext(timeout=0.1))
        assert program.run([np.array(6)], RunContext(timeout=1000)) == [expected]
        assert program.run([np.array(6)]) == [expected]


def test_a_loop_ends_when_another_thread_says_so() -> None:
    program = endless(nested=True)
    run, other = RunContext(), RunContext()
    timer = threading.Timer(0.1, run.terminate)
    timer.start()
    with pytest.raises(ResourceError, match="terminated"):
        program.run([np.array(1 << 62)], run)
    timer.join()
    assert program.run([np.array(6)], other) == [36]
    with pytest.raises(ResourceError, match="terminated"):
        program.run([np.array(1 << 62)], run)
