"""The gate of targets: passes with slower or larger results, or that hide a fusion, are dropped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from sardonyx import model as model_io
from sardonyx.errors import EvaluationError, OptionError
from sardonyx.report.optimization_tables import verdict_line
from sardonyx.rewrite import measure, regression_gate, targets
from sardonyx.rewrite.analysis.fusion_census import census, lost_fusions
from sardonyx.rewrite.engine.engine import Applied
from sardonyx.rewrite.language import APPROXIMATES, EXACT, REGISTRY, Expr, Result, Rule, rule
from sardonyx.rewrite.notation import Exp, Log, Mul, Relu
from sardonyx.rewrite.optimize import optimize
from sardonyx.rewrite.record import Count
from sardonyx.rewrite.site import Site
from tests.rewrite.conftest import Clock


def relu(size: int = 512) -> onnx.ModelProto:
    return parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[{size}, {size}] x) => (float[{size}, {size}] y) {{
            a = Relu(x)
            b = Identity(a)
            y = Identity(b)
        }}"""
    )


@pytest.fixture(autouse=True)
def _no_rules_left() -> Iterator[None]:
    known = dict(REGISTRY)
    yield
    REGISTRY.clear()
    REGISTRY.update(known)


def slow_relu() -> Rule:
    @rule("rewrite_relu_slowly", on="Relu", exactness=APPROXIMATES)
    def slow(s: Site) -> Result:
        """Relu after many exponentials and logarithms."""
        source = s.node.inputs[0]
        if source is None or source.producer() is not None:
            return None
        value: Expr | ir.Value = source
        for _ in range(12):
            value = Log(Exp(value))
        return Relu(value)

    return slow


def test_only_the_pass_with_a_slower_result_is_dropped(clock: Clock) -> None:
    result = optimize(relu(), target="onnxruntime", gate="latency", rules=[slow_relu()])
    assert "passes dropped: rewrite_relu_slowly" in result.report.gate
    assert result.report.after.operators == {"Relu": 1}
    assert result.report.verdict.status == "proved"


def noisy(median: float, spread: float) -> list[float]:
    """Ratios of 41 pairs: as many above the median as below, the farthest by a factor of ``spread``."""
    return [median * spread ** (i / 20) for i in range(-20, 21)]


@pytest.mark.parametrize("median", [0.9, 1.0, 1.019, 1.3])
def test_differences_within_noise_are_not_slower(clock: Clock, median: float) -> None:
    clock.ratios = lambda before, after, budget: noisy(median, 3.0)
    result = optimize(relu(), target="onnxruntime", gate="latency")
    assert result.report.after.operators == {"Relu": 1}
    assert "slower" not in result.report.gate and f"{median:.3f} × the original's latency" in result.report.gate
    # What is not above the limit at first is not measured for longer.
    assert [request["budget"] for request in clock.requests] == [regression_gate.SHORT, regression_gate.LONG][
        : 1 + (median > regression_gate.SLOWER)
    ]


def test_a_small_significant_difference_is_slower(clock: Clock) -> None:
    clock.ratios = lambda before, after, budget: noisy(1.04, 1.02)
    result = optimize(relu(), target="onnxruntime", gate="latency")
    assert result.report.gate.startswith("original returned: slower: 1.040 × the original's latency")
    assert result.report.after.operators == {"Identity": 2, "Relu": 1}


def test_a_slow_first_measurement_is_not_slower(clock: Clock) -> None:
    clock.ratios = lambda before, after, budget: [1.5 if budget == regression_gate.SHORT else 1.0] * 20
    assert optimize(relu(), target="onnxruntime", gate="latency").report.after.operators == {"Relu": 1}


def test_too_few_pairs_are_never_significant(clock: Clock) -> None:
    clock.ratios = lambda before, after, budget: [2.0] * (measure.FEWEST_PAIRS - 1)
    assert optimize(relu(), target="onnxruntime", gate="latency").report.after.operators == {"Relu": 1}
    clock.ratios = lambda before, after, budget: [2.0] * measure.FEWEST_PAIRS
    assert optimize(relu(), target="onnxruntime", gate="latency").report.after.operators == {"Identity": 2, "Relu": 1}


def test_portable_has_no_engine_and_reports_nothing() -> None:
    result = optimize(relu(), rules=[slow_relu()])
    assert result.report.gate == ""
    assert "Target" not in verdict_line(result.report).plain
    assert result.report.after.operators["Log"] == 12


def test_the_measurement_is_reported() -> None:
    # The one that is timed: whatever the machine does, and whichever way it is judged.
    report = optimize(relu(64), target="onnxruntime", gate="latency").report
    assert "the original's latency in onnxruntime" in report.gate and " with 95 %)" in report.gate
    assert report.as_dict()["gate"] == report.gate


