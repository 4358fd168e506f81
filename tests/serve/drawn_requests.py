"""Well-formed requests by chance, of several models, over HTTP and gRPC."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.serve.grpc import frames
from sardonyx.serve.grpc.frames import frame, header_block
from sardonyx.serve.protocol.messages import message_class
from tests.serve.parser_inputs import damaged

MODELS: dict[str, dict[str, tuple[str, tuple[int, ...]]]] = {
    "net": {"x": ("FP32", (4,))}, "add_sub": {"INPUT0": ("INT32", (16,)), "INPUT1": ("INT32", (16,))},
    "half": {"x": ("FP16", (2,))}, "gather": {"x": ("FP32", (4,)), "i": ("INT64", (1,))},
    "batch_mean": {"x": ("FP32", (2,))}, "weighted": {"x": ("FP32", (2,))}, "ragged": {"x": ("FP32", (3, 5))},
    "fixed": {"x": ("FP32", (2,))}, "pipe": {"x": ("FP32", (4,))}, "branched": {"x": ("FP32", (2,))},
}  # fmt: skip
"""Datatype and sizes but the first of the inputs of every model."""

DTYPES: dict[str, Any] = {"FP32": np.float32, "INT32": np.int32, "FP16": np.float16, "INT64": np.int64}
WORDS = ("NaN", "1e39", "-1e400", "1E5", "1e-50", "-0.0", "0.1234567890123456789", "12345678901234567890", " 7 ", "01",
         "true", '"a"', "null", "-Infinity", "3.", "1.5e3")  # fmt: skip
"""Elements of lists that few clients write."""


def values(rng: random.Random, name: str, rows: int) -> dict[str, np.ndarray]:
    arrays = {}
    for tensor, (datatype, sizes) in MODELS[name].items():
        draws = np.random.default_rng(rng.randrange(1 << 30))
        # Index 4 of the model "gather" has no result.
        array = draws.integers(-4, 5 if rng.random() < 0.1 else 4, (rows, *sizes))
        arrays[tensor] = array.astype(DTYPES[datatype]) * DTYPES[datatype](1 if datatype[0] == "I" else 0.3)
    return arrays


def empty_shape(rng: random.Random, rank: int) -> list[int]:
    """Return sizes of no element, others of which are beyond all memory."""
    sizes = [rng.choice((1, 4, 2**31, 2**32, 2**60, 2**62, 2**63 - 1)) for _ in range(rank)]
    sizes[rng.randrange(rank)] = 0
    return sizes


def identity(rng: random.Random) -> str:
    if rng.random() < 0.2:
        return rng.choice(("", "ü", 'a"b', "a\\b", "%d", "\x7f", "x" * 513, '"id":"a"', "[1]", "\n"))
    return f"{rng.randrange(10**12):x}"


def http_request(rng: random.Random) -> bytes:
    name = rng.choice(list(MODELS))
    rows = 1 if name == "fixed" else rng.choice((1, 1, 1, 2, 3))
    arrays = values(rng, name, rows)
    is_binary = name == "half" or rng.random() < 0.4
    inputs, tail = [], b""
    for tensor, array in arrays.items():
        part: dict[str, Any] = {"name": tensor, "datatype": MODELS[name][tensor][0], "shape": list(array.shape)}
        if rng.random() < 0.02:
            part["shape"], array = empty_shape(rng, array.ndim), array[:0]
        if is_binary:
            part["parameters"] = {"binary_data_size": array.nbytes}
            tail += array.tobytes()
        else:
            part["data"] = array.tolist() if rng.random() < 0.1 else array.ravel().tolist()
        inputs.append(part)
    body: dict[str, Any] = {"inputs": inputs}
    if rng.random() < 0.3 or name == "half":
        body["parameters"] = {"binary_data_output": rng.random() < 0.8 or name == "half"}
    if rng.random() < 0.2:
        outputs = ("OUTPUT1", "OUTPUT0") if name == "add_sub" else ("y",)
        body["outputs"] = [{"name": output} for output in outputs[: rng.choice((1, 2))]]
    if rng.random() < 0.3:
        body = {"id": identity(rng), **body} if rng.random() < 0.7 else {**body, "id": identity(rng)}
    text = json.dumps(body, separators=rng.choice(((",", ":"), (", ", ": "))))
    if not is_binary and rng.random() < 0.2:
        # One element is another word.
        begin, end = text.index('"data"') + 8, text.index("]", text.index('"data"'))
        parts = text[begin:end].strip(" [").split(",")
        parts[rng.randrange(len(parts))] = rng.choice(WORDS)
        text = f"{text[:begin]}[{','.join(parts)}{text[end:]}"
    head = f"POST /v2/models/{name}/infer HTTP/1.1\r\nHost: h\r\n"
    if is_binary:
        head += f"Inference-Header-Content-Length: {len(text)}\r\n"
    if rng.random() < 0.1:
        head += "Accept-Encoding: gzip\r\n"
    data = text.encode() + tail
    head += f"Content-Length: {len(data)}\r\n" + ("X-More: 1\r\n" if rng.random() < 0.1 else "")
    return head.encode() + b"\r\n" + data


def grpc_message(rng: random.Random) -> bytes:
    name = rng.choice(list(MODELS))
    arrays = values(rng, name, 1 if name == "fixed" else rng.choice((1, 1, 2, 3)))
    call = message_class("ModelInferRequest")(model_name=name)
    for tensor, array in arrays.items():
        shape: Sequence[int] = array.shape
        if rng.random() < 0.02:
            shape, array = empty_shape(rng, array.ndim), array[:0]
        call.inputs.add(name=tensor, datatype=MODELS[name][tensor][0], shape=shape)
        call.raw_input_contents.append(array.tobytes())
    if rng.random() < 0.3:
        call.id = identity(rng)
    if rng.random() < 0.05:
        call.raw_input_contents[0] += b"\0"
    if name == "add_sub" and rng.random() < 0.3:
        call.outputs.add(name="OUTPUT1")
    data: bytes = call.SerializeToString()
    return damaged(rng, data) if rng.random() < 0.05 else data


def grpc_call(rng: random.Random, number: int) -> bytes:
    fields = [(":method", "POST"), (":scheme", "http"), (":path", "/inference.GRPCInferenceService/ModelInfer"),
              (":authority", "h"), ("content-type", "application/grpc")]  # fmt: skip
    if rng.random() < 0.1:
        fields.append(("grpc-timeout", "50S"))
    data = grpc_message(rng)
    call = frame(frames.HEADERS, frames.END_HEADERS, number, header_block(fields))
    call += frame(frames.DATA, frames.END_STREAM, number, struct.pack(">BI", 0, len(data)) + data)
    extra = rng.random()
    if extra < 0.05:
        call += frame(frames.WINDOW_UPDATE, 0, number, struct.pack(">I", 100))
    elif extra < 0.08:
        call += frame(frames.RST_STREAM, 0, number, struct.pack(">I", frames.CANCEL))
    return call
