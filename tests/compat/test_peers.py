"""The drop-in modules have the originals' signatures, result types and error classes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from sardonyx.compat import onnxoptimizer, onnxsim, onnxslim
from sardonyx.compat.parameters import Refused, RefusedParameterError, Works
from sardonyx.errors import OptionError, SardonyxError
from sardonyx.rewrite.evaluate import evaluate

TEXT = """<ir_version: 8, opset_import: ["": 17]> g (float[N, 3, 8, 8] x) => (float[N, 4, 8, 8] y, float[N, 4, 8, 8] z)
<float[4, 3, 1, 1] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, float[4, 1, 1] b = {1, 2, 3, 4},
 float[1] one = {1}, float[1] two = {2}>
{ c = Conv (x, w)  d = Add (c, b)  e = Identity (d)  s = Add (one, two)  y = Relu (e)  z = Mul (e, s) }"""


@pytest.fixture
def model() -> onnx.ModelProto:
    return onnx.parser.parse_model(TEXT)


def operators(proto: onnx.ModelProto) -> list[str]:
    return sorted(node.op_type for node in proto.graph.node)


def same(a: onnx.ModelProto, b: onnx.ModelProto, *, rtol: float = 1e-4) -> bool:
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)}
    expected, actual = evaluate(a, feeds), evaluate(b, feeds)
    return all(np.allclose(expected[name], actual[name], rtol=rtol, atol=1e-4) for name in expected)


def shape_of(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize(
    ("package", "name", "ours"),
    [
        ("onnxoptimizer", "optimize", onnxoptimizer.optimize),
        ("onnxoptimizer", "main", onnxoptimizer.main),
        ("onnxsim", "simplify", onnxsim.simplify),
        ("onnxslim", "slim", onnxslim.slim),
    ],
)
def test_signatures_equal_the_originals(package: str, name: str, ours: Callable[..., Any]) -> None:
    theirs = getattr(pytest.importorskip(package), name)
    assert shape_of(ours) == shape_of(theirs)


def test_onnxslim_accepts_the_same_options() -> None:
    pytest.importorskip("onnxslim")
    from onnxslim.argparser import OnnxSlimKwargs

    assert set(onnxslim.OnnxSlimKwargs.__annotations__) == set(OnnxSlimKwargs.__annotations__)
    assert set(onnxslim.PARAMETERS) == {"model", "output_model", *OnnxSlimKwargs.__annotations__}
    from onnxslim.core.optimization import OptimizationSettings
    from onnxslim.core.pattern.registry import DEFAULT_FUSION_PATTERNS

    assert set(onnxslim.OPTIMIZATIONS) == set(OptimizationSettings.keys())
    assert set(onnxslim.PATTERNS) == set(DEFAULT_FUSION_PATTERNS)


def test_every_parameter_of_onnxsim_is_described() -> None:
    assert list(onnxsim.PARAMETERS) == list(inspect.signature(onnxsim.simplify).parameters)


# -- onnxoptimizer


def test_passes_run_in_the_listed_order(model: onnx.ModelProto) -> None:
    once = onnxoptimizer.optimize(model, ["fuse_add_bias_into_conv", "eliminate_identity"])
    assert operators(once) == ["Add", "Conv", "Mul", "Relu"]
    assert isinstance(once, onnx.ModelProto) and same(model, once)


def test_a_fixed_point_repeats_all_passes() -> None:
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]> g (float[2, 3] x) => (float[2, 3] y)
    { a = Transpose <perm = [1, 0]> (x)  i = Identity (a)  b = Transpose <perm = [1, 0]> (i)  y = Relu (b) }""")
    passes = ["fuse_consecutive_transposes", "eliminate_identity"]
    assert operators(onnxoptimizer.optimize(proto, passes)) == ["Relu", "Transpose", "Transpose"]
    assert operators(onnxoptimizer.optimize(proto, passes, fixed_point=True)) == ["Relu"]


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("model.onnx",), ValueError),
        ((b"",), ValueError),
        (("MODEL", "nop"), TypeError),
        (("MODEL", [3]), TypeError),
        (("MODEL", ["nosuch"]), RuntimeError),
    ],
)
def test_errors_have_the_classes_of_the_original(
    model: onnx.ModelProto, arguments: tuple[Any, ...], kind: type[Exception]
) -> None:
    resolved = [model if argument == "MODEL" else argument for argument in arguments]
    with pytest.raises(kind) as caught:
        onnxoptimizer.optimize(*resolved)
    assert isinstance(caught.value, SardonyxError)
    theirs = pytest.importorskip("onnxoptimizer")
    with pytest.raises(kind):
        theirs.optimize(*resolved)


