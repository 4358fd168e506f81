"""Operators one by one: a small model converted to several operator sets, with equal outputs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sardonyx import Session
from sardonyx.errors import OpsetConversionError
from tests.random_cases import cases
from tests.rewrite.opset.running import assert_same_answers, convert, draw, parse

KEPT = {
    "reduction without axes that does nothing": (
        18,
        "(float[2, 3] x) => (float[2, 3] y) { y = ReduceSumSquare<noop_with_empty_axes = 1>(x) }",
        (17, 12),
    ),
    "reduction over negative axes": (
        18,
        "(float[2, 3, 4] x) => (float[2, 1, 4] y) <int64[1] a = {-2}> { y = ReduceL2(x, a) }",
        (17, 10, 1, 26),
    ),
    "uneven split": (
        18,
        "(float[7] x) => (float[3] a, float[3] b, float[1] c) { a, b, c = Split<num_outputs = 3>(x) }",
        (17, 12, 1, 26),
    ),
    "even split without sizes": (13, "(float[6] x) => (float[3] a, float[3] b) { a, b = Split(x) }", (12, 2, 18, 26)),
    "backward slice": (
        13,
        "(float[5, 4] x) => (float[3, 4] y)"
        " <int64[1] s = {-1}, int64[1] e = {-100}, int64[1] a = {0}, int64[1] t = {-2}>"
        " { y = Slice(x, s, e, a, t) }",
        (12, 9, 26),
    ),
    "part of a shape": (15, "(float[2, 3, 4] x) => (int64[2] y) { y = Shape<start = 1>(x) }", (14, 9, 1)),
    "literal zero in a shape": (
        14,
        "(float[0, 3] x) => (float[3, 0] y) <int64[2] s = {3, 0}> { y = Reshape<allowzero = 1>(x, s) }",
        (13, 9),
    ),
    "padding of some axes": (
        18,
        "(float[2, 3] x) => (float[2, 6] y) <int64[2] p = {1, 2}, float v = {7}, int64[1] a = {-1}>"
        " { y = Pad(x, p, v, a) }",
        (17, 10, 1),
    ),
    "padding that wraps": (
        19,
        '(float[2, 3] x) => (float[2, 7] y) <int64[4] p = {0, 1, 0, 3}> { y = Pad<mode = "wrap">(x, p) }',
        (18, 10, 9),
    ),
    "padding by a computed amount": (
        18,
        "(float[2, 3] x) => (float[2, 5] y) <int64[2] h = {1, 1}, int64[1] a = {1}, float v = {0}>"
        " { p = Abs(h) y = Pad(x, p, v, a) }",
        (17, 11, 10),
    ),
    "clip of integers": (
        12,
        "(int32[5] x) => (int32[5] y) <int32 low = {0}, int32 high = {1}> { y = Clip(x, low, high) }",
        (11, 9, 26),
    ),
    "clip by a computed bound": (
        11,
        "(float[5] x, float low) => (float[5] y) { y = Clip(x, low) }",
        (10, 8, 26),
    ),
    "the largest of integers": (12, "(int64[3] x, int64[3] z) => (int64[3] y) { y = Max(x, z) }", (11, 9)),
    "equal floats": (11, "(float[4] x) => (bool[4] y) { z = Abs(x) y = Equal(x, z) }", (10, 9, 7)),
    "rounded halves": (
        11,
        "(float[2] x) => (float[7] y) <float[7] h = {0.5, 1.5, 2.5, -0.5, -1.5, 0.49999997, 8388609}>"
        " { z = Mul(h, h) d = Sub(z, z) s = Add(h, d) y = Round(s) }",
        (10, 7),
    ),
    "floored modulo of floats": (
        28,
        "(float[4] x) => (float[4] y) <float[4] d = {2, -2, 0.75, -3}> { y = Mod(x, d) }",
        (27, 26),
    ),
    "power of mixed types": (12, "(float[3] x, int32[3] p) => (float[3] y) { z = Abs(x) y = Pow(z, p) }", (11, 7)),
    "cumulative sum": (
        14,
        "(float[2, 3] x) => (float[2, 3] y) <int64 a = {-1}> { y = CumSum<reverse = 1, exclusive = 1>(x, a) }",
        (10, 9),
    ),
    "cumulative product": (
        26,
        "(float[2, 4, 3] x) => (float[2, 4, 3] y) <int64 a = {1}> { y = CumProd<reverse = 1>(x, a) }",
        (25, 13),
    ),
    "triangle": (14, "(float[3, 4] x) => (float[3, 4] y) <int64 k = {1}> { y = Trilu<upper = 0>(x, k) }", (13, 9)),
    "triangle of unknown size": (14, "(float[n, m] x) => (float[n, m] y) { y = Trilu(x) }", (13, 11)),
    "choice with infinity": (
        9,
        "(bool[3] c, float[2, 1] x) => (float[2, 3] y) <float zero = {0}>"
        " { one = Exp(zero) inf = Div(one, zero) y = Where(c, x, inf) }",
        (8, 7),
    ),
    "bits of unsigned integers": (
        18,
        "(uint8[4] x) => (uint8[4] y) <uint8[4] m = {255, 254, 170, 3}> { y = BitwiseXor(x, m) }",
        (17, 11),
    ),
    "bits of signed integers": (
        18,
        "(int32[4] x) => (int32[4] y) <int32[4] m = {-1, -2, 7, 0}>"
        " { a = Sub(x, m) b = BitwiseAnd(a, m) y = BitwiseNot(b) }",
        (17, 11),
    ),
    "index of the last of equals": (
        12,
        "(float[2, 4] x) => (int64[2, 1] y) { z = Sign(x) y = ArgMax<axis = -1, select_last_index = 1>(z) }",
        (11, 9),
    ),
    "smallest values": (
        11,
        "(float[5] x) => (float[2] v, int64[2] i) <int64[1] k = {2}> { v, i = TopK<largest = 0>(x, k) }",
        (10, 1, 26),
    ),
    "one-hot of negative indices": (
        11,
        "(int64[3] x) => (float[3, 4] y) <int64 d = {4}, float[2] v = {0, 1}> { z = Neg(x) y = OneHot(z, d, v) }",
        (10, 9, 26),
    ),
    "gather by element": (
        13,
        "(float[2, 3] x) => (float[2, 2] y) <int64[2, 2] i = {-1, 0, 1, 2}> { y = GatherElements<axis = 1>(x, i) }",
        (10, 9),
    ),
    "gather by index tuples in a batch": (
        13,
        "(float[2, 3, 4] x) => (float[2, 4] y) <int64[2, 1] i = {-1, 0}> { y = GatherND<batch_dims = 1>(x, i) }",
        (11, 10, 9),
    ),
    "scatter by index tuples": (
        13,
        "(float[3, 4] x, float[2, 4] u) => (float[3, 4] y) <int64[2, 1] i = {-1, 0}> { y = ScatterND(x, i, u) }",
        (12, 10, 9),
    ),
    "scatter by old name": (
        10,
        "(float[3, 3] x, float[1, 3] u) => (float[3, 3] y) <int64[1, 3] i = {2, 0, 1}> { y = Scatter(x, i, u) }",
        (9, 11, 26),
    ),
    "matrix product of bytes": (
        10,
        "(uint8[2, 3] x, int8[3, 2] w) => (int32[2, 2] y) <uint8 zx = {1}, int8 zw = {-1}>"
        " { y = MatMulInteger(x, w, zx, zw) }",
        (9, 26),
    ),
    "gemm without a third operand": (
        11,
        "(float[2, 3] x, float[3, 4] w) => (float[2, 4] y) { y = Gemm(x, w) }",
        (10, 1),
    ),
    "attention scores by einsum": (
        12,
        "(float[2, 5, 3, 4] q, float[2, 6, 3, 4] k) => (float[2, 3, 5, 6] y)"
        ' { y = Einsum<equation = "bqhd,bkhd->bhqk">(q, k) }',
        (11, 9, 26),
    ),
    "diagonal and outer product by einsum": (
        12,
        '(float[3, 3] x, float[2] z) => (float[3, 2] y) { y = Einsum<equation = "ii,j->ij">(x, z) }',
        (11, 9),
    ),
    "quantization along an axis": (
        13,
        "(float[2, 3] x) => (float[2, 3] y) <float[3] s = {0.1, 0.2, 0.5}, uint8[3] z = {0, 3, 128}>"
        " { q = QuantizeLinear<axis = 1>(x, s, z) y = DequantizeLinear<axis = 1>(q, s, z) }",
        (12, 9, 7, 26),
    ),
    "quantization by block": (
        21,
        "(float[2, 6] x) => (float[2, 6] y) <float[2, 2] s = {0.1, 0.2, 0.5, 0.3}, int16[2, 2] z = {0, 3, 128, -7}>"
        " { q = QuantizeLinear<axis = 1, block_size = 3>(x, s, z)"
        " y = DequantizeLinear<axis = 1, block_size = 3>(q, s, z) }",
        (20, 13, 10),
    ),
    "batch before time": (
        14,
        "(float[2, 5, 3] x, float[1, 4, 3] w, float[1, 4, 4] r) => (float[2, 5, 1, 4] y, float[2, 1, 4] h)"
        " { y, h = RNN<hidden_size = 4, layout = 1>(x, w, r) }",
        (13, 7),
    ),
    "dilated average": (
        19,
        "(float[1, 2, 7, 7] x) => (float[1, 2, 3, 3] y)"
        " { y = AveragePool<kernel_shape = [3, 3], dilations = [2, 2], pads = [1, 1, 1, 1], strides = [2, 2]>(x) }",
        (18, 11),
    ),
    "rounded-up pooling": (
        12,
        "(float[1, 1, 6, 6] x) => (float[1, 1, 3, 3] y, float[1, 1, 3, 3] z)"
        " { y = MaxPool<kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1>(x)"
        " z = AveragePool<kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1>(x) }",
        (9, 7),
    ),
    "antialiased reduction of an image": (
        18,
        "(float[1, 2, 8, 9] x) => (float[1, 2, 4, 6] y) <int64[2] s = {4, 6}>"
        ' { y = Resize<antialias = 1, axes = [2, 3], mode = "linear">(x, , , s) }',
        (17, 11, 9),
    ),
    "half-pixel enlargement": (
        13,
        "(float[1, 1, 3, 4] x) => (float[1, 1, 6, 8] y) <float[4] s = {1, 1, 2, 2}>"
        ' { y = Resize<mode = "linear">(x, , s) }',
        (11, 10, 9, 26),
    ),
    "enlargement and reduction at once": (
        10,
        "(float[1, 1, 6, 4] x) => (float[1, 1, 3, 8] y) <float[4] s = {1, 1, 0.5, 2}> { y = Resize(x, s) }",
        (9, 11, 13, 26),
    ),
    "oldest upsampling": (
        9,
        "(float[1, 1, 3, 4] x) => (float[1, 1, 6, 8] y) <float[4] s = {1, 1, 2, 2}> { y = Upsample(x, s) }",
        (8, 1, 10, 13, 26),
    ),
    "spectrum of real numbers": (
        17,
        "(float[2, 8, 1] x) => (float[2, 5, 2] y) { y = DFT<axis = 1, onesided = 1>(x) }",
        (16, 9, 20),
    ),
    "norm of layers with its statistics": (
        17,
        "(float[2, 3, 4] x, float[3, 4] s, float[3, 4] b) => (float[2, 3, 4] y, float[2, 1, 1] m, float[2, 1, 1] d)"
        " { y, m, d = LayerNormalization<axis = 1>(x, s, b) }",
        (16, 9),
    ),
    "norm of groups": (
        21,
        "(float[2, 4, 3] x, float[4] s, float[4] b) => (float[2, 4, 3] y)"
        " { y = GroupNormalization<num_groups = 2>(x, s, b) }",
        (20, 17, 9),
    ),
    "norm of a batch in training": (
        15,
        "(float[2, 3, 4] x, float[3] s, float[3] b, float[3] m) => (float[2, 3, 4] y, float[3] rm, float[3] rv)"
        " { v = Abs(m) y, rm, rv = BatchNormalization<training_mode = 1>(x, s, b, m, v) }",
        (13, 9),
    ),
    "dropout with its mask": (
        13,
        "(float[3] x) => (float[3] y, bool[3] m) { y, m = Dropout(x) }",
        (11, 9, 26),
    ),
    "columns of an image": (
        18,
        "(float[1, 4, 6] x) => (float[1, 1, 3, 4] y) <int64[2] i = {3, 4}, int64[2] b = {2, 2}>"
        " { y = Col2Im(x, i, b) }",
        (17, 16),
    ),
    "depth to space, columns first": (
        11,
        '(float[1, 8, 2, 3] x) => (float[1, 2, 4, 6] y) { y = DepthToSpace<blocksize = 2, mode = "CRD">(x) }',
        (10, 1),
    ),
    "space to depth, columns first": (
        28,
        '(float[1, 2, 4, 6] x) => (float[1, 8, 2, 3] y) { y = SpaceToDepth<blocksize = 2, mode = "CRD">(x) }',
        (27, 13),
    ),
    "range of computed length": (
        11,
        "(int64[3] x) => (int64[m] y) <int64 a = {7}, int64 d = {-2}>"
        " { b = ReduceMin<keepdims = 0>(x) y = Range(a, b, d) }",
        (10, 9, 26),
    ),
    "range of half precision": (
        27,
        "(float16 a) => (float16[m] y) <float end = {4}, float step = {0.5}>"
        " { s = Abs(a) l = Cast<to = 10>(end) d = Cast<to = 10>(step) y = Range(s, l, d) }",
        (26, 11),
    ),
    "cache update": (
        24,
        "(float[2, 4, 3] c, float[2, 2, 3] u) => (float[2, 4, 3] y) <int64[2] w = {1, 2}>"
        " { y = TensorScatter<axis = 1>(c, u, w) }",
        (23, 13),
    ),
    "constants in every form": (
        13,
        "(float[2] x) => (float[2] y, int64[3] z)"
        " { a = Constant<value_float = 2.5>() y = Mul(x, a) z = Constant<value_ints = [1, 2, 3]>() }",
        (11, 9, 8, 1, 26),
    ),
    "slopes of channels": (
        7,
        "(float[1, 3, 2, 2] x) => (float[1, 3, 2, 2] y) <float[3, 1, 1] s = {0.1, 0.2, 0.3}> { y = PRelu(x, s) }",
        (6, 1, 26),
    ),
    "sums of empty tensors": (
        13,
        "(float[2, 0, 1] x, float[1, 0, 1] z) => (float[2, 0, 1] y) { y = Sum(x, z) }",
        (7, 26),
    ),
    "scan of one sequence": (
        9,
        "(float[2] s, float[4, 2] x) => (float[2] e, float[4, 2] y)"
        " { e, y = Scan<num_scan_inputs = 1, body = step (float[2] a, float[2] b) => (float[2] c, float[2] d)"
        " { c = Add(a, b) d = Mul(a, b) }>(s, x) }",
        (8, 11, 26),
    ),
}
"""Name: operator set, graph, target sets."""

CASES = [(name, target) for name, (_, _, targets) in KEPT.items() for target in targets]


@pytest.mark.parametrize(("name", "target"), CASES)
def test_conversion_preserves_the_outputs(name: str, target: int) -> None:
    opset, graph, _ = KEPT[name]
    proto = parse(f'<ir_version: 8, opset_import: ["" : {opset}]> agraph {graph}')
    assert_same_answers(proto, convert(proto, target), draw(proto))


REFUSED = {
    "largest scattered": (
        18,
        "(float[3] x, float[1] u) => (float[3] y) <int64[1] i = {1}>"
        ' { [named] y = ScatterElements<reduction = "max">(x, i, u) }',
        17,
        "max",
    ),
    "dropout in training": (
        13,
        "(float[3] x) => (float[3] y) <float r = {0.5}, bool t = {1}> { [named] y = Dropout(x, r, t) }",
        11,
        "training",
    ),
    "text comparison": (
        19,
        "(string[3] x) => (bool[3] y) { [named] y = Equal(x, x) }",
        18,
        "string",
    ),
    "four-bit integers": (
        21,
        "(float[3] x) => (int4[3] y) { [named] y = Cast<to = 22>(x) }",
        20,
        "int4",
    ),
    "dropout of an unknown mode": (
        6,
        "(float[3] x) => (float[3] y) { [named] y = Dropout(x) }",
        7,
        "training",
    ),
    "powers of long integers": (
        12,
        "(int64[3] x, int64[3] p) => (int64[3] y) { [named] y = Pow(x, p) }",
        11,
        "int64",
    ),
    "gemm of a vector": (
        7,
        "(float[3] x, float[3, 2] w, float[2] c) => (float[2] y) { [named] y = Gemm(x, w, c) }",
        6,
        "got rank 1",
    ),
    "window of another rank": (
        19,
        "(float[1, 2, 8, 8] x) => (float[1, 2, a, b] y)"
        " { [named] y = AveragePool<kernel_shape = [3, 3, 3], ceil_mode = 1, dilations = [2, 2, 2]>(x) }",
        11,
        "a kernel of 3, 3, 3 does not fit 2 spatial axes",
    ),
    "element type that does not exist": (
        23,
        "(uint8[3] x, float s) => (float[3] y) { [named] y = DequantizeLinear<output_dtype = -100>(x, s) }",
        19,
        "unknown element type -100",
    ),
    "attribute of another type": (
        22,
        "(float[3] x) => (float[3] y) { [named] y = Selu<alpha = 16>(x) }",
        18,
        "expected the attribute 'alpha' to be of type FLOAT, got INT",
    ),
    "infinite exponent": (
        1,
        "(float[1, 2, 8, 8] x) => (float[1, 2, 1, 1] y) { [named] y = GlobalLpPool<p = inf>(x) }",
        2,
        "expected an integer exponent",
    ),
    "exponent beyond 64 bits": (
        1,
        "(float[1, 2, 8, 8] x) => (float[1, 2, 1, 1] y) { [named] y = GlobalLpPool<p = 1000000000000000000000.0>(x) }",
        2,
        "expected an integer exponent",
    ),
    "tiles beyond 64 bits": (
        1,
        "(float[2] x) => (float[t] y) <float n = {100000000000000000000.0}, float a = {0}>"
        " { [named] y = Tile(x, n, a) }",
        6,
        "expected integers in the constant input 1",
    ),
    "tiles along no axis": (
        1,
        "(float[2] x) => (float[t] y) <float n = {2}, float a = {3}> { [named] y = Tile(x, n, a) }",
        6,
        "axis 3 is out of range",
    ),
    "running product of a number": (
        26,
        "(float x) => (float y) <int64 a = {8}> { [named] y = CumProd(x, a) }",
        18,
        "axis 8 is out of range",
    ),
    "columns of images without bound": (
        18,
        "(float[64, 64, 1] x) => (float[64, 64, 8000, 8000] y) <int64[2] i = {8000, 8000}, int64[2] b = {1, 1}>"
        " { [named] y = Col2Im<strides = [8000, 8000]>(x, i, b) }",
        17,
        "expected at most 67108864",
    ),
    "columns of a block without bound": (
        18,
        "(float[0, 1, 1] x) => (float[0, 0, 9000, 9000] y) <int64[2] i = {9000, 9000}, int64[2] b = {9000, 9000}>"
        " { [named] y = Col2Im(x, i, b) }",
        17,
        "expected at most 67108864",
    ),
    "columns of an empty block": (
        18,
        "(float[1, 4, 12] x) => (float[1, c, 3, 4] y) <int64[2] i = {2, 5}, int64[2] b = {0, 2}>"
        " { [named] y = Col2Im(x, i, b) }",
        17,
        "a block of at least one element",
    ),
    "texts of no elements": (
        14,
        "(string[0, 3] x, int64[2] s) => (string[a, b] y) { [named] y = Reshape<allowzero = 1>(x, s) }",
        9,
        "empty tensor of string",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_refusal_names_the_node(name: str) -> None:
    opset, graph, target, reason = REFUSED[name]
    with pytest.raises(OpsetConversionError, match=reason) as refusal:
        convert(parse(f'<ir_version: 10, opset_import: ["" : {opset}]> agraph {graph}'), target)
    assert "named" in refusal.value.where


@settings(max_examples=cases(25), deadline=None)
@given(data=st.data())
def test_legacy_broadcasting_reaches_every_shape(data: st.DataObject) -> None:
    whole = data.draw(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=4))
    shapes = []
    for _ in range(2):
        dims = whole[data.draw(st.integers(0, len(whole))) :]
        shapes.append([n if data.draw(st.booleans()) else 1 for n in dims])
    left, right = (f"float[{', '.join(map(str, shape))}]" if shape else "float" for shape in shapes)
    out = np.broadcast_shapes(*map(tuple, shapes))
    result = f"float[{', '.join(map(str, out))}]" if out else "float"
    proto = parse(
        f'<ir_version: 8, opset_import: ["" : 7]> agraph ({left} a, {right} b) => ({result} y) {{ y = Sub(a, b) }}'
    )
    assert_same_answers(proto, convert(proto, 6), draw(proto))


@settings(max_examples=cases(25), deadline=None)
@given(rank=st.integers(1, 4), data=st.data(), op_type=st.sampled_from(["Softmax", "LogSoftmax", "Hardmax"]))
def test_softmax_of_any_axis_is_converted_down_and_up(rank: int, data: st.DataObject, op_type: str) -> None:
    axis = data.draw(st.integers(-rank, rank - 1))
    shape = ", ".join(str(data.draw(st.sampled_from([1, 2, 3]))) for _ in range(rank))
    proto = parse(
        f'<ir_version: 8, opset_import: ["" : 13]> agraph (float[{shape}] x) => (float[{shape}] y)'
        f" {{ y = {op_type}<axis = {axis}>(x) }}"
    )
    down = convert(proto, 11)
    assert_same_answers(proto, down, draw(proto))
    assert_same_answers(proto, convert(down, 13), draw(proto))


@pytest.mark.parametrize("opset", [14, 9, 7])
def test_draws_of_bernoulli_stay_the_same(opset: int) -> None:
    """The function body of the standard draws 1 with the probability 1 - p."""
    proto = parse(
        '<ir_version: 8, opset_import: ["" : 15]> agraph (float[500] p) => (float[500] y, int32[500] z, float[500] n)'
        " { y = Bernoulli <seed = 3.0> (p)  z = Bernoulli <seed = 4.0, dtype = 6> (p)  n = Bernoulli (p) }"
    )
    converted = convert(proto, opset)
    feeds = {"p": np.linspace(0, 1, 500, dtype=np.float32)}
    expected, actual = (Session(model, compile="off").run(None, feeds) for model in (proto, converted))
    for before, after in zip(expected, actual, strict=True):
        np.testing.assert_array_equal(after, before)
    assert expected[0][:100].mean() < 0.3 < 0.7 < expected[0][-100:].mean()


HUGE = {
    "DepthToSpace": (11, 10, "float[1, 68719476736, 1, 1] x", 'y = DepthToSpace <blocksize = 2, mode = "CRD"> (x)'),
    "Where": (9, 8, "bool[1048576, 1] c, float[1, 1048576] x", "y = Where (c, x, x)"),
    "Trilu": (14, 13, "float[1, 68719476736] x", "y = Trilu (x)"),
    "GatherElements": (11, 10, "float[2, 2] x, int64[2, 68719476736] i", "y = GatherElements <axis = 1> (x, i)"),
    "DFT": (17, 16, "float[1, 1048576, 1] x", "y = DFT (x)"),
}


@pytest.mark.parametrize("operator", HUGE)
def test_constants_of_declared_sizes_are_bounded(operator: str) -> None:
    opset, target, inputs, node = HUGE[operator]
    proto = parse(f'<ir_version: 8, opset_import: ["" : {opset}]> agraph ({inputs}) => (float y) {{ {node} }}')
    with pytest.raises(OpsetConversionError, match="expected at most 67108864"):
        convert(proto, target)
