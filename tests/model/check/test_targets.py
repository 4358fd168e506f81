"""Findings about targets, and agreement of the tables with the runtimes."""

from __future__ import annotations

import json
import re
import runpy
from importlib import resources
from pathlib import Path

import onnx
import onnxruntime
import pytest
from onnx import parser
from onnx.backend.test.loader import load_model_tests

from sardonyx.errors import OptionError
from sardonyx.model.check import Finding, check, known_targets
from sardonyx.model.check.targets import find_target

HEAD = '<ir_version: {ir}, opset_import: ["" : {opset}]>\n'


def model(body: str, opset: int = 17, ir: int = 8) -> onnx.ModelProto:
    return parser.parse_model(HEAD.format(ir=ir, opset=opset) + body)


def targeted(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(item.code, str(item.where)) for item in findings if item.code.startswith("target")]


RELU = "g (float[2] x) => (float[2] y) { y = Relu (x) }"
DET = "g (float[2, 2] x) => (float y) { y = Det (x) }"


def test_every_other_engine_has_several_versions() -> None:
    versions = known_targets()
    assert set(versions) == {
        *("coreml", "mnn", "native", "onnxruntime", "openvino", "ort-mobile", "portable", "tensorrt", "tnn")
    }
    assert {name for name in versions if len(versions[name]) == 1} == {"native", "portable", "mnn", "tnn"}


def test_the_native_table_is_the_registry_and_the_portable_one_the_standard() -> None:
    tool = runpy.run_path(str(Path(__file__).parents[3] / "tools" / "make_target_tables.py"))
    for name in ("native", "portable"):
        _, expected = tool["_TABLES"][name]()
        target = find_target(name)
        assert target is not None
        assert {operator: entries[0].first for operator, entries in target.operators.items()} == {
            operator: entries[0]["opsets"][0] for operator, entries in expected["operators"].items()
        }, f"run tools/make_target_tables.py {name}"


def test_an_operator_of_a_vendor_is_not_portable() -> None:
    text = "g (float[2] x) => (float[2] y) { y = com.microsoft.QuickGelu (x) }"
    head = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'
    proto = parser.parse_model(f"{head} {text}")
    assert targeted(check(proto, target="portable")) == [("target-operator", "node com.microsoft::QuickGelu(y)")]
    assert targeted(check(proto, target="native")) == []


@pytest.mark.parametrize(
    "target", ["onnxruntime", "tensorrt", "openvino", "coreml", "ort-mobile", "native", "portable", "mnn", "tnn"]
)
def test_every_target_runs_a_small_model(target: str) -> None:
    assert targeted(check(model(RELU, opset=13), target=target)) == []


@pytest.mark.parametrize("target", ["tensorrt", "openvino", "coreml", "ort-mobile", "tnn"])
def test_missing_operator_is_reported(target: str) -> None:
    findings = check(model(DET, opset=13), target=target)
    assert targeted(findings) == [("target-operator", "node Det(y)")]
    assert bool(findings[0].command) == (target in ("tensorrt", "openvino")), "targets that the optimizer writes for"
    assert findings[0].command or "another target" in findings[0].remedy


def test_an_operator_of_another_opset_names_the_conversion() -> None:
    findings = [item for item in check(model(RELU, opset=20), target="ort-mobile") if item.code == "target-operator"]
    assert [item.command for item in findings] == [
        "sardonyx convert-opset MODEL.onnx --opset 15 -o MODEL.repaired.onnx"
    ]


@pytest.mark.parametrize(
    ("node", "opset", "command"),
    [
        ("y = LSTM (x, w, r)", 13, ""),
        (
            "y = ImageScaler <scale = 2.0> (x)",
            12,
            "sardonyx convert-opset MODEL.onnx --opset 12 -o MODEL.repaired.onnx",
        ),
        ("y = ai.onnx.ml.Scaler (x)", 13, ""),
        ("y = own.Sharpen (x)", 13, ""),
    ],
    ids=["standard", "experimental", "machine learning", "custom"],
)
def test_only_replaceable_operators_have_a_command(node: str, opset: int, command: str) -> None:
    proto = parser.parse_model(
        f'<ir_version: 7, opset_import: ["" : {opset}, "ai.onnx.ml" : 2, "own" : 1]>'
        f" g (float[2, 3, 4] x, float[1, 8, 4] w, float[1, 8, 2] r) => (float[a, b, c] y) {{ {node} }}"
    )
    findings = [item for item in check(proto, target="ort-mobile") if item.code == "target-operator"]
    assert [item.command for item in findings] == [command]


