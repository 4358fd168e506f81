"""The 543 models that onnxoptimizer's tests build: correct on all, as small as its answer, its operators by name."""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx import model as model_io
from sardonyx.compat import onnxoptimizer
from sardonyx.errors import EvaluationError
from sardonyx.rewrite import pipeline
from sardonyx.rewrite.analysis import inference
from sardonyx.rewrite.evaluate import evaluate
from sardonyx.rewrite.verify import inputs
from sardonyx.rewrite.verify.compare import TOLERANCE, difference
from sardonyx.rewrite.verify.search import Search
from tests.random_cases import drawn
from tests.suites.conftest import Recorded

DEAD = "nodes that only the rewritten ones read go with them, and not only when eliminate_deadend is asked for"
FOLDED = "what the reference computes with new nodes from constants is one constant here"
FURTHER = "the rewrite is right here too, and the reference passes it by"
WRONG = "the reference's answer gives other outputs"
GROWS = "the reference's answer has more nodes than the model, which no fusion should make"

DIFFERENCES: dict[str, tuple[dict[str, int], str]] = {
    "eliminate_if_with_const_cond_with_subgraph_output_initializer__0": ({"Identity": 1}, "the reference crashes"),
    "eliminate_if_with_const_cond_with_subgraph_param__0": ({"Sin": 1, "Add": 1}, DEAD),
    "eliminate_if_with_const_false_cond__0": ({"Identity": 1}, DEAD),
    "eliminate_if_with_const_true_cond__0": ({"Sin": 1, "HardSigmoid": 1}, DEAD),
    "eliminate_nop_dropout__0": ({"Log": 1}, f"{FURTHER}: before version 12 Dropout has no training mode"),
    "eliminate_nop_dropout_opset11__1": ({"Log": 1}, f"{FURTHER}: before version 12 Dropout has no training mode"),
    "eliminate_shape_gather__0": ({"Identity": 1}, DEAD),
    "eliminate_shape_op__0": ({"Identity": 1}, f"{DEAD}; an output that is a constant is an Identity of it"),
    "fuse_add_bias_into_conv_use_move_constant__0": ({"Conv": 1}, FOLDED),
    "fuse_add_bias_into_conv_use_weight_shape_with_tile__0": ({"Conv": 1, "Add": 1}, GROWS),
    "fuse_add_bias_into_conv_with_scalar_bias__0": ({"Conv": 1, "Add": 1}, GROWS),
    "fuse_bn_into_conv_simple__0": ({"Conv": 1}, FOLDED),
    "fuse_concat_and_reshape2__0": ({"Reshape": 1}, FURTHER),
    "fuse_consecutive_slices_1__0": ({"Slice": 1}, FURTHER),
    "fuse_consecutive_slices_2__0": ({"Slice": 1}, FURTHER),
    "fuse_consecutive_slices_3__0": ({"Slice": 1}, FURTHER),
    "fuse_consecutive_slices_4__0": ({"Slice": 1}, FURTHER),
    "fuse_consecutive_slices_with_same_axes__0": ({"Slice": 1}, FURTHER),
    "fuse_consecutive_softmax_log_axis__0": ({"LogSoftmax": 1}, DEAD),
    "fuse_consecutive_softmax_log_multiple_out__0": ({"LogSoftmax": 1, "Exp": 1}, DEAD),
    "fuse_consecutive_squeeze_unsqueeze__0": ({"Relu": 1}, "the reference raises"),
    "fuse_consecutive_squeeze_unsqueeze_negative_axes__0": ({"Relu": 1}, "the reference raises"),
    "fuse_consecutive_squeeze_unsqueeze_no_fuse__0": ({"Squeeze": 1, "Unsqueeze": 1}, "the reference raises"),
    "fuse_consecutive_unsqueeze_squeeze__0": ({"Relu": 1}, "the reference raises"),
    "fuse_consecutive_squeezes__0": ({"Squeeze": 2, "Constant": 2, "Loop": 1}, f"{FURTHER}: in the body of the Loop"),
    "fuse_matmul_add_bias_into_gemm_must_keep_topological_order__0": ({"MatMul": 1, "Gemm": 1}, DEAD),
    "fuse_qkv__0": ({"Mul": 1, "Add": 1, "MatMul": 1, "Split": 1, "Reshape": 3}, FOLDED),
    "fuse_qkv__1": ({"Mul": 1, "Add": 1, "MatMul": 1, "Split": 1, "Reshape": 3}, FOLDED),
    "fuse_qkv__2": ({"Mul": 1, "Add": 1, "MatMul": 1, "Split": 1, "Reshape": 3}, FOLDED),
    "fuse_transpose_default_no_fuse__0": ({"Identity": 2, "Transpose": 1}, FURTHER),
    "eliminate_nop_with_unit__0": (
        {"Sub": 1, "Cast": 1, "Concat": 2, "Identity": 1},
        "a Concat of an empty vector and a matrix, which the standard forbids, stays and is refused",
    ),
    "split_predict_and_lift_lexical_references_for_caffe2_backend__0": (
        {"Loop": 1, "Add": 1, "Identity": 1},
        "the reference leaves a Constant beside the input of the same name",
    ),
    **{
        f"fuse_pad_into_maxpool_{case}__0": ({"Pad": 1, "MaxPool": 1}, f"{WRONG}: a MaxPool pads with −∞, not with 0")
        for case in (
            "1d",
            "1d_opset10",
            "existing_maxpool_pad",
            "existing_maxpool_pad_opset10",
            "no_optional_value",
            "no_optional_value_opset10",
            "with_optional_value",
        )
    },
}
"""Calls whose answer has other operators here than in onnxoptimizer: what is there, and why."""

