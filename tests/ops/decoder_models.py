"""Models that search over a small decoder with a cache, as exporters of text generation write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper

VOCABULARY, HEADS, SIZE = 23, 2, 3
END = 5

DECODER = f"""
decoder (int32[R, S] input_ids, int32[R, S] position_ids, int32[R, T] attention_mask,
    float[2, R, {HEADS}, P, {SIZE}] past_0)
    => (float[R, S, {VOCABULARY}] logits, float[2, R, {HEADS}, T, {SIZE}] present_0) {{
    word = Gather (words, input_ids)
    place = Gather (places, position_ids)
    x = Add (word, place)
    split = Constant <value_ints = [0, 0, {HEADS}, {SIZE}]> ()
    apart = Reshape (x, split)
    heads = Transpose <perm = [0, 2, 1, 3]> (apart)
    zero = Constant <value_ints = [0]> ()
    one = Unsqueeze (heads, zero)
    both = Concat <axis = 0> (one, one)
    present_0 = Concat <axis = 3> (past_0, both)
    seen = Cast <to = 1> (attention_mask)
    axes = Constant <value_ints = [0, 2, 4]> ()
    weights = Unsqueeze (seen, axes)
    weighted = Mul (present_0, weights)
    over = Constant <value_ints = [0, 3]> ()
    total = ReduceSum <keepdims = 0> (weighted, over)
    joined = Constant <value_ints = [0, 1, {HEADS * SIZE}]> ()
    context = Reshape (total, joined)
    y = Add (x, context)
    logits = MatMul (y, scores)
}}
"""


def decoder_graph() -> onnx.GraphProto:
    """Return a decoder of one layer with a cache, without attention."""
    numbers = np.random.default_rng(3)
    shapes = {"words": (VOCABULARY, HEADS * SIZE), "places": (64, HEADS * SIZE), "scores": (HEADS * SIZE, VOCABULARY)}
    decoder = onnx.parser.parse_graph(DECODER)
    decoder.initializer.extend(
        onnx.numpy_helper.from_array(numbers.standard_normal(shape).astype(np.float32), name)
        for name, shape in shapes.items()
    )
    return decoder


def search_model(op: str, inputs: str, outputs: str = "sequences", **attributes: Any) -> onnx.ModelProto:
    """Return a model of one operator over the decoder; an empty name in ``inputs`` is an omitted input."""
    names = [name.strip() for name in inputs.split(",")]
    node = helper.make_node(
        op, names, outputs.split(), name="search", domain="com.microsoft", decoder=decoder_graph(),
        eos_token_id=END, pad_token_id=0, **attributes,
    )  # fmt: skip
    kinds = {"length_penalty": 1, "repetition_penalty": 1}
    ranks = {"input_ids": 2, "attention_mask": 2, "prefix_vocab_mask": 2}
    graph = helper.make_graph(
        [node], "g",
        [helper.make_tensor_value_info(n, kinds.get(n, 6), [None] * ranks.get(n, 1)) for n in names if n],
        [helper.make_tensor_value_info(n, 6 if n == "sequences" else 1, None) for n in outputs.split()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)
