"""Operators that do nothing: their output is their input."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.rewrite import facts
from sardonyx.rewrite.language import EXACT, A, Refusal, Result, Rewrite, V, rule
from sardonyx.rewrite.notation import Transpose
from sardonyx.rewrite.site import Site


@rule("eliminate_identity", on="Identity", exactness=EXACT)
def identity(s: Site) -> Result:
    """Identity: readers read its input; kept where a graph output must have its own name."""
    return s.input(0)


@rule("eliminate_nop_dropout", on="Dropout", exactness=EXACT)
def dropout(s: Site) -> Result:
    """Dropout outside training, or that drops nothing, passes its input on where its mask is unread."""
    if not s.unused_outputs_from(1):
        return Refusal("its mask is read")
    if s.opset < 7 and not s.attr("is_test", 0):
        return Refusal("it is in training mode (is_test=0)")
    training = s.input(2)
    if training is None or facts.scalar(training) in (False, 0) or _drops_nothing(s):
        return s.input(0)
    return Refusal("training_mode is not known to be false, nor the ratio to be 0")


def _drops_nothing(s: Site) -> bool:
    return s.input(1) is not None and facts.scalar(s.input(1)) == 0


@rule("eliminate_nop_cast", on="Cast", exactness=EXACT)
def cast_to_same(s: Site) -> Result:
    """Cast to the type that the input has."""
    return s.input(0) if facts.dtype(s.input(0)) == ir.DataType(s.attr("to")) else None


@rule("eliminate_nop_transpose", on="Transpose", exactness=EXACT)
def identity_permutation(s: Site) -> Result:
    """Transpose with the identity permutation."""
    perm = s.attr("perm")
    if perm is None:
        return s.input(0) if s.rank(0) in (0, 1) else None
    return s.input(0) if list(perm) == sorted(perm) else None


@rule("fuse_consecutive_transposes", exactness=EXACT)
def transpose_transpose(x: V, inner: A, outer: A) -> Rewrite:
    """Transpose of a Transpose is one Transpose by the composed permutation, or none."""

    def compose(m: object) -> Result:
        inner_perm, outer_perm, value = m.inner, m.outer, m.x  # type: ignore[attr-defined]
        n = facts.rank(value)
        if n is None:
            n = len(inner_perm or outer_perm or ())
            if n == 0:
                return Refusal("rank and permutations are unknown")
        inner_perm = inner_perm or tuple(reversed(range(n)))
        outer_perm = outer_perm or tuple(reversed(range(n)))
        composed = [inner_perm[axis] for axis in outer_perm]
        return value if composed == sorted(composed) else Transpose(value, perm=composed)

    return Transpose(Transpose(x, perm=inner), perm=outer) >> compose
