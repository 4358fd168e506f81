"""Elementwise operators: bounds as inputs, integer types, and operators missing in older sets."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.opset.shaping import reduce, reshape, squeeze, unsqueeze
from sardonyx.rewrite.opset.site import Site
from sardonyx.rewrite.opset.table import down, up

_T = ir.DataType
_FLOATS = (_T.FLOAT16, _T.FLOAT, _T.DOUBLE, _T.BFLOAT16)


@up("Clip", version=6)
def unbounded_clip(site: Site) -> None:
    """Write infinity for a missing bound, whose default became the largest finite number."""
    bounds = {"min": site.real("min", float("-inf")), "max": site.real("max", float("inf"))}
    site.become(attributes=site.attributes(drop=["consumed_inputs"], **bounds))


@up("Clip", version=11)
def bounds_to_inputs(site: Site) -> None:
    """Turn ``min`` and ``max`` into inputs."""
    x = site.required(0)
    limit = float(np.finfo(np.float32).max)
    low, high = site.real("min", -limit), site.real("max", limit)
    bounds = [
        site.scalar(low, x) if site.has("min") and low > -limit else None,
        site.scalar(high, x) if site.has("max") and high < limit else None,
    ]
    site.become(inputs=[x, *bounds], attributes={})


@down("Clip", version=11)
def bounds_to_attributes(site: Site) -> None:
    """Turn constant bounds into attributes, computed ones into ``Max`` and ``Min``."""
    x = site.required(0)
    bounds: dict[str, float] = {"min": float("-inf"), "max": float("inf")}
    constants = {name: site.known(site.input(i)) for i, name in ((1, "min"), (2, "max"))}
    computed = any(site.input(i) is not None and constants[n] is None for i, n in ((1, "min"), (2, "max")))
    if site.dtype(x) in _FLOATS and not computed:
        bounds |= {name: float(c.reshape(-1)[0]) for name, c in constants.items() if c is not None}
        site.become(inputs=[x], attributes={**bounds})
        return
    site.replace(_clip(site, x))


def _clip(site: Site, x: ir.Value) -> ir.Value:
    value = x
    if (low := site.input(1)) is not None:
        value = _extreme(site, "Max", value, low)
    if (high := site.input(2)) is not None:
        value = _extreme(site, "Min", value, high)
    return value if value is not x else site.emit("Identity", x)


def _extreme(site: Site, op_type: str, a: ir.Value, b: ir.Value) -> ir.Value:
    """Emit the maximum or minimum of two values, by comparison for integers before set 12."""
    if site.dtype(a) in _FLOATS or site.target >= 12:
        return site.emit(op_type, a, b)
    first = site.emit("Greater" if op_type == "Max" else "Less", a, b)
    return site.emit("Where", first, a, b)


@down("Clip", version=12)
def clip_integers(site: Site) -> None:
    """Clip integers by ``Max`` and ``Min``."""
    if site.dtype(site.required(0)) not in _FLOATS:
        site.replace(_clip(site, site.required(0)))


@down("Max", "Min", version=12)
def extreme_of_integers(site: Site) -> None:
    """Compare integers pair by pair."""
    values = [site.required(i) for i in range(len(site.inputs))]
    if site.dtype(values[0]) in _FLOATS:
        return
    result = values[0] if len(values) > 1 else site.emit("Identity", values[0])
    for value in values[1:]:
        result = _extreme(site, site.node.op_type, result, value)
    site.replace(result)


@down("Relu", version=14)
def relu_of_integers(site: Site) -> None:
    """Write ``Relu`` of integers as ``Max`` with zero."""
    x = site.required(0)
    if site.dtype(x) not in _FLOATS:
        site.replace(site.emit("Max", x, site.scalar(0, x)))


@down("Equal", version=11)
def equality_by_order(site: Site) -> None:
    """Write equality of floats as neither less nor greater, and both not NaN."""
    a, b = site.required(0), site.required(1)
    if site.dtype(a) in (_T.INT32, _T.INT64, _T.BOOL) or site.dtype(a) not in _FLOATS:
        return
    ordered = site.emit("Or", site.emit("Less", a, b), site.emit("Greater", a, b))
    broken = site.emit("Or", _is_nan(site, a), _is_nan(site, b))
    site.replace(site.emit("Not", site.emit("Or", ordered, broken)))


def _is_nan(site: Site, x: ir.Value) -> ir.Value:
    """Emit a NaN test; before set 9 as neither below one nor above zero."""
    if site.target >= 9:
        return site.emit("IsNaN", x)
    low, high = site.emit("Less", x, site.scalar(1, x)), site.emit("Greater", x, site.scalar(0, x))
    return site.emit("Not", site.emit("Or", low, high))


@down("IsNaN", version=9)
def nan_by_order(site: Site) -> None:
    """Write ``IsNaN`` as neither below one nor above zero."""
    site.replace(_is_nan(site, site.required(0)))


@down("IsInf", version=10)
def infinity_by_order(site: Site) -> None:
    """Write ``IsInf`` as a comparison with the largest finite number."""
    x = site.required(0)
    limit = float(np.finfo(site.dtype(x).numpy()).max)
    tests = []
    if site.integer("detect_positive", 1):
        tests.append(site.emit("Greater", x, site.scalar(limit, x)))
    if site.integer("detect_negative", 1):
        tests.append(site.emit("Less", x, site.scalar(-limit, x)))
    if not tests:
        site.refuse("it detects neither positive nor negative infinity")
    site.replace(tests[0] if len(tests) == 1 else site.emit("Or", *tests))


@down("Sign", version=9)
def sign_by_order(site: Site) -> None:
    """Write ``Sign`` as (x > 0) − (x < 0)."""
    x = site.required(0)
    dtype, zero = site.dtype(x), site.scalar(0, x)
    above, below = (site.cast(site.emit(op, x, zero), dtype) for op in ("Greater", "Less"))
    site.replace(site.emit("Sub", above, below))


def round_half_even(site: Site, x: ir.Value) -> ir.Value:
    """Emit the nearest integer, halves to even."""
    if site.target >= 11:
        return site.emit("Round", x)
    floor = site.emit("Floor", x)
    rest = site.emit("Sub", x, floor)
    half = site.scalar(0.5, x)
    twice = site.emit("Mul", site.emit("Floor", site.emit("Mul", floor, half)), site.scalar(2, x))
    odd = site.emit("Greater", floor, twice)
    tie = site.emit("Not", site.emit("Or", site.emit("Less", rest, half), site.emit("Greater", rest, half)))
    rise = site.emit("Or", site.emit("Greater", rest, half), site.emit("And", tie, odd))
    return site.emit("Add", floor, site.cast(rise, site.dtype(x)))


@down("Round", version=11)
def round_by_floor(site: Site) -> None:
    """Write ``Round`` as ``Floor``, plus one above a half, and at a half if the floor is odd."""
    site.replace(round_half_even(site, site.required(0)))


@down("Mod", version=28)
def floored_modulo(site: Site) -> None:
    """Correct the truncated modulo of floats to the sign of the divisor."""
    a, b = site.required(0), site.required(1)
    if site.integer("fmod") or site.dtype(a) not in _FLOATS:
        return
    rest = site.emit("Mod", a, b, fmod=1)
    zero = site.scalar(0, a)
    against = site.emit(
        "Or",
        site.emit("And", site.emit("Greater", rest, zero), site.emit("Less", b, zero)),
        site.emit("And", site.emit("Less", rest, zero), site.emit("Greater", b, zero)),
    )
    signed_zero = site.emit("Mul", site.emit("Abs", rest), site.emit("Sign", b))
    exact = site.emit("Equal", rest, zero)
    corrected = site.emit("Where", against, site.emit("Add", rest, b), rest)
    site.replace(site.emit("Where", exact, signed_zero, corrected))


@down("Pow", version=12)
def power_of_one_type(site: Site) -> None:
    """Compute base and exponent of different types in one floating-point type."""
    base, exponent = site.required(0), site.required(1)
    kind, other = site.dtype(base), site.dtype(exponent)
    if kind == other and kind in _FLOATS:
        return
    if _T.INT64 in (kind, other) and site.known(exponent if other == _T.INT64 else base) is None:
        site.refuse("no type accepted by the target opset holds powers of int64 exactly")
    if kind == _T.INT64:
        site.refuse("no type accepted by the target opset holds powers of int64 exactly")
    wide = kind if kind in _FLOATS else _T.DOUBLE
    site.replace(site.cast(site.emit("Pow", site.cast(base, wide), site.cast(exponent, wide)), kind))


@up("Erf", version=13)
def erf_of_integers(site: Site) -> None:
    """Compute ``Erf`` of integers, no longer accepted, in float32 and truncate as before."""
    x = site.required(0)
    dtype = site.dtype(x)
    if dtype not in _FLOATS:
        site.replace(site.cast(site.emit("Erf", site.cast(x, _T.FLOAT)), dtype))


@up("ReduceLogSum", "ReduceLogSumExp", version=28)
def logarithm_of_integers(site: Site) -> None:
    """Compute logarithms of integers, no longer accepted, in float64 and truncate as before."""
    x = site.required(0)
    dtype = site.dtype(x) if x.dtype is not None else None
    if dtype is None or dtype in _FLOATS:
        return
    if site.node.op_type == "ReduceLogSum":
        total = site.emit("ReduceSum", *site.inputs, **site.attributes())
        site.replace(site.cast(site.emit("Log", site.cast(total, _T.DOUBLE)), dtype))
        return
    inputs = [site.cast(x, _T.DOUBLE), *site.inputs[1:]]
    site.replace(site.cast(site.emit(site.node.op_type, *inputs, **site.attributes()), dtype))


@down("CumSum", version=11)
def sum_by_triangle(site: Site) -> None:
    """Write ``CumSum`` as a product with a triangular matrix of ones, along an axis of known size."""
    x = site.required(0)
    rank = site.rank(x)
    axis = site.constant_axis(1, rank)
    size = site.size(x, axis)
    site.require_room(size, size)
    ones = np.tri(size, size, -1 if site.integer("exclusive") else 0)
    triangle = site.constant((ones if site.integer("reverse") else ones.T), site.dtype(x))
    order = [i for i in range(rank) if i != axis] + [axis]
    rows = site.emit("Transpose", x, perm=order)
    if rank == 1:
        rows = unsqueeze(site, rows, [0])
    summed = site.emit("MatMul", rows, triangle)
    if rank == 1:
        summed = squeeze(site, summed, [0])
    site.replace(site.emit("Transpose", summed, perm=[order.index(i) for i in range(rank)]))


@down("CumProd", version=26)
def product_by_mask(site: Site) -> None:
    """Write ``CumProd`` as the products of all prefixes, padded by ones, along an axis of known size."""
    x = site.required(0)
    rank = site.rank(x)
    axis = site.constant_axis(1, rank)
    size = site.size(x, axis)
    site.require_room(size, size)
    member = np.tri(size, size, -1 if site.integer("exclusive") else 0, dtype=bool)
    member = member.T if site.integer("reverse") else member
    mask = site.constant(member.reshape([size, size] + [1] * (rank - axis - 1)))
    prefixes = site.emit("Where", mask, unsqueeze(site, x, [axis]), site.scalar(1, x))
    site.replace(reduce(site, "ReduceProd", prefixes, [axis + 1], keepdims=False))


@down("Where", version=9)
def choice_by_gather(site: Site) -> None:
    """Write ``Where`` of known sizes as a gather from the concatenated branches, indexed by the condition."""
    condition, yes, no = (site.required(i) for i in range(3))
    shape = np.broadcast_shapes(*(site.sizes(value) for value in (condition, yes, no)))
    count = math.prod(shape)
    site.require_room(count)
    flat = [
        reshape(site, site.emit("Expand", value, site.constant(list(shape))), [count])
        for value in (no, yes, site.cast(condition, _T.INT64))
    ]
    half = site.emit("Mul", flat[2], site.constant(np.asarray(count, np.int64)))
    indices = site.emit("Add", half, site.constant(np.arange(count)))
    chosen = site.emit("Gather", site.emit("Concat", flat[0], flat[1], axis=0), indices, axis=0)
    site.replace(reshape(site, chosen, list(shape)))
