"""Inference on public models: every value has a type and sizes, and nowhere does onnx know more, or otherwise."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from sardonyx.core.dim import Size
from sardonyx.core.ir.graph import DEFINED
from sardonyx.core.ir.types import SequenceType, TensorType, Type
from sardonyx.model import load, to_proto
from sardonyx.ops.inference import UNNAMED, infer
from tests.suites.node_cases import PARTS, node_cases

pytestmark = pytest.mark.sampled

_SUITES = os.environ.get("SARDONYX_SUITES", "")
needs_suites = pytest.mark.skipif(not _SUITES, reason="SARDONYX_SUITES does not name the folder of public models")

REAL = sorted(Path(_SUITES).glob("real/*.onnx")) if _SUITES else []
NETWORKS = sorted(Path(_SUITES).parent.glob("models/*.onnx")) if _SUITES else []
"""Graphs whose weights were taken out: sizes do not depend on them."""

COMPLETE = [path for path in REAL if path.stem in ("ort_tfbert_qa", "yunet_n_dynamic")]
COMPLETE += [path for path in NETWORKS if path.stem.endswith(".dyn")]

TOLD_OTHERWISE = {
    ("squeezenet_coreml", "classLabel"): "the file declares [None, 1] of an ArrayFeatureExtractor of strings [1000],"
    " which gives [1, number of indices]: both are right, and only where None is 1",
}
"""Values for which onnx takes a claim of the file that the operator does not give, with the reason."""


def inner_values(model: ir.Model) -> Iterator[ir.Value]:
    for node in model.graph.all_nodes():
        yield from (value for value in node.outputs if value.name)


def is_told(size: Size) -> bool:
    """Whether a size is a number, or an expression of sizes that the file names."""
    return isinstance(size, int) or not any(name.startswith((DEFINED, *UNNAMED)) for name in size.symbols())


def is_complete(type: Type | None) -> bool:
    if isinstance(type, SequenceType):
        return is_complete(type.element)
    return isinstance(type, TensorType) and type.shape is not None and all(map(is_told, type.shape))


@pytest.mark.parametrize("path", COMPLETE, ids=lambda path: path.stem)
def test_every_value_has_a_type_and_sizes(path: Path) -> None:
    model = load(path)
    inferred = infer(model)
    types = {value.name: inferred.type(value) for value in inner_values(model)}
    assert len(types) > 5
    assert {name: str(type) for name, type in types.items() if not is_complete(type)} == {}
    assert not inferred.conflicts
    assert not inferred.refusals


@needs_suites
def test_the_complete_ones_are_all_there() -> None:
    assert len(COMPLETE) == 15


def known_to_onnx(proto: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """What onnx infers, strictly where the model lets it."""
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError:
        inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    return {value.name: value.type for value in (*inferred.graph.value_info, *inferred.graph.output)}


def disagreement(ours: Type | None, theirs: onnx.TypeProto) -> str:
    """What onnx knows otherwise, or better; empty where nothing."""
    if not theirs.HasField("tensor_type"):
        return "" if theirs.WhichOneof("value") is None or ours is not None else "no type"
    tensor = theirs.tensor_type
    if not tensor.elem_type:
        return ""
    if not isinstance(ours, TensorType) or ours.dtype != tensor.elem_type:
        return f"{ours} is no tensor of element type {tensor.elem_type}"
    if not tensor.HasField("shape"):
        return ""
    sizes = [d.dim_value if d.HasField("dim_value") else d.dim_param for d in tensor.shape.dim]
    if ours.shape is None or len(ours.shape) != len(sizes):
        return f"{ours} for {sizes}"
    for our, their in zip(ours.shape, sizes, strict=True):
        if isinstance(their, int) and our != their:
            return f"{ours} for {sizes}"
        if isinstance(their, str) and their and not their.startswith(UNNAMED) and not is_told(our):
            return f"{ours} for {sizes}"
    return ""


def disagreements(model: ir.Model, proto: onnx.ModelProto) -> dict[str, str]:
    theirs, ours = known_to_onnx(proto), infer(model)
    named = {value.name: value for node in model.graph for value in node.outputs if value.name in theirs}
    assert not ours.conflicts, ours.conflicts[0].error()
    ours.require_consistency(model.graph)
    texts = {str(name): disagreement(ours.type(value), theirs[str(name)]) for name, value in named.items()}
    return {name: text for name, text in texts.items() if text}


@pytest.mark.parametrize("path", [*REAL, *NETWORKS], ids=lambda path: path.stem)
def test_onnx_knows_nothing_else_and_nothing_more(path: Path) -> None:
    model = load(path)
    texts = disagreements(model, to_proto(load(path), weights=False))
    assert {name: text for name, text in texts.items() if (path.stem, name) not in TOLD_OTHERWISE} == {}


def without_claims(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with outputs that declare their element type alone."""
    bare = onnx.ModelProto.FromString(model.SerializeToString())
    del bare.graph.value_info[:]
    for output in bare.graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    return bare


@pytest.mark.parametrize("part", range(PARTS))
def test_onnx_knows_no_more_of_the_node_cases(part: int) -> None:
    wrong = {}
    for case in node_cases()[part::PARTS]:
        assert case.model is not None
        bare = without_claims(case.model)
        if texts := disagreements(load(bare), bare):
            wrong[case.name] = texts
    assert wrong == {}


def test_what_is_compared_tells_types_apart() -> None:
    def theirs(*shape: int | str | None) -> onnx.TypeProto:
        return onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, shape)

    ours = infer(load(onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 17]>
        g (float[N, 3] x) => (y, z) { y = Transpose(x) z = NonZero(x) }""")))  # fmt: skip
    y, z = (next(ours.type(value) for value in ours.known if value.name == name) for name in "yz")
    assert (
        disagreement(y, theirs(3, "N"))
        == disagreement(y, theirs(3, None))
        == disagreement(y, theirs(3, "unk__0"))
        == ""
    )
    for shape in ((3, 4), (4, "N"), (3,)):
        assert disagreement(y, theirs(*shape))
    assert disagreement(z, theirs(2, "M"))
    assert disagreement(None, theirs(2))