WITHOUT_ANSWER = frozenset(
    {
        "eliminate_if_with_const_cond_with_subgraph_output_initializer__0",
        "fuse_consecutive_squeeze_unsqueeze__0",
        "fuse_consecutive_squeeze_unsqueeze_negative_axes__0",
        "fuse_consecutive_squeeze_unsqueeze_no_fuse__0",
        "fuse_consecutive_unsqueeze_squeeze__0",
    }
)
"""Calls on which onnxoptimizer crashed or raised."""

RUN_NOWHERE = {
    "eliminate_nop_with_unit__0": "joins an empty vector with a matrix",
    "lift_lex_if__0": "its If has two outputs, and its branches have none",
}
"""Models that break the rules of ONNX so that no evaluator takes them, and how."""

MISDECLARED = {"fuse_transpose__0": "declares [4, 3, 2] as the shape of a Loop's output, which is [2, 4, 3]"}
"""Models whose wrong declarations the checker sees only once they are optimized."""


def operators(graph: onnx.GraphProto) -> Counter[str]:
    """Operators by type, bodies included."""
    counts: Counter[str] = Counter()
    for node in graph.node:
        counts[node.op_type] += 1
        for attribute in node.attribute:
            for body in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                counts += operators(body)
    return counts


def undeclared(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without the shapes that it declares of what it computes: some are wrong, and crash ONNX Runtime."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    del bare.graph.value_info[:]
    for output in bare.graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    return bare


@functools.cache
def samples(path: Path) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Sets of inputs on which the model runs, with its outputs."""
    model = onnx.load(path)
    held = model_io.from_proto(model)
    pipeline.open_negative_sizes(held)
    inference.infer_shapes(held, strict=False)
    runnable = undeclared(model)
    search = Search(held, lambda feeds: evaluate(runnable, feeds), seed=0, count=2)
    drawn = search.samples() or search.uninformative
    if not drawn:
        empty = inputs.draw(held, dict.fromkeys(inputs.open_sizes(held), 0), 0)
        return [(empty, evaluate(runnable, empty))]
    return [(sample.feeds, dict(sample.answers)) for sample in drawn]


def disagreement(expected: dict[str, Any], actual: dict[str, Any]) -> str:
    """What differs by more than the tolerance; empty where nothing does."""
    if list(expected) != list(actual):
        return f"outputs {list(actual)} for {list(expected)}"
    wrong = [d for name in expected if (d := difference(name, expected[name], actual[name])).error > TOLERANCE]
    return "; ".join(f"{d.output}: {d.detail or d.error}" for d in wrong)


def is_valid(model: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


def wrongs(call: Recorded, result: onnx.ModelProto) -> list[str]:
    """What is wrong with an answer to a call."""
    model = call.model()
    if "rename_input_output" in call.passes:
        result = with_names_of(model, result)
    texts = []
    if [o.name for o in result.graph.output] != [o.name for o in model.graph.output]:
        texts.append("other outputs")
    if call.name not in MISDECLARED and is_valid(model) and not is_valid(result):
        texts.append("the checker rejects it")
    if call.name not in RUN_NOWHERE:
        runs = samples(call.path)
        assert runs, f"{call.name} runs on no sample"
        texts += [text for feeds, want in runs if (text := disagreement(want, evaluate(undeclared(result), feeds)))]
    return [f"{call.name} {call.passes}: {text}" for text in texts]


def with_names_of(model: onnx.ModelProto, result: onnx.ModelProto) -> onnx.ModelProto:
    """The result with the names of the model's inputs and outputs."""
    assert len(result.graph.input) == len(model.graph.input) and len(result.graph.output) == len(model.graph.output)
    old = [*result.graph.input, *result.graph.output]
    originals = [*model.graph.input, *model.graph.output]
    names = {value.name: new.name for value, new in zip(old, originals, strict=True)}
    renamed = onnx.ModelProto()
    renamed.CopyFrom(result)
    for value in (*renamed.graph.input, *renamed.graph.output):
        value.name = names[value.name]
    for node in renamed.graph.node:
        for field in (node.input, node.output):
            field[:] = [names.get(name, name) for name in field]
    return renamed


def test_halves_together_are_the_model() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 17]>
    g (float[2] x) => (float[2] y, float[2] k) <float[2] w = {1, 2}, float[2] v = {3, 4}>
    { a = Add (w, v)  k = Neg (a)  b = Mul (x, a)  c = Relu (w)  d = Add (b, c)  y = Sub (d, w) }""")
    prepare = onnxoptimizer.optimize(model, ["split_init"])
    predict = onnxoptimizer.optimize(model, ["split_predict"])
    for half in (prepare, predict):
        onnx.checker.check_model(half, full_check=True)
    assert not prepare.graph.input and not predict.graph.initializer
    predict_inputs = {i.name for i in predict.graph.input}
    assert predict_inputs - {"x"} == {o.name for o in prepare.graph.output}
    prepared = evaluate(prepare, {})
    x = np.array([5, -6], np.float32)
    assert not disagreement(evaluate(model, {"x": x}), evaluate(predict, {"x": x, **prepared}))


@pytest.mark.sampled
def test_the_default_passes_are_correct_on_every_model(onnxoptimizer_suite: list[Recorded]) -> None:
    assert len(onnxoptimizer_suite) == 543
    texts = [w for c in drawn(onnxoptimizer_suite) for w in wrongs(c, sardonyx.optimize(c.path, verify=False).proto)]
    assert not texts, "\n".join(texts)


@pytest.mark.sampled
def test_the_passes_named_are_correct_on_every_model(onnxoptimizer_suite: list[Recorded]) -> None:
    texts = [
        wrong
        for call in drawn(onnxoptimizer_suite)
        if not {"split_init", "split_predict"} & set(call.passes)
        for wrong in wrongs(call, onnxoptimizer.optimize(call.model(), call.passes, call.fixed_point))
    ]
    assert not texts, "\n".join(texts)


@pytest.mark.sampled
def test_the_default_passes_leave_no_more_nodes_than_a_correct_reference(onnxoptimizer_suite: list[Recorded]) -> None:
    larger = []
    for call in drawn(onnxoptimizer_suite):
        answer = call.answer()
        if answer is None or call.name in RUN_NOWHERE:
            continue
        count = operators(sardonyx.optimize(call.path, verify=False).proto.graph).total()
        if count > operators(answer.graph).total() and is_correct(call, answer):
            larger.append(f"{call.name}: {count} nodes, {operators(answer.graph)} in the reference")
    assert not larger, "\n".join(larger)


def is_correct(call: Recorded, answer: onnx.ModelProto) -> bool:
    """Whether the reference's answer has the interface of the model, and gives the same outputs."""
    model = call.model()
    if [i.name for i in answer.graph.input] != [i.name for i in model.graph.input]:
        return False
    return not any(disagreement(want, evaluate(undeclared(answer), feeds)) for feeds, want in samples(call.path))


