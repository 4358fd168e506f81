"""Compiled code notices an error in elements that no reader computes, as the interpreter does."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from sardonyx import Session
from sardonyx.errors import ExecutionError

X, EMPTY = np.zeros((6, 3), np.float32), np.zeros((0, 1, 3), np.float32)
INDEX, DIVISOR = np.array([0, 100]), np.array([1, 0], np.int32)
FIRST = "s = Constant <value_ints = [0]> ()  e = Constant <value_ints = [1]> ()  a = Constant <value_ints = [0]> ()"

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "a further axis of size 0": (
        "g (float[A, B] x, int64[N] i, float[K, N, B] z) => (float y) { w = Gather (x, i)  y = Add (w, z) }",
        {"x": X, "i": INDEX[1:], "z": EMPTY},
    ),
    "divisors at a further axis": (
        "g (int32[A] x, int32[A] d, float[K, A] z) => (float y) "
        "{ w = Div (x, d)  f = Cast <to = 1> (w)  y = Add (f, z) }",
        {"x": DIVISOR, "d": DIVISOR, "z": np.zeros((0, 2), np.float32)},
    ),
    "an empty slice": (
        "g (float[A, B] x, int64[N] i, int64[1] n) => (float y) "
        f"{{ w = Gather (x, i)  z = Neg (w)  {FIRST}  y = Slice (z, s, n, a) }}",
        {"x": X, "i": INDEX, "n": np.array([0])},
    ),
    "the first of two rows": (
        f"g (float[A, B] x, int64[N] i) => (float y) "
        f"{{ w = Gather (x, i)  z = Neg (w)  {FIRST}  y = Slice (z, s, e, a) }}",
        {"x": X, "i": INDEX},
    ),
    "the first of two quotients": (
        f"g (int32[A] x, int32[A] d) => (int32 y) {{ z = Div (x, d)  {FIRST}  y = Slice (z, s, e, a) }}",
        {"x": DIVISOR, "d": DIVISOR},
    ),
    "one row of a gather": (
        "g (float[A, B] x, int64[N] i, int64[1] k) => (float y) { w = Gather (x, i)  z = Neg (w)  y = Gather (z, k) }",
        {"x": X, "i": INDEX, "k": np.array([0])},
    ),
    "negative padding": (
        "g (float[A, B] x, int64[N] i, int64[4] p) => (float y) { w = Gather (x, i)  z = Neg (w)  y = Pad (z, p) }",
        {"x": X, "i": INDEX, "p": np.array([0, 0, -1, 0])},
    ),
    "in a loop": (
        "g (float[6, 3] x, int64[N] i, float[K, N, 3] z, int64 n) => (float y) { c = Constant <value = bool {1}> () "
        "y = Loop (n, c, z) <body = b (int64 t, bool u, float[K, N, 3] v) => (bool u2, float[K, N, 3] v2) "
        "{ u2 = Identity (u)  j = Add (i, t)  w = Gather (x, j)  v2 = Add (w, v) }> }",
        {"x": X, "i": INDEX[1:], "z": EMPTY, "n": np.array(2)},
    ),
}  # fmt: skip
"""Models and feeds with an index or a divisor out of range that no element of the result depends on."""


@pytest.mark.parametrize("name", CASES)
def test_an_error_in_unread_elements_is_raised(name: str) -> None:
    text, feeds = CASES[name]
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}')
    for mode in ("off", "wait"):
        session = Session(model, compile=mode, threads=1)
        assert (session.native is not None) == (mode == "wait")
        with pytest.raises(ExecutionError):
            session.run(None, feeds)


@pytest.mark.parametrize("name", CASES)
def test_valid_elements_have_results(name: str) -> None:
    text, feeds = CASES[name]
    valid = {**feeds, **({"i": feeds["i"] * 0} if "i" in feeds else {"d": feeds["d"] * 0 + 1})}
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}')
    answers = [Session(model, compile=mode, threads=1).run(None, valid) for mode in ("off", "wait")]
    np.testing.assert_array_equal(answers[0][0], answers[1][0])
