"""Providers that share a model: who gets what and why, equal results, and what happens when one fails."""

from __future__ import annotations

import importlib.metadata
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import sardonyx
from sardonyx.core.eval.run_context import RunContext
from sardonyx.errors import ExecutionError, FeedError, OptionError, ResourceError, ShapeError, UnsupportedError
from sardonyx.runtime import providers
from sardonyx.runtime.providers import Answer, Claim, Refusal, Settings
from sardonyx.runtime.providers.reference import ReferenceProvider

RNG = np.random.default_rng(0)


def net() -> onnx.ModelProto:
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 18]>
        net (float[N, 8] x) => (float[N, 4] y, float[N, 4] z) {
            two = Constant<value_float=2.0>()
            h = MatMul(x, w)
            s = Add(h, b)
            t = Mul(s, two)
            y = Softmax(t)
            z = Div(t, two)
        }"""
    )
    for node in model.graph.node:
        node.name = f"the_{node.op_type}"
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(RNG.standard_normal(shape).astype(np.float32), name)
        for name, shape in (("w", (8, 4)), ("b", (4,)))
    )
    return model


NET = net()
X = RNG.standard_normal((3, 8)).astype(np.float32)
EXPECTED = sardonyx.Session(NET, providers=["reference"]).run(None, {"x": X})


def engines() -> list[str]:
    return providers.installed()


def assert_equal(session: sardonyx.Session) -> None:
    for actual, expected in zip(session.run(None, {"x": X}), EXPECTED, strict=True):
        assert actual.dtype == expected.dtype
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def where(session: sardonyx.Session) -> dict[str, str]:
    return {placed.operator: placed.provider for placed in session.placement}


@pytest.mark.parametrize("name", engines())
def test_alone_each_computes_the_model(name: str) -> None:
    session = sardonyx.Session(NET, providers=[name], compile="wait")
    assert session.providers == (name,)
    assert_equal(session)
    assert {placed.provider for placed in session.placement} == {name, ""}
    assert session.run(["z"], {"x": X})[0].shape == (3, 4)


@pytest.mark.parametrize(("first", "second"), [*itertools.permutations(engines(), 2)])
def test_any_two_share_it(first: str, second: str) -> None:
    session = sardonyx.Session(NET, providers=[first, second], pins=[("the_Add", second), ("the_MatMul", first)])
    assert_equal(session)
    assert where(session)["Add"] == second and where(session)["MatMul"] == first


def test_pins_are_names_outputs_or_predicates_and_the_last_one_decides() -> None:
    pins = [(lambda node: True, "native"), ("s", "reference"), ("the_Div", "reference")]
    session = sardonyx.Session(NET, providers=["native"], pins=pins)
    assert where(session) == {
        "Constant": "", "MatMul": "native", "Add": "reference", "Mul": "native", "Softmax": "native",
        "Div": "reference",
    }  # fmt: skip
    assert_equal(session)
    assert {placed.reason for placed in session.placement if placed.provider} == {"the node is pinned"}


def test_pins_that_cannot_be_are_refused() -> None:
    with pytest.raises(OptionError, match="unknown node"):
        sardonyx.Session(NET, pins=[("nowhere", "native")])
    with pytest.raises(OptionError, match="unknown provider 'openvinho'"):
        sardonyx.Session(NET, pins=[("the_Add", "openvinho")])


def test_unknown_providers_are_refused() -> None:
    with pytest.raises(OptionError, match="unknown provider 'cuda'"):
        sardonyx.Session(NET, providers=["cuda"])
    with pytest.raises(OptionError, match="listed twice"):
        sardonyx.Session(NET, providers=["native", "native"], pins=[("the_Add", "native")])
    with pytest.raises(OptionError, match="no devices"):
        sardonyx.Session(NET, providers=["native:gpu"])


def test_devices_of_onnx_runtime_are_named_after_a_colon() -> None:
    pytest.importorskip("onnxruntime")
    session = sardonyx.Session(NET, providers=[("onnxruntime:CPUExecutionProvider", {"use_arena": "0"})])
    assert_equal(session)
    assert session.providers == ("onnxruntime:CPUExecutionProvider",)
    with pytest.raises(OptionError, match="has no CUDAExecutionProvider"):
        sardonyx.Session(NET, providers=["onnxruntime:CUDAExecutionProvider"])


def test_any_tensor_inside_can_be_asked_for() -> None:
    session = sardonyx.Session(NET, providers=["native"], pins=[("the_Add", "reference")])
    (h,) = session.run(["h"], {"x": X})
    assert h.shape == (3, 4)


def test_wrong_feeds_are_refused() -> None:
    session = sardonyx.Session(NET, providers=["native"], pins=[("the_Add", "reference")])
    with pytest.raises(FeedError, match="not fed"):
        session.run(None, {})
    with pytest.raises(FeedError, match="double"):
        session.run(None, {"x": X.astype(np.float64)})
    with pytest.raises(ShapeError, match="axis 1 has size 7"):
        session.run(None, {"x": X[:, :7]})
    assert_equal(session)


def test_what_is_passed_through_is_the_callers_own() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> n (float[2] x) => (float[2] x, float[2] w, float[2] y) { y = Neg(x) }'
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(2, np.float32), "w"))
    session = sardonyx.Session(model, providers=["native"], pins=[("y", "reference")])
    x = np.array([1, 2], np.float32)
    same, w, y = session.run(None, {"x": x})
    same[:] = w[:] = 7
    assert x.tolist() == [1, 2] and y.tolist() == [-1, -2]
    assert session.run(["w"], {"x": x})[0].tolist() == [1, 1]


def test_what_is_not_worth_the_crossing_stays() -> None:
    session = sardonyx.Session(NET, providers=[Mine(), "native"])
    addition = next(placed for placed in session.placement if placed.operator == "Add")
    assert (addition.provider, addition.reason) == ("native", "the node is compiled, like the adjacent nodes")


def test_a_budget_of_weights_is_kept() -> None:
    session = sardonyx.Session(NET, providers=["native", "reference"], budgets={"native": 64})
    assert where(session)["MatMul"] == "reference"
    assert_equal(session)
    assert where(sardonyx.Session(NET, providers=["native"], budgets={"native": 1 << 20}))["MatMul"] == "native"


def test_bodies_are_cut_with_what_they_capture() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 18]>
        n (float[N] x, bool c) => (float[N] y) {
            one = Constant<value_float=1.0>()
            a = Exp(x)
            i = If(c)<
                then_branch = t () => (float[N] p) { p = Add(a, one) },
                else_branch = e () => (float[N] q) { q = Neg(a) }
            >
            y = Sqrt(i)
        }"""
    )
    session = sardonyx.Session(model, providers=["native"], pins=[("i", "reference")])
    assert [where(session)[operator] for operator in ("Exp", "If", "Sqrt")] == ["native", "reference", "native"]
    (y,) = session.run(None, {"x": np.zeros(2, np.float32), "c": np.array(True)})
    np.testing.assert_allclose(y, np.sqrt([2, 2]), rtol=1e-6)


