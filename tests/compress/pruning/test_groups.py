"""Channels in groups, shuffled channels, states of recurrent layers: removed and compared with the masked original."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import sardonyx
from tests.compress.pruning.masking import answers, drawn, pruned_and_masked, weights

pytestmark = pytest.mark.sampled

SHUFFLE = "{v}r = Reshape({v}, to{g}) {v}t = Transpose<perm = [0, 2, 1, 3, 4]>({v}r) {v}s = Reshape({v}t, joined)"

NETWORKS: Mapping[str, tuple[str, str, dict[str, tuple[int, ...]]]] = {
    "two groups": (
        "a = Conv(x, w1, b1) r = Relu(a) g = Conv<group = 2>(r, w2, b2) s = Relu(g) c = Conv(s, w3)", "x",
        {"w1": (16, 3, 1, 1), "b1": (16,), "w2": (24, 8, 3, 3), "b2": (24,), "w3": (6, 24, 1, 1)},
    ),
    "many groups": (
        "a = Conv(x, w1, b1) r = Relu(a) g = Conv<group = 8>(r, w2, b2) s = Relu(g) c = Conv(s, w3)", "x",
        {"w1": (16, 3, 1, 1), "b1": (16,), "w2": (32, 2, 3, 3), "b2": (32,), "w3": (6, 32, 1, 1)},
    ),
    "groups of the input": (
        "g = Conv<group = 3>(x, w2, b2) s = Relu(g) c = Conv(s, w3)", "x",
        {"w2": (24, 1, 3, 3), "b2": (24,), "w3": (6, 24, 1, 1)},
    ),
    "transposed groups": (
        "a = Conv(x, w1) r = Relu(a) d = ConvTranspose<group = 16, strides = [2, 2]>(r, w2)"
        "g = ConvTranspose<group = 2>(d, w3, b3) s = Relu(g) c = Conv(s, w4)", "x",
        {"w1": (16, 3, 1, 1), "w2": (16, 1, 2, 2), "w3": (16, 6, 2, 2), "b3": (12,), "w4": (6, 12, 1, 1)},
    ),
    "normalized groups": (
        "a = Conv(x, w1) n = GroupNormalization<num_groups = 8>(a, s1, b1) r = Relu(n) c = Conv(r, w2)", "x",
        {"w1": (32, 3, 1, 1), "s1": (32,), "b1": (32,), "w2": (6, 32, 1, 1)},
    ),
    "reshaped groups": (
        "a = Conv(x, w1) i = Reshape(a, eight) n = InstanceNormalization(i, s0, b0) o = Reshape(n, wide)"
        "m = Mul(o, s1) p = Add(m, b1) r = Relu(p) c = Conv(r, w2)", "x",
        {"w1": (32, 3, 1, 1), "s0": (8,), "b0": (8,), "s1": (32, 1, 1), "b1": (32, 1, 1), "w2": (6, 32, 1, 1)},
    ),
    "shuffled": (
        "a = Conv(x, w1, b1)" + SHUFFLE.format(v="a", g=2) + "d = Conv<group = 12>(as, w2) c = Conv(d, w3)", "x",
        {"w1": (12, 3, 1, 1), "b1": (12,), "w2": (12, 1, 3, 3), "w3": (6, 12, 1, 1)},
    ),
    "shuffled more": (
        "a = Conv(x, w1, b1)" + SHUFFLE.format(v="a", g=6) + "d = Conv<group = 12>(as, w2) c = Conv(d, w3)", "x",
        {"w1": (12, 3, 1, 1), "b1": (12,), "w2": (12, 1, 3, 3), "w3": (6, 12, 1, 1)},
    ),
    "larger image": (
        'a = Conv(x, w1) d = DepthToSpace<blocksize = 2, mode = "CRD">(a) r = Relu(d)'
        "e = DepthToSpace<blocksize = 2>(r) f = SpaceToDepth<blocksize = 2>(e) c = Conv(f, w2)", "x",
        {"w1": (96, 3, 1, 1), "w2": (6, 24, 1, 1)},
    ),
    "slices": (
        "a = Conv(x, w1) l = Slice(a, zero, five, one) r = Slice(a, minus, most, one) p = Pad(r, pads)"
        "q = Slice(p, ones, minus1, rows) k = Concat<axis = 1>(l, q) c = Conv(k, w2)", "x",
        {"w1": (12, 3, 1, 1), "w2": (6, 12, 1, 1)},
    ),
    "states": (
        "a = MatMul(t, w1) r = Relu(a)"
        'h, hn, cn = LSTM<hidden_size = 10, direction = "bidirectional">(r, w, u, b, , h0, h0, p)'
        "z = Transpose<perm = [0, 2, 1, 3]>(h) j = Reshape(z, both) y = MatMul(j, w2)", "t",
        {"w1": (3, 8), "w": (2, 40, 8), "u": (2, 40, 10), "b": (2, 80), "h0": (2, 2, 10), "p": (2, 30), "w2": (20, 5)},
    ),
    "products of maps": (
        "q = Conv(x, w1) k = Conv(x, w2) v = Conv(x, w3) l = Reshape(q, flat) m = Reshape(k, flat) n = Reshape(v, flat)"
        "lt = Transpose<perm = [0, 2, 1]>(l) p = MatMul(lt, m) a = Softmax(p) at = Transpose<perm = [0, 2, 1]>(a)"
        "o = MatMul(n, at) u = Reshape(o, image8) b = Shape<end = 1>(x) l4 = Concat<axis = 0>(b, twelve, large)"
        'e = Resize<mode = "nearest">(u, , , l4)'
        "c = Conv(e, w4)", "x",
        {"w1": (8, 3, 1, 1), "w2": (8, 3, 1, 1), "w3": (12, 3, 1, 1), "w4": (6, 12, 1, 1)},
    ),
    "open images": (
        "a = MatMul(t, w1) n = Transpose<perm = [0, 2, 1]>(a) j = Flatten<axis = 1>(n)"
        "y = Gemm(j, w2)", "open", {"w1": (3, 8), "w2": (40, 6)},
    ),
}  # fmt: skip
SIZES = {
    "to2": [0, 2, 6, 8, 8], "to6": [0, 6, 2, 8, 8], "joined": [0, 12, 8, 8], "eight": [0, 8, -1],
    "wide": [-1, 32, 8, 8], "zero": [0], "five": [5], "one": [1], "minus": [-7], "most": [2**62], "both": [0, 0, -1],
    "flat": [0, 0, -1], "image8": [0, -1, 8, 8], "twelve": [12], "large": [16, 16],
    "pads": [0, 0, 1, 1, 0, 0, 1, 1], "ones": [1, 1], "minus1": [-1, -1], "rows": [2, 3],
}  # fmt: skip


def network(name: str, seed: int = 0) -> onnx.ModelProto:
    """Return a network whose result is the mean over the image, or all rows."""
    body, source, shapes = NETWORKS[name]
    inputs, output, end = {
        "x": ("float[N, 3, 8, 8] x", "float[N, 6] y", "y = ReduceMean<keepdims = 0>(c, image)"),
        "t": ("float[T, 2, 3] t", "float[T, 2, 5] y", ""),
        "open": ("float[N, T, 3] t", "float[N, 6] y", ""),
    }[source]
    text = f"""<ir_version: 10, opset_import: ["" : 21]> net ({inputs}) => ({output}) {{ {body} {end} }}"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(seed)
    arrays = {key: rng.uniform(0.2, 1, shape) * rng.choice([-1, 1], shape) for key, shape in shapes.items()}
    constants = {key: np.array(values, np.int64) for key, values in SIZES.items()} | {"image": np.array([2, 3])}
    used = {one for node in model.graph.node for one in node.input}
    model.graph.initializer.extend(numpy_helper.from_array(one.astype(np.float32), key) for key, one in arrays.items())
    model.graph.initializer.extend(numpy_helper.from_array(one, key) for key, one in constants.items() if key in used)
    return model


