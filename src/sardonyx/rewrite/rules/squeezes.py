"""Consecutive Squeeze and Unsqueeze: fuse or cancel, for all sizes."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import EXACT, SILENT, Match, Refusal, Result, Rewrite, V, rule, where
from sardonyx.rewrite.notation import Squeeze, Unsqueeze
from sardonyx.rewrite.rules.reshapes import UNCHECKED
from sardonyx.rewrite.rules.signatures import apply_along, axes_of, is_read_only_by, may_reject_sizes, normalize_axes


def _axes_of_pair(m: Match) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the axes of the inner and of the outer operator, counted from the front, or None."""
    pair: list[tuple[int, ...]] = []
    for node in reversed(m.nodes):
        written = axes_of(m.site, node)
        if not written:
            return None
        wide = node.outputs[0] if node.op_type == "Unsqueeze" else node.inputs[0]
        axes = normalize_axes(written, facts.rank(wide))
        if axes is None:
            return None
        pair.append(axes)
    return pair[0], pair[1]


def _drop_axes(remaining: Sequence[int], removed: Sequence[int]) -> tuple[int, ...]:
    """Return the indices of ``kept`` axes after the ``removed`` ones are dropped."""
    return tuple(axis - sum(dropped < axis for dropped in removed) for axis in remaining)


def _insert_axes(moved: Sequence[int], fixed: Sequence[int]) -> tuple[int, ...]:
    """Return the indices of ``moved`` axes after the ``fixed`` ones are inserted."""
    out = []
    for axis in moved:
        for inserted in sorted(fixed):
            axis += inserted <= axis
        out.append(axis)
    return tuple(out)


@rule("fuse_consecutive_squeezes", exactness=EXACT)
def squeeze_of_squeeze(x: V) -> Rewrite:
    """Fuse two Squeezes."""

    def fuse(m: Match) -> Result:
        pair = _axes_of_pair(m)
        if pair is None:
            return None
        if not is_read_only_by(m.nodes[1].outputs[0], "Squeeze"):
            return Refusal("the inner Squeeze has other readers")
        first, second = pair
        return apply_along(m.site, "Squeeze", m.x, sorted((*first, *_insert_axes(second, first))))

    return Squeeze(Squeeze(x, ...), ...) >> fuse


@rule("fuse_consecutive_unsqueezes", exactness=EXACT)
def unsqueeze_of_unsqueeze(x: V) -> Rewrite:
    """Fuse two Unsqueezes."""

    def fuse(m: Match) -> Result:
        pair = _axes_of_pair(m)
        if pair is None:
            return None
        if not is_read_only_by(m.nodes[1].outputs[0], "Unsqueeze"):
            return Refusal("the inner Unsqueeze has other readers")
        first, second = pair
        return apply_along(m.site, "Unsqueeze", m.x, sorted((*second, *_insert_axes(first, second))))

    return Unsqueeze(Unsqueeze(x, ...), ...) >> fuse


@rule("fuse_consecutive_squeeze_unsqueeze", exactness=EXACT)
def squeeze_of_unsqueeze(x: V) -> Rewrite:
    """Cancel the axes that an Unsqueeze inserts and a Squeeze drops."""

    def cancel(m: Match) -> Result:
        pair, source = _axes_of_pair(m), m.nodes[1].inputs[0]
        if pair is None or source is None:
            return None
        inserted, dropped = pair
        if inserted == dropped:
            return source
        if set(dropped) < set(inserted):
            rest = [axis for axis in inserted if axis not in dropped]
            return apply_along(m.site, "Unsqueeze", source, _drop_axes(rest, dropped))
        if set(inserted) < set(dropped):
            rest = [axis for axis in dropped if axis not in inserted]
            return apply_along(m.site, "Squeeze", source, _drop_axes(rest, inserted))
        return None

    return Squeeze(Unsqueeze(x, ...), ...) >> cancel


def inserts_dropped_axes(m: Match) -> Refusal | None:
    """Guard: the axes of both operators are equal, and the Squeeze cannot fail."""
    pair = _axes_of_pair(m)
    if pair is None or pair[0] != pair[1]:
        return SILENT
    return Refusal(UNCHECKED) if may_reject_sizes(m.site, m.nodes[1]) else None


@rule("fuse_consecutive_squeeze_unsqueeze", exactness=EXACT)
def unsqueeze_of_squeeze(x: V) -> Rewrite:
    """Cancel a Squeeze and an Unsqueeze of the same axes."""
    return Unsqueeze(Squeeze(x, ...), ...) >> x | where(inserts_dropped_axes)
