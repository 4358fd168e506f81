"""Operators without effect: the output is the input."""

from __future__ import annotations

from sardonyx.rewrite import facts
from sardonyx.rewrite.language import EXACT, A, Match, Refusal, Result, Rewrite, V, guard, rule, where
from sardonyx.rewrite.notation import Cast, Dropout, Identity, Transpose


@rule("eliminate_identity", exactness=EXACT)
def identity(x: V) -> Rewrite:
    """Remove Identity; keep the node if a graph output needs a name of its own."""
    return Identity(x) >> x


def drops_nothing(m: Match) -> Refusal | None:
    """Guard: the Dropout is outside of training, or has the ratio 0, and its mask is unused."""
    s = m.site
    if not s.unused_outputs_from(1):
        return Refusal("the mask output is used")
    if s.opset < 7 and not s.attr("is_test", 0):
        return Refusal("the node is in training mode (is_test=0)")
    ratio, training = s.input(1), s.input(2)
    if training is None or facts.scalar(training) in (False, 0) or (ratio is not None and facts.scalar(ratio) == 0):
        return None
    return Refusal("neither training_mode is known to be false nor the ratio to be 0")


@rule("eliminate_nop_dropout", exactness=EXACT)
def dropout(x: V) -> Rewrite:
    """Remove Dropout outside of training, or with ratio 0, if the mask is unused."""
    return Dropout(x, ...) >> x | where(drops_nothing)


@rule("eliminate_nop_cast", exactness=EXACT)
def cast_to_same(x: V, to: A) -> Rewrite:
    """Remove a Cast to the type of the input."""
    return Cast(x, to=to) >> x | where(guard(lambda m: facts.dtype(m.x) == m.to, ""))


def _is_identity(m: Match) -> bool:
    return facts.rank(m.x) in (0, 1) if m.perm is None else list(m.perm) == sorted(m.perm)


@rule("eliminate_nop_transpose", exactness=EXACT)
def identity_permutation(x: V, perm: A) -> Rewrite:
    """Remove a Transpose with the identity permutation."""
    return Transpose(x, perm=perm) >> x | where(guard(_is_identity, ""))


@rule("fuse_consecutive_transposes", exactness=EXACT)
def transpose_transpose(x: V, inner: A, outer: A) -> Rewrite:
    """Fuse two Transposes into one by the composed permutation, or none."""

    def compose(m: Match) -> Result:
        n = facts.rank(m.x)
        if n is None:
            n = len(m.inner or m.outer or ())
            if n == 0:
                return Refusal("neither the rank nor a permutation is known")
        inner_perm = m.inner or tuple(reversed(range(n)))
        outer_perm = m.outer or tuple(reversed(range(n)))
        composed = [inner_perm[axis] for axis in outer_perm]
        return m.x if composed == sorted(composed) else Transpose(m.x, perm=composed)

    return Transpose(Transpose(x, perm=inner), perm=outer) >> compose
