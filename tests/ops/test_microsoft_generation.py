"""Generation over a decoder subgraph equals ONNX Runtime's, in the interpreter and in compiled code."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from sardonyx import Session
from sardonyx.errors import SardonyxError, ShapeError
from sardonyx.ops.definitions.microsoft.logits import LOWEST
from tests.ops.decoder_models import VOCABULARY, search_model

pytestmark = pytest.mark.sampled


def feeds_of(proto: onnx.ModelProto, **values: Any) -> dict[str, np.ndarray]:
    prompts = np.random.default_rng(1).integers(1, VOCABULARY, (3, 4)).astype(np.int32)
    prompts[1, 0] = 0
    defaults: dict[str, Any] = {"input_ids": prompts, "max_length": 12, "num_beams": 3, "num_return_sequences": 2}
    feeds = {}
    for info in proto.graph.input:
        value = values.get(info.name, defaults.get(info.name, 1))
        dtype = helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
        feeds[info.name] = np.atleast_1d(np.asarray(value, dtype))
    return feeds


def assert_equals_onnx_runtime(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    expected = ort.InferenceSession(proto.SerializeToString()).run(None, feeds)
    for mode in ("off", "wait"):
        actual = Session(proto, compile=mode, threads=1).run(None, feeds)
        for ours, theirs in zip(actual, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, 1e-4, 1e-4)
    return expected  # type: ignore[no-any-return]


BEAMS = "input_ids, max_length, min_length, num_beams, num_return_sequences, length_penalty, repetition_penalty"
GREEDY = "input_ids, max_length, min_length, repetition_penalty"
MASKS = {
    "vocab_mask": np.arange(VOCABULARY) % 3 > 0,
    "prefix_vocab_mask": np.arange(3 * VOCABULARY).reshape(3, -1) % 4 > 0,
}


@pytest.mark.parametrize("early", [0, 1])
@pytest.mark.parametrize(
    ("attributes", "values"),
    [
        ({}, {}),
        ({}, {"length_penalty": 0.3, "num_return_sequences": 3}),
        ({"no_repeat_ngram_size": 2}, {"repetition_penalty": 1.4}),
        ({"no_repeat_ngram_size": 3}, {"min_length": 9, "length_penalty": 2.0}),
        ({}, {"max_length": 5, "num_beams": 1, "num_return_sequences": 1}),
    ],
    ids=str,
)
def test_beam_search_equals_onnx_runtime(early: int, attributes: dict[str, Any], values: dict[str, Any]) -> None:
    proto = search_model("BeamSearch", BEAMS, early_stopping=early, **attributes)
    sequences = [
        # One prompt a call: ONNX Runtime compares the best score of another prompt to end a later one.
        assert_equals_onnx_runtime(proto, feeds_of(proto, **values, input_ids=prompt))[0]
        for prompt in feeds_of(proto)["input_ids"][:, None]
    ]
    together = Session(proto, compile="off").run(None, feeds_of(proto, **values))
    np.testing.assert_array_equal(together[0], np.concatenate(sequences))


def test_scores_and_masks_equal_onnx_runtime() -> None:
    proto = search_model("BeamSearch", f"{BEAMS}, vocab_mask, prefix_vocab_mask", "sequences scores steps")
    values = {**MASKS, "prefix_vocab_mask": MASKS["prefix_vocab_mask"][:1]}
    feeds = feeds_of(proto, **values, input_ids=feeds_of(proto)["input_ids"][:1], min_length=11)
    _, _, steps = assert_equals_onnx_runtime(proto, feeds)
    assert steps.shape == (8, 1, 3, VOCABULARY) and (steps <= LOWEST).any()


@pytest.mark.parametrize("values", [{}, {"repetition_penalty": 1.7, "min_length": 8}], ids=str)
@pytest.mark.parametrize("ngram", [0, 1, 2])
def test_greedy_search_equals_onnx_runtime(ngram: int, values: dict[str, Any]) -> None:
    proto = search_model("GreedySearch", f"{GREEDY}, vocab_mask, prefix_vocab_mask", no_repeat_ngram_size=ngram)
    assert_equals_onnx_runtime(proto, feeds_of(proto, **values, **MASKS))


def test_a_mask_of_the_prompt_replaces_the_padding() -> None:
    proto = search_model("GreedySearch", f"{GREEDY}, , , attention_mask")
    mask = np.ones((3, 4), np.int32)
    mask[0, :2] = 0
    assert_equals_onnx_runtime(proto, feeds_of(proto, attention_mask=mask))


def test_sampling_of_one_token_is_greedy_search() -> None:
    greedy = search_model("GreedySearch", GREEDY)
    sampled = search_model("Sampling", GREEDY, top_p=0.0, min_tokens_to_keep=1, filter_value=-np.inf)
    expected = Session(greedy, compile="off").run(None, feeds_of(greedy))
    np.testing.assert_array_equal(Session(sampled, compile="wait", threads=1).run(None, feeds_of(sampled)), expected)


def test_sampled_tokens_have_their_probability() -> None:
    proto = search_model("Sampling", f"{GREEDY}, vocab_mask, , , , seed", top_p=1.0, filter_value=-np.inf)
    rows, allowed = 4000, np.zeros(VOCABULARY, np.int32)
    allowed[[2, 7, 11]] = 1
    feeds = feeds_of(proto, input_ids=np.full((rows, 2), 3), max_length=3, min_length=0, vocab_mask=allowed)
    proto.graph.input.pop()
    proto.graph.initializer.append(onnx.numpy_helper.from_array(feeds.pop("seed"), "seed"))
    (sequences,) = Session(proto, compile="off").run(None, feeds)
    counts = np.bincount(sequences[:, 2], minlength=VOCABULARY)
    assert counts[allowed == 0].sum() == 0
    steps = search_model("BeamSearch", BEAMS, "sequences scores steps")
    one = feeds_of(steps, input_ids=[[3, 3]], max_length=3, num_beams=1, num_return_sequences=1, min_length=0)
    scores = Session(steps, compile="off").run(None, one)[2][0, 0, 0]
    probability = np.exp(scores[[2, 7, 11]]) / np.exp(scores[[2, 7, 11]]).sum()
    np.testing.assert_allclose(counts[[2, 7, 11]] / rows, probability, atol=0.04)


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"max_length": 4}, ShapeError),
        ({"max_length": -1}, ShapeError),
        ({"num_beams": 0}, SardonyxError),
        ({"num_return_sequences": 4}, ShapeError),
        ({"num_beams": 2**31 - 1}, SardonyxError),
        ({"max_length": 2**31 - 1}, SardonyxError),
    ],
    ids=str,
)
def test_numbers_out_of_range_are_refused(values: dict[str, Any], error: type[SardonyxError]) -> None:
    proto = search_model("BeamSearch", BEAMS)
    for mode in ("off", "wait"):
        with pytest.raises(error):
            Session(proto, compile=mode, threads=1, max_memory=1 << 26).run(None, feeds_of(proto, **values))


@pytest.mark.parametrize("attributes", [{"model_type": 1}, {"vocab_size": VOCABULARY + 1}], ids=str)
def test_other_models_are_refused(attributes: dict[str, Any]) -> None:
    proto = search_model("BeamSearch", BEAMS, **attributes)
    with pytest.raises(SardonyxError):
        Session(proto, compile="off").run(None, feeds_of(proto))
