"""What answers while a model is compiled: ONNX Runtime where nobody could tell but by rounding, else numpy."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx.base.thread_priority import FirstCall
from sardonyx.compiler.target.description import NAMED
from sardonyx.core.eval.tensor import Tensor
from sardonyx.errors import FeedError, OptionError, ResourceError, ShapeError
from sardonyx.model import load
from sardonyx.ops.registry import operator, remove
from sardonyx.runtime.compiled import program_cache
from sardonyx.runtime.providers.onnxruntime import OnnxRuntimeRunner
from sardonyx.runtime.providers.onnxruntime_library import LibraryRunner, library
from sardonyx.runtime.warmup import ort_equivalence, warmup_engine
from sardonyx.runtime.warmup.ort_equivalence import meaning, watching
from sardonyx.runtime.warmup.warmup_cost import Work, work

pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed (extra: onnxruntime)")

TEXT = """<ir_version: 9, opset_import: ["": 18]>
    net (float[N, 8] x) => (float[N, 4] y) {
        h = MatMul(x, w)
        s = Relu(h)
        y = Softmax(s)
    }"""
X = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)
ENGINES = {"onnxruntime"}, {"reference"}, {"native"}
INTERIM, NUMPY, NATIVE = ENGINES


def net() -> onnx.ModelProto:
    model = onnx.parser.parse_model(TEXT)
    weights = np.random.default_rng(1).standard_normal((8, 4)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return model


def answer(weights: np.ndarray | None = None, x: np.ndarray = X) -> np.ndarray:
    w = onnx.numpy_helper.to_array(net().graph.initializer[0]) if weights is None else weights
    s = np.maximum(x @ w, 0)
    e = np.exp(s - s.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SARDONYX_COMPILE", "background")
    return tmp_path


@pytest.fixture(params=["package", "library"])
def compiling(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Compiling goes on until this is set; ONNX Runtime is worth loading for every model.

    Its package is imported, or is not, and there is its library: what is told of its answers holds for both.
    """
    if request.param == "library":
        if library() is None:
            pytest.skip("this package of ONNX Runtime holds no library for C")
        monkeypatch.delitem(sys.modules, "onnxruntime")
    over = threading.Event()
    monkeypatch.setattr(FirstCall, "wait", lambda _: over.wait(60))
    monkeypatch.setattr(Work, "is_worth_loading", True)
    yield over
    over.set()
    for thread in threading.enumerate():  # What goes on would be counted by other tests.
        if thread.name == "sardonyx-compile":
            thread.join(60)


def engines(session: sardonyx.Session) -> set[str]:
    return {each.provider for each in session.placement if each.part >= 0}


