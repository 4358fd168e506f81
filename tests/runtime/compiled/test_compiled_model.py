"""Sessions on compiled code: equal to numpy, from any thread; where there is no kernel or no result, numpy is asked."""

from __future__ import annotations

import pickle
import sys
import threading

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx.core.eval.run_context import RunContext
from sardonyx.errors import ExecutionError, FeedError, OptionError, ShapeError
from sardonyx.runtime.compiled.compiled_model import NativeModel

NET = onnx.parser.parse_model(
    """<ir_version: 9, opset_import: ["": 18]>
    net (float[N, 8] x) => (float[N, 4] y) {
        h = MatMul(x, w)
        s = Add(h, b)
        y = Softmax(s)
    }"""
)
RNG = np.random.default_rng(0)
NET.graph.initializer.extend(
    onnx.numpy_helper.from_array(RNG.standard_normal(shape).astype(np.float32), name)
    for name, shape in (("w", (8, 4)), ("b", (4,)))
)


def on(provider: str, model: onnx.ModelProto = NET) -> sardonyx.Session:
    return sardonyx.Session(model, providers=[provider, "reference"], compile="wait")


def rows(count: int) -> np.ndarray:
    return RNG.standard_normal((count, 8)).astype(np.float32)


@pytest.mark.parametrize("count", [1, 5, 100])
def test_compiled_equals_numpy(count: int) -> None:
    x = rows(count)
    native = on("native")
    assert native.program is not None
    np.testing.assert_allclose(native.run(None, {"x": x})[0], on("reference").run(None, {"x": x})[0], rtol=1e-5)


def test_other_memory_orders_are_taken() -> None:
    x = np.asfortranarray(rows(6))
    np.testing.assert_array_equal(on("native").run(None, {"x": x})[0], on("native").run(None, {"x": x.copy("C")})[0])


def test_values_inside_are_given_by_numpy() -> None:
    x = rows(3)
    (h,) = on("native").run(["h"], {"x": x})
    assert h.shape == (3, 4)


def test_wrong_feeds_are_refused_as_by_numpy() -> None:
    session = on("native")
    with pytest.raises(FeedError, match="not fed"):
        session.run(None, {})
    with pytest.raises(FeedError, match="no such input"):
        session.run(None, {"z": rows(1)})
    with pytest.raises(FeedError, match="double"):
        session.run(None, {"x": rows(1).astype(np.float64)})
    with pytest.raises(ShapeError, match="axis 1 has size 7"):
        session.run(None, {"x": rows(1)[:, :7]})


def test_a_branch_whose_shapes_do_not_fit_is_refused_when_it_is_taken() -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 13]>
        g (bool c, float[5] x) => (float[N] y) {
            y = If (c) <
                then_branch = t () => (float[A] a) {
                    s = Constant <value = int64[3] {2, 2, 2}> ()
                    a, b, d = Split (x, s)
                },
                else_branch = e () => (float[5] f) { f = Identity (x) }>
        }""")
    x = np.arange(5, dtype=np.float32)
    session = sardonyx.Session(model, compile="wait")
    np.testing.assert_array_equal(session.run(None, {"c": np.array(False), "x": x})[0], x)
    with pytest.raises(ShapeError, match="cannot be split"):
        session.run(None, {"c": np.array(True), "x": x})


def test_an_index_out_of_range_is_refused_as_by_numpy() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> g (float[N] x, int64[M] i) => (float[M] y) { y = Gather(x, i) }'
    )
    session = on("native", model)
    assert session.program is not None
    feeds = {"x": np.arange(4, dtype=np.float32), "i": np.array([1, -1])}
    assert session.run(None, feeds)[0].tolist() == [1, 3]
    with pytest.raises(ExecutionError):
        session.run(None, {**feeds, "i": np.array([4])})


def test_a_session_answers_before_it_is_compiled() -> None:
    session = sardonyx.Session(NET, compile="background")
    x = rows(2)
    first = session.run(None, {"x": x})[0]
    assert session.wait()
    np.testing.assert_allclose(session.run(None, {"x": x})[0], first, rtol=1e-5)


def test_calls_from_many_threads_at_once() -> None:
    session = on("native")
    feeds = [rows(count) for count in range(1, 9)]
    expected = [session.run(None, {"x": x})[0] for x in feeds]
    wrong: list[int] = []

    def call(number: int) -> None:
        for _ in range(200):
            if not np.array_equal(session.run(None, {"x": feeds[number]})[0], expected[number]):
                wrong.append(number)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(len(feeds))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_results_are_the_callers() -> None:
    session = on("native")
    (first,) = session.run(None, {"x": rows(2)})
    stored = first.copy()
    session.run(None, {"x": rows(2)})
    np.testing.assert_array_equal(first, stored)


def test_what_host_functions_hold_on_to_is_the_callers() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 18]>
        listed (float[N] x) => (seq(float[N]) s) {
            y = Add(x, x)
            s = SequenceConstruct(y, x)
        }"""
    )
    session = on("native", model)
    x = np.arange(3, dtype=np.float32)
    (first,) = session.run(None, {"x": x})
    session.run(None, {"x": x + 5})
    assert [item.tolist() for item in first] == [[0, 2, 4], [0, 1, 2]]
    for count in (3, 3, 1, 0, 4):
        x = np.arange(count, dtype=np.float32)
        (actual,) = session.run(None, {"x": x})
        assert [item.tolist() for item in actual] == [(x + x).tolist(), x.tolist()]
    assert session.native is not None
    assert session.native.call is not None
    with pytest.raises(FeedError):
        session.run(None, {"x": np.arange(3)})