def test_an_unchanged_model_is_not_measured() -> None:
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    )
    assert optimize(model, target="onnxruntime").report.gate == "nothing was changed"


def test_weights_added_by_many_patches_are_limited_in_sum() -> None:
    nodes, last = [], "x"
    for i in range(5):
        nodes.append(helper.make_node("Relu", [last], [f"r{i}"]))
        last = f"r{i}"
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", TensorProto.FLOAT, [6000])], [value(last, TensorProto.FLOAT, [6000])]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    @rule("fuse_large_zeros", on="Relu", exactness=EXACT)
    def zeros(s: Site) -> Result:
        """Relu as a maximum with an array of its own."""
        return Expr(("Max",), (s.node.inputs[0], np.zeros(6000, np.float32)), {})

    report = optimize(model, passes=["eliminate_deadend"], rules=[zeros]).report
    assert "larger" in report.gate and "fuse_large_zeros" in report.gate
    assert report.after.operators == {"Relu": 5}


class Recorded:
    """An attempt made of nothing but names: a result fails while a guilty pass is on."""

    def __init__(self, passes: Sequence[str], guilty: frozenset[str]) -> None:
        self.passes, self.guilty = passes, guilty
        self.off: frozenset[str] = frozenset()
        self.original = False

    @property
    def model(self) -> ir.Model:
        raise AssertionError("nobody looks at it")

    @property
    def applied(self) -> list[Applied]:
        return [Applied(i, name, "", (), (), "exact") for i, name in enumerate(self.passes) if name not in self.off]

    def retry_without(self, passes: frozenset[str]) -> None:
        self.off = passes

    def give_up(self) -> None:
        self.original = True


class JudgedByName:
    only_counts = False

    def __init__(self, attempt: Recorded) -> None:
        self.attempt = attempt

    def fault(self, result: object) -> str | None:
        return "slower" if self.attempt.guilty - self.attempt.off else None

    def larger(self, result: object) -> str | None:
        return None


class NamedOnly(Recorded):
    @property
    def model(self) -> ir.Model:
        return None  # type: ignore[return-value]


@pytest.mark.parametrize("guilty", [{"b"}, {"d"}, {"a", "e"}, {"b", "c", "d"}])
def test_bisection_finds_the_responsible_passes(guilty: set[str]) -> None:
    attempt = NamedOnly(["a", "eliminate_x", "b", "c", "d", "e"], frozenset(guilty))
    assert regression_gate.drop_responsible(JudgedByName(attempt), attempt) == guilty  # type: ignore[arg-type]
    assert attempt.off == guilty


def test_many_responsible_passes_drop_all_but_eliminations() -> None:
    names = [*"abcdefg"]
    attempt = NamedOnly([*names, "eliminate_x"], frozenset("abcde"))
    assert regression_gate.drop_responsible(JudgedByName(attempt), attempt) == set(names)  # type: ignore[arg-type]


def test_eliminations_are_never_dropped_one_by_one() -> None:
    attempt = NamedOnly(["eliminate_x", "fuse_y"], frozenset({"eliminate_x"}))
    assert regression_gate.drop_responsible(JudgedByName(attempt), attempt) is None  # type: ignore[arg-type]


ATTENTION = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2, 4, 8] q, float[2, 8, 4] k, float[2, 4, 8] v) => (float[2, 4, 8] y)
<float s = {0.5}>
{
    a = MatMul(q, k)
    b = Mul(a, s)
    c = Softmax<axis = -1>(b)
    y = MatMul(c, v)
}"""

EIGHT = "{1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0}"

LAYER_NORM = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2, 8] x) => (float[2, 8] y)
<float two = {2.0}, float eps = {0.00001}>
{
    m = ReduceMean<axes = [-1]>(x)
    d = Sub(x, m)
    p = Pow(d, two)
    v = ReduceMean<axes = [-1]>(p)
    e = Add(v, eps)
    r = Sqrt(e)
    y = Div(d, r)
}"""


def counted(text: str) -> dict[str, int]:
    return dict(census(model_io.from_proto(parser.parse_model(text))))