@pytest.mark.parametrize("share", [0.3, 0.7])
@pytest.mark.parametrize("name", NETWORKS)
def test_removed_channels_equal_masked_ones(name: str, share: float) -> None:
    source = network(name)
    result, masked, count = pruned_and_masked(source, share)
    assert count and sum(map(len, weights(result))) < sum(map(len, weights(source.SerializeToString())))
    for batch in (1, 3):
        feeds = drawn(source, batch)
        for expected, actual in zip(answers(masked, feeds), answers(result, feeds), strict=True):
            np.testing.assert_allclose(actual, expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(
    "name, counts", [("two groups", (2, 2)), ("many groups", (8, 6)), ("normalized groups", (8, 6))]
)
def test_a_group_is_removed_whole_or_stays_as_large_as_the_others(name: str, counts: tuple[int, int]) -> None:
    source = network(name)
    result = onnx.load_from_string(pruned_and_masked(source, 0.25)[0])
    attributes = [
        [
            one.i
            for node in model.graph.node
            for one in node.attribute
            if one.name in ("group", "num_groups") and one.i > 1
        ]
        for model in (source, result)
    ]
    assert attributes == [[counts[0]], [counts[1]]]


def test_few_large_groups_of_a_normalization_lose_their_least_channels() -> None:
    """Half of the channels of each group repeat the other half, and only these are read."""
    rng = np.random.default_rng(0)
    half = rng.standard_normal((2, 4, 3))
    order = [rng.permutation(8) for _ in range(2)]
    w1 = np.concatenate([np.concatenate([one, one])[perm] for one, perm in zip(half, order, strict=True)])
    w2 = rng.standard_normal((6, 16)) * np.concatenate([perm < 4 for perm in order])
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]> net (float[N, 3, 8, 8] x) => (float[N, 6] y) {
        a = Conv(x, w1) n = GroupNormalization<num_groups = 2>(a, s, b) r = Relu(n) c = Conv(r, w2)
        y = ReduceMean<keepdims = 0>(c, image) }"""
    )
    arrays = {"w1": w1.reshape(16, 3, 1, 1), "w2": w2.reshape(6, 16, 1, 1), "s": np.ones(16), "b": np.zeros(16)}
    model.graph.initializer.extend(numpy_helper.from_array(one.astype(np.float32), key) for key, one in arrays.items())
    model.graph.initializer.append(numpy_helper.from_array(np.array([2, 3]), "image"))
    result = sardonyx.prune(model, channels=0.5, align=False)
    assert (result.report.removed, result.report.candidates) == (4, 8)
    assert any("Mean and variance" in note for note in result.report.notes)
    feeds = drawn(model, 2)
    small = sardonyx.to_proto(result.model).SerializeToString()
    for expected, actual in zip(answers(model.SerializeToString(), feeds), answers(small, feeds), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def test_a_list_of_sizes_that_layers_share_has_the_size_of_each() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]> net (float[N, 3, T] x) => (float[N, M] y) {
        batch = Shape<start = 0, end = 1>(x) list = Concat<axis = 0>(batch, wide, rest)
        a = Conv(x, w1) r = Relu(a) s = Reshape(r, list) c = Conv(s, w2) q = Relu(c) t = Reshape(q, list)
        d = Conv(t, w3) y = ReduceMean<keepdims = 0>(d, image) }"""
    )
    rng = np.random.default_rng(0)
    for key, shape in {"w1": (16, 3, 1), "w2": (16, 16, 1), "w3": (5, 16, 1)}.items():
        scale = np.where(np.arange(shape[0]) < (12 if key == "w1" else 5), 1, 0.01)[:, None, None]
        array = (rng.uniform(0.2, 1, shape) * scale).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, key))
    for key, values in {"wide": [16], "rest": [-1], "image": [2]}.items():
        model.graph.initializer.append(numpy_helper.from_array(np.array(values, np.int64), key))
    result = sardonyx.prune(model, channels=0.45, align=False)
    after = [layer.after for layer in result.report.layers]
    assert after[0] != after[1]
    feeds = {"x": rng.standard_normal((2, 3, 7)).astype(np.float32)}
    first, second = answers(sardonyx.to_proto(result.model).SerializeToString(), feeds)
    np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-4)


