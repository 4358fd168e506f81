"""Keys and values of earlier runs: joined with the new ones before attention, as the operator does by itself."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from sardonyx.rewrite import facts
from sardonyx.rewrite.language import REASSOCIATES, Op, Patch, Refusal, Result, rule
from sardonyx.rewrite.rules.normalization import producer_of
from sardonyx.rewrite.rules.signatures import axis_of
from sardonyx.rewrite.site import Site
from sardonyx.rewrite.sizes import equal

LENGTH = 2
"""The axis of keys in (batch, heads, length, width)."""


def appended(s: Site, value: ir.Value | None) -> tuple[ir.Value, ir.Value] | None:
    """The keys (or values) of earlier runs and the new ones, that ``value`` (batch, heads, length, width) joins."""
    node = producer_of(s, value, "Concat")
    if node is None or facts.rank(value) != 4 or len(node.inputs) != 2 or axis_of(s, node) != LENGTH:
        return None
    past, new = node.inputs
    return None if past is None or new is None else (past, new)


def of_one_length(s: Site, keys: tuple[ir.Value, ir.Value], values: tuple[ir.Value, ir.Value]) -> bool:
    """Whether there are surely as many keys as values, both of earlier runs and new ones."""
    for key, value in zip(keys, values, strict=True):
        left, right = s.sizes.dims(key), s.sizes.dims(value)
        if left is None or right is None or not all(equal(left[axis], right[axis]) is True for axis in (0, 1, LENGTH)):
            return False
    return True


@rule("fuse_cache_into_attention", on="Attention", after="Concat", exactness=REASSOCIATES, opset=23)
def cache_of_attention(s: Site) -> Result:
    """Keys and values that are appended to those of earlier runs before Attention are appended by it."""
    keys, values = s.input(1), s.input(2)
    key_parts, value_parts = appended(s, keys), appended(s, values)
    if keys is None or values is None or key_parts is None or value_parts is None:
        return None
    if len(s.node.inputs) > 4 or any(facts.rank(value) != 4 for value in (s.input(0), keys)):
        return Refusal("it has keys and values of an earlier run, or its heads are joined")
    if s.attr("is_causal", 0):
        return Refusal("with a cache, each query sees the keys up to its place behind those of earlier runs")
    if any(use.node is not s.node for value in (keys, values) for use in value.uses()):
        return Refusal("others read the keys or values of all runs, maybe on the way to the mask")
    if any(facts.unused(value) is False for value in s.node.outputs[1:]):
        return Refusal("more than its result is read")
    if not of_one_length(s, key_parts, value_parts):
        return Refusal("there are not as many values as keys, of earlier runs or new ones")
    (past_keys, new_keys), (past_values, new_values) = key_parts, value_parts
    mask = s.input(3)
    made = Op(("Attention",))(
        s.input(0),
        new_keys,
        new_values,
        mask,
        past_keys,
        past_values,
        n_outputs=3,
        **dict[str, Any](s.node.attributes),
    )
    return Patch({s.node.outputs[0]: made.out(0), keys: made.out(1), values: made.out(2)})
