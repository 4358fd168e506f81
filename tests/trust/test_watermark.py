"""Watermarks: answers stay equal to the bit, the key finds its mark, and no other key does."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

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
