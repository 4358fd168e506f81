"""Patches of images of open sizes: shapes that a call divides, and counts that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from sardonyx import Session
from sardonyx.errors import SardonyxError

PATCHES = """<ir_version: 10, opset_import: ["": 18]>
g (float[N, 8, H, W] x) => (float[A, B, C] y, float[P, Q, R, S] z)
<int64[1] two = {2}, int64[1] four = {4}, int64[1] eight = {8}> {
  n = Shape<start = 0, end = 1>(x)  h = Shape<start = 2, end = 3>(x)  w = Shape<start = 3, end = 4>(x)
  rows = Div(h, two)  columns = Div(w, two)
  split = Concat<axis = 0>(n, eight, rows, two, columns, two)
  parts = Reshape<allowzero = 1>(x, split)
  moved = Transpose<perm = [0, 3, 5, 2, 4, 1]>(parts)
  count = Mul(n, four)  area = Mul(rows, columns)  total = Mul(area, n)  share = Div(total, n)
  tokens = Concat<axis = 0>(count, share, eight)
  y = Reshape<allowzero = 1>(moved, tokens)
  double = Add(y, y)
  joined = Concat<axis = 0>(n, two, two, rows, columns, eight)
  split_again = Reshape<allowzero = 1>(double, joined)
  back = Transpose<perm = [0, 5, 3, 1, 4, 2]>(split_again)
  image = Concat<axis = 0>(n, eight, h, w)
  z = Reshape<allowzero = 1>(back, image)
}"""


@pytest.fixture(scope="module")
def sessions() -> list[Session]:
    model = onnx.parser.parse_model(PATCHES)
    compiled = Session(model, compile="wait", threads=1)
    assert compiled.native is not None
    return [compiled, Session(model, compile="off")]


def outcome(session: Session, x: np.ndarray) -> Any:
    try:
        return session.run(None, {"x": x})
    except SardonyxError as error:
        return type(error)


@pytest.mark.parametrize("sizes", [(1, 8, 4, 6), (3, 8, 2, 10), (1, 8, 6, 6), (2, 8, 0, 4), (1, 8, 16, 16)])
def test_even_sizes_are_split_and_joined(sessions: list[Session], sizes: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(sizes).astype(np.float32)
    for session in sessions:
        y, z = session.run(None, {"x": x})
        n, c, h, w = sizes
        parts = x.reshape(n, c, h // 2, 2, w // 2, 2).transpose(0, 3, 5, 2, 4, 1)
        np.testing.assert_array_equal(y, parts.reshape(4 * n, (h // 2) * (w // 2), c))
        np.testing.assert_array_equal(z, 2 * x)


@pytest.mark.parametrize("sizes", [(1, 8, 5, 6), (1, 8, 4, 7), (2, 8, 3, 3), (0, 8, 4, 4), (0, 8, 3, 4)])
def test_odd_sizes_and_empty_batches_have_one_outcome(sessions: list[Session], sizes: tuple[int, ...]) -> None:
    """A division by the batch refuses a batch of 0."""
    first, second = (outcome(session, np.ones(sizes, np.float32)) for session in sessions)
    assert isinstance(second, type) and first is second