def test_layers_that_share_a_weight_lose_the_same_channels() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]> net (float[N, 6] x) => (float[N, 5] y) {
        p = MatMul(x, s) a = MatMul(p, w) r = Relu(a) b = MatMul(r, v) e = Add(p, b)
        c = MatMul(e, w) q = Relu(c) d = MatMul(q, v) y = MatMul(d, u) }"""
    )
    rng = np.random.default_rng(0)
    for key, shape in {"s": (6, 8), "w": (8, 16), "v": (16, 8), "u": (8, 5)}.items():
        model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), key))
    result = sardonyx.prune(model, channels=0.5, align=False)
    assert result.report.weight_bytes[1] < 0.65 * result.report.weight_bytes[0]
    assert len(result.model.graph.initializers) == 4


@pytest.mark.parametrize(
    "criterion, recover", [("activation", "bias"), ("taylor", "none"), ("magnitude", "reconstruct")]
)
@pytest.mark.parametrize("name", ["two groups", "many groups", "states", "open images", "shuffled"])
def test_criteria_and_recovery_know_groups_and_states(name: str, criterion: str, recover: str) -> None:
    source = network(name)
    samples = [drawn(source, 1) | {k: v + 0.1 * i for k, v in drawn(source, 1).items()} for i in range(12)]
    result = sardonyx.prune(source, samples, channels=0.3, criterion=criterion, recover=recover)
    assert result.report.removed
    first, second = answers(sardonyx.to_proto(result.model).SerializeToString(), samples[0])
    np.testing.assert_allclose(first, second, rtol=1e-3, atol=1e-3)
