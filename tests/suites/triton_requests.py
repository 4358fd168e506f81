"""Requests that Triton and this server must answer alike, well-formed and malformed, over JSON, binary and gRPC."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sardonyx.serve.protocol.messages import message_class

INFER = "/v2/models/simple/infer"

HEAD = '<ir_version: 8, opset_import: ["": 13]> '

_PAIR = "net ({t}[N, 16] INPUT0, {t}[N, 16] INPUT1) => ({t}[N, 16] OUTPUT0, {t}[N, 16] OUTPUT1)"

MODELS = {
    "simple": _PAIR.format(t="int32") + " { OUTPUT0 = Add(INPUT0, INPUT1) OUTPUT1 = Sub(INPUT0, INPUT1) }",
    "floats": "net (float[N, W] x) => (float[N, W] y) { y = Neg(x) }",
    "halves": "net (float16[N, 2] x) => (float16[N, 2] y) { y = Neg(x) }",
    "doubles": "net (double[N, 2] x) => (double[N, 2] y) { y = Neg(x) }",
    "longs": "net (int64[N, 2] x) => (int64[N, 2] y) { y = Neg(x) }",
    "bytes8": "net (uint8[N, 2] x) => (uint8[N, 2] y) { y = Identity(x) }",
    "shorts": "net (int16[N, 2] x) => (int16[N, 2] y) { y = Identity(x) }",
    "flags": "net (bool[N, 2] x) => (bool[N, 2] y) { y = Not(x) }",
    "texts": "net (string[N, 2] x) => (string[N, 2] y) { y = Identity(x) }",
    "fixed": "net (float[2, 3] x) => (float[2, 3] y) { y = Neg(x) }",
}
"""Models by name, in the text form of onnx."""

RAGGED = """ragged (float[T] x, float[N] counts, float[N] ends, float[Z] offsets, float[N, 1] shapes, float[L] longest)
=> (float[N, 3] sizes, float[T] less, float[N, 1] zeros) <int64[1] axis = {1}, int64[1] first = {0}> {
    a = Unsqueeze(counts, axis) b = Unsqueeze(ends, axis) sizes = Concat<axis = 1>(a, b, shapes)
    less = Neg(x) sums = ReduceSum<keepdims = 1>(offsets) longs = ReduceSum<keepdims = 1>(longest)
    both = Add(sums, longs) none = Mul(both, a) zeros = Sub(none, none)
}"""
"""A model that answers with the sizes that a server computes for it."""

RAGGED_CONFIG = """
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: -1 allow_ragged_batch: true }
output { name: "sizes" data_type: TYPE_FP32 dims: 3 }
output { name: "less" data_type: TYPE_FP32 dims: -1 }
output { name: "zeros" data_type: TYPE_FP32 dims: 1 }
batch_input { kind: BATCH_ELEMENT_COUNT target_name: "counts" data_type: TYPE_FP32 source_input: "x" }
batch_input { kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "ends" data_type: TYPE_FP32 source_input: "x" }
batch_input {
    kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO target_name: "offsets" data_type: TYPE_FP32 source_input: "x"
}
batch_input { kind: BATCH_ITEM_SHAPE target_name: "shapes" data_type: TYPE_FP32 source_input: "x" }
batch_input { kind: BATCH_MAX_ELEMENT_COUNT_AS_SHAPE target_name: "longest" data_type: TYPE_FP32 source_input: "x" }
batch_output { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "less" source_input: "x" }
dynamic_batching { max_queue_delay_microseconds: 100 }
"""
"""The configuration of the model with concatenated requests."""

SEQUENCE = """steps (float[N, 1] x, float[N, 1] start, int64[N, 1] number, float[N, 1] state)
=> (float[N, 1] y, float[N, 1] begun, int64[N, 1] id, float[N, 1] next) {
    y = Add(x, state) next = Identity(y) begun = Identity(start) id = Identity(number)
}"""
"""A model with state, which answers with the controls of a sequence too."""

SEQUENCE_CONFIG = """
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: 1 }
output { name: "y" data_type: TYPE_FP32 dims: 1 }
output { name: "begun" data_type: TYPE_FP32 dims: 1 }
output { name: "id" data_type: TYPE_INT64 dims: 1 }
sequence_batching {
    max_sequence_idle_microseconds: 60000000
    control_input { name: "start" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 1] } }
    control_input { name: "number" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_INT64 } }
    state {
        input_name: "state" output_name: "next" data_type: TYPE_FP32 dims: 1
        initial_state { name: "zero" data_type: TYPE_FP32 dims: 1 zero_data: true }
    }
}
"""
"""The configuration of the model with state."""

SEQUENCE_STEPS = [
    (5, "start"), (6, "start"), (5, ""), (6, ""), (5, "end"), (5, ""), (5, "start"), (6, "end"), (7, ""), (0, "start"),
    (8, "both"), (8, ""), (5, "start"), (5, ""),
]  # fmt: skip
"""Requests of sequences in order: the number of the sequence, and whether it starts or ends. Some are errors."""

RESHAPED = """reshaped (float[N, 1, W] x, float[N] s) => (float[N, 1, W] y, float[N] t) <int64[2] axes = {1, 2}> {
    u = Unsqueeze(s, axes) y = Add(x, u) t = Neg(s)
}"""
"""A model whose sizes differ from those of requests."""

RESHAPED_CONFIG = """
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: -1 reshape { shape: [ 1, -1 ] } }
input { name: "s" data_type: TYPE_FP32 dims: 1 reshape { } }
output { name: "y" data_type: TYPE_FP32 dims: [ -1, 1 ] reshape { shape: [ 1, -1 ] } }
output { name: "t" data_type: TYPE_FP32 dims: [ 1, 1 ] reshape { } }
"""
"""The configuration of the model with other sizes."""

ENSEMBLES = {
    "branched": """