def test_an_undefined_input_is_an_index_error(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[0] = "nowhere"
    with pytest.raises(IndexError, match="nowhere"):
        onnxoptimizer.optimize(model)


def test_the_command_line_writes_the_model(
    model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(model, tmp_path / "in.onnx")
    command = ["onnxoptimizer", str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx"), "-p", "eliminate_identity"]
    monkeypatch.setattr("sys.argv", command)
    onnxoptimizer.main()
    assert "Identity" not in operators(onnx.load(tmp_path / "out.onnx"))
    monkeypatch.setattr("sys.argv", ["onnxoptimizer", "--print_fuse_elimination_passes"])
    with pytest.raises(SystemExit):
        onnxoptimizer.main()
    assert capsys.readouterr().out.split() == onnxoptimizer.get_fuse_and_elimination_passes()


# -- onnxsim


def test_simplify_returns_a_model_and_a_verdict(model: onnx.ModelProto) -> None:
    before = model.SerializeToString()
    result, ok = onnxsim.simplify(model, check_n=2)
    assert ok is True and same(model, result)
    assert operators(result) == ["Conv", "Mul", "Relu"]
    assert model.SerializeToString() == before


def test_simplify_can_disable_folding_or_optimization(model: onnx.ModelProto) -> None:
    folded, _ = onnxsim.simplify(model, perform_optimization=False)
    assert operators(folded) == ["Add", "Conv", "Identity", "Mul", "Relu"]
    unfolded, _ = onnxsim.simplify(model, skip_constant_folding=True)
    assert operators(unfolded) == ["Add", "Conv", "Mul", "Relu"]


def test_simplify_reads_and_writes_paths(model: onnx.ModelProto, tmp_path: Path) -> None:
    source, target = str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx")
    weight = np.random.default_rng(1).standard_normal((4, 3, 9, 9)).astype(np.float32)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight, "w"))
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("pads", [4, 4, 4, 4]))
    onnx.save(model, source)
    result, ok = onnxsim.simplify(source, output_path=target, external_data_threshold="10B")
    assert ok and same(model, onnx.load(target)) and len(list(tmp_path.iterdir())) == 3
    assert operators(onnx.load(target, load_external_data=False)) == operators(result)
    with pytest.raises(ValueError, match="output_path"):
        onnxsim.simplify(model, output_path=target)


def test_simplify_drops_outputs_and_skips_passes(model: onnx.ModelProto) -> None:
    result, _ = onnxsim.simplify(model, unused_output=["z"], skipped_optimizers=["fuse_add_bias_into_conv", "unknown"])
    assert [o.name for o in result.graph.output] == ["y"]
    assert operators(result) == ["Add", "Conv", "Relu"]
    with pytest.raises(RuntimeError, match="nosuch"):
        onnxsim.simplify(model, unused_output=["nosuch"])


def test_weights_that_are_not_constants_remain(model: onnx.ModelProto) -> None:
    result, ok = onnxsim.simplify(model, initializers_as_constants=False, check_n=1)
    assert ok and {i.name for i in result.graph.initializer} == {"w", "b", "one", "two"}
    assert [i.name for i in result.graph.input] == ["x"]


def test_weights_that_are_inputs_remain_overridable_only_on_request(model: onnx.ModelProto) -> None:
    model.graph.input.append(onnx.helper.make_tensor_value_info("b", onnx.TensorProto.FLOAT, [4, 1, 1]))
    assert [i.name for i in onnxsim.simplify(model)[0].graph.input] == ["x"]
    mutable, _ = onnxsim.simplify(model, mutable_initializer=True)
    assert [i.name for i in mutable.graph.input] == ["x", "b"]


def test_input_shapes_are_overwritten(model: onnx.ModelProto) -> None:
    result, ok = onnxsim.simplify(model, 1, overwrite_input_shapes={"x": [5, 3, 8, 8]})
    assert ok and [d.dim_value for d in result.graph.input[0].type.tensor_type.shape.dim] == [5, 3, 8, 8]
    with pytest.warns(DeprecationWarning):
        result, ok = onnxsim.simplify(model, 1, input_shapes={None: [5, 3, 8, 8]})
    assert ok and result.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 5


