"""Readers of model files of other frameworks, each with well-formed examples: they return a model or a refusal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx.convert.imported import Options
from sardonyx.convert.tflite import translate
from sardonyx.convert.weights import importer as weights
from tests.convert.tflite.node_definitions import flex_options
from tests.convert.tflite.tflite_files import File, convolution, quantized
from tests.convert.weights.checkpoints import GGUF_NAMES, gguf, llama_weights, q8_0, write_folder

Read = Callable[[bytes], object]

LARGEST = 1 << 22
"""Elements of all constants of a model of a small file."""


def model_file_targets(folder: Path) -> dict[str, tuple[Read, tuple[bytes, ...]]]:
    """Return readers and examples by name; files are written below a folder."""
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    rng = np.random.default_rng(0)
    write_folder(checkpoint, llama_weights(rng), intermediate_size=64, tie_word_embeddings=False)
    config, tensors = checkpoint / "config.json", next(checkpoint.glob("*.safetensors"))
    original = {path: path.read_bytes() for path in (config, tensors)}
    single = folder / "model.gguf"

    def replaced(path: Path, source: Path) -> Read:
        def read(data: bytes) -> object:
            path.write_bytes(data)
            try:
                return [_checked(way.read().model) for way in weights.ways(source, Options())]
            finally:
                if path in original:
                    path.write_bytes(original[path])

        return read

    head = original[tensors]
    return {
        "tflite": (lambda data: _checked(translate(data).model()), (convolution(rng), _loop(), _quantized(), _lists())),
        "gguf": (replaced(single, single), (_gguf(rng),)),
        "checkpoint-config": (replaced(config, checkpoint), (original[config],)),
        "checkpoint-weights": (replaced(tensors, checkpoint), (head,)),
    }


def _checked(model: Any) -> Any:
    """Return a model, after a check of its size."""
    total = sum(value.const_value.size for value in model.graph.initializers.values() if value.const_value is not None)
    assert total <= LARGEST, f"{total} elements"
    return model


def _loop() -> bytes:
    """Return a file with a variable, a loop and a branch."""
    file = File()
    main, condition, body, start = (file.subgraph() for _ in range(4))
    main.operator("CALL_ONCE", [], [], ("CallOnceOptions", {"init_subgraph_index": 3}))
    for subgraph in (main, start):
        subgraph.operator("VAR_HANDLE", [], [subgraph.tensor([])], ("VarHandleOptions", {"shared_name": "v"}))
    start.operator("ASSIGN_VARIABLE", [0, start.constant(np.ones(3, np.float32))], [])
    value, i, x = main.tensor([3]), main.constant(np.int32(0)), main.tensor([3])
    main.operator("READ_VARIABLE", [0], [value])
    end, y = main.tensor([], np.int32), main.tensor([3])
    main.operator("WHILE", [i, x], [end, y], ("WhileOptions", {"cond_subgraph_index": 1, "body_subgraph_index": 2}))
    main.inputs, main.outputs = [x], [y, value]
    ci, less = condition.tensor([], np.int32), condition.tensor([], np.bool_)
    condition.operator("LESS", [ci, condition.constant(np.int32(5))], [less])
    condition.inputs, condition.outputs = [ci, condition.tensor([3])], [less]
    bi, bx, ni, nx = body.tensor([], np.int32), body.tensor([3]), body.tensor([], np.int32), body.tensor([3])
    body.operator("ADD", [bi, body.constant(np.int32(1))], [ni], ("AddOptions", {}))
    body.operator("MUL", [bx, bx], [nx], ("MulOptions", {}))
    body.inputs, body.outputs = [bi, bx], [ni, nx]
    return file.data()


def _quantized() -> bytes:
    """Return a file of 8-bit integers with scales by channel."""
    file = File()
    main = file.subgraph()
    x = main.tensor([1, 4], np.int8, **quantized(0.1, 3))
    w = main.constant(np.ones((2, 4), np.int8), **quantized([0.5, 0.25], [0, 0]))
    b = main.constant(np.array([7, -9], np.int32), **quantized([0.05, 0.025], [0, 0]))
    y, z = main.tensor([1, 2], np.int8, **quantized(2.0, -5)), main.tensor([2, 1], np.int8, **quantized(2.0, -5))
    main.operator("FULLY_CONNECTED", [x, w, b], [y], ("FullyConnectedOptions", {}))
    main.operator("RESHAPE", [y, main.constant(np.array([2, 1], np.int32))], [z], ("ReshapeOptions", {}))
    main.inputs, main.outputs = [x], [z]
    return file.data()


def _lists() -> bytes:
    """Return a file with operators of TensorFlow."""
    file = File()
    main = file.subgraph()
    x, y, z = main.tensor([2, 3]), main.tensor([2, 3]), main.tensor([2, 3])
    options = np.frombuffer(flex_options("Cumprod", exclusive=True, reverse=False), np.uint8)
    main.operator("FlexCumprod", [x, main.constant(np.int32(1))], [y], custom_options=options)
    shift, axis = main.constant(np.array([1], np.int32)), main.constant(np.array([1], np.int32))
    rolled = np.frombuffer(flex_options("Roll"), np.uint8)
    main.operator("FlexRoll", [y, shift, axis], [z], custom_options=rolled)
    main.inputs, main.outputs = [x], [z]
    return file.data()


def _gguf(rng: np.random.Generator) -> bytes:
    """Return a file of one layer, one tensor of which has blocks."""
    tensors: dict[str, tuple[int, tuple[int, ...], bytes]] = {}
    for name, weight in llama_weights(rng).items():
        tensors[GGUF_NAMES[name]] = (0, weight.shape, weight.tobytes())
        if name.endswith("down_proj.weight"):
            tensors[GGUF_NAMES[name]] = (8, weight.shape, q8_0(weight)[0])
    metadata = {
        "general.architecture": "llama",
        "llama.embedding_length": 32,
        "llama.block_count": 1,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.feed_forward_length": 64,
        "llama.context_length": 128,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.vocab_size": 50,
    }
    return gguf(tensors, metadata)
