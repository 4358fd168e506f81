"""What is told of a program: operations and bytes as counted by hand, and what is left to the interpreter."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx.compiler.explain import Explanation, KernelNote, explain

RNG = np.random.default_rng(0)
Weights = dict[str, tuple[int, ...]]


def explained(text: str, weights: Weights | None = None, **sizes: int) -> Explanation:
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]> net {text}')
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(RNG.standard_normal(shape).astype(np.float32), name)
        for name, shape in (weights or {}).items()
    )
    session = sardonyx.Session(model, compile="wait")
    assert session.program is not None, session.not_compiled
    return explain(session.program, sizes)


def only(actual: Explanation) -> KernelNote:
    (kernel,) = actual.kernels
    return kernel


DENSE = "(float[N, 8] x) => (float[N, 4] y) { h = MatMul(x, w) y = Relu(h) }"


def test_a_product_with_what_follows_is_one_kernel() -> None:
    kernel = only(explained(DENSE, {"w": (8, 4)}, N=16))
    assert kernel.title == "contract"
    assert kernel.primitives == {"contract": 1, "max": 1}
    assert kernel.tensors == ("h", "y")
    assert kernel.reason == "a result"
    assert kernel.operations == 2 * 16 * 8 * 4 + 16 * 4
    assert kernel.written == 4 * 16 * 4
    # Packed weights may be filled up.
    assert kernel.read is not None
    assert kernel.read >= 4 * (16 * 8 + 8 * 4)
    assert kernel.bytes == kernel.read + kernel.written


def test_costs_of_open_sizes_are_not_known() -> None:
    kernel = only(explained(DENSE, {"w": (8, 4)}))
    assert (kernel.operations, kernel.read, kernel.written, kernel.bytes) == (None, None, None, None)


def test_what_several_read_is_told_so() -> None:
    actual = explained(
        "(float[4, 8] x, float[8, 8] v, float[8, 6] u) => (float[4, 8] y, float[4, 6] z)"
        "{ h = Exp(x) y = MatMul(h, v) z = MatMul(h, u) }"
    )
    first, *products = actual.kernels
    assert first.tensors == ("h",)
    assert first.reason in ("read by contract", "2 groups read it")
    assert [kernel.reason for kernel in products] == ["a result"] * len(products)


def test_a_table_is_read_as_far_as_it_is_gathered() -> None:
    kernel = only(
        explained("(int64[5] i) => (float[5, 16] y) { g = Gather(table, i) y = Neg(g) }", {"table": (1000, 16)})
    )
    assert kernel.read == 5 * 8 + 5 * 16 * 4
    assert kernel.written == 5 * 16 * 4


def test_a_slice_is_read_alone() -> None:
    actual = explained(
        "(float[100, 16] x) => (float[2, 16] y) <int64[1] a = {10}, int64[1] b = {12}, int64[1] c = {0}>"
        "{ s = Slice(x, a, b, c) y = Exp(s) }"
    )
    assert only(actual).read == 2 * 16 * 4


def test_parts_of_a_concatenation_count_apart() -> None:
    actual = explained("(float[2, 3] x, float[2, 5] v) => (float[2, 8] y) { e = Neg(x) y = Concat <axis = 1> (e, v) }")
    assert [kernel.title for kernel in actual.kernels] == ["part of concat"] * 2
    assert [kernel.read for kernel in actual.kernels] == [2 * 3 * 4, 2 * 5 * 4]
    assert [kernel.written for kernel in actual.kernels] == [2 * 3 * 4, 2 * 5 * 4]
    assert [kernel.operations for kernel in actual.kernels] == [6, 0]


def test_padding_fills_and_copies() -> None:
    actual = explained(
        "(float[2, 3] x) => (float[2, 5] y) <int64[4] p = {0, 1, 0, 1}> { y = Pad(x, p) }",
    )
    assert [(kernel.title, kernel.read, kernel.written) for kernel in actual.kernels] == [
        ("fill", 0, 2 * 5 * 4),
        ("part of pad", 2 * 3 * 4, 2 * 3 * 4),
    ]


def test_winograds_convolution_multiplies_less() -> None:
    text = "(float[1, 64, {n}, {n}] x) => (float[1, 64, {n}, {n}] y) {{ y = Conv <pads = [1, 1, 1, 1]> (x, w) }}"
    notes = explained(text.format(n=56), {"w": (64, 64, 3, 3)}).kernels
    kernel = notes[-1]
    assert kernel.title.startswith("winograd")
    rows, columns = map(int, kernel.title.removeprefix("winograd F(").removesuffix(")").split("x"))
    tiles = -(-56 // rows) * -(-56 // columns)
    assert kernel.operations == 2 * 64 * 64 * tiles * (rows + 2) * (columns + 2)
    assert kernel.operations < 2 * 64 * 64 * 9 * 56 * 56


def test_a_transposed_convolution_multiplies_no_inserted_zeros() -> None:
    text = "(float[1, 32, 8, 8] x) => (float[1, 32, 16, 16] y) { y = ConvTranspose <strides = [2, 2]> (x, w) }"
    assert explained(text, {"w": (32, 32, 2, 2)}).kernels[-1].operations == 2 * 8 * 8 * 32 * 32 * 4


def test_the_interpreters_part_is_listed_with_reasons() -> None:
    actual = explained("(float[4] x) => (float[K] y) { e = Exp(x) y = Unique(e) }")
    assert [(note.primitive, note.tensor) for note in actual.interpreted] == [("host Unique", "y"), ("get", "y")]
    assert all(note.reason for note in actual.interpreted)
    assert [kernel.reason for kernel in actual.kernels] == ["read by the interpreter"]


@pytest.mark.parametrize("threads", [1, 2])
def test_the_threads_are_those_of_the_session(threads: int) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> net (float[4] x) => (float[4] y) { y = Exp(x) }'
    )
    session = sardonyx.Session(model, compile="wait", threads=threads)
    assert session.program is not None
    assert explain(session.program).threads == threads


def test_a_loop_is_one_kernel_of_those_in_its_body() -> None:
    actual = explained(
        """(float[4] x) => (float[4] y) <int64 n = {10}, bool go = {1}> {
            y = Loop (n, go, x) <body = b (int64 i, bool c, float[4] s) => (bool d, float[4] t) {
                d = Identity(c) t = Sin(s)
            }>
        }"""
    )
    kernel = only(actual)
    assert kernel.title == "loop"
    assert kernel.primitives == {"loop": 1, "map": 1}
    assert kernel.operations is not None
    assert kernel.operations >= 10 * 4
    assert kernel.read == 8 + 1 + 4 * 4
    assert kernel.written == 4 * 4


def test_a_kernel_that_stands_for_a_function_has_no_operations_by_definition() -> None:
    nodes = onnx.helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1,
        nodes_treeids=[0, 0, 0], nodes_nodeids=[0, 1, 2], nodes_featureids=[0, 0, 0], nodes_values=[0.5, 0.0, 0.0],
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"], nodes_truenodeids=[1, 0, 0], nodes_falsenodeids=[2, 0, 0],
        target_treeids=[0, 0], target_nodeids=[1, 2], target_ids=[0, 0], target_weights=[1.0, 2.0],
    )  # fmt: skip
    arguments = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4, 2])
    result = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4, 1])
    graph = onnx.helper.make_graph([nodes], "trees", [arguments], [result])
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("ai.onnx.ml", 3)]
    session = sardonyx.Session(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), compile="wait")
    assert session.program is not None
    (kernel,) = [kernel for kernel in explain(session.program).kernels if kernel.title == "trees"]
    assert kernel.operations is None
    assert kernel.written == 4 * 4
    assert kernel.read is not None
    assert kernel.read >= 4 * 2 * 4
