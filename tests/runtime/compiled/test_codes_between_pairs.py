"""Operators between DequantizeLinear and QuantizeLinear give the codes of the reference; most compute codes alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import sardonyx
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import TensorType

TYPES = {onnx.TensorProto.UINT8: np.uint8, onnx.TensorProto.INT8: np.int8}
SHAPE = (2, 8, 9, 14)

MOVEMENTS = {
    "slice",
    "pad",
    "concat",
    "gather",
    "reverse",
    "reduce",
    "reduce_window",
    "permute",
    "broadcast",
    "reshape",
}
"""Primitives that move elements, or choose among them."""


@dataclass(frozen=True)
class Between:
    """An operator between two pairs.

    Attributes:
        op: The operator.
        attributes: Its attributes.
        constants: Its further inputs; None for an omitted one.
        scale: True if the result has the scale of the operand.
        known: True if only known sizes are tested.
    """

    op: str
    attributes: dict[str, Any] = field(default_factory=dict)
    constants: tuple[Any, ...] = ()
    scale: bool = False
    known: bool = False


def integers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def resized(factor: float, **attributes: str) -> Between:
    return Between("Resize", dict(attributes), (None, np.array([1, 1, factor, factor], np.float32)))


WINDOW = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}

ON_CODES = {
    **{
        name: Between(name)
        for name in (
            "Relu",
            "LeakyRelu",
            "Sigmoid",
            "HardSigmoid",
            "HardSwish",
            "Tanh",
            "Elu",
            "Gelu",
            "Softplus",
            "Mish",
            "Erf",
            "Sqrt",
            "Exp",
            "Abs",
            "Neg",
            "Floor",
            "Identity",
            "Flatten",
        )
    },
    "Clip": Between("Clip", {}, (np.float32(0), np.float32(3.1))),
    "MaxPool": Between("MaxPool", WINDOW),
    "GlobalMaxPool": Between("GlobalMaxPool", known=True),
    "ReduceMax": Between("ReduceMax", {}, (integers(2, 3),), known=True),
    "ReduceMin": Between("ReduceMin", {"keepdims": 0}, (integers(1),), known=True),
    "Transpose": Between("Transpose", {"perm": [0, 2, 3, 1]}),
    "Reshape": Between("Reshape", {}, (integers(0, -1, 14),), known=True),
    "Concat": Between("Concat", {"axis": 1}),
    "Slice": Between("Slice", {}, (integers(1), integers(-1), integers(3), integers(2))),
    "Gather": Between("Gather", {"axis": 0}, (integers(1, 0, 1, 1),)),
    "GatherND": Between("GatherND", {}, (np.array([[0, 1], [1, 3]]),), known=True),
    "Pad constant": Between("Pad", {}, (integers(0, 0, 1, 2, 0, 0, 2, 1),)),
    "Pad edge": Between("Pad", {"mode": "edge"}, (integers(0, 0, 1, 2, 0, 0, 2, 1),), known=True),
    "Pad reflect": Between("Pad", {"mode": "reflect"}, (integers(0, 0, 1, 2, 0, 0, 2, 1),), known=True),
    "Tile": Between("Tile", {}, (integers(1, 1, 2, 2),)),
    "Expand": Between("Expand", {}, (integers(2, 1, 1, 1, 1),)),
    "DepthToSpace": Between("DepthToSpace", {"blocksize": 2}),
    "SpaceToDepth": Between("SpaceToDepth", {"blocksize": 2}, scale=True),
    "Resize nearest, twice": resized(2, mode="nearest"),
    "Resize nearest, half": resized(0.5, mode="nearest", coordinate_transformation_mode="asymmetric"),
}
"""Operators whose results are computed from 8-bit codes alone."""

FLOAT_SUMS = {
    "AveragePool": Between("AveragePool", WINDOW),
    "GlobalAveragePool": Between("GlobalAveragePool"),
    "ReduceMean": Between("ReduceMean", {}, (integers(2, 3),)),
    "ReduceSum": Between("ReduceSum", {}, (integers(1),)),
    "Resize linear": resized(2, mode="linear"),
    "Resize cubic": resized(2, mode="cubic"),
}
"""Operators whose floats are rounded sums: codes near ties may differ by one."""


def model(between: Between, dtype: int, points: tuple[int, int], goal: float, is_open: bool) -> onnx.ModelProto:
    """Return the operator between two pairs; the zero points are less the least code."""
    low = 0 if dtype == onnx.TensorProto.UINT8 else -128
    first, second = (np.array(low + point, TYPES[dtype]) for point in points)
    shape = list(SHAPE) if not is_open else ["N", SHAPE[1], "H", "W"]
    if between.op == "SpaceToDepth":
        shape[2] = "H" if is_open else 10
    arrays = {"s": np.float32(0.0371), "z": first, "gs": np.float32(0.0371 if between.scale else goal)}
    arrays |= {"gz": first if between.scale else second}
    names = ["xf"] * (2 if between.op == "Concat" else 1)
    for number, array in enumerate(between.constants):
        names.append("" if array is None else f"c{number}")
        arrays |= {} if array is None else {f"c{number}": array}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["xf"]),
        helper.make_node(between.op, names, ["yf"], **between.attributes),
        helper.make_node("QuantizeLinear", ["yf", "gs", "gz"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, between.op.lower(), [helper.make_tensor_value_info("x", dtype, shape)],
        [helper.make_tensor_value_info("y", dtype, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def answers(between: Between, seed: int, is_open: bool) -> tuple[sardonyx.Session, np.ndarray, np.ndarray]:
    """Return a compiled session, and the codes of the session and of the reference."""
    rng = np.random.default_rng(seed)
    dtype = [*TYPES][seed % 2]
    points = int(rng.integers(256)), int(rng.integers(256))
    net = model(between, dtype, points, float(rng.uniform(0.01, 0.09)), is_open)
    shape = [d.dim_value or int(rng.integers(2, 12)) * 2 for d in net.graph.input[0].type.tensor_type.shape.dim]
    x = rng.integers(0, 256, shape).astype(np.uint8).view(TYPES[dtype])
    session = sardonyx.Session(net, providers=["native"], compile="wait")
    reference = sardonyx.Session(net, providers=["reference"])
    return session, session.run(None, {"x": x})[0], reference.run(None, {"x": x})[0]


def cases(table: dict[str, Between]) -> list[Any]:
    return [
        pytest.param(name, is_open, id=f"{name}, {'open' if is_open else 'known'}")
        for name, between in table.items()
        for is_open in ((False,) if between.known else (False, True))
    ]


@pytest.mark.parametrize(("name", "is_open"), cases(ON_CODES))
def test_codes_are_those_of_the_reference_and_move_as_bytes(name: str, is_open: bool) -> None:
    for seed in (sum(name.encode()), sum(name.encode()) + 1):
        session, actual, expected = answers(ON_CODES[name], seed, is_open)
        np.testing.assert_array_equal(actual, expected)
        assert session.program is not None
        # Numbers that constants repeat are read in place.
        moved = {
            value.op
            for value in session.program.function.values
            if value.op in MOVEMENTS and isinstance(value.type, TensorType) and value.type.dtype == t.FLOAT
            and not value.operands[0].is_constant
        }  # fmt: skip
        assert not moved


@pytest.mark.parametrize(("name", "is_open"), cases(FLOAT_SUMS))
def test_codes_of_rounded_sums_are_within_one_of_the_reference(name: str, is_open: bool) -> None:
    seed = sum(name.encode())
    _, actual, expected = answers(FLOAT_SUMS[name], seed, is_open)
    assert (np.abs(actual.astype(int) - expected) <= 1).all()
    assert (actual == expected).mean() > 0.99


def test_the_design_page_lists_the_operators() -> None:
    """The table of the engine's page has a row for each operator that is tested here."""
    page = (Path(__file__).parents[3] / "docs" / "design" / "engine.md").read_text()
    for between in (*ON_CODES.values(), *FLOAT_SUMS.values()):
        assert f"`{between.op}`" in page, between.op
