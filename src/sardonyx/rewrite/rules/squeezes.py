"""Squeeze and Unsqueeze in a row: merged, or cancelled, whatever the sizes are."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.rewrite import facts
from sardonyx.rewrite.language import EXACT, Refusal, Result, rule
from sardonyx.rewrite.rules.reshapes import UNCHECKED
from sardonyx.rewrite.rules.signatures import axes, checks_sizes, normalized, read_only_by, with_axes
from sardonyx.rewrite.site import Site


def _pair(s: Site, inner_type: str) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The axes of the inner and of the outer operator, each from the front; None where they are not known."""
    inner = s.producer(0, inner_type)
    if inner is None:
        return None
    found: list[tuple[int, ...]] = []
    for node in (inner, s.node):
        given = axes(s, node)
        if not given:
            return None
        wide = node.outputs[0] if node.op_type == "Unsqueeze" else node.inputs[0]
        counted = normalized(given, facts.rank(wide))
        if counted is None:
            return None
        found.append(counted)
    return found[0], found[1]


def _left_of(kept: Sequence[int], removed: Sequence[int]) -> tuple[int, ...]:
    """Where ``kept`` axes stand once the ``removed`` ones are gone."""
    return tuple(axis - sum(gone < axis for gone in removed) for axis in kept)


def _around(moved: Sequence[int], fixed: Sequence[int]) -> tuple[int, ...]:
    """Where axes counted without the ``fixed`` ones stand among them."""
    out = []
    for axis in moved:
        for taken in sorted(fixed):
            axis += taken <= axis
        out.append(axis)
    return tuple(out)


@rule("fuse_consecutive_squeezes", on="Squeeze", after="Squeeze", exactness=EXACT)
def squeeze_of_squeeze(s: Site) -> Result:
    """Squeeze of a Squeeze is one Squeeze."""
    pair, between = _pair(s, "Squeeze"), s.input(0)
    if pair is None or between is None or (inner := between.producer()) is None or inner.inputs[0] is None:
        return None
    if not read_only_by(between, "Squeeze"):
        return Refusal("the inner Squeeze has other readers")
    first, second = pair
    return with_axes(s, "Squeeze", inner.inputs[0], sorted((*first, *_around(second, first))))


@rule("fuse_consecutive_unsqueezes", on="Unsqueeze", after="Unsqueeze", exactness=EXACT)
def unsqueeze_of_unsqueeze(s: Site) -> Result:
    """Unsqueeze of an Unsqueeze is one Unsqueeze."""
    pair, between = _pair(s, "Unsqueeze"), s.input(0)
    if pair is None or between is None or (inner := between.producer()) is None or inner.inputs[0] is None:
        return None
    if not read_only_by(between, "Unsqueeze"):
        return Refusal("the inner Unsqueeze has other readers")
    first, second = pair
    return with_axes(s, "Unsqueeze", inner.inputs[0], sorted((*second, *_around(first, second))))


@rule("fuse_consecutive_squeeze_unsqueeze", on="Squeeze", after="Unsqueeze", exactness=EXACT)
def squeeze_of_unsqueeze(s: Site) -> Result:
    """Squeeze of an Unsqueeze: what both name cancels."""
    pair, between = _pair(s, "Unsqueeze"), s.input(0)
    if pair is None or between is None or (inner := between.producer()) is None or inner.inputs[0] is None:
        return None
    made, taken = pair
    if made == taken:
        return inner.inputs[0]
    if set(taken) < set(made):
        return with_axes(s, "Unsqueeze", inner.inputs[0], _left_of([a for a in made if a not in taken], taken))
    if set(made) < set(taken):
        return with_axes(s, "Squeeze", inner.inputs[0], _left_of([a for a in taken if a not in made], made))
    return None


@rule("fuse_consecutive_squeeze_unsqueeze", on="Unsqueeze", after="Squeeze", exactness=EXACT)
def unsqueeze_of_squeeze(s: Site) -> Result:
    """Unsqueeze of a Squeeze at the same axes."""
    pair, between = _pair(s, "Squeeze"), s.input(0)
    if pair is None or between is None or (inner := between.producer()) is None:
        return None
    if pair[0] != pair[1]:
        return None
    return Refusal(UNCHECKED) if checks_sizes(s, inner) else inner.inputs[0]