def close(found: Any, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", ["path", "bytes", "proto", "model"])
def test_onnxruntime_answers_until_compiled_code_does(folder: Path, compiling: threading.Event, form: str) -> None:
    path = folder / "net.onnx"
    onnx.save(net(), path)
    given = {"path": path, "bytes": path.read_bytes(), "proto": net(), "model": load(path)}[form]
    session = sardonyx.Session(given)
    close(session.run(None, {"x": X})[0], answer())
    assert engines(session) == INTERIM
    close(session.run(["y"], {"x": X[:2]})[0], answer(x=X[:2]))
    compiling.set()
    assert session.wait()
    assert engines(session) == NATIVE
    close(session.run(None, {"x": X})[0], answer())


def test_it_is_loaded_while_the_session_is_made(compiling: threading.Event) -> None:
    session = sardonyx.Session(net())
    assert session._live.version._interim is not None
    assert session._live.version._interim._loading is not None
    session._live.version._interim._loading.result(60)
    assert engines(session) == INTERIM


@pytest.mark.parametrize("reason", ["one processor", "heavy weights"])
def test_it_waits_for_a_call_where_it_would_hold_others_up(
    compiling: threading.Event, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    if reason == "one processor":
        monkeypatch.setattr(warmup_engine, "thread_count", lambda _: 1)
    else:
        monkeypatch.setattr(warmup_engine, "_AT_ONCE_BYTES", 0)
    session = sardonyx.Session(net())
    assert session._live.version._interim is not None
    assert session._live.version._interim._loading is None
    close(session.run(None, {"x": X})[0], answer())
    assert engines(session) == INTERIM


def test_what_should_not_happen_while_it_is_loaded_is_raised_by_the_call(
    compiling: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    for runner in (OnnxRuntimeRunner, LibraryRunner):
        monkeypatch.setattr(runner, "__init__", broken)
    session = sardonyx.Session(net())
    with pytest.raises(ZeroDivisionError):
        session.run(None, {"x": X})
    compiling.set()
    assert session.wait()
    close(session.run(None, {"x": X})[0], answer())


def test_first_answers_need_no_import_of_the_package(folder: Path) -> None:
    if library() is None:
        pytest.skip("this package of ONNX Runtime holds no library for C")
    onnx.save(net(), folder / "net.onnx")
    np.save(folder / "x.npy", X)
    code = """import sys, numpy as np, sardonyx
from sardonyx.base import thread_priority as priority
from sardonyx.runtime.warmup import warmup_cost as worth, warmup_engine as interim
worth.Work.is_worth_loading, interim._LIKELY_BYTES = True, 0
priority.FirstCall.wait = lambda _: threading.Event().wait(60)
import threading
session = sardonyx.Session(sys.argv[1])
np.save(sys.argv[3], session.run(None, {"x": np.load(sys.argv[2])})[0])
print({each.provider for each in session.placement}, "onnxruntime" in sys.modules)
"""
    command = [sys.executable, "-c", code, *(folder / name for name in ("net.onnx", "x.npy", "y.npy"))]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert found.stdout.split() == ["{'onnxruntime'}", "False"]
    close(np.load(folder / "y.npy"), answer())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
@pytest.mark.parametrize("engine", ["package", "library"])
def test_forked_processes_do_without_what_was_loaded(folder: Path, engine: str) -> None:
    """Threads of what the parent loaded are not in the child: a call would wait for them for ever."""
    onnx.save(net(), folder / "net.onnx")
    code = f"""import os, sys, threading, numpy as np, sardonyx
from sardonyx.base import thread_priority as priority
from sardonyx.runtime.warmup import warmup_cost as worth, warmup_engine as interim
if {engine == "package"}:
    import onnxruntime
worth.Work.is_worth_loading, interim._LIKELY_BYTES = True, 0
priority.FirstCall.wait = lambda _: threading.Event().wait(60)
x = np.ones((5, 8), np.float32)
def engines(session):
    session.run(None, {{"x": x}})
    return {{each.provider for each in session.placement}}
session = sardonyx.Session(sys.argv[1])
print(engines(session), flush=True)
child = os.fork()
if not child:
    print(engines(session), engines(sardonyx.Session(sys.argv[1])), flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(engines(session), flush=True)
os._exit(0)
"""
    command = [sys.executable, "-c", code, folder / "net.onnx"]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    before, forked, new, after = found.stdout.split()
    assert before == after == "{'onnxruntime'}"
    assert forked == "{'reference'}"
    assert new == "{'onnxruntime'}"


def test_what_it_holds_is_freed_when_compiled_code_is_ready(
    compiling: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed = threading.Event()
    for runner in (OnnxRuntimeRunner, LibraryRunner):
        monkeypatch.setattr(runner, "__del__", lambda _: freed.set(), raising=False)
    session = sardonyx.Session(net())
    session.run(None, {"x": X})
    assert not freed.is_set()
    compiling.set()
    session.wait()
    assert freed.wait(10)


@pytest.mark.parametrize(
    "options",
    [
        {"interim": "reference"}, {"providers": ["native"]}, {"providers": ["native", "reference"]},
        {"deterministic": True}, {"max_memory": 1 << 30}, {"max_loop_iterations": 10},
    ],
    ids=lambda options: next(iter(options)),
)  # fmt: skip
def test_options_that_leave_it_to_numpy(compiling: threading.Event, options: dict[str, Any]) -> None:
    session = sardonyx.Session(net(), **options)
    close(session.run(None, {"x": X})[0], answer())
    assert engines(session) == NUMPY


def test_named_providers_and_it(compiling: threading.Event) -> None:
    session = sardonyx.Session(net(), providers=["native"], interim="onnxruntime")
    session.run(None, {"x": X})
    assert engines(session) == INTERIM
    with pytest.raises(OptionError, match="interim"):
        sardonyx.Session(net(), interim="openvino")  # type: ignore[arg-type]


def test_no_package(compiling: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmup_engine, "_is_installed", lambda: False)
    session = sardonyx.Session(net())
    close(session.run(None, {"x": X})[0], answer())
    assert engines(session) == NUMPY


def test_operators_of_users_are_ours_alone(compiling: threading.Event) -> None:
    """One may stand in place of a standard one, so that wherever there are any nobody else is asked."""

    @operator("Doubled", domain="test.interim", since=1)
    def doubled(x: Tensor) -> Tensor:
        return x + x

    try:
        session = sardonyx.Session(net())
        session.run(None, {"x": X})
        assert engines(session) == NUMPY
    finally:
        remove("Doubled", domain="test.interim")


def test_calls_that_are_not_plain_are_numpys(compiling: threading.Event) -> None:
    session = sardonyx.Session(net())
    session.run(None, {"x": X})
    assert engines(session) == INTERIM
    hidden, result = session.run(["s", "y"], {"x": X})
    assert hidden.min() == 0
    close(result, answer())
    close(session.run(None, {"x": sardonyx.runtime.Value(X)})[0], answer())
    close(session.run(None, {"x": np.asfortranarray(X)})[0], answer())
    assert session.run(None, {"x": X[:0]})[0].shape == (0, 4)


@pytest.mark.parametrize(
    ("feeds", "error"),
    [
        ({}, FeedError), ({"x": X, "z": X}, FeedError), ({"x": X.astype(np.int32)}, FeedError),
        ({"x": X[0]}, FeedError), ({"x": X[:, :3]}, ShapeError),
    ],
)  # fmt: skip
def test_bad_inputs_are_refused_in_the_same_words(
    compiling: threading.Event, feeds: dict[str, Any], error: type[Exception]
) -> None:
    told = []
    for name in ("onnxruntime", "reference"):
        session = sardonyx.Session(net(), interim=name)  # type: ignore[arg-type]
        session.run(None, {"x": X})
        with pytest.raises(error) as found:
            session.run(None, feeds)
        told.append(str(found.value))
    assert told[0] == told[1]


def test_what_it_fails_on_numpy_computes(compiling: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """<ir_version: 9, opset_import: ["": 18]> net (float[3] x, int64[1] i) => (float[1] y) {
        y = Gather(x, i)
    }"""
    session = sardonyx.Session(onnx.parser.parse_model(text))
    x = np.arange(3, dtype=np.float32)
    assert session.run(None, {"x": x, "i": np.array([-1])})[0] == [2]
    assert engines(session) == INTERIM
    with pytest.raises(sardonyx.SardonyxError, match="Gather"):
        session.run(None, {"x": x, "i": np.array([3])})


def test_a_run_can_be_ended(compiling: threading.Event) -> None:
    text = """<ir_version: 9, opset_import: ["": 18]> net (int64 n, float[4] x) => (float[4] y) {
        t = Constant<value = bool {1}>()
        y = Loop(n, t, x) <body = body (int64 i, bool go, float[4] a) => (bool more, float[4] b) {
            more = Identity(go)  b = Tanh(a)
        }>
    }"""
    session = sardonyx.Session(onnx.parser.parse_model(text))
    x = np.ones(4, np.float32)
    session.run(None, {"n": np.array(1), "x": x})
    assert engines(session) == INTERIM
    with pytest.raises(ResourceError, match="longer than"):
        session.run(None, {"n": np.array(1 << 40), "x": x}, sardonyx.RunOptions(timeout=0.05))


def test_edits_meanwhile(compiling: threading.Event) -> None:
    session = sardonyx.Session(net())
    session.run(None, {"x": X})
    weights = np.random.default_rng(2).standard_normal((8, 4)).astype(np.float32)
    session.set_weight("w", weights)
    close(session.run(None, {"x": X})[0], answer(weights))
    with session.edit() as g:
        g.add_output("s")
    assert len(session.run(None, {"x": X})) == 2
    compiling.set()
    assert session.wait()
    close(session.run(None, {"x": X})[0], answer(weights))


def test_a_binding_answers_meanwhile(compiling: threading.Event) -> None:
    binding = sardonyx.Session(net()).bind({"x": X.copy()})
    binding()
    close(binding.outputs["y"], answer())


# Meaning.

SAME = [
    "y = Slice(x, i, o, i, m)",
    "y = Slice(x, i, e, i, o)",
    "q = SplitToSequence<axis = 0>(x) y = SequenceAt(q, i)",
    'y = Resize<coordinate_transformation_mode = "align_corners">(x, , , o)',
    "y = Relu(x)",
    "y = Clip(x, l, l)",
    "y = MaxPool<kernel_shape = [1]>(x)",
    "y = ReduceMax(x)",
    'y = Resize<coordinate_transformation_mode = "align_corners">(x, , s)',
    "n = NonZero(x) z = Cast<to = 1>(n) y = Add(z, l)",
]
OTHER = [
    "y = Sign(x)", "y = Clip(x, l)", "y = Clip(x, , l)", "y = RandomNormalLike(x)", "y = Dropout(x, l, t)",
    "y, mask = Dropout(x)", "y = Slice(x, i, e, i, m)", "s2 = Add(i, m) y = Slice(x, i, e, i, s2)", "y = Sign(x)",
    'y = MaxPool<kernel_shape = [2], auto_pad = "SAME_UPPER">(x)', "z = Cast<to = 11>(x) y = Cast<to = 1>(z)",
    'y = Resize<coordinate_transformation_mode = "align_corners">(x, , h)', "y = other.Relu(x)",
    "n = NonZero(x) z = Cast<to = 1>(n) y = ReduceSum(z)", "y = If(t) <"
    "then_branch = a () => (float[N] p) { n = NonZero(x) p = Cast<to = 1>(n) }, else_branch = b () => (float[N] q) {"
    " q = Identity(l) }>", "n = NonZero(x) z = Cast<to = 1>(n) y = If(t) <then_branch = a () => (float[N] p)"
    " { p = Add(z, l) }, else_branch = b () => (float[N] q) { q = Identity(l) }>", "y = If(t) <"
    "then_branch = a () => (float[N] p) { p = ReduceMax(x) }, else_branch = b () => (float[N] q) {"
    " q = Identity(l) }>", "c = Constant<value = double {1}>() y = Relu(x)",
    "q = SplitToSequence<axis = 0, keepdims = 0>(x, o) y = SequenceAt(q, i)",
]  # fmt: skip


def model_of(nodes: str) -> Any:
    text = f"""<ir_version: 9, opset_import: ["": 18, "other": 1]>
        net (float[1, 2, 3] x) => (float[1, 2, 3] y)
        <float l = {{1}}, int64[1] i = {{0}}, int64[1] o = {{1}}, int64[1] m = {{-1}}, bool t = {{1}},
         int64[1] e = {{9223372036854775807}}, float[3] s = {{1, 2, 3}}, float[3] h = {{1, 1.5, 1}}>
        {{ {nodes} }}"""
    return load(onnx.parser.parse_model(text).SerializeToString())


@pytest.mark.parametrize("nodes", SAME)
def test_nodes_of_the_same_meaning(nodes: str) -> None:
    assert not meaning(model_of(nodes)).other


@pytest.mark.parametrize("nodes", OTHER)
def test_nodes_of_another_meaning(nodes: str) -> None:
    assert meaning(model_of(nodes)).other


@pytest.mark.parametrize("saturates", [False, True])
def test_sums_of_products_that_it_cuts_off(monkeypatch: pytest.MonkeyPatch, saturates: bool) -> None:
    """Without VNNI it adds two products of bytes in 16 bits, and takes what is too large for the largest."""
    monkeypatch.setattr(ort_equivalence, "host", lambda: NAMED["avx2" if saturates else "avx512vnni"])
    text = """<ir_version: 9, opset_import: ["": 18]> net (uint8[2, 4] x) => (int32[2, 1] y)
        <int8[4, 1] w = {127, 127, 127, 127}> { y = MatMulInteger(x, w) }"""
    model = load(onnx.parser.parse_model(text).SerializeToString())
    assert bool(meaning(model).other) == saturates
    assert sardonyx.Session(model).run(None, {"x": np.full((2, 4), 255, np.uint8)})[0].tolist() == [[4 * 127 * 255]] * 2


@pytest.mark.parametrize("type", ["double[N]", "float16[N]", "string[N]", "float[N]"])
def test_values_of_other_types(type: str) -> None:
    text = f'<ir_version: 9, opset_import: ["": 18]> net ({type} x) => ({type} y) {{ y = Identity(x) }}'
    model = load(onnx.parser.parse_model(text).SerializeToString())
    assert bool(meaning(model).other) == (type != "float[N]")


@pytest.mark.parametrize("nodes", ["y = MaxPool<kernel_shape = [2]>(a)", "y = ReduceMin(a, i)", "y = ReduceMax(a)"])
def test_what_it_passes_over_numpy_computes(compiling: threading.Event, folder: Path, nodes: str) -> None:
    """It tells of no number that is none, or of some; and no call after that asks it again."""
    text = f"""<ir_version: 9, opset_import: ["": 18]> net (float[1, 2, N] x) => (float[A, B, C] y)
        <int64[1] i = {{2}}> {{ a = Sqrt(x) {nodes} }}"""
    path = folder / "net.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    x = np.random.default_rng(0).uniform(1, 2, (1, 2, 9)).astype(np.float32)
    wanted = sardonyx.Session(path, compile="off")
    for given in (path, path.read_bytes(), load(path)):
        session = sardonyx.Session(given)
        close(session.run(None, {"x": x})[0], wanted.run(None, {"x": x})[0])
        assert engines(session) == INTERIM
        close(session.run(["y"], {"x": x})[0], wanted.run(None, {"x": x})[0])
        assert engines(session) == INTERIM
        wrong = x.copy()
        wrong[0, 1, 4] = -1
        found = session.run(None, {"x": wrong})[0]
        assert np.isnan(found).any()
        np.testing.assert_array_equal(found, wanted.run(None, {"x": wrong})[0])
        assert engines(session) == NUMPY
        close(session.run(None, {"x": x})[0], wanted.run(None, {"x": x})[0])


def test_watching_leaves_a_model_as_it_is(folder: Path) -> None:
    contents = net().SerializeToString()
    path = folder / "net.onnx"
    path.write_bytes(contents)
    found, names = watching(contents, ["h", "s"])
    assert watching(str(path), ["h", "s"]) == (found, names)
    more = onnx.load_from_string(bytes(found))
    assert [output.name for output in more.graph.output] == ["y", *names]
    assert found.startswith(contents)
    del more.graph.output[1:], more.graph.node[3:]
    assert more == net()


# What is sooner, and what comes first.


def test_large_models_are_worth_loading_it_and_small_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "onnxruntime")
    text = '<ir_version: 9, opset_import: ["": 18]> net (float[1, 64, P, P] x) => (float[1, 64, P, P] y) {{ {} }}'
    model = onnx.parser.parse_model(text.format("y = Conv<pads = [1, 1, 1, 1]>(x, w)"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((64, 64, 3, 3), np.float32), "w"))
    held = load(model.SerializeToString())
    assert not work(held, {"x": (1, 64, 8, 8)}).is_worth_loading
    assert work(held, {"x": (1, 64, 640, 640)}).is_worth_loading


def test_the_first_call_is_waited_for_and_nobody_waits_for_none() -> None:
    call, done = FirstCall(), threading.Event()
    waiting = threading.Thread(target=lambda: (call.wait(), done.set()))
    with call:
        waiting.start()
        assert not done.is_set()
    assert done.wait(10)
    nobody = FirstCall()
    nobody.give_up()
    nobody.wait()
    FirstCall().wait()
    waiting.join()


def test_a_large_file_is_looked_for_in_the_store_while_others_answer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = folder / "a.onnx", folder / "b.onnx"
    for path in (first, second):
        onnx.save(net(), path)
    assert sardonyx.Session(first, compile="wait").native
    monkeypatch.setattr(program_cache, "_SOON_BYTES", 0)
    monkeypatch.setattr(
        "sardonyx.runtime.compiled.compiled_model.NativeModel.compiled", lambda *_: pytest.fail("it was compiled")
    )
    session = sardonyx.Session(second)
    close(session.run(None, {"x": X})[0], answer())
    assert session.wait(), session.not_compiled


def test_inputs_that_have_a_value_need_not_be_fed_and_may_be(compiling: threading.Event) -> None:
    model = net()
    model.graph.input.append(onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [8, 4]))
    session = sardonyx.Session(model)
    close(session.run(None, {"x": X})[0], answer())
    assert engines(session) == INTERIM
    weights = np.ones((8, 4), np.float32)
    close(session.run(None, {"x": X, "w": weights})[0], answer(weights))


def test_external_data_are_opened_by_us_alone(folder: Path, compiling: threading.Event) -> None:
    model = net()
    onnx.save(model, folder / "net.onnx", save_as_external_data=True, location="net.data", size_threshold=0)
    source = program_cache.ModelSource(folder / "net.onnx")
    assert source.plain() is None
    session = sardonyx.Session(folder / "net.onnx")
    close(session.run(None, {"x": X})[0], answer())
    assert engines(session) == INTERIM