def test_functions_are_inlined_on_request() -> None:
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17, "local": 1]>
    g (float[2] x) => (float[2] y) { y = local.twice (x) }
    <domain: "local", opset_import: ["": 17]> twice (a) => (b) { c = Add (a, a)  b = Relu (c) }""")
    result, ok = onnxsim.simplify(proto, inline_functions=True)
    assert ok and not result.functions and operators(result) == ["Add", "Relu"]


def test_the_opset_is_raised_on_request(model: onnx.ModelProto) -> None:
    assert onnxsim.simplify(model, target_opset_version=19)[0].opset_import[0].version == 19
    with pytest.raises(ValueError, match="target_opset_version"):
        onnxsim.simplify(model, target_opset_version="nineteen")


def test_a_rewriter_and_extra_passes_are_applied(model: onnx.ModelProto) -> None:
    calls = []

    def relu_to_identity(proto: onnx.ModelProto) -> onnx.ModelProto | bool:
        calls.append(operators(proto))
        products = [node for node in proto.graph.node if node.op_type == "Mul"]
        for node in products:
            node.op_type = "Add"
        return proto if products else False

    result, _ = onnxsim.simplify(model, custom_rewriter=relu_to_identity)
    assert len(calls) == 2 and operators(result) == ["Add", "Conv", "Relu"]
    assert operators(onnxsim.simplify(model, extra_optimizers=["adjust_add"])[0]) == ["Conv", "Mul", "Relu"]
    with pytest.raises(OptionError, match="nosuch"):
        onnxsim.simplify(model, extra_optimizers=["nosuch"])


def test_rules_are_defined_by_functions(model: onnx.ModelProto) -> None:
    pattern = onnx.parser.parse_function('<domain: "p", opset_import: ["": 17]> find (a) => (b) { b = Relu (a) }')
    put = onnx.parser.parse_function(
        """<domain: "p", opset_import: ["": 17]> put (a) => (b)
        { c = Neg (a)  d = Neg (c)  b = LeakyRelu <alpha = 0.0> (d) }"""
    )
    result, ok = onnxsim.simplify(model, check_n=1, function_rewrite_rules=[(pattern, put)])
    assert ok and operators(result) == ["Conv", "LeakyRelu", "Mul"]
    with pytest.raises(ValueError, match="mutually exclusive"):
        onnxsim.simplify(model, custom_rewriter=lambda m: None, function_rewrite_rules=[(pattern, put)])


def test_attributes_of_a_pattern_function_match_any_value() -> None:
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]> g (float[2, 3] x) => (float[2, 3] y)
    { s = Softmax <axis = 0> (x)  y = Neg (s) }""")
    pattern = onnx.parser.parse_function(
        """<domain: "p", opset_import: ["": 17]> find <axis> (a) => (c)
        { b = Softmax <axis: int = @axis> (a)  c = Neg (b) }"""
    )
    put = onnx.parser.parse_function(
        """<domain: "p", opset_import: ["": 17]> put <axis> (a) => (c)
        { b = Hardmax <axis: int = @axis> (a)  c = Abs (b) }"""
    )
    result, _ = onnxsim.simplify(proto, function_rewrite_rules=[(pattern, put)])
    assert operators(result) == ["Abs", "Hardmax"] and result.graph.node[0].attribute[0].i == 0


def test_a_failed_check_is_reported(model: onnx.ModelProto) -> None:
    def wrong(proto: onnx.ModelProto) -> bool | None:
        changed = [node for node in proto.graph.node if node.op_type == "Relu"]
        for node in changed:
            node.op_type = "Neg"
        return None if changed else False

    assert onnxsim.simplify(model, check_n=1, custom_rewriter=wrong)[1] is False
    assert onnxsim.simplify(model, custom_rewriter=wrong)[1] is True


@pytest.mark.parametrize("fill", ["random", "ones", "zeros", "arange"])
def test_check_inputs_are_filled_as_requested(model: onnx.ModelProto, fill: str) -> None:
    assert onnxsim.simplify(model, 1, input_fill=fill, test_input_shapes={"x": [1, 3, 8, 8]})[1]


def test_check_accepts_data_and_refuses_unknown_names(model: onnx.ModelProto) -> None:
    assert onnxsim.simplify(model, 1, input_data={"x": np.ones((3, 3, 8, 8), np.float32)})[1]
    with pytest.raises(ValueError, match="sevens"):
        onnxsim.simplify(model, 1, input_fill="sevens")
    with pytest.raises(RuntimeError, match="nosuch"):
        onnxsim.simplify(model, 1, test_input_shapes={"nosuch": [1]})


REFUSED = {
    "skip_shape_inference": True,
    "custom_lib": "custom.so",
    "providers": ["CUDAExecutionProvider"],
    "profile": "trace.json",
    "ort_profile": "trace",
    "merge_ort_profile": True,
    "range_opt": True,
    "certify": True,
    "check_hazards": True,
    "check_gradients": True,
    "gradient_precision": "fp16",
}


@pytest.mark.parametrize("name", [name for name, support in onnxsim.PARAMETERS.items() if isinstance(support, Refused)])
def test_an_unavailable_parameter_is_refused_by_name(model: onnx.ModelProto, name: str) -> None:
    with pytest.raises(RefusedParameterError, match=name):
        onnxsim.simplify(model, **{name: REFUSED[name]})


