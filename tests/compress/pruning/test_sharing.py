"""Constants that several layers read: pruned once, or left whole with a reason."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import sardonyx
from tests.compress.pruning.masking import answers, drawn, pruned_and_masked

BODIES: Mapping[str, tuple[str, str, dict[str, tuple[int, ...]]]] = {
    "embedding and last layer": (
        "int64[N, T] x", "e = Gather(w, x) a = MatMul(e, w1) r = Relu(a) b = MatMul(r, w2)"
        "t = Transpose<perm = [1, 0]>(w) y = MatMul(b, t)", {"w": (40, 12), "w1": (12, 20), "w2": (20, 12)},
    ),
    "embedding of a recurrent model": (
        "int64[N, T] x", "e = Gather(w, x) s = Transpose<perm = [1, 0, 2]>(e)"
        "h, hn = GRU<hidden_size = 10>(s, r, u) q = Squeeze(h, one) a = MatMul(q, w1) t = Transpose(w)"
        "y = MatMul(a, t)", {"w": (40, 12), "r": (1, 30, 12), "u": (1, 30, 10), "w1": (10, 12)},
    ),
    "repeated channels": (
        "float[N, T, 6] x", "a = MatMul(x, w1) r = Relu(a) b = Tile(r, twice) y = MatMul(b, w2)",
        {"w1": (6, 12), "w2": (24, 5)},
    ),
    "two tables": (
        "int64[N, T] x", "e = Gather(w, x) p = Gather(v, x) s = Add(e, p) a = MatMul(s, w1) r = Relu(a)"
        "y = MatMul(r, w2)", {"w": (40, 12), "v": (40, 12), "w1": (12, 20), "w2": (20, 6)},
    ),
    "one branch twice": (
        "float[N, 3, 8, 8] x, float[N, 3, 8, 8] z", "a = Conv(x, w1, b1) r = Relu(a) c = Conv(r, w2) p = Relu(c)"
        "d = Conv(z, w1, b1) s = Relu(d) e = Conv(s, w2) q = Relu(e) k = Concat<axis = 1>(p, q) f = Conv(k, w3)"
        "y = ReduceMean<keepdims = 0>(f, image)",
        {"w1": (12, 3, 3, 3), "b1": (12,), "w2": (16, 12, 1, 1), "w3": (6, 32, 1, 1)},
    ),
    "one head of two levels": (
        "float[N, 3, 8, 8] x", "a = Conv(x, w1) r = Relu(a) b = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r)"
        "c = Conv(b, w2) s = Relu(c) f = Conv(r, l1) g = Conv(s, l2) h = Conv(f, w3, b3) i = Conv(g, w3, b3)"
        "p = Relu(h) q = Relu(i) u = Conv(p, w4) v = Conv(q, w4) m = ReduceMean<keepdims = 0>(u, image)"
        "n = ReduceMean<keepdims = 0>(v, image) y = Concat<axis = 1>(m, n)",
        {"w1": (12, 3, 3, 3), "w2": (16, 12, 1, 1), "l1": (10, 12, 1, 1), "l2": (10, 16, 1, 1),
         "w3": (14, 10, 1, 1), "b3": (14,), "w4": (6, 14, 1, 1)},
    ),
    "one block three times": (
        "float[N, T, 6] x", "p = MatMul(x, s)" + "".join(
            f"a{i} = MatMul({v}, w) r{i} = Relu(a{i}) b{i} = MatMul(r{i}, v) e{i} = Add({v}, b{i})"
            for i, v in enumerate(["p", "e0", "e1"])
        ) + "y = MatMul(e2, u)", {"s": (6, 12), "w": (12, 20), "v": (20, 12), "u": (12, 5)},
    ),
    "an unrolled cell": (
        "float[N, 6] x, float[N, 6] z", "a = MatMul(x, w) h = Tanh(a) b = MatMul(z, w) c = MatMul(h, u) d = Add(b, c)"
        "g = Tanh(d) y = MatMul(g, v)", {"w": (6, 12), "u": (12, 12), "v": (12, 5)},
    ),
    "one depthwise convolution twice": (
        "float[N, 3, 8, 8] x", "a = Conv(x, w1) d = Conv<group = 12>(a, w2, b2) r = Relu(d)"
        "e = Conv<group = 12>(r, w2, b2) f = Conv(e, w3) y = ReduceMean<keepdims = 0>(f, image)",
        {"w1": (12, 3, 3, 3), "w2": (12, 1, 1, 1), "b2": (12,), "w3": (6, 12, 1, 1)},
    ),
    "one slope for all": (
        "float[N, 6] x", "a = Gemm(x, w1, b) p = PRelu(a, b) c = Gemm(p, w2, b) q = PRelu(c, b) y = MatMul(q, w3)",
        {"w1": (6, 12), "w2": (12, 12), "w3": (12, 5), "b": (12,)},
    ),
    "one state for both": (
        "float[T, N, 6] x", "n = Shape<start = 1, end = 2>(x) l = Concat<axis = 0>(one_, n, ten) z = Expand(zero, l)"
        "h, hn, cn = LSTM<hidden_size = 10>(x, w, u, , , z, z) q = Squeeze(h, one) y = MatMul(q, v)",
        {"w": (1, 40, 6), "u": (1, 40, 10), "v": (10, 5), "zero": ()},
    ),
}  # fmt: skip


def network(body: str, inputs: str, shapes: Mapping[str, tuple[int, ...]], outputs: str = "y") -> onnx.ModelProto:
    """Return a network of random weights."""
    results = ", ".join(f"float[{'a, b, c, d' if one != 'y' else ''}] {one}" for one in outputs.split(", "))
    results = results.replace("float[] y", "float y")
    text = f"""<ir_version: 10, opset_import: ["" : 21]> net ({inputs}) => ({results}) {{ {body} }}"""
    model = onnx.parser.parse_model(text)
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    rng = np.random.default_rng(0)
    used = {one for node in model.graph.node for one in node.input} | {value.name for value in model.graph.output}
    for key, shape in shapes.items():
        array = rng.uniform(0.2, 1, shape) * rng.choice([-1, 1], shape)
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array, np.float32), key))
    for key, values in {"image": [2, 3], "one": [1], "one_": [1], "ten": [10], "twice": [1, 1, 2]}.items():
        if key in used:
            model.graph.initializer.append(numpy_helper.from_array(np.array(values, np.int64), key))
    return onnx.shape_inference.infer_shapes(model)


@pytest.mark.parametrize("share", [0.2, 0.5])
@pytest.mark.parametrize("name", BODIES)
def test_a_shared_weight_is_pruned_once(name: str, share: float) -> None:
    inputs, body, shapes = BODIES[name]
    source = network(body, inputs, shapes)
    small, masked, count = pruned_and_masked(source, share)
    assert count and size(small) < size(source.SerializeToString())
    assert len(onnx.load_from_string(small).graph.initializer) <= len(source.graph.initializer) + 2 * (
        name == "one slope for all"
    )
    for batch in (1, 3):
        feeds = drawn(source, batch)
        for expected, actual in zip(answers(masked, feeds), answers(small, feeds), strict=True):
            np.testing.assert_allclose(actual, expected, rtol=2e-4, atol=2e-4)
    result = sardonyx.prune(source, channels=share, align=False)
    assert result.report.weight_bytes[1] < size(source.SerializeToString())


def size(model: bytes) -> int:
    """Return the bytes of the weights."""
    return sum(numpy_helper.to_array(one).nbytes for one in onnx.load_from_string(model).graph.initializer)


WHOLE = {
    "a reader is the last layer": (
        "a = MatMul(x, w1) b = MatMul(a, w) r = Relu(b) p = MatMul(r, w) q = MatMul(x, w2) s = Relu(q)"
        "t = MatMul(s, w3) y = Add(p, t)", "shares 'w' with",
    ),
    "a reader has no rule": (
        "a = MatMul(x, w1) b = MatMul(a, w) r = Relu(b) q = MatMul(r, w3) d = Det(w) y = Mul(q, d)",
        "read whole by Det",
    ),
    "a reader is in a branch": (
        "a = MatMul(x, w1) b = MatMul(a, w) r = Relu(b) q = MatMul(r, w3) m = ReduceMax<keepdims = 0>(x)"
        "k = Cast<to = 9>(m) d = If (k) <then_branch = f () => (float e) { e = Det(w) }, "
        "else_branch = g () => (float e) { e = ReduceMax<keepdims = 0>(w) }> y = Mul(q, d)", "read whole by Det",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_a_weight_that_a_reader_needs_whole_stays_with_the_reason(name: str) -> None:
    body, reason = WHOLE[name]
    source = network(body, "float[N, 6] x", {"w1": (6, 12), "w": (12, 12), "w2": (6, 20), "w3": (12, 12)})
    if name.endswith("last layer"):
        source = network(body, "float[N, 6] x", {"w1": (6, 12), "w": (12, 12), "w2": (6, 20), "w3": (20, 12)})
    try:
        result = sardonyx.prune(source, channels=0.5, align=False)
    except sardonyx.errors.UnsupportedError as error:
        assert reason in str(error)
        return
    assert any(reason in layer.fixed for layer in result.report.layers)
    assert tuple(result.model.graph.initializers["w"].shape or ()) == (12, 12)
    assert result.report.weight_bytes[1] < result.report.weight_bytes[0]
    first, second = answers(sardonyx.to_proto(result.model).SerializeToString(), drawn(source, 2))
    np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-4)


def test_a_weight_that_is_an_output_stays() -> None:
    source = network("a = MatMul(x, w1) r = Relu(a) b = MatMul(r, w) s = Relu(b) y = MatMul(s, w2)", "float[N, 6] x",
                     {"w1": (6, 12), "w": (12, 12), "w2": (12, 5)}, "y")  # fmt: skip
    source.graph.output.append(onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [12, 12]))
    with pytest.raises(sardonyx.errors.UnsupportedError, match="'w' is read whole by the output of the model"):
        sardonyx.prune(source, channels=0.5)


def test_a_shared_vector_is_not_copied_where_copies_take_more_than_channels_save() -> None:
    """Six layers of 64 outputs share a bias: a copy takes 63 elements, a removed channel saves two."""
    layers = "".join(f"a{i} = Gemm(x, w{i}, b) r{i} = Relu(a{i}) c{i} = MatMul(r{i}, v{i})" for i in range(6))
    body = layers + "y = Sum(" + ", ".join(f"c{i}" for i in range(6)) + ")"
    shapes = {f"w{i}": (1, 64) for i in range(6)} | {f"v{i}": (64, 1) for i in range(6)} | {"b": (64,)}
    source = network(body, "float[N, 1] x", shapes)
    before = size(source.SerializeToString())
    result = sardonyx.prune(source, channels=0.02, align=False)
    assert result.report.removed
    assert size(sardonyx.to_proto(result.model).SerializeToString()) < before


def test_a_list_of_sizes_that_is_an_output_keeps_its_elements() -> None:
    source = network(
        "n = Shape<start = 0, end = 1>(x) l = Concat<axis = 0>(n, twelve, rest) a = Conv(x, w1) r = Reshape(a, l)"
        "c = Conv(r, w2) y = ReduceMean<keepdims = 0>(c, last)", "float[N, 3, T] x",
        {"w1": (12, 3, 1), "w2": (5, 12, 1)},
    )  # fmt: skip
    for key, values in {"twelve": [12], "rest": [-1], "last": [2]}.items():
        source.graph.initializer.append(numpy_helper.from_array(np.array(values, np.int64), key))
    source.graph.output.append(onnx.helper.make_tensor_value_info("l", onnx.TensorProto.INT64, [3]))
    result = sardonyx.prune(source, channels=0.5, align=False)
    feeds = drawn(source, 2)
    assert sardonyx.Session(result.model).run(["l"], feeds)[0].tolist() == [2, 12, -1]


def test_the_transpose_of_a_shared_table_is_not_stored_beside_it() -> None:
    inputs, body, shapes = BODIES["embedding and last layer"]
    source = network(body, inputs, shapes)
    copied, shared = (sardonyx.optimize(source, verify=False, growth=growth).model for growth in (None, 0))
    sizes = [size(sardonyx.to_proto(one).SerializeToString()) for one in (copied, shared)]
    assert sizes[0] > size(source.SerializeToString()) >= sizes[1]
    with pytest.raises(sardonyx.errors.OptionError, match="expected a number of bytes from 0 on, got -1"):
        sardonyx.optimize(source, growth=-1)