def test_arrays_that_were_pickled_are_called_with_as_others_are() -> None:
    session = on("native")
    x = rows(2)
    for _ in range(2):
        expected = session.run(None, {"x": x})
    assert session.native is not None and session.native.call is not None
    sent = pickle.loads(pickle.dumps(x))
    assert sent.dtype is not x.dtype
    actual = session.native.call({"x": sent})
    assert actual is not None
    np.testing.assert_array_equal(actual[0], expected[0])
    for other in (x.astype(np.float64), x.view(np.int32), x.view(x.dtype.newbyteorder())):
        assert session.native.call({"x": other}) is None


def test_there_are_three_times_to_compile() -> None:
    assert sardonyx.Session(NET, compile="off").program is None
    with pytest.raises(OptionError, match="background"):
        sardonyx.Session(NET, compile="now")  # type: ignore[arg-type]


def fixed(model: onnx.ModelProto = NET, rows: int = 3) -> onnx.ModelProto:
    created = onnx.ModelProto()
    created.CopyFrom(model)
    for value in (*created.graph.input, *created.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = rows
    return created


def test_calls_of_fixed_sizes_check_what_they_are_given() -> None:
    session, plain = on("native", fixed()), on("reference", fixed())
    x = rows(3)
    for _ in range(3):
        np.testing.assert_allclose(session.run(None, {"x": x})[0], plain.run(None, {"x": x})[0], rtol=1e-5)
    wide = np.asfortranarray(rows(3))
    np.testing.assert_allclose(session.run(None, {"x": wide})[0], plain.run(None, {"x": wide})[0], rtol=1e-5)
    with pytest.raises(FeedError, match="double"):
        session.run(None, {"x": x.astype(np.float64)})
    with pytest.raises(ShapeError):
        session.run(None, {"x": rows(4)})
    with pytest.raises(FeedError, match="no such input"):
        session.run(None, {"y": x})
    with pytest.raises(FeedError):
        session.run(None, {"x": [[1.0]]})
    np.testing.assert_allclose(session.run(None, {"x": x})[0], plain.run(None, {"x": x})[0], rtol=1e-5)


def test_calls_of_fixed_sizes_leave_no_memory_behind() -> None:
    session = on("native", fixed())
    x = rows(3)
    feeds = {"x": x}
    session.run(None, feeds)
    before = sys.getrefcount(x), sys.getrefcount(None)
    stored = [session.run(None, feeds)[0] for _ in range(100)]
    assert len({array.ctypes.data for array in stored}) == 100
    assert sys.getrefcount(x) == before[0]
    assert abs(sys.getrefcount(None) - before[1]) < 50
    assert all(sys.getrefcount(array) == 3 for array in stored)  # the list, the loop variable, the argument


@pytest.mark.parametrize("provider", ["native", "reference"])
def test_bound_arrays_are_read_and_written_in_place(provider: str) -> None:
    session = on(provider, fixed())
    x, y = rows(3), np.empty((3, 4), np.float32)
    binding = session.bind({"x": x}, {"y": y})
    for _ in range(3):
        x[...] = rows(3)
        binding()
        assert binding.outputs["y"] is y
        np.testing.assert_allclose(y, on("reference").run(None, {"x": x})[0], rtol=1e-5)


def test_only_arrays_in_one_piece_are_bound() -> None:
    with pytest.raises(FeedError, match="contiguous"):
        on("native", fixed()).bind({"x": np.asfortranarray(rows(3))})
    with pytest.raises(FeedError, match=r"expected an array float32\[3, 4\]"):
        on("native", fixed()).bind({"x": rows(3)}, {"y": np.empty((2, 4), np.float32)})


def test_constant_and_repeated_results_are_copies_of_the_generated_call() -> None:
    text = """<ir_version: 9, opset_import: ["": 18]> net (float[4] x) => (y, c, z) <float[2] w = {1, 2}>
        { y = Exp (x)  c = Neg (w)  z = Exp (x) }"""
    session = sardonyx.Session(onnx.parser.parse_model(text), compile="wait")
    feeds = {"x": np.ones(4, np.float32)}
    for _ in range(4):
        results = session.run(None, feeds)
        np.testing.assert_allclose(results[0], np.exp(feeds["x"]), rtol=1e-6)
        np.testing.assert_array_equal(results[1], [-1, -2])
        np.testing.assert_array_equal(results[2], results[0])
        for result in results:
            result[:] = 0
    native = NativeModel.compiled(sardonyx.load(onnx.parser.parse_model(text)))
    for _ in range(3):
        native.run(None, feeds, RunContext())
    assert native.call is not None
