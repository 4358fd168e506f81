"""Tensor-parallel parts: each rule is an equality of numbers, and the ways of whole models compute the model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx import Session
from sardonyx.core.eval.run_context import RunContext, running
from sardonyx.core.eval.tensor import Tensor, apply, constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function
from sardonyx.distributed.axis_rules import RULES, divide, local_params
from sardonyx.distributed.tensor_parallel import TensorParallel, Way, run_ways
from sardonyx.errors import OptionError, UnsupportedError
from tests.distributed.networks import layers

RNG = np.random.default_rng(0)
EACH = {"strides": (1, 1), "padding": ((1, 1), (1, 1)), "kernel_dilation": (1, 1), "base_dilation": (1, 1)}


def drawn(*shape: int) -> Tensor:
    return constant(RNG.standard_normal(shape).astype(np.float32))


CASES: dict[str, tuple[str, tuple[Tensor, ...], dict[str, Any]]] = {
    "unary": ("tanh", (drawn(4, 6),), {}),
    "binary": ("add", (drawn(4, 6), drawn(4, 6)), {}),
    "ternary": ("select", (constant(RNG.random((4, 6)) < 0.5), drawn(4, 6), drawn(4, 6)), {}),
    "permute": ("permute", (drawn(2, 4, 6),), {"axes": (2, 0, 1)}),
    "split of an axis": ("reshape", (drawn(2, 12),), {"shape": (2, 4, 3)}),
    "split with ones": ("reshape", (drawn(2, 12),), {"shape": (2, 1, 4, 3)}),
    "odd split": ("reshape", (drawn(2, 12),), {"shape": (2, 3, 4)}),
    "joined axes": ("reshape", (drawn(2, 4, 3),), {"shape": (2, 12)}),
    "joined rows": ("reshape", (drawn(2, 4, 6),), {"shape": (8, 6)}),
    "broadcast": ("broadcast", (drawn(1, 4, 6),), {"shape": (8, 4, 6)}),
    "slice": ("slice", (drawn(4, 6),), {"starts": (1, 0), "limits": (3, 6), "strides": (1, 1)}),
    "step": ("slice", (drawn(4, 6),), {"starts": (0, 0), "limits": (4, 6), "strides": (2, 1)}),
    "pad": ("pad", (drawn(4, 6), drawn()), {"low": (1, 0), "high": (0, 0), "interior": (1, 0)}),
    "crop": ("pad", (drawn(4, 6), drawn()), {"low": (0, -2), "high": (0, 0), "interior": (0, 0)}),
    "concat": ("concat", (drawn(4, 6), drawn(2, 6)), {"axis": 0}),
    "gather": ("gather", (drawn(5, 4, 6), constant(np.array([[0], [4], [2]], np.int64))), {"batch": 0}),
    "gather in rows": ("gather", (drawn(4, 5, 6), constant(np.full((4, 3, 1), 2, np.int64))), {"batch": 1}),
    "reduce": ("reduce", (drawn(4, 6, 8),), {"kind": "add", "axes": (0,)}),
    "reduce two": ("reduce", (drawn(4, 6, 8),), {"kind": "max", "axes": (0, 2)}),
    "product": ("contract", (drawn(4, 6), drawn(6, 8)), {"batch": (), "left": (1,), "right": (0,), "dtype": t.FLOAT}),
    "transposed": ("contract", (drawn(6, 4), drawn(8, 6)),
                   {"batch": (), "left": (0,), "right": (1,), "dtype": t.FLOAT}),
    "heads": ("contract", (drawn(2, 4, 3, 6), drawn(2, 4, 8, 6)),
              {"batch": ((0, 0), (1, 1)), "left": (3,), "right": (3,), "dtype": t.FLOAT}),
    "crossed heads": ("contract", (drawn(4, 2, 6), drawn(2, 6, 4)),
                      {"batch": ((1, 0), (0, 2)), "left": (2,), "right": (1,), "dtype": t.FLOAT}),
    "convolution": ("convolve", (drawn(1, 2, 4, 5, 5), drawn(1, 6, 4, 3, 3)), {**EACH, "dtype": t.FLOAT}),
    "groups": ("convolve", (drawn(4, 2, 3, 5, 5), drawn(4, 6, 3, 3, 3)), {**EACH, "dtype": t.FLOAT}),
    "windows": ("reduce_window", (drawn(2, 4, 6, 6),), {"kind": "max", "window": (2, 2), "strides": (2, 2),
                                                        "padding": ((0, 0), (0, 0)), "dilation": (1, 1)}),
    "reverse": ("reverse", (drawn(4, 6),), {"axes": (0,)}),
    "scan": ("scan", (drawn(4, 6),), {"kind": "add", "axis": 0}),
    "sort": ("sort", (drawn(4, 6),), {"axis": 0, "descending": False}),
    "convert": ("convert", (drawn(4, 6),), {"dtype": t.INT32, "saturate": True, "rounding": "nearest"}),
}  # fmt: skip


def function_of(op: str, operands: Sequence[Tensor], params: dict[str, Any]) -> Function:
    return trace("one", lambda *xs: [apply(op, *xs, **params)], [one.type for one in operands])


def computed(op: str, operands: Sequence[Tensor], params: dict[str, Any]) -> np.ndarray:
    with running(RunContext()):
        return np.asarray(apply(op, *operands, **params).known)


def block(array: np.ndarray, axis: int | None, way: int, ways: int) -> np.ndarray:
    return array if axis is None else np.split(array, ways, axis)[way]


@pytest.mark.parametrize("name", CASES)
def test_a_rule_is_an_equality_of_blocks(name: str) -> None:
    op, operands, params = CASES[name]
    value = function_of(op, operands, params).results[0]
    whole = computed(op, operands, params)
    ways, held = 2, 0
    ranks = [[None, *range(one.known.ndim)] for one in operands]
    for axes in itertools.product(*ranks):
        if all(axis is None for axis in axes):
            continue
        if any(axis is not None and one.known.shape[axis] % ways for one, axis in zip(operands, axes, strict=True)):
            continue
        division = divide(value, axes, ways)
        if division is None:
            continue
        held += 1
        parts = []
        for way in range(ways):
            own = [
                constant(np.array(block(one.known, axis, way, ways)))
                for one, axis in zip(operands, division.operands, strict=True)
            ]
            parts.append(computed(op, own, local_params(value, division.axis, ways)))
        joined = sum(parts) if division.axis is None else np.concatenate(parts, division.axis)
        np.testing.assert_allclose(joined, whole, rtol=1e-5, atol=1e-5, err_msg=str(axes))
    assert held or name == "odd split"


def test_each_rule_has_a_case() -> None:
    kinds = {"tanh": "unary", "add": "binary", "select": "ternary"}
    covered = {op for op, _, _ in CASES.values()} | {"stop_gradient"}
    elementwise = {name for name, rule in RULES.items() if rule is RULES["tanh"]}
    assert set(RULES) - elementwise <= covered and set(kinds) <= covered


def model_of(nodes: list[Any], weights: dict[str, Any], inputs: dict[str, Any], outputs: list[str]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def weight(*shape: int) -> np.ndarray:
    return np.asarray(RNG.standard_normal(shape) / np.sqrt(shape[0]), np.float32)


def transformer(qkv: str) -> onnx.ModelProto:
    """Return a layer of attention with 4 heads of 16, whose products of queries, keys and values are one."""
    node, width = helper.make_node, 64
    weights: dict[str, Any] = {
        "qkv": weight(width, 3 * width), "bias": weight(3 * width), "out": weight(width, width), "scale": weight(width),
        "shift": weight(width), "up": weight(width, 4 * width), "down": weight(4 * width, width), "rest": weight(width),
        "heads": np.array([0, -1, 3, 4, 16]), "head": np.array([0, -1, 4, 16]), "flat": np.array([0, -1, width]),
        "root": np.float32(0.25), "one": np.array([0]),
    }  # fmt: skip
    nodes = [node("LayerNormalization", ["x", "scale", "shift"], ["n"]), node("MatMul", ["n", "qkv"], ["a"]),
             node("Add", ["a", "bias"], ["b"])]  # fmt: skip
    if qkv == "split":
        nodes.append(node("Split", ["b"], ["q0", "k0", "v0"], axis=2))
        nodes += [node("Reshape", [f"{one}0", "head"], [f"{one}1"]) for one in "qkv"]
    else:
        nodes += [node("Reshape", ["b", "heads"], ["c"]), node("Split", ["c"], ["q2", "k2", "v2"], axis=2)]
        weights["two"] = np.array([2])
        nodes += [node("Squeeze", [f"{one}2", "two"], [f"{one}1"]) for one in "qkv"]
    nodes += [node("Transpose", ["q1"], ["q"], perm=[0, 2, 1, 3]), node("Transpose", ["k1"], ["k"], perm=[0, 2, 3, 1]),
              node("Transpose", ["v1"], ["v"], perm=[0, 2, 1, 3]), node("MatMul", ["q", "k"], ["s"]),
              node("Mul", ["s", "root"], ["t"]), node("Softmax", ["t"], ["p"]), node("MatMul", ["p", "v"], ["o"]),
              node("Transpose", ["o"], ["o1"], perm=[0, 2, 1, 3]), node("Reshape", ["o1", "flat"], ["o2"]),
              node("MatMul", ["o2", "out"], ["o3"]), node("Add", ["o3", "x"], ["r"]),
              node("LayerNormalization", ["r", "scale", "shift"], ["m"]), node("MatMul", ["m", "up"], ["u"]),
              node("Tanh", ["u"], ["w"]), node("MatMul", ["w", "down"], ["d"]), node("Add", ["d", "rest"], ["e"]),
              node("Add", ["e", "r"], ["y"])]  # fmt: skip
    return model_of(nodes, weights, {"x": ["batch", "length", width]}, ["y"])


def residual() -> onnx.ModelProto:
    """Return convolutions with a normalization, a depthwise one, and a residual sum."""
    node = helper.make_node
    weights = {"w0": weight(32, 3, 3, 3), "w1": weight(32, 32, 3, 3), "w2": weight(32, 32, 3, 3),
               "w3": weight(32, 1, 3, 3), "c": weight(32, 10), "s": weight(32), "b": weight(32), "m": weight(32),
               "v": np.abs(weight(32)) + 1}  # fmt: skip
    nodes = [node("Conv", ["x", "w0"], ["a"], pads=[1] * 4), node("BatchNormalization", ["a", *"sbmv"], ["n"]),
             node("Relu", ["n"], ["r"]), node("Conv", ["r", "w1", "b"], ["d"], pads=[1] * 4),
             node("Relu", ["d"], ["e"]),
             node("Conv", ["e", "w2"], ["f"], pads=[1] * 4), node("Conv", ["f", "w3"], ["g"], pads=[1] * 4, group=32),
             node("Add", ["g", "n"], ["h"]), node("GlobalAveragePool", ["h"], ["i"]), node("Flatten", ["i"], ["j"]),
             node("MatMul", ["j", "c"], ["y"])]  # fmt: skip
    return model_of(nodes, weights, {"x": ["batch", 3, "height", "width"]}, ["y"])


def compared(model: Any, parallel: TensorParallel, feeds: dict[str, Any]) -> None:
    ways = [Way(parallel.sessions(way)) for way in range(parallel.ways)]
    for left, right in zip(Session(model).run(None, feeds), run_ways(parallel, ways, feeds), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("ways", [2, pytest.param(4, marks=pytest.mark.long)])
def test_products_in_pairs_have_one_sum(ways: int) -> None:
    model = layers(4)
    parallel = sardonyx.split_tensors(model, ways)
    # The output of the first product is an output of the model: it is joined, and the second product begins anew.
    assert [len(stage.models) for stage in parallel.stages] == [ways] * len(parallel.stages)
    assert set(parallel.weight_bytes) == {4 * 16384 // ways} and parallel.error <= 1e-5
    compared(model, parallel, {"x": RNG.standard_normal((3, 64), np.float32)})


@pytest.mark.parametrize("qkv", ["split", pytest.param("heads", marks=pytest.mark.long)])
def test_a_layer_of_attention_has_two_sums(qkv: str) -> None:
    model = transformer(qkv)
    parallel = sardonyx.split_tensors(model, 2)
    assert [[join.axis for join in stage.joins] for stage in parallel.stages] == [[None], [None], []]
    assert max(parallel.weight_bytes) < 0.52 * sum(
        weight.nbytes for weight in map(numpy_helper.to_array, model.graph.initializer)
    )
    compared(model, parallel, {"x": RNG.standard_normal((2, 5, 64), np.float32)})


@pytest.mark.long
def test_convolutions_are_divided_by_channels() -> None:
    model = residual()
    parallel = sardonyx.split_tensors(model, 2)
    assert all(join.axis is None for stage in parallel.stages for join in stage.joins)
    compared(model, parallel, {"x": RNG.standard_normal((2, 3, 9, 7), np.float32)})


@pytest.mark.parametrize("ways", [0, 1, 65, True, 2.0])
def test_other_numbers_of_ways_are_refused(ways: Any) -> None:
    with pytest.raises(OptionError, match="at least 2 and below 65"):
        sardonyx.split_tensors(layers(2), ways)


def test_integers_of_numpy_are_numbers_of_ways() -> None:
    assert sardonyx.split_tensors(layers(2), np.int64(2)).ways == 2  # type: ignore[arg-type]


def slices_of_product(*starts: int) -> tuple[list[Any], dict[str, Any], list[str]]:
    """Return slices of 64 columns of ``a``, each read by a Tanh."""
    nodes, weights = [], {"columns": np.array([1])}
    for start in starts:
        weights |= {f"from{start}": np.array([start]), f"to{start}": np.array([start + 64])}
        nodes += [helper.make_node("Slice", ["a", f"from{start}", f"to{start}", "columns"], [f"s{start}"]),
                  helper.make_node("Tanh", [f"s{start}"], [f"y{start}"])]  # fmt: skip
    return nodes, weights, [f"y{start}" for start in starts]


RESHAPED = ([helper.make_node("Reshape", ["a", "s"], ["r"]), helper.make_node("Tanh", ["r"], ["y"])],
            {"s": np.array([-1, 4, 32])})  # fmt: skip


@pytest.mark.parametrize(
    "nodes, weights, outputs",
    [
        (*RESHAPED, ["y", "a"]),
        ([*RESHAPED[0], helper.make_node("Exp", ["a"], ["e"])], RESHAPED[1], ["y", "e"]),
        slices_of_product(0, 8, 16),
        slices_of_product(0, 64),
    ],
    ids=["result and split", "function and split", "overlapping slices", "disjoint slices"],
)
@pytest.mark.parametrize("biased", [False, True])
def test_a_product_read_more_than_once_has_its_weights_once(
    nodes: list[Any], weights: dict[str, Any], outputs: list[str], biased: bool
) -> None:
    product, own = [helper.make_node("MatMul", ["x", "w"], ["a"])], {"w": weight(64, 128)}
    if biased:
        product = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "b"], ["a"])]
        own["b"] = weight(128)
    model = model_of([*product, *nodes], {**own, **weights}, {"x": ["batch", 64]}, outputs)
    parallel = sardonyx.split_tensors(model, 2)
    assert max(parallel.weight_bytes) < 0.55 * own["w"].nbytes
    compared(model, parallel, {"x": RNG.standard_normal((3, 64), np.float32)})


def test_models_without_divisible_weights_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="3 ways can share"):
        sardonyx.split_tensors(layers(2), 3)


def test_random_numbers_are_refused() -> None:
    nodes = [helper.make_node("RandomNormalLike", ["x"], ["r"]), helper.make_node("MatMul", ["r", "w"], ["y"])]
    with pytest.raises(UnsupportedError, match="random"):
        sardonyx.split_tensors(model_of(nodes, {"w": weight(64, 64)}, {"x": ["batch", 64]}, ["y"]), 2)


def test_names_of_inputs_and_weights_do_not_collide() -> None:
    nodes = [helper.make_node("MatMul", ["value_0", "w"], ["value_1"]), helper.make_node("Tanh", ["value_1"], ["y"])]
    model = model_of(nodes, {"w": weight(64, 64)}, {"value_0": ["batch", 64]}, ["y"])
    compared(model, sardonyx.split_tensors(model, 2), {"value_0": RNG.standard_normal((3, 64), np.float32)})


def test_sizes_from_data_are_refused() -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["i"]), helper.make_node("Cast", ["i"], ["f"], to=1),
             helper.make_node("MatMul", ["x", "w"], ["y"])]  # fmt: skip
    with pytest.raises(UnsupportedError, match="computed from data"):
        sardonyx.split_tensors(model_of(nodes, {"w": weight(64, 64)}, {"x": ["batch", 64]}, ["y", "f"]), 2)


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_products_of_16_bits_are_refused_by_name_before_the_work(dtype: int, monkeypatch: pytest.MonkeyPatch) -> None:
    node, name = helper.make_node, TensorProto.DataType.Name(dtype).lower()
    nodes = [node("Cast", ["x"], ["c"], to=dtype), node("Cast", ["w"], ["v"], to=dtype),
             node("MatMul", ["c", "v"], ["a"]), node("Cast", ["a"], ["y"], to=1)]  # fmt: skip
    model = model_of(nodes, {"w": weight(64, 64)}, {"x": ["batch", 64]}, ["y"])
    monkeypatch.setattr("sardonyx.distributed.tensor_parallel.to_model", lambda *args, **options: pytest.fail("work"))
    with pytest.raises(UnsupportedError, match=f"a product in {name} has no parts"):
        sardonyx.split_tensors(model, 2)


@pytest.mark.long
def test_weights_of_16_bits_of_a_product_in_float32_are_divided() -> None:
    nodes = [helper.make_node("Cast", ["w"], ["v"], to=1), helper.make_node("MatMul", ["x", "v"], ["y"])]
    model = model_of(nodes, {"w": weight(64, 64).astype(np.float16)}, {"x": ["batch", 64]}, ["y"])
    compared(model, sardonyx.split_tensors(model, 2), {"x": RNG.standard_normal((3, 64), np.float32)})


def test_weights_of_two_products_are_changed_once() -> None:
    nodes, weights, outputs = slices_of_product(0, 64)
    others, _, more = slices_of_product(0, 64)
    for one in others:
        one.input[0] = one.input[0].replace("a", "c") if one.op_type == "Slice" else f"c{one.input[0]}"
        one.output[0] = f"c{one.output[0]}"
    products = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("MatMul", ["z", "w"], ["c"])]
    weights["w"] = weight(64, 128)
    model = model_of([*products, *nodes, *others], weights, {"x": ["batch", 64], "z": ["batch", 64]},
                     [*outputs, *(f"c{one}" for one in more)])  # fmt: skip
    parallel = sardonyx.split_tensors(model, 2)
    assert max(parallel.weight_bytes) < 0.55 * weights["w"].nbytes
    compared(model, parallel, {name: RNG.standard_normal((3, 64), np.float32) for name in "xz"})


def language_model(vocabulary: int) -> onnx.ModelProto:
    """Return a table of embeddings, a product of flat rows for three values of two heads, a product with classes."""
    node = helper.make_node
    weights = {"table": weight(vocabulary, 128), "qkv": weight(128, 384), "bias": weight(384), "scale": weight(128),
               "classes": weight(128, vocabulary), "flat": np.array([-1, 128]), "head": np.array([0, -1, 2, 64]),
               "three": np.array([384]), "one": np.array([128])}  # fmt: skip
    nodes = [node("Gather", ["table", "i"], ["e"]), node("Shape", ["e"], ["sizes"], end=2),
             node("LayerNormalization", ["e", "scale"], ["n"]), node("Reshape", ["n", "flat"], ["f"]),
             node("Gemm", ["f", "qkv", "bias"], ["p"]), node("Concat", ["sizes", "three"], ["to"], axis=0),
             node("Reshape", ["p", "to"], ["s"]), node("Split", ["s"], ["q0", "k0", "v0"], axis=2)]  # fmt: skip
    nodes += [node("Reshape", [f"{one}0", "head"], [f"{one}1"]) for one in "qkv"]
    nodes += [node("Mul", ["q1", "k1"], ["m"]), node("Add", ["m", "v1"], ["a"]),
              node("Concat", ["sizes", "one"], ["back"], axis=0), node("Reshape", ["a", "back"], ["b"]),
              node("LayerNormalization", ["b", "scale"], ["c"]), node("MatMul", ["c", "classes"], ["y"])]  # fmt: skip
    model = model_of(nodes, weights, {}, ["y"])
    model.graph.input.append(helper.make_tensor_value_info("i", TensorProto.INT64, ["batch", "length"]))
    return model


def test_a_language_model_with_an_odd_vocabulary_is_divided_as_a_whole() -> None:
    """The table and the columns of classes too, which get a column of zeros; heads keep their three columns."""
    model = language_model(8193)
    parallel = sardonyx.split_tensors(model, 2)
    assert [[join.axis for join in stage.joins] for stage in parallel.stages] == [[2], [2], [2], []]
    assert max(parallel.weight_bytes) < 0.51 * sum(numpy_helper.to_array(one).nbytes for one in model.graph.initializer)
    compared(model, parallel, {"i": RNG.integers(0, 8193, (2, 5))})


def test_an_odd_vocabulary_on_the_left_of_a_product_is_divided() -> None:
    weights = {"w": weight(8193, 64)}
    model = model_of([helper.make_node("MatMul", ["w", "x"], ["y"])], weights, {"x": [64, "batch"]}, ["y"])
    parallel = sardonyx.split_tensors(model, 2)
    assert max(parallel.weight_bytes) < 0.51 * weights["w"].nbytes
    compared(model, parallel, {"x": RNG.standard_normal((64, 3), np.float32)})