def test_values_equivalent_to_the_default_are_accepted(model: onnx.ModelProto) -> None:
    assert onnxsim.simplify(model, certify=False, providers=["CPUExecutionProvider"], include_subgraph=True)[1]


def test_products_in_half_precision_are_fused_only_for_other_backends() -> None:
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    g (float16[2, 2] x, float16[2, 2] w, float16[2] b) => (float16[2, 2] y) { m = MatMul (x, w)  y = Add (m, b) }""")
    assert operators(onnxsim.simplify(proto)[0]) == ["Add", "MatMul"]
    assert operators(onnxsim.simplify(proto, gemm_fusion_backend="webgpu")[0]) == ["Gemm"]


# -- onnxslim


def test_slim_returns_a_model_or_saves_it(
    model: onnx.ModelProto, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = onnxslim.slim(model, model_check=True)
    assert isinstance(result, onnx.ModelProto) and same(model, result)
    assert operators(result) == ["Conv", "Mul", "Relu"] and capsys.readouterr().out == ""
    onnx.save(model, tmp_path / "in.onnx")
    assert onnxslim.slim(str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx"), save_as_external_data=True) is None
    assert same(model, onnx.load(tmp_path / "out.onnx"))
    printed = capsys.readouterr().out
    assert "in.onnx" in printed and "out.onnx" in printed and "Conv" in printed and "Elapsed Time" in printed


def test_slim_skips_patterns_and_optimizations(model: onnx.ModelProto) -> None:
    assert "Add" in operators(_slim(model, skip_fusion_patterns=["FusionConvAdd"]))
    assert operators(_slim(model, skip_optimizations=["constant_folding"])) == ["Add", "Conv", "Mul", "Relu"]
    assert operators(_slim(model, skip_optimizations=list(onnxslim.OPTIMIZATIONS))) == operators(model)
    for wrong in (
        {"skip_fusion_patterns": ["nosuch"]},
        {"skip_optimizations": ["nosuch"]},
        {"size_threshold": "nosuch"},
    ):
        with pytest.raises(OptionError, match="nosuch"):
            _slim(model, **wrong)


def _slim(model: onnx.ModelProto, **options: Any) -> onnx.ModelProto:
    result = onnxslim.slim(model, **options)
    assert result is not None
    return result


def test_slim_inspects_lists_and_dumps(
    model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert onnxslim.slim([model, model], dump_to_disk=True) is None
    assert "Conv" in capsys.readouterr().out
    rows = (tmp_path / "OnnxModel_model_info.csv").read_text().splitlines()
    assert rows[0] == "NodeName,OpType,OutputDtype,OutputShape" and len(rows) == 1 + 2 * len(model.graph.node)


def test_slim_cuts_to_tensors_and_shapes(model: onnx.ModelProto) -> None:
    result = _slim(model, outputs=["y:fp32"], input_shapes=["x:2,3,8,8"])
    assert [o.name for o in result.graph.output] == ["y"] and operators(result) == ["Conv", "Relu"]
    assert result.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 2
    inner = _slim(model, inputs=["d"], outputs=["y"], input_shapes={})
    assert [i.name for i in inner.graph.input] == ["d"] and operators(inner) == ["Relu"]
    with pytest.raises(OptionError, match="int32"):
        _slim(model, outputs=["y:int32"])


def test_slim_converts_to_half_precision(model: onnx.ModelProto) -> None:
    result = _slim(model, dtype="fp16")
    assert {t.data_type for t in result.graph.initializer} == {onnx.TensorProto.FLOAT16}
    with pytest.raises(OptionError, match="int8"):
        _slim(model, dtype="int8")


def test_slim_checks_on_real_inputs(model: onnx.ModelProto, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 3, 8, 8), np.float32))
    assert onnxslim.slim(model, model_check=True, model_check_inputs=[f"x:{tmp_path / 'x.npy'}"]) is not None
    assert onnxslim.slim(model, model_check=True, model_check_inputs=["x:1,3,8,8"]) is not None


def test_slim_refuses_unknown_parameters(model: onnx.ModelProto) -> None:
    with pytest.raises(TypeError, match="nosuch"):
        onnxslim.slim(model, nosuch=1)  # type: ignore[call-arg]
    with pytest.raises(RefusedParameterError, match="no_shape_infer"):
        onnxslim.slim(model, no_shape_infer=True)


def test_every_parameter_works_or_is_refused() -> None:
    for parameters in (onnxsim.PARAMETERS, onnxslim.PARAMETERS):
        assert all(isinstance(support, (Works, Refused)) for support in parameters.values())
