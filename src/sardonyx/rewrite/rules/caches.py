"""Caches of attention: earlier keys and values, joined with the new ones by the operator itself."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.sizes import equal
from sardonyx.rewrite.language import REASSOCIATES, SILENT, Match, Patch, Refusal, Result, Rewrite, V, rule, where
from sardonyx.rewrite.notation import Attention, Concat
from sardonyx.rewrite.rules.normalization import producer_of
from sardonyx.rewrite.rules.signatures import axis_of
from sardonyx.rewrite.site import Site

LENGTH = 2
"""The axis of keys in (batch, heads, length, width)."""


def match_appended(s: Site, value: ir.Value | None) -> tuple[ir.Value, ir.Value] | None:
    """Return the earlier and the new keys (or values) that ``value`` (batch, heads, length, width) joins."""
    node = producer_of(s, value, "Concat")
    if node is None or facts.rank(value) != 4 or len(node.inputs) != 2 or axis_of(s, node) != LENGTH:
        return None
    past, new = node.inputs
    return None if past is None or new is None else (past, new)


def have_one_length(s: Site, keys: tuple[ir.Value, ir.Value], values: tuple[ir.Value, ir.Value]) -> bool:
    """Return True if there are certainly as many keys as values, both of earlier runs and new ones."""
    for key, value in zip(keys, values, strict=True):
        left, right = s.sizes.dims(key), s.sizes.dims(value)
        if left is None or right is None or not all(equal(left[axis], right[axis]) is True for axis in (0, 1, LENGTH)):
            return False
    return True


def _appended_alone(m: Match) -> Refusal | None:
    """Guard: keys and values (batch, heads, length, width) are appended along the length, unshared."""
    s = m.site
    keys, values = m.root.inputs[1], m.root.inputs[2]
    if any(facts.rank(value) != 4 for value in (keys, values)):
        return SILENT
    if any(axis_of(s, node) != LENGTH for node in m.nodes[1:]):
        return SILENT
    if len(m.root.inputs) > 4 or facts.rank(m.q) != 4:
        return Refusal("it has keys and values of an earlier run, or its heads are joined")
    if s.attr("is_causal", 0):
        return Refusal("with a cache, each query sees the keys up to its place behind those of earlier runs")
    if any(use.node is not s.node for value in (keys, values) if value is not None for use in value.uses()):
        return Refusal("others read the keys or values of all runs, maybe on the way to the mask")
    if not s.unused_outputs_from(1):
        return Refusal("more than its result is read")
    return None


def _of_one_length(m: Match) -> Refusal | None:
    """Guard: there are certainly as many values as keys."""
    if have_one_length(m.site, (m.past_k, m.k), (m.past_v, m.v)):
        return None
    return Refusal("there are not as many values as keys, of earlier runs or new ones")


@rule("fuse_cache_into_attention", exactness=REASSOCIATES, opset=23)
def cache_of_attention(q: V, past_k: V, k: V, past_v: V, v: V) -> Rewrite:
    """Attention(q, Concat(past_k, k), Concat(past_v, v)) is Attention(q, k, v, past_k, past_v)."""

    def with_cache(m: Match) -> Result:
        s = m.site
        attributes = dict[str, Any](m.root.attributes)
        cached = Attention(m.q, m.k, m.v, s.input(3), m.past_k, m.past_v, n_outputs=3, **attributes)
        keys, values = s.node.inputs[1:3]
        assert keys is not None and values is not None
        return Patch({s.output: cached.out(0), keys: cached.out(1), values: cached.out(2)})

    return Attention(q, Concat(past_k, k), Concat(past_v, v), ...) >> with_cache | where(
        _appended_alone, _of_one_length
    )
