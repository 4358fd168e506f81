"""Consecutive limits: Relu, Clip, Max and Min with numbers are one Clip; unreachable limits go away."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import (
    EXACT,
    REASSOCIATES,
    SILENT,
    AnyOf,
    Match,
    Refusal,
    Result,
    Rewrite,
    V,
    rule,
    where,
)
from sardonyx.rewrite.notation import Clip
from sardonyx.rewrite.rules.broadcasting import keeps_shape
from sardonyx.rewrite.rules.ranges import value_range
from sardonyx.rewrite.site import Site

LIMITS = ("Relu", "Clip", "Max", "Min")
Limiting = AnyOf("Relu", "Clip")


@dataclass(frozen=True)
class Limit:
    """A limiting operator as bounds of each element: at least ``low``, at most ``high``.

    None is no limit; ``clipped`` is True for a Clip, which in some engines brings infinities within the finite numbers
    even on a side without a limit.
    """

    x: ir.Value
    low: float | None
    high: float | None
    clipped: bool


def limit_of(s: Site, node: ir.Node) -> Limit | None:
    """Return the limits that ``node`` sets to one of its inputs; None unless the bounds are known numbers."""
    x = node.inputs[0]
    if x is None:
        return None
    if node.op_type == "Relu":
        return Limit(x, 0.0, None, clipped=False)
    if node.op_type == "Clip":
        return _clip(s, node, x)
    if len(node.inputs) != 2:
        return None
    for index in (0, 1):
        tensor, number = node.inputs[index], facts.scalar(node.inputs[1 - index])
        if tensor is None or isinstance(number, (bool, complex)) or not isinstance(number, (int, float)):
            continue
        if facts.is_constant(tensor) or math.isnan(number) or not keeps_shape(s, tensor, [node.inputs[1 - index]]):
            continue
        low, high = (number, None) if node.op_type == "Max" else (None, number)
        return Limit(tensor, low, high, clipped=False)
    return None


def _clip(s: Site, node: ir.Node, x: ir.Value) -> Limit | None:
    if s.opset < 11:
        lowest, highest = float(np.finfo(np.float32).min), float(np.finfo(np.float32).max)
        low, high = s.attr("min", lowest, node=node), s.attr("max", highest, node=node)
        return Limit(x, None if low == lowest else low, None if high == highest else high, clipped=True)
    bounds: list[float | None] = []
    for index in (1, 2):
        bound = node.inputs[index] if index < len(node.inputs) else None
        number = facts.scalar(bound)
        if bound is not None and (number is None or math.isnan(number)):
            return None
        bounds.append(number)
    return Limit(x, bounds[0], bounds[1], clipped=True)


def _within(number: float | None, low: float | None, high: float | None) -> float | None:
    if number is None:
        return None
    raised = number if low is None else max(number, low)
    return raised if high is None else min(raised, high)


def _merged(s: Site, *, exactly: bool) -> Result:
    outer = limit_of(s, s.node)
    node = None if outer is None else outer.x.producer()
    if outer is None or node is None or node.graph is not s.node.graph or not facts.is_op(node, *LIMITS):
        return None
    inner = limit_of(s, node)
    # Max and Min of zeros of both signs return either; Relu and Clip keep the sign of their input.
    if inner is None or exactly == bool({"Max", "Min"} & {s.node.op_type, node.op_type}):
        return None
    if s.node.op_type == node.op_type == "Relu":
        return None
    if not facts.used_once(outer.x):
        return Refusal("the inner limit has other readers")
    for bounds in (inner, outer):
        if bounds.low is not None and bounds.high is not None and bounds.low > bounds.high:
            return Refusal("a lower bound is above its upper bound")
    low = outer.low if inner.low is None else _within(inner.low, outer.low, outer.high)
    high = outer.high if inner.high is None else _within(inner.high, outer.low, outer.high)
    if low is not None and low == high:
        return Refusal("no more than one number passes both limits, and a zero could take the other sign")
    if (low is None or high is None) and not (inner.clipped or outer.clipped):
        return Refusal("one side has no limit, where Clip brings infinities within the finite numbers")
    return _as_clip(s, inner.x, low, high)


def _as_clip(s: Site, x: ir.Value, low: float | None, high: float | None) -> Result:
    kind = facts.dtype(x)
    if kind is None or (s.opset < 12 and not kind.is_floating_point()):
        return Refusal("Clip does not support this type at this opset")
    if s.opset < 11:
        return Clip(x, min=low, max=high)
    bounds = [None if bound is None else np.array(bound).astype(kind.numpy()) for bound in (low, high)]
    return Clip(x, *bounds)


@rule("fuse_consecutive_clips", exactness=EXACT)
def clip_of_clip(x: V) -> Rewrite:
    """clip(clip(x, a, b), c, d) is clip(x, max(a, c), min(b, d)); Relu is a Clip from 0 on."""
    return Limiting(Limiting(x, ...), ...) >> (lambda m: _merged(m.site, exactly=True))


@rule("fuse_consecutive_clips", on=LIMITS, after=LIMITS, exactness=REASSOCIATES)
def min_of_max(s: Site) -> Result:
    """Fuse min(max(x, a), b), also with Relu or Clip, into one Clip; zeros may change their sign."""
    return _merged(s, exactly=False)


def _keeps_bounds(m: Match) -> Refusal | None:
    """Guard: no element of x is outside of the bounds."""
    bounds = limit_of(m.site, m.root)
    if bounds is None or (m.root.op_type == "Clip" and bounds.low is None and bounds.high is None):
        return SILENT
    low, high = value_range(m.site, bounds.x)
    if bounds.low is not None and (low is None or low < bounds.low):
        return SILENT
    if bounds.high is not None and (high is None or high > bounds.high):
        return SILENT
    if bounds.clipped and (bounds.low is None or bounds.high is None):
        open_side = low if bounds.low is None else high
        if open_side is None or math.isinf(open_side):
            return Refusal("on the side without a bound, Clip brings infinities within the finite numbers")
    return None


@rule("eliminate_redundant_clip", exactness=EXACT)
def limit_already_kept(x: V) -> Rewrite:
    """relu(x) and clip(x) are x, for x within the bounds."""
    return Limiting(x, ...) >> x | where(_keeps_bounds)
