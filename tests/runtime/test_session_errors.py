"""Bad models and bad feeds: an error that names node, operator, tensors and sizes, soon and in little memory."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser

from sardonyx.errors import (
    ExecutionError,
    FeedError,
    InvalidModelError,
    ResourceError,
    SardonyxError,
    ShapeError,
    TypeMismatchError,
    UnsupportedError,
)
from sardonyx.runtime import Session

HUGE = 10**13
Arrays = Sequence[np.ndarray | None]


def ints(*values: Any) -> np.ndarray:
    return np.array(values, np.int64)


def scalar(value: float, dtype: type = np.int64) -> np.ndarray:
    return np.array(value, dtype)


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def model_of(name: str, arrays: Arrays, attributes: Mapping[str, Any], *, opset: int, outputs: int, domain: str) -> Any:
    """A model of the node ``bad``, whose inputs declare no sizes."""
    names = ["" if array is None else f"x{i}" for i, array in enumerate(arrays)]
    node = helper.make_node(name, names, [f"y{i}" for i in range(outputs)], name="bad", domain=domain, **attributes)
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), None)
        for n, a in zip(names, arrays, strict=True)
        if a is not None
    ]
    graph = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name=f"y{i}") for i in range(outputs)])
    imports = [helper.make_opsetid(domain, opset)] + ([helper.make_opsetid("", 23)] if domain else [])
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def refusal(
    name: str, arrays: Arrays, attributes: Mapping[str, Any] | None = None, *, opset: int = 23, outputs: int = 1,
    domain: str = "",
) -> SardonyxError:  # fmt: skip
    """The error that a node gives on these inputs, from loading or from running."""
    model = model_of(name, arrays, attributes or {}, opset=opset, outputs=outputs, domain=domain)
    tracemalloc.start()
    try:
        with pytest.raises(SardonyxError) as caught:
            Session(model).run(None, {f"x{i}": array for i, array in enumerate(arrays) if array is not None})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 24
    error = caught.value
    # No exception of numpy's or Python's own stands behind it, but those of a pattern.
    assert error.__cause__ is None or isinstance(error.__cause__, SardonyxError | re.error)
    assert error.where.startswith("node bad (")
    return error


Case = tuple[str, Arrays, dict[str, Any], str]
"""An operator, its inputs and attributes, and what the message says."""

INDICES: list[Case] = [
    ("Gather", [ones(3, 4), scalar(3)], {}, "index 3 is out of range for an axis of 3"),
    ("Gather", [ones(3, 4), scalar(-4)], {}, "index -4 is out of range for an axis of 3"),
    ("Gather", [ones(3, 0), scalar(0)], {"axis": 1}, "index 0 is out of range for an axis of 0"),
    ("Gather", [ones(3, 4), scalar(0)], {"axis": 2}, "axis 2 is out of range for rank 2"),
    ("GatherElements", [ones(3, 4), ints([7])], {}, "index 7"),
    ("GatherElements", [ones(3, 4), ints(1)], {}, "expected 2 axes"),
    ("GatherND", [ones(3, 4), ints(1, 4)], {}, "index 4 is out of range for an axis of 4"),
    ("GatherND", [ones(3, 4), ints(0, 0, 0)], {}, "exceed the rank 2"),
    ("GatherND", [ones(3, 4), ints([0], [0], [0])], {"batch_dims": 5}, "do not share 5 axes"),
    ("ScatterElements", [ones(3, 4), ints([9]), ones(1, 1)], {}, "index 9"),
    ("ScatterElements", [ones(3, 4), ints([1]), ones(1, 2)], {}, "[1, 1] and [1, 2]"),
    ("ScatterND", [ones(3, 4), ints([3]), ones(1, 4)], {}, "index 3"),
    ("ScatterND", [ones(3, 4), ints([1]), ones(1, 5)], {}, "[1, 4] and [1, 5]"),
    ("ScatterND", [ones(3), ints([0]), ones(1)], {"reduction": "xor"}, "unknown reduction 'xor'"),
    ("Slice", [ones(3), ints(0), ints(2), ints(0), ints(0)], {}, "Use one nonzero step"),
    ("Slice", [ones(3), ints(0), ints(2), ints(4)], {}, "axis 4 is out of range"),
    ("Slice", [ones(3), scalar(0), ints(2)], {}, "1 axes"),
    ("TopK", [ones(3), ints(5)], {}, "expected 0 ≤ k ≤ 3, got 5"),
    ("TopK", [ones(3), ints(-1)], {}, "is -1"),
    ("OneHot", [ints(1), ints(-1), ones(2)], {}, "the depth of OneHot is -1"),
    ("OneHot", [ints(1), ints(3), ones(3)], {}, "for the input `values` of OneHot, got [3]"),
    ("Compress", [ones(3), np.array([True] * 5)], {}, "index"),
    ("ReverseSequence", [ones(2, 3), ints(4, 1)], {"time_axis": 1, "batch_axis": 0}, "index 3"),
    ("ArgMax", [ones(0)], {}, "is undefined"),
    ("TensorScatter", [ones(1, 4, 2), ones(1, 2, 2), ints(3)], {}, "index 4 is out of range for an axis of 4"),
]
SIZES: list[Case] = [
    ("Split", [ones(5), ints(2, 2)], {}, "an axis of 5 cannot be split into 2, 2"),
    ("Split", [ones(5), ints(7, -2)], {}, "is -2"),
    ("Split", [ones(5)], {"num_outputs": HUGE}, "2 outputs"),
    ("Reshape", [ones(6), ints(4)], {}, "[6] cannot be reshaped to [4]"),
    ("Reshape", [ones(6), ints(-1, 4)], {}, "cannot be reshaped"),
    ("Reshape", [ones(6), ints(-1, -1)], {}, "-1 occurs 2 times"),
    ("Reshape", [ones(6), ints(-2, -3)], {}, "negative size"),
    ("Reshape", [ones(0, 3), ints(0, -1)], {"allowzero": 1}, "cannot be inferred"),
    ("Concat", [ones(2, 2), ones(3, 3)], {"axis": 0}, "float[2, 2] and float[3, 3] differ"),
    ("Concat", [ones(2, 2)], {"axis": 2}, "axis 2 is out of range"),
    ("Transpose", [ones(2, 3)], {"perm": [0, 0]}, "an axis occurs twice"),
    ("Squeeze", [ones(2, 1), ints(0)], {}, "size 2"),
    ("Unsqueeze", [ones(2), ints(0, 0)], {}, "twice"),
    ("Flatten", [ones(2)], {"axis": 3}, "axis 3"),
    ("Add", [ones(2, 3), ones(4)], {}, "[2, 3] and [4] do not broadcast"),
    ("Where", [np.array([True]), ones(3), ones(4)], {}, "do not broadcast"),
    ("MatMul", [ones(2, 3), ones(4, 5)], {}, "expected equal sizes"),
    ("MatMul", [ones(), ones(2)], {}, "got a scalar"),
    ("Gemm", [ones(2, 3), ones(4, 5)], {}, "axis 1 of float[2, 3] and axis 0 of float[4, 5]"),
    ("Gemm", [ones(2, 3), ones(3, 5), ones(4)], {}, "sizes 4 and 5 do not broadcast"),
    ("Gemm", [ones(2), ones(3, 5)], {}, "matrices"),
    ("Conv", [ones(1, 3, 5, 5), ones(4, 2, 3, 3)], {}, "3 channels"),
    ("Conv", [ones(1, 4, 5, 5), ones(3, 2, 3, 3)], {"group": 2}, "expected a multiple of 2 groups, got 3 features"),
    ("Conv", [ones(1, 2, 5, 5), ones(2, 2, 3, 3)], {"group": 0}, "0 groups"),
    ("Conv", [ones(1, 1, 3, 3), ones(1, 1, 5, 5)], {}, "wider than"),
    ("Conv", [ones(1, 1, 5, 5), ones(1, 1, 3, 3)], {"kernel_shape": [2, 2]}, "kernel_shape is [2, 2]"),
    ("Conv", [ones(1, 1, 5, 5), ones(1, 1, 3, 3)], {"strides": [0, 1]}, "strides"),
    ("Conv", [ones(1, 1, 5, 5), ones(1, 1, 3, 3)], {"pads": [1, 1]}, "expected 4 numbers in `pads`"),
    ("ConvTranspose", [ones(1, 3, 5), ones(2, 2, 3)], {}, "3 channels"),
    ("MaxPool", [ones(1, 1, 3, 3)], {"kernel_shape": [3]}, "does not fit 2 spatial axes"),
    ("AveragePool", [ones(1, 1, 3, 3)], {"kernel_shape": [0, 1]}, "a kernel of 0, 1"),
    ("LpPool", [ones(1, 1, 3, 3)], {"kernel_shape": [2, 2], "p": 0}, "expected a positive p, got 0"),
    ("Pad", [ones(2), ints(1)], {}, "expected 2 pads for 1 axes, got 1"),
    ("Pad", [ones(2), ints(-3, 0)], {}, "removes more than"),
    ("Pad", [ones(0), ints(1, 1)], {"mode": "edge"}, "axis of 0"),
    ("Tile", [ones(3), ints(1, 2)], {}, "expected 1 repeats"),
    ("Tile", [ones(3), ints(-1)], {}, "is -1"),
    ("Expand", [ones(3), ints(2)], {}, "do not broadcast"),
    ("ConstantOfShape", [ints(2, -1)], {}, "a size is -1"),
    ("DepthToSpace", [ones(1, 3, 2, 2)], {"blocksize": 2}, "reshaped"),
    ("SpaceToDepth", [ones(1, 3, 2, 2)], {"blocksize": -1}, "blocksize"),
    ("ReduceSum", [ones(2), ints(3)], {}, "axis 3"),
    ("Softmax", [ones(2)], {"axis": 3}, "axis 3"),
    ("LSTM", [ones(2, 1, 3), ones(1, 8, 3), ones(1, 7, 2)], {"hidden_size": 2}, "R, got [1, 7, 2]"),
    ("GRU", [ones(2, 3), ones(1, 6, 3), ones(1, 6, 2)], {"hidden_size": 2}, "expected 3 axes for X"),
    ("Attention", [ones(1, 2, 3, 4), ones(1, 3, 4), ones(1, 2, 3, 4)], {}, "expected 4 axes"),
    ("Attention", [ones(1, 2, 6), ones(1, 2, 6), ones(1, 2, 6)], {}, "q_num_heads"),
    ("BatchNormalization", [ones(1, 2, 3), ones(3), ones(2), ones(2), ones(2)], {}, "[3]"),
    ("GroupNormalization", [ones(1, 3, 4), ones(3), ones(3)], {"num_groups": 2}, "2"),
    ("Einsum", [ones(2, 3), ones(4, 5)], {"equation": "ij,jk->ik"}, "broadcast"),
    ("Einsum", [ones(2, 3)], {"equation": "ijk->i"}, "ijk"),
    ("Det", [ones(2, 3)], {}, "square"),
    ("Resize", [ones(1, 1, 2, 2), None, np.array([1, 2], np.float32)], {}, "scales"),
    ("NonMaxSuppression", [ones(1, 6, 4), ones(1, 1, 5)], {}, "boxes"),
    ("AffineGrid", [ones(1, 2, 3), ints(1, 1)], {}, "expected an image of rank 3 or more, got rank 2"),
]
NUMBERS: list[Case] = [
    ("Div", [ints(1, 2), ints(1, 0)], {}, "divided by zero, at [1]"),
    ("Mod", [ints(1, 2), ints(0, 1)], {}, "divided by zero, at [0]"),
    ("Mod", [ints(1, 2), scalar(0)], {"fmod": 1}, "divided by zero"),
    ("Pow", [ints(0, 1), ints(-1, -1)], {}, "an integer 0"),
    ("Range", [scalar(0), scalar(5), scalar(0)], {}, "a step of 0"),
    ("Range", [scalar(0, np.float32), scalar(np.nan, np.float32), scalar(1, np.float32)], {}, "a length of nan"),
    ("Range", [scalar(0, np.float32), scalar(np.inf, np.float32), scalar(1, np.float32)], {}, "a length of inf"),
    ("Cast", [np.array(["a"], object)], {"to": TensorProto.INT64}, "cannot convert the text 'a' to int64"),
    ("Cast", [ones(1)], {"to": 99}, "unknown element type 99"),
    ("RandomNormal", [], {"shape": [2, -3]}, "negative size"),
    ("RandomNormal", [], {"shape": [2], "dtype": 77}, "unknown element type 77"),
    ("Dropout", [ones(2), scalar(1.5, np.float32), np.array(True)], {}, "the ratio of Dropout is 1.5"),
    ("Loop", [scalar(1), np.array(True)], {}, "body"),
    ("If", [np.array(True)], {}, "else_branch"),
    ("MaxPool", [ones(1, 1, 2, 2)], {"kernel_shape": [HUGE, 1], "auto_pad": "SAME_UPPER"}, "expected at most 16777216"),
    ("RegexFullMatch", [np.array(["a"], object)], {"pattern": "["}, "pattern"),
    ("DFT", [ones(1, 4, 1), scalar(-1)], {}, "-1"),
    ("BitShift", [np.array([1], np.uint8), np.array([1], np.uint8)], {"direction": "UP"}, "unknown direction 'UP'"),
]


@pytest.mark.parametrize(("name", "arrays", "attributes", "problem"), INDICES + SIZES + NUMBERS)
def test_what_has_no_answer(name: str, arrays: Arrays, attributes: dict[str, Any], problem: str) -> None:
    if name in ("Loop", "If"):
        body = helper.make_graph([], "body", [], [])
        attributes = {} if name == "Loop" else {"then_branch": body}
    if name == "TensorScatter":
        error = refusal(name, arrays, attributes, opset=24)
    else:
        error = refusal(name, arrays, attributes, outputs=2 if name in ("TopK", "Split") else 1)
    assert problem in str(error)
    assert f"({name})" in error.where


@pytest.mark.parametrize(
    ("name", "arrays", "attributes"),
    [
        ("ConstantOfShape", [ints(10**6, 10**7)], {}),
        ("ConstantOfShape", [ints(2**40, 2**40)], {}),
        ("Expand", [ones(1), ints(HUGE)], {}),
        ("Tile", [ones(3), ints(HUGE)], {}),
        ("Tile", [ones(3, 3), ints(HUGE, HUGE)], {}),
        ("Range", [scalar(0), scalar(HUGE), scalar(1)], {}),
        ("Range", [scalar(-(2**63)), scalar(2**63 - 1), scalar(1)], {}),
        ("Pad", [ones(2), ints(0, HUGE)], {}),
        ("Pad", [ones(2), ints(HUGE, 0)], {"mode": "wrap"}),
        ("Resize", [ones(1, 1, 2, 2), None, None, ints(1, 1, HUGE, 2)], {}),
        ("Resize", [ones(1, 1, 2, 2), None, np.array([1, 1, 1e13, 1], np.float32)], {}),
        ("OneHot", [ints(1), ints(HUGE), ones(2)], {}),
        ("RandomNormal", [], {"shape": [HUGE]}),
        ("HannWindow", [scalar(HUGE)], {}),
        ("BlackmanWindow", [scalar(HUGE)], {}),
        (
            "MelWeightMatrix",
            [scalar(HUGE), scalar(16), scalar(8), scalar(0.0, np.float32), scalar(4.0, np.float32)],
            {},
        ),
        ("Conv", [ones(1, 1, 2), ones(1, 1, 1)], {"pads": [HUGE, 0]}),
        ("AffineGrid", [ones(1, 2, 3), ints(1, 1, HUGE, 4)], {}),
        ("CenterCropPad", [ones(2), ints(HUGE)], {}),
        ("DFT", [ones(1, 4, 1), scalar(HUGE)], {}),
        ("Col2Im", [ones(1, 4, 4), ints(HUGE, 3), ints(2, 2)], {}),
    ],
)
def test_sizes_of_terabytes_are_not_tried(name: str, arrays: Arrays, attributes: dict[str, Any]) -> None:
    error = refusal(name, arrays, attributes)
    assert isinstance(error, ResourceError | ShapeError)
    if isinstance(error, ResourceError):
        assert "bytes" in error.problem and "max_memory" in error.remedy


def tree(**changes: Any) -> dict[str, Any]:
    """A tree of one decision."""
    return {
        "n_targets": 1, "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0, 0, 0],
        "nodes_values": [0.5, 0.0, 0.0], "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0], "target_treeids": [0, 0],
        "target_nodeids": [1, 2], "target_ids": [0, 0], "target_weights": [1.0, 2.0], **changes,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"nodes_truenodeids": [7, 0, 0]}, "refers to the missing node 7"),
        ({"nodes_falsenodeids": [-1, 0, 0]}, "refers to the missing node -1"),
        ({"nodes_truenodeids": [0, 0, 0]}, "cycle"),
        ({"nodes_nodeids": [0, 1, 1]}, "unique node ids"),
        ({"nodes_modes": ["BRANCH_UP", "LEAF", "LEAF"]}, "unknown node mode 'BRANCH_UP'"),
        ({"nodes_values": [0.5]}, "`nodes_values` of one length, got 3 and 1"),
        ({"target_nodeids": [1, 9]}, "missing node 9 of tree 0"),
        ({"target_ids": [0, 3]}, "target 3 of a leaf is out of range for 1 targets"),
        ({"target_weights": [1.0]}, "`target_weights` of one length, got 2 and 1"),
        ({"nodes_featureids": [5, 0, 0]}, "5"),
        ({"nodes_featureids": [-1, 0, 0]}, "-1"),
        ({"aggregate_function": "MEDIAN"}, "MEDIAN"),
    ],
)
def test_trees_that_are_none(changes: dict[str, Any], problem: str) -> None:
    error = refusal("TreeEnsembleRegressor", [ones(2, 3)], tree(**changes), opset=3, domain="ai.onnx.ml")
    assert problem in str(error)


# Feeds.

SUM = parser.parse_model(
    '<ir_version: 8, opset_import: ["": 17]> g (float[N, 3] a, float[N, 3] b) => (float[N, 3] c) { c = Add(a, b) }'
)


@pytest.mark.parametrize(
    ("feeds", "error", "words"),
    [
        ({"a": ones(2, 3)}, FeedError, ["b", "not fed", "float[N, 3]"]),
        ({"a": ones(2, 3), "b": ones(2, 3), "z": ones(1)}, FeedError, ["z", "no such input", "a, b"]),
        ({"a": ones(2, 3), "b": np.ones((2, 3))}, FeedError, ["b", "double", "float", "Convert the array to float32."]),
        ({"a": ones(2, 3), "b": ones(3)}, FeedError, ["b", "rank 2", "got 1"]),
        ({"a": ones(2, 3), "b": ones(2, 4)}, ShapeError, ["b", "axis 1", "size 4", "3"]),
        ({"a": ones(2, 3), "b": ones(5, 3)}, ShapeError, ["b", "axis 0", "size 5", "N = 2"]),
        ({"a": ones(2, 3), "b": [1.0]}, FeedError, ["b", "array", "list"]),
        ({"a": ones(2, 3), "b": None}, FeedError, ["b", "array", "NoneType"]),
        ({"a": ones(2, 3), "b": np.array(["x"] * 3)}, FeedError, ["b", "string"]),
        ({"a": ones(2, 3), "b": np.zeros((2, 3), "datetime64[s]")}, SardonyxError, ["datetime64"]),
    ],
)
def test_feeds_that_do_not_fit(feeds: dict[str, Any], error: type[SardonyxError], words: list[str]) -> None:
    with pytest.raises(error) as caught:
        Session(SUM).run(None, feeds)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_an_output_that_is_not_there() -> None:
    with pytest.raises(FeedError, match=r"nothing: the model computes no such value\. Its outputs are: c\."):
        Session(SUM).run(["nothing"], {"a": ones(2, 3), "b": ones(2, 3)})


# Models.


def parsed(text: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": 17, "my": 1]> {text}')


def test_an_operator_without_a_definition_is_named_with_its_nodes() -> None:
    model = parsed("g (float[N] x) => (float[N] y) { h = my.Unknown(x) \n k = my.Unknown(h) \n y = Relu(k) }")
    with pytest.raises(
        UnsupportedError, match=r"my.Unknown \(version 1 of my\) at node -> h \(my.Unknown\), node -> k"
    ):
        Session(model)


def test_a_value_that_nothing_computes() -> None:
    with pytest.raises(SardonyxError, match="nothing"):
        Session(parsed("g (float[N] x) => (float[N] y) { y = Add(x, nothing) }")).run(None, {"x": ones(2)})


def test_a_function_that_calls_itself() -> None:
    model = parsed(
        'g (float[N] x) => (float[N] y) { y = my.f(x) } <domain: "my", opset_import: ["": 17, "my": 1]> '
        "f (x) => (y) { y = my.f(x) }"
    )
    with pytest.raises(SardonyxError, match=r"f.* calls itself|recursive"):
        Session(model).run(None, {"x": ones(2)})


def test_an_element_type_that_an_operator_does_not_take() -> None:
    error = refusal("Sin", [ints(1)])
    assert isinstance(error, TypeMismatchError) and "tensor(int64)" in str(error) and "tensor(float)" in error.remedy
    error = refusal("Add", [ints(1), ones(1)])
    assert isinstance(error, TypeMismatchError) and "of one type" in str(error)


def test_inputs_and_attributes_that_are_missing_or_too_many() -> None:
    assert "lacks its input" in str(refusal("Add", [ones(1)]))
    assert "expects at most 2 inputs" in str(refusal("Add", [ones(1)] * 3))
    assert "has no attribute 'axes'" in str(refusal("Add", [ones(1)] * 2, {"axes": [1]}))
    assert "needs its attribute 'axis'" in str(refusal("Concat", [ones(1)]))
    assert isinstance(refusal("Add", [ones(1)] * 2, outputs=2), InvalidModelError)


def test_errors_name_every_tensor_that_the_node_is_given() -> None:
    error = refusal("Gather", [ones(3, 4), ints(7)])
    assert error.where == "node bad (Gather), given x0: float[3, 4], x1: int64[1]"
    assert isinstance(error, ExecutionError)


def test_errors_in_bodies_and_functions_name_the_innermost_node() -> None:
    model = parsed(
        "g (bool c, float[N] x, int64[M] i) => (float[K] y) "
        "{ y = If (c) <then_branch = t () => (float[K] p) { p = Gather(x, i) }, "
        "else_branch = e () => (float[K] q) { q = Identity(x) }> }"
    )
    with pytest.raises(ExecutionError, match=r"^node -> p \(Gather\), given x: float\[2\], i: int64\[1\]: index 5"):
        Session(model).run(None, {"c": np.array(True), "x": ones(2), "i": ints(5)})


# Limits.

ENDLESS = parsed(
    "g (float[2] x) => (float[2] y) { t = Constant<value = bool {1}>() \n"
    "y = Loop (, t, x) <body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w) "
    "{ d = Identity(c) \n w = Add(v, v) }> }"
)
COLLECTING = parsed(
    "g (int64 n) => (int64[K] y) { t = Constant<value = bool {1}>() \n"
    "y = Loop (n, t) <body = b (int64 i, bool c) => (bool d, int64 w) { d = Identity(c) \n w = Identity(i) }> }"
)


def test_loops_without_an_end() -> None:
    with pytest.raises(ResourceError, match=r"\(Loop\).*limit of 100 iterations.*max_loop_iterations"):
        Session(ENDLESS, max_loop_iterations=100).run(None, {"x": ones(2)})
    with pytest.raises(ResourceError, match=r"longer than 0.05 s"):
        Session(ENDLESS, timeout=0.05).run(None, {"x": ones(2)})


def test_what_a_loop_collects_counts() -> None:
    with pytest.raises(ResourceError, match="a loop's collected values"):
        Session(COLLECTING, max_memory=1 << 20).run(None, {"n": scalar(1 << 60)})
    assert len(Session(COLLECTING, max_memory=1 << 20).run(None, {"n": scalar(5)})[0]) == 5


def test_values_count_as_long_as_they_live() -> None:
    text = "g (float[N] x) => (float[N] y) { a = Add(x, x) \n b = Add(a, a) \n c = Add(b, b) \n y = Add(c, c) }"
    x = np.ones(1 << 16, np.float32)
    # At most two values live at a time: what is read, and what is made of it.
    assert Session(parsed(text), max_memory=3 * x.nbytes).run(None, {"x": x})[0][0] == 16
    with pytest.raises(ResourceError, match="max_memory"):
        Session(parsed(text), max_memory=x.nbytes // 2).run(None, {"x": x})


def test_what_host_operators_give_counts() -> None:
    model = parsed("g (float[N] x) => (int64[1, K] y) { y = NonZero(x) \n }")
    attributes = {
        "max_gram_length": 1, "min_gram_length": 1, "max_skip_count": 0, "mode": "TF", "ngram_counts": [0],
        "ngram_indexes": [HUGE], "pool_int64s": [1],
    }  # fmt: skip
    assert "TfIdfVectorizer needs 40,000,000,000,004 bytes" in str(refusal("TfIdfVectorizer", [ints(1)], attributes))
    assert Session(model).run(None, {"x": ones(3)})[0].tolist() == [[0, 1, 2]]


def require_answer(call: Callable[[], object]) -> None:
    """Call until an answer arrives within the session's time limit, which a loaded machine may exceed a few times."""
    for _ in range(99):
        try:
            call()
            return
        except ResourceError as error:
            if "longer than" not in str(error):
                raise
    call()


@pytest.mark.parametrize("bound", [False, True])
def test_compiled_loops_keep_to_the_limits(bound: bool) -> None:
    looped = parsed(
        "g (float[8] x, int64 n) => (float[8] y) { t = Constant<value = bool {1}>() \n"
        "y = Loop (n, t, x) <body = b (int64 i, bool c, float[8] v) => (bool d, float[8] w) "
        "{ d = Identity(c) \n w = Sin(v) }> }"
    )
    x, few, many = np.ones(8, np.float32), np.array(2), np.array(1 << 60)
    for limits, message in (
        ({"timeout": 0.2}, r"longer than 0\.2 s.*timeout"),
        ({"max_loop_iterations": 100}, r"\(Loop\).*limit of 100 iterations"),
    ):
        session = Session(looped, compile="wait", **limits)  # type: ignore[arg-type]
        assert session.native is not None
        count = few.copy()
        call = session.bind({"x": x, "n": count}) if bound else lambda: session.run(None, {"x": x, "n": count})  # noqa: B023
        require_answer(call)
        count[...] = many
        with pytest.raises(ResourceError, match=message):
            call()
        count[...] = few
        require_answer(call)