# Providers of users.


class Mine:
    """Takes `Add` and `Mul`, and computes them as it is told."""

    name = "mine"

    def __init__(self, settings: Settings = Settings(), compute: Any = None) -> None:  # noqa: B008
        self.compute = compute
        self.parts: list[ir.Model] = []

    def capability(self, model: ir.Model) -> Mapping[ir.Node, Answer]:
        return {
            node: Claim(1e-9, "it adds") if node.op_type in ("Add", "Mul") else Refusal("it only adds")
            for node in model.graph
        }

    def compile(self, part: ir.Model) -> Mine:
        self.parts.append(part)
        self._numpy = ReferenceProvider(Settings()).compile(part)
        return self

    def run(self, values: Sequence[Any], context: RunContext) -> Sequence[Any]:
        if self.compute is not None:
            return self.compute(values, context)  # type: ignore[no-any-return]
        return self._numpy.run(values, context)


def test_a_package_registers_a_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.metadata.EntryPoint("mine", f"{__name__}:Mine", providers.GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry] if group == providers.GROUP else [])
    monkeypatch.setattr(importlib.metadata.EntryPoint, "load", lambda self: Mine)
    assert "mine" in providers.known()
    session = sardonyx.Session(NET, providers=["mine", "reference"])
    assert_equal(session)
    placements = {placed.operator: placed for placed in session.placement}
    assert (placements["Add"].provider, placements["Add"].reason) == ("mine", "it adds")
    assert placements["MatMul"].provider == "reference" and "mine: it only adds" in placements["MatMul"].reason


def test_neighbours_that_one_provider_takes_are_one_part() -> None:
    mine = Mine()
    assert_equal(sardonyx.Session(NET, providers=[mine, "reference"]))
    (part,) = mine.parts
    assert [node.op_type for node in part.graph] == ["Constant", "Add", "Mul"]
    assert [value.name for value in part.graph.inputs] == ["h"]


