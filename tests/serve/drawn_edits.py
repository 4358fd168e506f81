"""Edits over the wire by chance: known verbs with arguments of all kinds, most of them wrong in some way."""

from __future__ import annotations

import base64
import random
from typing import Any

from sardonyx.serve.operations.live_edits import VERBS
from tests.serve.models import proto

VALUES: list[Any] = [
    None, True, 0, -1, 2**31, 2**63, 2**70, 1.5, 1e308, "", "x", "y", "w", "N", "float32", [], [1], ["a"], [None],
    [[1]], [2**70], {}, {"a": 1}, "a" * 300, "y\n", "\u0000", {"datatype": "FP32", "shape": [2, -1], "data": [1, 2]},
    {"datatype": "FP32", "data": [[1, 2]]}, {"datatype": "INT4", "data": [100]}, {"datatype": "BOOL", "data": [3]},
]  # fmt: skip
ARRAYS: list[Any] = [
    {"datatype": "FP32", "shape": [2], "data": [1, 2]}, {"datatype": "FP32", "shape": [4, 2], "data": [1] * 8},
    {"datatype": "INT64", "shape": [1], "data": [0]}, {"datatype": "BYTES", "shape": [1], "data": ["a"]},
    {"datatype": "BF16", "shape": [1], "data": [1]}, {"datatype": "COMPLEX64", "data": [1]},
]  # fmt: skip
TYPES = [
    "Relu",
    "MatMul",
    "Add",
    "Softmax",
    "Cast",
    "Reshape",
    "Loop",
    "If",
    "Concat",
    "Split",
    "Constant",
    "TopK",
    "No",
    "",
]
ATTRIBUTES = ["axis", "alpha", "to", "perm", "value", "value_ints", "body", "kernel_shape", "mode", "x y", "", "α"]
NAMES = ["x", "w", "y", "h", "z", ""]
SHAPES: list[Any] = [[1], ["N", 2], [None], [-1], [], None, [2**70], [True], [1.5], ["N+1"], ["("], [[]]]
ELEMENTS = ["float32", "FP32", "string", "int64", "no", "object", "bfloat16", ""]


def drawn_edit(rng: random.Random) -> Any:
    """Return the body of a request for an edit."""
    return [_change(rng) for _ in range(rng.randint(1, 3))] if rng.random() < 0.95 else rng.choice(VALUES)


def _change(rng: random.Random) -> Any:
    if rng.random() < 0.03:
        return rng.choice(VALUES)
    verb = rng.choice(sorted(VERBS))
    required, optional = VERBS[verb]
    change = {"verb": verb}
    change |= {key: _argument(rng, verb, key) for key in required if rng.random() < 0.97}
    change |= {key: _argument(rng, verb, key) for key in optional if rng.random() < 0.4}
    if rng.random() < 0.03:
        change[rng.choice(["no", "self", "op_type"])] = rng.choice(VALUES)
    return change


def _argument(rng: random.Random, verb: str, key: str) -> Any:
    if rng.random() < 0.12:
        return rng.choice(VALUES)
    match key:
        case "node" if verb != "rewire":
            return _node(rng)
        case "op":
            return rng.choice(TYPES)
        case "attributes":
            return _attributes(rng)
        case "array":
            return rng.choice(ARRAYS)
        case "shape":
            return rng.choice(SHAPES)
        case "dtype":
            return rng.choice(ELEMENTS)
        case "input" | "at":
            return rng.choice([*NAMES, 0, 1, -1, 10**20, {"x": "x"}])
        case "model":
            return rng.choice(["", "aGk=", base64.b64encode(proto("net").SerializeToString()).decode(), "é"])
        case _:
            return rng.choice(NAMES)


def _node(rng: random.Random) -> Any:
    node: dict[str, Any] = {
        "op_type": rng.choice(TYPES),
        "inputs": [rng.choice(NAMES) for _ in range(rng.randint(0, 3))],
        "outputs": [rng.choice(NAMES) for _ in range(rng.randint(0, 2))],
    }
    if rng.random() < 0.4:
        node["attributes"] = _attributes(rng)
    if rng.random() < 0.3:
        node["name"] = rng.choice(NAMES)
    if rng.random() < 0.2:
        node["domain"] = rng.choice(["", "com.microsoft", "ai.onnx.ml", "no"])
    return {key: rng.choice(VALUES) if rng.random() < 0.05 else value for key, value in node.items()}


def _attributes(rng: random.Random) -> Any:
    return {rng.choice(ATTRIBUTES): rng.choice(VALUES) for _ in range(rng.randint(0, 3))}
