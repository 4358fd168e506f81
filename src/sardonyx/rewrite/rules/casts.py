"""Type conversions that are redundant, repeated, or decided by known types."""

from __future__ import annotations

from typing import TypeGuard

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import EXACT, SILENT, A, AnyOf, Match, Refusal, Result, Rewrite, V, rule, where
from sardonyx.rewrite.notation import Cast, CastLike
from sardonyx.rewrite.rules.signatures import reapply
from sardonyx.rewrite.site import Site

_INTEGER_BITS = {
    ir.DataType.INT8: (True, 8),
    ir.DataType.INT16: (True, 16),
    ir.DataType.INT32: (True, 32),
    ir.DataType.INT64: (True, 64),
    ir.DataType.UINT8: (False, 8),
    ir.DataType.UINT16: (False, 16),
    ir.DataType.UINT32: (False, 32),
    ir.DataType.UINT64: (False, 64),
}
"""Integer types: signed, and bits."""

_FLOAT_PRECISION = {
    ir.DataType.BFLOAT16: 8,
    ir.DataType.FLOAT16: 11,
    ir.DataType.FLOAT: 24,
    ir.DataType.DOUBLE: 53,
}
"""Floating-point types: bits of their significand. All integers up to 2**bits are exact."""

_WIDER_FLOATS = {
    ir.DataType.BFLOAT16: {ir.DataType.FLOAT, ir.DataType.DOUBLE},
    ir.DataType.FLOAT16: {ir.DataType.FLOAT, ir.DataType.DOUBLE},
    ir.DataType.FLOAT: {ir.DataType.DOUBLE},
}


def _numeric(kind: ir.DataType | None) -> TypeGuard[ir.DataType]:
    return kind is not None and (kind in _INTEGER_BITS or kind in _FLOAT_PRECISION or kind == ir.DataType.BOOL)


def holds_all(wide: ir.DataType, narrow: ir.DataType) -> bool:
    """Return True if every value of the type ``narrow`` is a value of ``wide``."""
    if wide == narrow:
        return True
    if narrow == ir.DataType.BOOL:
        return _numeric(wide)
    if narrow in _FLOAT_PRECISION:
        return wide in _WIDER_FLOATS.get(narrow, ())
    if narrow not in _INTEGER_BITS:
        return False
    signed, bits = _INTEGER_BITS[narrow]
    if wide in _FLOAT_PRECISION:
        return bits - signed <= _FLOAT_PRECISION[wide]
    if wide not in _INTEGER_BITS:
        return False
    wide_signed, wide_bits = _INTEGER_BITS[wide]
    return wide_bits - wide_signed >= bits - signed and (wide_signed or not signed)


def _skips(source: ir.DataType, middle: ir.DataType, target: ir.DataType) -> bool:
    """Return True if source → target equals source → middle → target; ``middle`` holds all of ``source``."""
    if target == source or target in _FLOAT_PRECISION or target == ir.DataType.BOOL or source == ir.DataType.BOOL:
        return True
    if source in _INTEGER_BITS:
        # Between integers a conversion wraps; outside of the target's range a float converts to any number.
        return middle in _INTEGER_BITS or holds_all(target, source)
    return source in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) and middle == ir.DataType.FLOAT


@rule("eliminate_nop_cast", exactness=EXACT)
def cast_like_known(x: V, like: V) -> Rewrite:
    """CastLike(x, like) is Cast(x, to=dtype(like)), or x if the types are equal; the type must be known."""

    def cast(m: Match) -> Result:
        kind, saturate = facts.dtype(m.like), m.root.attributes.get("saturate")
        if kind is None or (saturate is not None and saturate.is_ref()):
            return None
        return m.x if facts.dtype(m.x) == kind else Cast(m.x, to=int(kind), saturate=saturate)

    return CastLike(x, like) >> cast


def _skips_middle(m: Match) -> Refusal | None:
    """Guard: the outer Cast gives the same without the inner one, which loses nothing."""
    source, middle, target = facts.dtype(m.x), facts.dtype(m.root.inputs[0]), facts.element_type(m.target)
    if not _numeric(source) or not _numeric(middle) or not _numeric(target):
        return SILENT
    if not holds_all(middle, source):
        return Refusal(f"the Cast from {source.name} to {middle.name} loses values")
    if not _skips(source, middle, target):
        return Refusal(f"out of its range, {source.name} and {middle.name} convert to {target.name} differently")
    return None


@rule("eliminate_nop_cast", exactness=EXACT)
def cast_of_cast(x: V, target: A) -> Rewrite:
    """Cast(Cast(x), to=t) is Cast(x, to=t), or x of type t, if the inner Cast loses nothing."""

    def one_cast(m: Match) -> Result:
        return m.x if m.target == facts.dtype(m.x) else Cast(m.x, to=m.target)

    return Cast(Cast(x), to=target) >> one_cast | where(_skips_middle)


MOVES = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Identity"})
"""Operators with one data input that only move values."""


def _returns_to_type(m: Match) -> Refusal | None:
    """Guard: the outer Cast returns to the type of x, of which the inner one loses nothing."""
    source, middle = facts.dtype(m.x), facts.dtype(m.root.inputs[0])
    if m.target != source or not _numeric(source) or not _numeric(middle):
        return SILENT
    return None if holds_all(middle, source) else Refusal(f"the Cast from {source.name} to {middle.name} loses values")


@rule("eliminate_nop_cast", exactness=EXACT)
def cast_moved_cast(x: V, target: A) -> Rewrite:
    """Cast(f(Cast(x)), to=dtype(x)) is f(x), for an operator f that only moves values."""

    def moved(m: Match) -> Result:
        move = m.nodes[1]
        return reapply(move, m.x, *move.inputs[1:])

    return Cast(AnyOf(*sorted(MOVES))(Cast(x), ...).once, to=target) >> moved | where(_returns_to_type)


@rule("eliminate_nop_cast", on="Cast", after="Concat", exactness=EXACT)
def cast_joined_casts(s: Site) -> Result:
    """Fuse Cast(Concat(Cast(a), Cast(b)), to=dtype(a)) into Concat(a, b), for a wider type between."""
    joined, value = s.producer(0, "Concat"), s.input(0)
    if joined is None or value is None or not facts.used_once(value):
        return None
    middle, target = facts.dtype(value), facts.element_type(s.attr("to"))
    casts = [None if part is None else part.producer() for part in joined.inputs]
    parts = [
        cast.inputs[0]
        for cast in casts
        if cast is not None and cast.graph is s.node.graph and facts.is_op(cast, "Cast")
        and facts.dtype(cast.inputs[0]) == target
    ]  # fmt: skip
    if len(parts) < len(casts) or not _numeric(middle) or not _numeric(target):
        return None
    if not holds_all(middle, target):
        return Refusal(f"the Casts from {target.name} to {middle.name} lose values")
    return reapply(joined, *parts)