def test_missing_operator_in_a_body_and_in_a_function_is_reported() -> None:
    body = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 17, "l" : 1]> g (float[2, 2] x, bool c) => (float y) {
            y = If (c) <then_branch = t () => (float p) { p = Det (x) },
                        else_branch = e () => (float q) { q = l.F (x) }> }
        <domain: "l", opset_import: ["" : 17]> F (x) => (y) { y = Det (x) }"""
    )
    assert targeted(check(body, target="tensorrt"))[:2] == [
        ("target-operator", "If(y).then_branch, node Det(p)"),
        ("target-operator", "function l::F, node Det(y)"),
    ]


def test_unsupported_opset_and_ir_version_are_reported() -> None:
    findings = check(model(RELU, opset=22, ir=11), target="onnxruntime", version="1.20")
    assert targeted(findings)[:2] == [("target-ir", "ir_version"), ("target-opset", "opset import ai.onnx")]
    assert "--ir 10" in findings[0].command
    assert "--opset 21" in findings[1].command


def test_unsupported_opset_precedes_missing_operators() -> None:
    assert targeted(check(model(RELU, opset=17), target="ort-mobile"))[:1] == [("target-opset", "opset import ai.onnx")]


def test_unsupported_element_type_is_reported() -> None:
    body = model("g (double[2] x) => (double[2] y) { y = Erf (x) }")
    (only,) = [item for item in check(body, target="onnxruntime") if item.code == "target-type"]
    assert str(only.where) == "node Erf(y)" and "double 'x'" in only.reason


def test_type_cast_by_the_target_is_accepted() -> None:
    body = model("g (float16[2] x) => (float16[2] y) { y = LeakyRelu (x) }")
    assert targeted(check(body, target="onnxruntime")) == []


def test_type_narrowed_by_the_target_is_a_warning() -> None:
    body = model("g (double[2] x) => (double[2] y) { y = Relu (x) z = Abs (y) }")
    findings = check(body, target="tensorrt")
    assert [item.severity for item in findings] == ["warning", "warning"]
    assert "clamping" in findings[0].reason


def test_conditions_are_reported_once() -> None:
    nodes = " ".join(f"v{i + 1} = CumSum (v{i}, a)" for i in range(3))
    body = model(f"g (float[2] v0, int64 a) => (float[2] v3) {{ {nodes} }}")
    (finding,) = [item for item in check(body, target="tensorrt") if item.code == "target-restriction"]
    assert "axis must be a build-time constant" in finding.reason and "2 more" in finding.reason


def test_composed_operator_runs_if_its_parts_run() -> None:
    body = model("g (float[2, 4] x, int64[1] a) => (float[2, 4] y) { y = Swish (x) }", opset=24, ir=11)
    assert targeted(check(body, target="onnxruntime", version="1.26")) == []


def test_patch_version_matches_the_known_version() -> None:
    target = find_target("tensorrt", "10.15.1")
    assert target is not None and target.version == "10.15"


@pytest.mark.parametrize(
    ("target", "version"), [("nothing", None), ("tensorrt", "99"), (None, "1.20"), ("tensorrt", "1")]
)
def test_errors_for_unknown_names_list_the_known_ones(target: str | None, version: str | None) -> None:
    with pytest.raises(OptionError) as error:
        check(model(RELU), target=target, version=version)
    assert "expected one of" in str(error.value) or target is None


def test_tables_name_their_source_and_existing_operators() -> None:
    for name in known_targets():
        content = json.loads((resources.files("sardonyx.model.check") / "targets" / f"{name}.json").read_text())
        assert content["target"] == name
        for table in content["versions"].values():
            assert table["source"]
            plain = {operator for operator in table["operators"] if "::" not in operator}
            known = {schema.name for schema in onnx.defs.get_all_schemas_with_history() if schema.domain == ""}
            # Operators of the first opsets without a schema in current onnx.
            historical = {"Affine", "Crop", "DynamicSlice", "GivenTensorFill", "ImageScaler", "ParametricSoftplus",
                          "Scale", "ScaledTanh"}  # fmt: skip
            assert plain - known <= historical | {"SimplifiedLayerNormalization"}


def session_refusal(proto: onnx.ModelProto) -> str:
    onnxruntime.set_default_logger_severity(4)
    try:
        onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    except Exception as error:
        return re.sub(r"\s+", " ", str(error))
    return ""


NEWEST = find_target("onnxruntime")
assert NEWEST is not None
needs_same_runtime = pytest.mark.skipif(
    not onnxruntime.__version__.startswith(f"{NEWEST.version}."),
    reason=f"the newest table is of onnxruntime {NEWEST.version}, installed is {onnxruntime.__version__}",
)


TYPES = ["float", "double", "float16", "int8", "uint8", "int16", "int32", "int64", "bool"]


@needs_same_runtime
@pytest.mark.parametrize(
    "operator", ["Abs", "Acosh", "Celu", "Erf", "Floor", "LeakyRelu", "Neg", "Relu", "Sign", "Sin"]
)
def test_onnxruntime_agrees_on_element_types(operator: str) -> None:
    for element in TYPES:
        proto = model(f"g ({element}[2] x) => ({element}[2] y) {{ y = {operator} (x) }}")
        findings = check(proto, target="onnxruntime")
        assert bool(findings) == bool(session_refusal(proto)), (element, [str(item) for item in findings])


@pytest.mark.long
@needs_same_runtime
def test_onnxruntime_agrees_on_the_backend_suite() -> None:
    cases = [case.model or onnx.load(f"{case.model_dir}/model.onnx") for case in load_model_tests(kind="node")]
    missed = 0
    for proto in cases:
        refusal = session_refusal(proto)
        findings = [item for item in check(proto, target="onnxruntime") if item.severity == "error"]
        if not refusal:
            assert not findings, [str(item) for item in findings]
        missed += bool(refusal) and not findings
    # The remainder: attributes that a kernel refuses on construction, and schemas changed before their release.
    assert missed <= 0.02 * len(cases)
