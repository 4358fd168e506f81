"""Sizes read back from records are the same objects."""

from __future__ import annotations

import json

import pytest

from sardonyx.core.dim import Dim, Size, broadcast, dim_max, dim_min, floor_div
from sardonyx.core.dim.record import from_record, record

N, H = Dim.symbol("N"), Dim.symbol("a name, with `signs`")


@pytest.mark.parametrize(
    "size",
    [
        7, 0, -3, N, H, 2 * N * H - N + 5, floor_div(N + 1, 2), floor_div(H * H, N + 3) * N,
        dim_max(N, H, 3), dim_min(2 * N, floor_div(H - 1, 4)), broadcast(N, H), broadcast(floor_div(N, 2), H * 3) - 1,
    ],
)  # fmt: skip
def test_a_record_reads_back_as_the_same_size(size: Size) -> None:
    written = json.loads(json.dumps(record(size)))
    assert isinstance(written, int if isinstance(size, int) else list)
    read = from_record(written)
    assert read == size and type(read) is type(size)
