"""Watermarks: answers stay equal to the bit, the key finds its mark, and no other key does."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.compress.quantization.methods.equalization import equalize
from sardonyx.errors import OptionError, UnsupportedError
from sardonyx.trust.encryption import Key
from sardonyx.trust.watermark import detect, embed
from tests.trust.networks import network

KEY, OTHER = Key("aes256", bytes(range(32))), Key("aes256", bytes(32))


@pytest.fixture(scope="module")
def marked() -> onnx.ModelProto:
    return sardonyx.to_proto(embed(network(), KEY).model)


def changed(model: onnx.ModelProto, change: object) -> onnx.ModelProto:
    """Return a copy whose weights a function of an array and its axis of outputs changes."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.ndim > 1:
            tensor.CopyFrom(numpy_helper.from_array(change(array).astype(np.float32), tensor.name))  # type: ignore[operator]
    return copy


def pruned(array: np.ndarray) -> np.ndarray:
    return np.where(np.abs(array) < np.quantile(np.abs(array), 0.3), 0, array)


def tuned(array: np.ndarray) -> np.ndarray:
    noise = np.random.default_rng(1).standard_normal(array.shape)
    return np.asarray(array + 0.1 * array.std() * noise)


ROWS = np.random.default_rng(5).standard_normal((5, 3, 8, 8)).astype(np.float32)


def test_answers_are_equal_to_the_bit_and_half_of_the_channels_differ(marked: onnx.ModelProto) -> None:
    original = network()
    left, right = (sardonyx.run(model, {"x": ROWS})["r3"] for model in (original, marked))
    assert left.tobytes() == right.tobytes()
    first = numpy_helper.to_array(original.graph.initializer[0])
    rescaled = next(numpy_helper.to_array(t) for t in marked.graph.initializer if t.name.startswith("w0"))
    factors = np.unique(rescaled / first)
    assert factors.tolist() == [1, 2]


@pytest.mark.parametrize("change", [np.asarray, np.float16, pruned, tuned], ids=["copy", "half", "pruned", "tuned"])
def test_the_key_finds_its_mark_and_no_other_key_does(marked: onnx.ModelProto, change: object) -> None:
    suspect = changed(marked, change)
    assert detect(suspect, network(), KEY).p_value < 1e-9
    assert detect(suspect, network(), OTHER).p_value > 1e-3


def test_int8_weights_keep_the_mark_and_equalized_channels_do_not(marked: onnx.ModelProto) -> None:
    evidence = detect(sardonyx.quantize(marked).model, network(), KEY)
    assert evidence.layers == 3 and evidence.p_value < 1e-9
    equalized = sardonyx.load(marked)
    sardonyx.infer_shapes(equalized)
    equalize(equalized)
    assert detect(equalized, network(), KEY).p_value > 1e-9, "as the manual says"


def test_a_model_without_the_mark_is_not_accused() -> None:
    assert detect(network(), network(), KEY).p_value == 1.0, "the original has no exponents at all"
    tuned_model = changed(network(), tuned)
    assert min(detect(tuned_model, network(), Key("aes256", bytes([n]) * 32)).p_value for n in range(20)) > 1e-3


def test_models_without_enough_channels_and_public_keys_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="0 channels can carry a mark"):
        embed(network(activation="Sigmoid"), KEY)
    with pytest.raises(UnsupportedError, match="24 channels"):
        embed(network(8), KEY)
    with pytest.raises(OptionError, match="expected a shared secret"):
        embed(network(), Key("x25519-secret", bytes(32)))


@pytest.mark.parametrize(
    ("integers", "scale", "attributes"),
    [
        (np.ones((4, 4), np.int8), np.ones(3, np.float32), {}),
        (np.ones(4, np.int8), np.ones(3, np.float32), {}),
        (np.ones(4, np.int8), np.ones(4, np.float32), {"axis": 7}),
        (np.ones((4, 4), np.int8), np.ones((2, 2), np.float32), {"axis": 0}),
        (np.ones((4, 4), np.int8), np.ones((3, 4), np.float32), {"axis": 0, "block_size": 2}),
        (np.ones((4, 4), np.int8), np.ones((1, 4), np.float32), {"axis": 0, "block_size": 1 << 60}),
        (np.ones((4, 4), np.int8), np.ones(4, np.float32), {"axis": 0, "block_size": -1}),
        (np.ones((4, 4), np.int8), np.ones(4, np.float32), {"axis": "first"}),
        (np.ones((4, 4), np.int8), None, {}),
        (np.full((4, 4), "text", object), np.ones(4, np.float32), {}),
    ],
)  # fmt: skip
def test_a_malformed_dequantization_does_not_hide_a_mark(
    marked: onnx.ModelProto, integers: np.ndarray, scale: np.ndarray | None, attributes: dict[str, int | str]
) -> None:
    suspect = onnx.ModelProto()
    suspect.CopyFrom(marked)
    arrays = {"q": integers} if scale is None else {"q": integers, "s": scale}
    suspect.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    suspect.graph.node.insert(0, helper.make_node("DequantizeLinear", list(arrays), ["unused"], **attributes))
    assert detect(suspect, network(), KEY).p_value < 1e-9


def test_blocks_of_integers_are_read_with_their_scales(marked: onnx.ModelProto) -> None:
    suspect = onnx.ModelProto()
    suspect.CopyFrom(marked)
    weight = next(one for one in suspect.graph.initializer if len(one.dims) == 4 and one.dims[1] > 3)
    name, array = weight.name, numpy_helper.to_array(weight)
    scale = np.maximum(np.abs(array[:, ::2]), np.abs(array[:, 1::2])) / np.float32(127)
    integers = np.rint(array / np.repeat(scale, 2, 1)).astype(np.int8)
    weight.CopyFrom(numpy_helper.from_array(integers, "q"))
    suspect.graph.initializer.append(numpy_helper.from_array(scale, "s"))
    attributes = {"axis": -3, "block_size": 2}
    suspect.graph.node.insert(0, helper.make_node("DequantizeLinear", ["q", "s"], [name], **attributes))
    assert detect(suspect, network(), KEY).layers == 3


def test_the_bound_of_a_large_model_is_not_zero() -> None:
    rng = np.random.default_rng(0)
    shapes = {"first": (4, 2048), "second": (2048, 4)}
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "first"], ["h"]),
            helper.make_node("Relu", ["h"], ["r"]),
            helper.make_node("MatMul", ["r", "second"], ["y"]),
        ],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
        [numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), n) for n, shape in shapes.items()],
    )
    original = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    evidence = detect(embed(original, KEY).model, original, KEY)
    assert evidence.channels == 2048 and 0 < evidence.p_value < 1e-300
