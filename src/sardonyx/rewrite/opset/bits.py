"""Bits: BitwiseAnd, BitwiseOr, BitwiseXor and BitwiseNot before set 18, signed BitShift before set 28."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.opset.shaping import reduce, unsqueeze
from sardonyx.rewrite.opset.site import Site
from sardonyx.rewrite.opset.table import down

_T = ir.DataType
_UNSIGNED = {_T.INT8: _T.UINT8, _T.INT16: _T.UINT16, _T.INT32: _T.UINT32, _T.INT64: _T.UINT64}


@down("BitwiseNot", version=18)
def complement_by_arithmetic(site: Site) -> None:
    """Write ``BitwiseNot`` as ``-1 - x`` for signed integers, ``largest - x`` for unsigned ones."""
    x = site.required(0)
    dtype = site.dtype(x)
    all_ones = np.asarray(-1 if dtype in _UNSIGNED else np.iinfo(dtype.numpy()).max, dtype.numpy())
    site.replace(site.emit("Sub", site.constant(all_ones), x))


@down("BitwiseAnd", "BitwiseOr", "BitwiseXor", version=18)
def bit_by_bit(site: Site) -> None:
    """Expand the bits into a last axis of booleans, combine these, and sum by weights."""
    a, b = site.required(0), site.required(1)
    dtype = site.dtype(a)
    positions = np.arange(dtype.bitwidth, dtype=np.uint64)
    bits = [_bits(site, x, positions) for x in (a, b)]
    logical = site.emit(site.node.op_type.removeprefix("Bitwise"), *bits)
    weights = site.constant(np.uint64(1) << positions)
    none = site.constant(np.zeros((), np.uint64))
    terms = site.emit("Where", logical, weights, none)
    total = reduce(site, "ReduceSum", terms, [site.rank(terms) - 1], keepdims=False)
    unsigned = site.cast(total, _UNSIGNED.get(dtype, dtype))
    site.replace(site.cast(unsigned, dtype))


def _bits(site: Site, x: ir.Value, positions: np.ndarray) -> ir.Value:
    dtype = site.dtype(x)
    unsigned = site.cast(site.cast(x, _UNSIGNED.get(dtype, dtype)), _T.UINT64)
    shifted = site.emit(
        "BitShift", unsqueeze(site, unsigned, [site.rank(x)]), site.constant(positions), direction="RIGHT"
    )
    return site.cast(site.emit("Mod", shifted, site.constant(np.asarray(2, np.uint64))), _T.BOOL)


@down("BitShift", version=28)
def signed_shift(site: Site) -> None:
    """Shift unsigned bits left; shift right by the complement of negatives; clamp amounts out of range."""
    x, y = site.required(0), site.required(1)
    dtype = site.dtype(x)
    if dtype not in _UNSIGNED:
        return
    unsigned, width = _UNSIGNED[dtype], dtype.bitwidth
    zero, minus = site.scalar(0, x), site.scalar(-1, x)
    amount_fits = site.emit("And", site.emit("Less", y, site.scalar(width, x)), site.emit("Greater", y, minus))
    amount = site.cast(site.emit("Where", amount_fits, y, zero), unsigned)
    if site.text("direction") == "LEFT":
        moved = site.cast(site.emit("BitShift", site.cast(x, unsigned), amount, direction="LEFT"), dtype)
        site.replace(site.emit("Where", amount_fits, moved, zero))
        return
    negative = site.emit("Less", x, zero)
    positive = site.emit("Where", negative, site.emit("Sub", minus, x), x)
    moved = site.cast(site.emit("BitShift", site.cast(positive, unsigned), amount, direction="RIGHT"), dtype)
    moved = site.emit("Where", amount_fits, moved, zero)
    site.replace(site.emit("Where", negative, site.emit("Sub", minus, moved), moved))