@pytest.mark.sampled
def test_the_passes_named_leave_the_operators_of_the_reference(onnxoptimizer_suite: list[Recorded]) -> None:
    other = []
    for call in drawn(onnxoptimizer_suite):
        answer = call.answer()
        expected, reason = DIFFERENCES.get(call.name, (None, ""))
        expected_counts = Counter(expected) if expected is not None or answer is None else operators(answer.graph)
        counts = operators(onnxoptimizer.optimize(call.model(), call.passes, call.fixed_point).graph)
        if counts != expected_counts:
            other.append(f"{call.name} {call.passes}: {dict(counts)}, and {dict(expected_counts)} expected {reason}")
    assert not other, "\n".join(other)


def test_every_difference_listed_is_one(onnxoptimizer_suite: list[Recorded]) -> None:
    calls = {call.name: call for call in onnxoptimizer_suite}
    assert {name for name, call in calls.items() if call.answer_path is None} == WITHOUT_ANSWER
    assert DIFFERENCES.keys() <= calls.keys()
    for name, (counts, reason) in DIFFERENCES.items():
        answer = calls[name].answer()
        if answer is None:
            continue
        assert operators(answer.graph) != Counter(counts), f"{name} is no difference"
        if reason.startswith(WRONG):
            assert not is_correct(calls[name], answer), f"{name}: the reference is right"
        if reason == GROWS:
            assert operators(answer.graph).total() > operators(calls[name].model().graph).total()


def test_a_model_that_runs_nowhere_does_not_run_afterwards(onnxoptimizer_suite: list[Recorded]) -> None:
    """onnxoptimizer drops the operand that the standard forbids, and the result answers."""
    call = next(call for call in onnxoptimizer_suite if call.name == "eliminate_nop_with_unit__0")
    feeds = {"X": np.array([[1, 0], [-2, 3], [0, 0]], np.float32)}
    for result in (
        call.model(),
        onnxoptimizer.optimize(call.model(), call.passes, call.fixed_point),
        sardonyx.optimize(call.path, verify=False).proto,
    ):
        with pytest.raises(EvaluationError, match="cannot be concatenated"):
            evaluate(undeclared(result), feeds)


def test_every_pass_of_onnxoptimizer_is_here() -> None:
    theirs = pytest.importorskip("onnxoptimizer")
    assert set(theirs.get_available_passes()) <= set(onnxoptimizer.get_available_passes())
    assert theirs.get_fuse_and_elimination_passes() == onnxoptimizer.get_fuse_and_elimination_passes()