def test_hand_over_copies_nothing() -> None:
    seen: list[np.ndarray] = []

    def compute(values: Sequence[Any], context: RunContext) -> Sequence[Any]:
        seen.append(values[0])
        return [values[0] * 2]

    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> n (float[N] x) => (float[N] y) { y = Add(x, x) }'
    )
    session = sardonyx.Session(model, providers=[Mine(compute=compute)])
    x = np.ones(3, np.float32)
    assert session.run(None, {"x": x})[0].tolist() == [2, 2, 2]
    assert seen[0] is x


def test_a_part_that_does_not_compile_is_taken_apart() -> None:
    class Picky(Mine):
        def compile(self, part: ir.Model) -> Mine:
            if any(node.op_type == "Mul" for node in part.graph):
                raise UnsupportedError("it cannot multiply after all.")
            return super().compile(part)

    session = sardonyx.Session(NET, providers=[Picky(), "reference"])
    assert where(session)["Add"] == "mine" and where(session)["Mul"] == "reference"
    assert "it cannot multiply after all" in next(e.reason for e in session.placement if e.operator == "Mul")
    assert_equal(session)


def test_strict_sessions_do_not_fall_back() -> None:
    with pytest.raises(UnsupportedError, match=r"no provider supports .*MatMul.*it only adds"):
        sardonyx.Session(NET, providers=[Mine()], strict=True)
    assert_equal(sardonyx.Session(NET, providers=[Mine()]))
    words = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 18]> n (string[N] x) => (string[N] y) {
            y = StringNormalizer<case_change_action="UPPER">(x)
        }"""
    )
    with pytest.raises(UnsupportedError, match="StringNormalizer"):
        sardonyx.Session(words, providers=["native"], compile="wait", strict=True)
    assert sardonyx.Session(words, providers=["native"]).run(None, {"x": np.array(["a"])})[0].tolist() == ["A"]


# Faults.


def fails(values: Sequence[Any], context: RunContext) -> Sequence[Any]:
    raise RuntimeError("the cable is loose")


@pytest.mark.parametrize(
    ("gives", "message"),
    [
        (fails, "raised RuntimeError: the cable is loose"),
        (lambda values, context: [], "expected 1 results, got 0"),
        (lambda values, context: [values[0].astype(np.float64)], "expected float32 for 't', got float64"),
        (lambda values, context: [values[0][0]], "the shape"),
        (lambda values, context: [values[0][:, :3]], "the shape"),
        (lambda values, context: [values[0][:2]], r"expected the shape \(3, 4\) for 't', got \(2, 4\)"),
        (lambda values, context: ["text"], "for 't', got str"),
        (lambda values, context: values[0], "expected a list of results, got ndarray"),
        (lambda values, context: None, "expected a list of results, got nothing"),
    ],
)
def test_a_provider_that_fails_fails_the_call_alone(gives: Any, message: str) -> None:
    mine = Mine(compute=gives)
    session = sardonyx.Session(NET, providers=[mine, "reference"])
    with pytest.raises(ExecutionError, match=message) as caught:
        session.run(None, {"x": X})
    assert "mine" in str(caught.value) and "the_Add" in str(caught.value)
    mine.compute = None
    assert_equal(session)


def test_sizes_that_only_the_file_tells_are_not_held_against_a_provider() -> None:
    """``NonZero`` gives as many columns as there are; that they are called N, as the rows of x, makes them no N."""
    text = """<ir_version: 9, opset_import: ["": 18]> n (float[N, 3] x) => (int64[2, N] y) { y = NonZero(x) }"""
    session = sardonyx.Session(onnx.parser.parse_model(text), providers=["reference"])
    assert session.run(None, {"x": np.ones((2, 3), np.float32)})[0].shape == (2, 6)


class Wrong(Mine):
    """A provider that does one thing wrong."""

    def __init__(self, capability: Any = None, compile: Any = None) -> None:
        super().__init__()
        self._answer, self._make = capability, compile

    def capability(self, model: ir.Model) -> Mapping[ir.Node, Answer]:
        return self._answer(model) if self._answer else super().capability(model)

    def compile(self, part: ir.Model) -> Any:
        return self._make(part) if self._make else super().compile(part)


def is_out(model: ir.Model) -> Any:
    raise RuntimeError("the device is gone")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Wrong(capability=is_out), "mine: capability: the provider raised RuntimeError: the device is gone"),
        (
            Wrong(capability=lambda model: None),
            "mine: capability: expected a mapping from nodes to answers, got NoneType",
        ),
        (Wrong(capability=lambda model: dict.fromkeys(model.graph, "yes")), "a refusal of node the_Constant .*got str"),
        (
            Wrong(capability=lambda model: dict.fromkeys(model.graph, Claim(float("nan")))),
            "the_Constant.* got nan seconds",
        ),
        (Wrong(compile=is_out), "mine: compile: the provider raised RuntimeError: the device is gone"),
        (Wrong(compile=lambda part: None), "mine: compile: expected an object with a method `run`, got NoneType"),
    ],
)
def test_a_provider_that_fails_at_load_is_named(wrong: Any, message: str) -> None:
    with pytest.raises(ExecutionError, match=message):
        sardonyx.Session(NET, providers=[wrong, "reference"])


@pytest.mark.parametrize(
    ("provider", "message"), [(3, "expected a provider, got int"), (Mine, "expected a provider, got the class Mine")]
)
def test_what_is_no_provider_is_refused(provider: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        sardonyx.Session(NET, providers=[provider])


def test_ctrl_c_ends_the_call_alone() -> None:
    def interrupted(values: Sequence[Any], context: RunContext) -> Sequence[Any]:
        raise KeyboardInterrupt

    mine = Mine(compute=interrupted)
    session = sardonyx.Session(NET, providers=[mine, "reference"])
    with pytest.raises(KeyboardInterrupt):
        session.run(None, {"x": X})
    mine.compute = None
    assert_equal(session)


def test_what_cannot_look_is_told_that_the_run_is_over() -> None:
    begun = threading.Event()

    def waits(values: Sequence[Any], context: RunContext) -> Sequence[Any]:
        ended = threading.Event()
        with context.on_end(ended.set):
            begun.set()
            assert ended.wait(300)
        context.check_time()
        raise AssertionError("the run goes on")

    session = sardonyx.Session(NET, providers=[Mine(compute=waits), "reference"])
    with pytest.raises(ResourceError, match=r"longer than 0\.05 s"):
        session.run(None, {"x": X}, sardonyx.RunOptions(timeout=0.05))
    options = sardonyx.RunOptions()
    begun.clear()
    future = session.run_async(None, {"x": X}, options)
    assert begun.wait(300)
    options.terminate()
    with pytest.raises(ResourceError, match="terminated"):
        future.result(300)


LONG = onnx.parser.parse_model(
    """<ir_version: 9, opset_import: ["": 18]>
    n (float[2] x, int64 count) => (float[2] y) {
        yes = Constant<value = bool {1}>()
        y = Loop(count, yes, x)<body = b (int64 i, bool go, float[2] a) => (bool on, float[2] c) {
            on = Identity(go)
            c = Sin(a)
        }>
    }"""
)


@pytest.mark.parametrize("name", [name for name in engines() if name in ("onnxruntime", "reference")])
def test_loops_inside_of_a_provider_end_in_time(name: str) -> None:
    session = sardonyx.Session(LONG, providers=[name])
    feeds = {"x": np.ones(2, np.float32), "count": np.array(1 << 50)}
    with pytest.raises(ResourceError):
        session.run(None, feeds, sardonyx.RunOptions(timeout=0.2))
    options = sardonyx.RunOptions()
    threading.Timer(0.2, options.terminate).start()
    with pytest.raises(ResourceError):
        session.run(None, feeds, options)
    assert session.run(None, feeds | {"count": np.array(0)})[0].tolist() == [1, 1]


# Measured choice.


def test_auto_measures_once_and_remembers(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from sardonyx.runtime.partition import measured_costs

    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "store"))
    path = tmp_path / "net.onnx"
    onnx.save(NET, path)
    measured: list[float] = []
    median_seconds = measured_costs.median_seconds

    def recorded(run: Callable[[], object]) -> float:
        measured.append(median_seconds(run))
        return measured[-1]

    monkeypatch.setattr(measured_costs, "median_seconds", recorded)
    monkeypatch.setattr(measured_costs, "SECONDS", 0.01)
    first = sardonyx.Session(path, providers="auto")
    assert measured
    assert_equal(first)
    assert all("measured" in placed.reason for placed in first.placement if placed.provider)
    count = len(measured)
    again = sardonyx.Session(path, providers="auto")
    assert len(measured) == count
    assert again.placement == first.placement
    assert_equal(again)