platform: "ensemble" max_batch_size: 4
input { name: "IN" data_type: TYPE_FP32 dims: -1 }
input { name: "S" data_type: TYPE_FP32 dims: 1 }
output { name: "A" data_type: TYPE_FP32 dims: [ -1, 1 ] }
output { name: "B" data_type: TYPE_FP32 dims: -1 }
ensemble_scheduling {
    step {
        model_name: "floats" model_version: -1
        input_map { key: "x" value: "IN" } output_map { key: "y" value: "B" }
    }
    step {
        model_name: "reshaped" model_version: -1
        input_map { key: "x" value: "B" } input_map { key: "s" value: "S" } output_map { key: "y" value: "A" }
    }
}
""",
    "stateful": """
platform: "ensemble" max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: 1 }
output { name: "y" data_type: TYPE_FP32 dims: 1 }
output { name: "id" data_type: TYPE_INT64 dims: 1 }
ensemble_scheduling {
    step {
        model_name: "floats" model_version: -1
        input_map { key: "x" value: "x" } output_map { key: "y" value: "less" }
    }
    step {
        model_name: "steps" model_version: -1 input_map { key: "x" value: "less" }
        output_map { key: "y" value: "y" } output_map { key: "id" value: "id" }
    }
}
""",
}
"""Configurations of ensembles of models above."""

TEXTS = {name: HEAD + text for name, text in MODELS.items()}


@dataclass(frozen=True)
class HttpCase:
    """A request over HTTP."""

    name: str
    body: bytes = b""
    path: str = INFER
    headers: dict[str, str] = field(default_factory=dict)
    method: str = "POST"


def tensor(name: str, datatype: str, shape: Any, data: Any, **parameters: Any) -> dict[str, Any]:
    part: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
    if data is not None:
        part["data"] = data
    return {**part, "parameters": parameters} if parameters else part


def pair(**changes: Any) -> list[dict[str, Any]]:
    return [{**tensor(f"INPUT{i}", "INT32", [1, 16], list(range(16))), **changes} for i in range(2)]


def as_json(inputs: Any, **fields: Any) -> bytes:
    return json.dumps({"inputs": inputs, **fields}).encode()


def binary(
    name: str, head: dict[str, Any], tail: bytes, path: str = INFER, length: Any = None, **headers: str
) -> HttpCase:
    text = json.dumps(head).encode()
    size = str(len(text) if length is None else length)
    return HttpCase(name, text + tail, path, {"Inference-Header-Content-Length": size, **headers})


def strings(*values: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


def http_cases() -> Iterator[HttpCase]:
    """Yield requests for answers, then requests that are wrong in one way."""
    x16 = np.arange(16, dtype=np.int32)
    good = as_json(pair())
    yield HttpCase("plain", good)
    yield HttpCase("with an id", as_json(pair(), id="7"))
    yield HttpCase("one version", good, "/v2/models/simple/versions/1/infer")
    yield HttpCase("nested data", as_json(pair(data=[list(range(16))])))
    yield HttpCase("four rows", as_json(pair(shape=[4, 16], data=list(range(64)))))
    yield HttpCase("one output", as_json(pair(), outputs=[{"name": "OUTPUT1"}]))
    yield HttpCase("outputs in another order", as_json(pair(), outputs=[{"name": "OUTPUT1"}, {"name": "OUTPUT0"}]))
    yield HttpCase("no outputs named", as_json(pair(), outputs=[]))
    yield HttpCase("binary output", as_json(pair(), outputs=[{"name": "OUTPUT0", "parameters": {"binary_data": True}}]))
    yield HttpCase("all outputs binary", as_json(pair(), parameters={"binary_data_output": True}))
    yield HttpCase("classes", as_json(pair(), outputs=[{"name": "OUTPUT0", "parameters": {"classification": 3}}]))
    yield HttpCase("priority and timeout", as_json(pair(), parameters={"priority": 1, "timeout": 1000000}))
    yield HttpCase("own parameters", as_json(pair(), parameters={"user": "text", "number": 3, "flag": True}))
    yield HttpCase("unknown field", as_json(pair(), more=3))
    yield HttpCase("gzip", gzip.compress(good), headers={"Content-Encoding": "gzip"})
    yield HttpCase("gzip answer", good, headers={"Accept-Encoding": "gzip"})
    for name, datatype, data in (
        ("floats", "FP32", [1, 2.5]),
        ("floats", "FP32", [1e-30, -0.0]),
        ("doubles", "FP64", [1e300, 0.1]),
        ("longs", "INT64", [2**63 - 1, -(2**62)]),
        ("bytes8", "UINT8", [0, 255]),
        ("shorts", "INT16", [-32768, 1]),
        ("flags", "BOOL", [True, False]),
        ("texts", "BYTES", ["ä\n", ""]),
    ):
        yield HttpCase(f"{name} {data}", as_json([tensor("x", datatype, [1, 2], data)]), f"/v2/models/{name}/infer")
    yield HttpCase("fixed sizes", as_json([tensor("x", "FP32", [2, 3], [1] * 6)]), "/v2/models/fixed/infer")
    for name, datatype, data in (
        ("halves", "FP16", np.array([1.5, -2], np.float16).tobytes()),
        ("floats", "FP32", np.ones(2, "<f4").tobytes()),
        ("flags", "BOOL", b"\1\0"),
        ("texts", "BYTES", strings(b"a\0b", b"\xc3\xa4")),
    ):
        part = tensor("x", datatype, [1, 2], None, binary_data_size=len(data))
        head = {"inputs": [part], "parameters": {"binary_data_output": True}}
        yield binary(f"binary {name}", head, data, f"/v2/models/{name}/infer")
    parts = [tensor(f"INPUT{i}", "INT32", [1, 16], None, binary_data_size=64) for i in range(2)]
    raw = x16.tobytes() * 2
    yield binary("binary pair", {"inputs": parts}, raw)
    yield binary("binary and JSON", {"inputs": [parts[0], pair()[1]]}, x16.tobytes())
    for path in (
        "/v2",
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/models/simple",
        "/v2/models/simple/ready",
        "/v2/models/simple/config",
        "/v2/models/simple/stats",
        "/v2/models/stats",
        "/v2/models/simple/versions/1",
    ):
        yield HttpCase(f"GET {path}", path=path, method="GET")
    yield HttpCase("index", path="/v2/repository/index")

    for name, path in (
        ("unknown model", "/v2/models/none/infer"),
        ("unknown version", "/v2/models/simple/versions/9/infer"),
        ("version as text", "/v2/models/simple/versions/x/infer"),
        ("unknown path", "/v2/nothing"),
        ("path above", "/v2/models/../infer"),
        ("escaped name", "/v2/models/%2e%2e%2fsimple/infer"),
    ):
        yield HttpCase(name, good, path)
    yield HttpCase("GET of infer", method="GET")
    for name, body in (
        ("empty body", b""),
        ("no JSON", b"{"),
        ("a list", b"[]"),
        ("a number", b"3"),
        ("null", b"null"),
        ("no inputs", b"{}"),
        ("inputs null", b'{"inputs": null}'),
        ("inputs as object", b'{"inputs": {}}'),
        ("inputs empty", b'{"inputs": []}'),
        ("input null", b'{"inputs": [null]}'),
        ("bytes after", good + b"x"),
        ("bad UTF-8", good.replace(b"INPUT0", b"INPUT\xff")),
        ("deep", b'{"inputs":' + b"[" * 5000 + b"]" * 5000 + b"}"),
        ("outputs as object", as_json(pair(), outputs={})),
        ("parameters as list", as_json(pair(), parameters=[])),
        ("id as number", as_json(pair(), id=3)),
        ("one input missing", as_json(pair()[:1])),
        ("an input twice", as_json([pair()[0], pair()[0]])),
        ("three inputs", as_json([*pair(), tensor("z", "INT32", [1], [1])])),
        ("unknown input", as_json([pair()[0], tensor("z", "INT32", [1, 16], [1] * 16)])),
        ("unknown output", as_json(pair(), outputs=[{"name": "none"}])),
        ("output twice", as_json(pair(), outputs=[{"name": "OUTPUT0"}, {"name": "OUTPUT0"}])),
        ("output without name", as_json(pair(), outputs=[{}])),
        ("classes below 0", as_json(pair(), outputs=[{"name": "OUTPUT0", "parameters": {"classification": -1}}])),
        ("priority as text", as_json(pair(), parameters={"priority": "high"})),
        (
            "region without shared memory",
            as_json(
                [
                    {
                        **tensor(
                            f"INPUT{i}", "INT32", [1, 16], None, shared_memory_region="r", shared_memory_byte_size=64
                        )
                    }
                    for i in range(2)
                ]
            ),
        ),
    ):
        yield HttpCase(name, body)
    changed: tuple[tuple[str, dict[str, Any]], ...] = (
        ("no data", {"data": None}),
        ("data as text", {"data": "1"}),
        ("data as number", {"data": 1}),
        ("data as object", {"data": {}}),
        ("texts as data", {"data": ["1"] * 16}),
        ("null as data", {"data": [None] * 16}),
        ("floats as data", {"data": [1.5] * 16}),
        ("too few", {"data": [1] * 15}),
        ("too many", {"data": [1] * 17}),
        ("none", {"data": []}),
        ("above INT32", {"data": [2**31] * 16}),
        ("above INT64", {"data": [2**70] * 16}),
        ("another datatype", {"datatype": "FP32"}),
        ("unknown datatype", {"datatype": "INT33"}),
        ("datatype as number", {"datatype": 3}),
        ("datatype small", {"datatype": "int32"}),
        ("datatype null", {"datatype": None}),
        ("another rank", {"shape": [16]}),
        ("another size", {"shape": [2, 8]}),
        ("negative size", {"shape": [-1, 16]}),
        ("size of two negatives", {"shape": [-1, -16]}),
        ("size as text", {"shape": ["1", 16]}),
        ("size as float", {"shape": [1.0, 16]}),
        ("size true", {"shape": [True, 16]}),
        ("size null", {"shape": [None, 16]}),
        ("shape as number", {"shape": 16}),
        ("shape null", {"shape": None}),
        ("shape empty", {"shape": []}),
        ("huge size", {"shape": [2**62, 16]}),
        ("product above 64 bits", {"shape": [2**32, 2**32]}),
        ("size above 64 bits", {"shape": [2**64 + 1, 16]}),
        ("name as number", {"name": 3}),
        ("name empty", {"name": ""}),
        ("parameters as text", {"parameters": "x"}),
        ("size of binary data in JSON", {"parameters": {"binary_data_size": 64}}),
    )
    for name, change in changed:
        yield HttpCase(name, as_json([{**pair()[0], **change}, pair()[1]]))
    bits = "/v2/models/flags/infer"
    yield HttpCase("number as flag", as_json([tensor("x", "BOOL", [1, 2], [2, 1])]), bits)
    yield HttpCase("below UINT8", as_json([tensor("x", "UINT8", [1, 2], [-1, 1])]), "/v2/models/bytes8/infer")
    yield HttpCase("number as text", as_json([tensor("x", "BYTES", [1, 2], [1, 2])]), "/v2/models/texts/infer")
    yield HttpCase("halves in JSON", as_json([tensor("x", "FP16", [1, 2], [1, 2])]), "/v2/models/halves/infer")
    yield HttpCase("other fixed size", as_json([tensor("x", "FP32", [1, 3], [1] * 3)]), "/v2/models/fixed/infer")
    yield HttpCase("no gzip data", good, headers={"Content-Encoding": "gzip"})
    yield HttpCase("truncated gzip", gzip.compress(good)[:-9], headers={"Content-Encoding": "gzip"})
    yield HttpCase("unknown encoding", good, headers={"Content-Encoding": "br"})
    head = {"inputs": parts}
    yield binary("binary too short", head, raw[:-1])
    yield binary("binary too long", head, raw + b"\0")
    for length in (-1, 0, 10**9, 2**64, "x", ""):
        yield binary(f"length of the head {length!r}", head, raw, length=length)
    for size in (-1, 0, 63, 65, 2**40, "64", 64.0, None, True):
        changed_parts = [{**parts[0], "parameters": {"binary_data_size": size}}, parts[1]]
        yield binary(f"binary data size {size!r}", {"inputs": changed_parts}, raw)
    text = tensor("x", "BYTES", [1, 2], None, binary_data_size=10)
    for name, data in (
        ("text cut", strings(b"ab", b"cd")[:10]),
        ("length of a text", b"\xff\xff\xff\xff" + b"a" * 6),
        ("one text", strings(b"abcdef")),
        ("three texts", strings(b"ab", b"", b"")[:10]),
    ):
        yield binary(name, {"inputs": [text]}, data, "/v2/models/texts/infer")
    flag = tensor("x", "BOOL", [1, 2], None, binary_data_size=2)
    yield binary("byte 2 as flag", {"inputs": [flag]}, b"\1\2", bits)


def grpc_cases() -> Iterator[tuple[str, Any]]:
    """Yield names and messages of calls for inference."""

    def call(model: str = "simple", version: str = "", raw: bool = True, count: int = 2) -> Any:
        message = message_class("ModelInferRequest")(model_name=model, model_version=version)
        for index in range(count):
            part = message.inputs.add(name=f"INPUT{index}", datatype="INT32", shape=[1, 16])
            if raw:
                message.raw_input_contents.append(np.arange(16, dtype=np.int32).tobytes())
            else:
                part.contents.int_contents.extend(range(16))
        return message

    yield "raw", call()
    yield "typed", call(raw=False)
    yield "one version", call(version="1")
    yield "unknown model", call("none")
    yield "no model", call("")
    yield "unknown version", call(version="9")
    yield "version as text", call(version="x")
    yield "one input missing", call(count=1)
    yield "no inputs", call(count=0)
    yield "three inputs", call(count=3)
    for name, change in (
        ("id", lambda m: setattr(m, "id", "7")),
        ("one output", lambda m: m.outputs.add(name="OUTPUT1")),
        ("unknown output", lambda m: m.outputs.add(name="none")),
        ("output without name", lambda m: m.outputs.add()),
        ("classes", lambda m: m.outputs.add(name="OUTPUT0").parameters["classification"].__setattr__("int64_param", 2)),
        ("own parameter", lambda m: m.parameters["user"].__setattr__("string_param", "x")),
        ("priority", lambda m: m.parameters["priority"].__setattr__("uint64_param", 1)),
        ("priority as text", lambda m: m.parameters["priority"].__setattr__("string_param", "x")),
        ("parameter without a value", lambda m: m.parameters["user"].SetInParent()),
        ("fewer raw contents", lambda m: m.raw_input_contents.pop()),
        ("more raw contents", lambda m: m.raw_input_contents.append(b"")),
        ("short raw contents", lambda m: m.raw_input_contents.__setitem__(0, b"\0" * 63)),
        ("long raw contents", lambda m: m.raw_input_contents.__setitem__(0, b"\0" * 65)),
        ("empty raw contents", lambda m: m.raw_input_contents.__setitem__(0, b"")),
        ("both contents", lambda m: m.inputs[0].contents.int_contents.append(1)),
        ("negative size", lambda m: m.inputs[0].shape.__setitem__(0, -1)),
        ("huge size", lambda m: m.inputs[0].shape.__setitem__(0, 2**62)),
        ("another rank", lambda m: m.inputs[0].shape.pop()),
        ("another datatype", lambda m: setattr(m.inputs[0], "datatype", "FP32")),
        ("unknown datatype", lambda m: setattr(m.inputs[0], "datatype", "INT33")),
        ("no datatype", lambda m: setattr(m.inputs[0], "datatype", "")),
        ("an input twice", lambda m: setattr(m.inputs[1], "name", "INPUT0")),
        ("unknown input", lambda m: setattr(m.inputs[1], "name", "z")),
        ("unknown region", lambda m: m.inputs[0].parameters["shared_memory_region"].__setattr__("string_param", "r")),
    ):
        message = call()
        change(message)
        yield name, message
    message = call(raw=False)
    message.inputs[0].contents.int_contents.pop()
    yield "fewer typed contents", message
    message = call(raw=False)
    message.inputs[0].contents.ClearField("int_contents")
    message.inputs[0].contents.fp32_contents.extend([1.0] * 16)
    yield "contents of another type", message
    message = call(raw=False)
    message.inputs[0].contents.Clear()
    yield "no contents", message
