from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sardonyx.core.dim import Dim, Size, product
from sardonyx.rewrite.baked.factors import Factor, distribute, merged_sizes, original_size, split

N, H, W = (Dim.symbol(name) for name in "NHW")


def sizes(before: list[int], now: list[Size], result: list[int]) -> list[Size] | None:
    parts = distribute(split(before, now, {}), result)
    return None if parts is None else [product([factor.new for factor in part]) for part in parts]


def test_an_open_batch_stays_the_first_size() -> None:
    assert sizes([1, 12], [N, 12], [1, 12, 1, 1]) == [N, 12, 1, 1]
    assert sizes([1, 4, 6], [N, 4, 6], [24]) == [N * 24]
    assert sizes([1, 4, 6], [N, 4, 6], [1, 24]) == [N, 24]
    assert sizes([8, 4], [N, 4], [2, 4, 4]) is None


def test_a_merged_size_is_split_again() -> None:
    parts = distribute(split([1, 8, 14, 14], [1, 8, H, W], {}), [1, 8, 196])
    assert parts is not None
    known = dict(merged_sizes(parts))
    assert set(known) == {H * W}
    again = distribute(split([1, 196, 8], [1, H * W, 8], known), [1, 14, 14, 8])
    assert again is not None
    assert [product([factor.new for factor in part]) for part in again] == [1, H, W, 8]


def test_a_product_is_split_at_a_divisor() -> None:
    assert sizes([20], [N * 10], [2, 10]) == [N, 10]
    assert sizes([20], [N * 10], [10, 2]) == [10, N]


def test_sizes_that_do_not_divide_are_refused() -> None:
    assert sizes([12], [N], [3, 4]) is None
    assert sizes([0, 3], [N, 3], [0, 3]) is None


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.data())
def test_factors_keep_every_element(before: list[int], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(before)), max_size=3)))
    bounds = [0, *cuts, len(before)]
    result = [original_size([Factor(n, n) for n in before[a:b]]) for a, b in pairwise(bounds)]
    axis = data.draw(st.integers(0, len(before) - 1))
    now: list[Size] = list(before)
    now[axis] = N
    parts = distribute(split(before, now, {}), result)
    if parts is None:
        return
    assert [original_size(part) for part in parts] == result
    assert product([factor.new for part in parts for factor in part]) == product(now)