def test_a_fusion_counts_the_same_decomposed_and_as_one_operator() -> None:
    assert counted(ATTENTION) == {"attention": 1}
    assert counted(LAYER_NORM) == {"layer or RMS normalization": 1}
    fused = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[2, 8] x, float[8] s) => (float[2, 8] y) { y = LayerNormalization<axis = -1>(x, s) }"""
    assert counted(fused) == counted(LAYER_NORM)


def test_attention_needs_both_products() -> None:
    assert (
        counted(ATTENTION.replace("a = MatMul(q, k)", "a = Add(q, q)").replace("y = MatMul(c, v)", "y = Add(c, v)"))
        == {}
    )


def test_a_pass_that_hides_a_fusion_is_dropped_without_measurement() -> None:
    @rule("rewrite_softmax_away", on="Softmax", exactness=APPROXIMATES)
    def softmax_by_hand(s: Site) -> Result:
        """Softmax as exponentials over their sum."""
        e = Exp(s.node.inputs[0])
        return Mul(e, Expr(("Reciprocal",), (Expr(("ReduceSum",), (e, np.array([-1])), {"keepdims": 1}),), {}))

    # The rule that puts a Softmax together again would undo this one.
    skip = ["fuse_softmax"]
    report = optimize(parser.parse_model(ATTENTION), target="tensorrt", rules=[softmax_by_hand], skip=skip).report
    assert "passes dropped: rewrite_softmax_away" in report.gate
    assert "Softmax" in report.after.operators


def test_lost_fusions_have_lower_counts() -> None:
    before, after = census_of(ATTENTION), census_of(LAYER_NORM)
    assert lost_fusions(before, after) == {"attention": (1, 0)}
    assert lost_fusions(before, before) == {}


def census_of(text: str):  # type: ignore[no-untyped-def]
    return census(model_io.from_proto(parser.parse_model(text)))


def test_a_model_that_the_engine_refuses_is_an_error_with_its_reason(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "bad.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(EvaluationError, match="does not load"):
        regression_gate.ask(
            {"do": "measure", "paths": [str(path)], "engine": "onnxruntime", "feeds": str(tmp_path / "f"), "budget": 1}
        )


def test_stored_bytes_approximate_the_file_size(tmp_path) -> None:  # type: ignore[no-untyped-def]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [5000])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [5000])],
        [numpy_helper.from_array(np.ones(5000, np.float32), "w")],
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    assert abs(regression_gate.stored_bytes(model_io.load(path)) - path.stat().st_size) < 256


def test_fusions_of_onnxruntime_are_counted_if_no_inputs_are_found() -> None:
    scaled = LAYER_NORM.replace("y = Div(d, r)", "z = Div(d, r) w = Mul(z, g) y = Add(w, b)")
    scaled = scaled.replace("float eps", f"float[8] g = {EIGHT}, float[8] b = {EIGHT}, float eps")
    model = model_io.from_proto(parser.parse_model(scaled))
    with regression_gate.Gate(targets.profile("onnxruntime"), lambda: model, Count.of(model)) as judged:
        assert judged.fault(model) is None
        assert "normalization 1 → 1" in judged.text
        broken = model_io.from_proto(parser.parse_model(scaled.replace("z = Div(d, r)", "z = Add(d, r)")))
        assert judged.fault(broken) == "fusions lost: normalization 1 → 0"


def test_a_pass_after_which_the_engine_has_more_nodes_is_dropped() -> None:
    result = optimize(relu(), target="onnxruntime", rules=[slow_relu()])
    assert "more nodes as optimized by onnxruntime: 1 → 25" in result.report.gate
    assert "passes dropped: rewrite_relu_slowly" in result.report.gate
    assert result.report.after.operators == {"Relu": 1}


def test_the_default_gate_measures_nothing(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine decides nothing: no latency is requested, and two runs give the same bytes."""
    requests: list[str] = []

    def census_only(request: Mapping[str, Any]) -> dict[str, Any]:
        requests.append(request["do"])
        return {"operators": measure.optimized_operators(request["path"], request["folder"])}

    monkeypatch.setattr(regression_gate, "ask", census_only)
    results = [optimize(parser.parse_model(LAYER_NORM), target="onnxruntime").proto for _ in range(2)]
    assert set(requests) == {"census"} and not clock.requests
    assert results[0].SerializeToString() == results[1].SerializeToString()


def test_a_fusion_of_the_same_kind_is_not_lost() -> None:
    """ONNX Runtime fuses Gelu with its bias; a Gelu that leaves the sum alone is a Gelu too."""
    kinds = targets.profile("onnxruntime").protected
    assert {"Gelu", "BiasGelu"} <= kinds["Gelu"] and {"Attention", "MultiHeadAttention"} <= kinds["attention"]
    assert len(frozenset().union(*kinds.values())) == sum(map(len, kinds.values())), "one kind an operator"


def test_an_unknown_gate_is_refused() -> None:
    with pytest.raises(OptionError, match="unknown gate 'speed'"):
        optimize(relu(), gate="speed")


def test_the_reason_is_stated_if_latency_was_requested_and_nothing_measures() -> None:
    gate = optimize(relu(), target="tensorrt", gate="latency").report.gate
    assert gate.startswith("not measured (tensorrt is not installed); fusions before and after")
