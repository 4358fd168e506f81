"""The cache of traced nodes: earlier weights of a model that is updated leave the memory."""

from __future__ import annotations

import numpy as np

from sardonyx.core.eval.tensor import constant
from sardonyx.core.ir import types as t
from sardonyx.ops.trace_cache import TraceCache


def weights(number: int) -> np.ndarray:
    return np.full(1000, number, np.float32)


def test_the_least_recently_used_entry_is_forgotten_first() -> None:
    cache: TraceCache[str] = TraceCache(2, 1 << 20)
    for key in "ab":
        cache.put(key, key, ())
    assert cache.get("a") == "a"
    cache.put("c", "c", ())
    assert [cache.get(key) for key in "abc"] == ["a", None, "c"]


def test_constants_of_all_entries_are_bounded() -> None:
    cache: TraceCache[int] = TraceCache(1 << 10, 5 * 8000)
    for number in range(20):
        cache.put(number, number, (constant(weights(number), t.FLOAT), None))
        cache.put(19, 19, (constant(weights(19), t.FLOAT),))
    assert len(cache) == 5 and cache.constant_bytes == 5 * 8000
    assert cache.get(19) == 19 and cache.get(0) is None
    cache.put("large", 0, [constant(weights(number), t.FLOAT) for number in range(9)])
    assert len(cache) == 1, "an entry beyond the limit is the only one"
