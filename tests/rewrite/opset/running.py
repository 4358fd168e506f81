"""Running a model before and after its conversion, and judging whether the answers agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.rewrite.evaluate import evaluate
from sardonyx.rewrite.opset import convert_opset

OLDEST_RUN = 7
"""Lowest set with broadcasting by shape in engines; results below are judged after conversion back up."""


def parse(text: str) -> onnx.ModelProto:
    """A model written in ONNX text syntax."""
    return onnx.parser.parse_model(text)


def convert(proto: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """The model at another operator set, as a message."""
    return model_io.to_proto(convert_opset(model_io.from_proto(proto), opset))


def runnable(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model at an operator set implemented correctly by the engines."""
    version = next(entry.version for entry in proto.opset_import if not entry.domain)
    return convert(proto, 12) if version < OLDEST_RUN else proto


def answers(proto: onnx.ModelProto, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """What the model answers."""
    return evaluate(runnable(proto), feeds)


def draw(proto: onnx.ModelProto, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs of the declared types and shapes; unknown sizes are 3."""
    generator = np.random.default_rng(seed)
    constants = {tensor.name for tensor in proto.graph.initializer}
    feeds: dict[str, np.ndarray] = {}
    for value in proto.graph.input:
        if value.name in constants:
            continue
        kind = value.type.tensor_type
        shape = [dim.dim_value if dim.HasField("dim_value") else 3 for dim in kind.shape.dim]
        dtype = ir.DataType(kind.elem_type).numpy()
        if dtype == np.bool_:
            feeds[value.name] = generator.random(shape) < 0.5
        elif dtype.kind in "iu":
            feeds[value.name] = generator.integers(0, 2, shape).astype(dtype)
        else:
            feeds[value.name] = generator.normal(size=shape).astype(dtype)
    return feeds


def difference(got: Any, expected: Any, rtol: float = 1e-4, atol: float = 1e-6) -> str | None:
    """Return the difference of two answers, else None; integers, booleans and strings must be equal."""
    if isinstance(expected, (list, tuple)):
        if not isinstance(got, (list, tuple)) or len(got) != len(expected):
            return "sequences of different lengths"
        return next((d for a, b in zip(got, expected, strict=True) if (d := difference(a, b, rtol, atol))), None)
    if got is None or expected is None:
        return None if got is expected else "one of the two is none"
    one, other = np.asarray(got), np.asarray(expected)
    if one.shape != other.shape:
        return f"shape {one.shape} instead of {other.shape}"
    if other.dtype.kind in "OUST":
        return None if np.array_equal(one.astype(str), other.astype(str)) else "texts differ"
    if one.dtype != other.dtype:
        return f"type {one.dtype} instead of {other.dtype}"
    if other.dtype.kind in "iub":
        return None if np.array_equal(one, other) else "numbers differ"
    close = np.allclose(one.astype(np.float64), other.astype(np.float64), rtol=rtol, atol=atol, equal_nan=True)
    return None if close else "numbers differ"


def assert_same_answers(
    before: onnx.ModelProto, after: onnx.ModelProto, feeds: Mapping[str, Any], outputs: Sequence[str] | None = None
) -> None:
    """Both models answer alike, under the same names in the same order."""
    names = [value.name for value in before.graph.output]
    assert [value.name for value in after.graph.output] == names
    onnx.checker.check_model(after, full_check=True)
    expected, got = answers(before, feeds), answers(after, feeds)
    for name in outputs or names:
        assert difference(got[name], expected[name]) is None, f"{name}: {difference(got[name], expected[name])}"
