"""IR versions: raised freely, lowered if the model has no newer feature."""

from __future__ import annotations

import pytest

from sardonyx import model as model_io
from sardonyx.errors import OpsetConversionError, OptionError
from sardonyx.rewrite.opset import convert_opset
from tests.rewrite.opset.models import FUNCTION, SOFTMAX
from tests.rewrite.opset.running import draw, parse

WEIGHTED = """
<ir_version: 8, opset_import: ["" : 8]>
agraph (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }
"""


@pytest.mark.parametrize("version", [3, 5, 8, 13])
def test_a_plain_model_fits_every_version(version: int) -> None:
    assert convert_opset(model_io.from_proto(parse(SOFTMAX)), ir_version=version).ir_version == version


def test_before_version_4_initializers_are_inputs() -> None:
    proto = parse(WEIGHTED)
    assert list(draw(proto)) == ["x"]
    old = convert_opset(model_io.from_proto(proto), ir_version=3)
    assert [value.name for value in old.graph.inputs] == ["x", "w"]


def test_constants_added_by_a_conversion_are_inputs_too() -> None:
    old = convert_opset(model_io.from_proto(parse(WEIGHTED)), ir_version=3)
    proto = model_io.to_proto(old)
    proto.graph.node[0].op_type = "Max"
    converted = convert_opset(model_io.from_proto(proto), 7)
    assert {value.name for value in converted.graph.inputs} >= set(converted.graph.initializers)


def test_initializers_that_had_to_be_inputs_are_constants() -> None:
    proto = parse("""
    <ir_version: 3, opset_import: ["" : 5]>
    agraph (float[2, 2] x, float tiles, float axis) => (float[4, 2] y) <float tiles = {2}, float axis = {0}>
    { y = Tile(x, tiles, axis) }
    """)
    converted = convert_opset(model_io.from_proto(proto), 13)
    assert [value.name for value in converted.graph.inputs] == ["x", "tiles", "axis"]
    assert converted.ir_version >= 4


def test_functions_need_version_8() -> None:
    model = model_io.from_proto(parse(FUNCTION))
    with pytest.raises(OpsetConversionError, match="own::center"):
        convert_opset(model, ir_version=7)
    assert convert_opset(model, ir_version=8).ir_version == 8


@pytest.mark.parametrize(
    ("element", "since"), [("bfloat16", 4), ("float8e4m3fn", 9), ("int4", 10), ("float4e2m1", 11), ("float8e8m0", 12)]
)
def test_element_types_need_their_version(element: str, since: int) -> None:
    proto = parse(f"""
    <ir_version: 13, opset_import: ["" : 24]>
    agraph ({element}[2] x) => ({element}[2] y) {{ y = Identity(x) }}
    """)
    model = model_io.from_proto(proto)
    assert convert_opset(model, ir_version=since).ir_version == since
    with pytest.raises(OpsetConversionError, match=f"needs {since}"):
        convert_opset(model, ir_version=since - 1)


@pytest.mark.parametrize("version", [0, 2, 99])
def test_unsupported_versions_are_refused(version: int) -> None:
    with pytest.raises(OptionError, match=str(version)):
        convert_opset(model_io.from_proto(parse(SOFTMAX)), ir_version=version)
