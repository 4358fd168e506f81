"""Special functions and functions of bits, as functions of JAX whose equations replace the primitive."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.convert.jax.linear_algebra import inlined
from sardonyx.convert.jax.translation import Context, dtype_of, rule
from sardonyx.errors import UnsupportedError

BITCAST_OPSET = 26
"""First operator set that has BitCast."""


def replaced(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function of JAX arrays in place of primitives without parameters."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        rule(*names)(lambda c, e, *inputs: inlined(c, function, e, inputs))
        return function

    return register


def in_double(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes in float64, because its terms cancel."""
    import jax

    def computed(*arrays: Any) -> Any:
        with jax.enable_x64(True):
            return function(*(array.astype("float64") for array in arrays)).astype(arrays[0].dtype)

    return computed


def _polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """Return the polynomial, coefficients from the highest power."""
    result = x * 0 + coefficients[0]
    for coefficient in coefficients[1:]:
        result = result * x + coefficient
    return result


_CENTRAL = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087),
    *(-0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
)
_TAIL = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773),
    *(-0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)


@replaced("erf_inv")
def _erf_inv(x: Any) -> Any:
    """Return the inverse of erf; of float64 with two steps of Newton's method.

    Source: M. Giles, "Approximating the erfinv function" (2010).
    """
    import jax.numpy as jnp
    from jax import lax

    w = -jnp.log1p(-x * x)
    y = jnp.where(w < 5, _polynomial(w - 2.5, _CENTRAL), _polynomial(jnp.sqrt(jnp.maximum(w, 5)) - 3, _TAIL)) * x
    if x.dtype == np.float64:
        for _ in range(2):
            y = y - (lax.erf(y) - x) * jnp.exp(y * y) * (math.sqrt(math.pi) / 2)
    return jnp.where(jnp.abs(x) == 1, x * jnp.inf, y)


_LANCZOS = (
    *(676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059),
    *(12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7),
)
"""Coefficients for g = 7. Source: C. Lanczos, "A precision approximation of the gamma function" (1964)."""


@rule("lgamma")
def _lgamma(c: Context, e: Any, *inputs: ir.Value) -> Any:
    """Translate log |Γ(x)|, below 1/2 by reflection."""
    import jax.numpy as jnp

    def function(x: Any) -> Any:
        is_low = x < 0.5
        z = jnp.where(is_low, 1 - x, x) - 1
        total = 0.99999999999980993 + sum(factor / (z + i) for i, factor in enumerate(_LANCZOS, 1))
        shifted = z + 7.5
        value = (z + 0.5) * jnp.log(shifted) - shifted + 0.5 * math.log(2 * math.pi) + jnp.log(total)
        sine = jnp.abs(jnp.sin(math.pi * (x - jnp.floor(x))))
        return jnp.where(is_low, math.log(math.pi) - jnp.log(sine) - value, value)

    return inlined(c, in_double(function), e, inputs)


_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
"""The Bernoulli numbers of even index, from B2 on."""


@rule("digamma")
def _digamma(c: Context, e: Any, *inputs: ir.Value) -> Any:
    """Translate the derivative of log Γ: a recurrence up to where the asymptotic series converges."""
    import jax.numpy as jnp

    def function(x: Any) -> Any:
        is_low = x < 0.5
        y = jnp.where(is_low, 1 - x, x)
        total = -sum(1 / (y + k) for k in range(8))
        z = y + 8
        series = sum(number / (2 * n) * z ** (-2 * n) for n, number in enumerate(_BERNOULLI, 1))
        value = total + jnp.log(z) - 0.5 / z - series
        return jnp.where(is_low, value - math.pi / jnp.tan(math.pi * (x - jnp.floor(x))), value)

    return inlined(c, in_double(function), e, inputs)


_SMALL = {
    "bessel_i0e": (0.0045813, 0.0360768, 0.2659732, 1.2067492, 3.0899424, 3.5156229, 1.0),
    "bessel_i1e": (0.00032411, 0.00301532, 0.02658733, 0.15084934, 0.51498869, 0.87890594, 0.5),
}
_LARGE = {
    "bessel_i0e": (
        *(0.00392377, -0.01647633, 0.02635537, -0.02057706, 0.00916281),
        *(-0.00157565, 0.00225319, 0.01328592, 0.39894228),
    ),
    "bessel_i1e": (
        *(-0.00420059, 0.01787654, -0.02895312, 0.02282967, -0.01031555),
        *(0.00163801, -0.00362018, -0.03988024, 0.39894228),
    ),
}
"""Source: M. Abramowitz and I. Stegun, Handbook of Mathematical Functions (1964), 9.8.1 to 9.8.4."""


@rule("bessel_i0e", "bessel_i1e")
def _bessel(c: Context, e: Any, *inputs: ir.Value) -> Any:
    """Translate modified Bessel functions times exp(-|x|), to the precision of float32."""
    import jax.numpy as jnp

    name = e.primitive.name
    if dtype_of(e.invars[0]) == np.float64:
        raise UnsupportedError(f"the primitive '{name}' of float64", where="jax", remedy="Compute in float32.")

    def function(x: Any) -> Any:
        size = jnp.abs(x)
        t = size / 3.75
        near = _polynomial(t * t, _SMALL[name]) * jnp.exp(-size)
        near = near if name == "bessel_i0e" else near * x
        far = _polynomial(1 / jnp.maximum(t, 1), _LARGE[name]) / jnp.sqrt(jnp.maximum(size, 3.75))
        far = far if name == "bessel_i0e" else far * jnp.sign(x)
        return jnp.where(t < 1, near, far)

    return inlined(c, function, e, inputs)


@rule("igamma", "igammac", "regularized_incomplete_beta")
def _series_of_jax(c: Context, e: Any, *inputs: ir.Value) -> Any:
    """Translate functions that JAX itself computes by series and fractions in loops."""
    name = e.primitive.name
    function = getattr(importlib.import_module("jax._src.lax.special"), f"{name}_impl", None)
    if function is None:
        raise UnsupportedError(f"the primitive '{name}' of this version of jax", where="jax")
    shape = e.outvars[0].aval.shape

    def broadcast(*xs: Any) -> Any:
        """Return the function of operands of one shape: a jaxpr may hold scalars among them."""
        import jax.numpy as jnp

        return function(*(jnp.broadcast_to(x, shape) for x in xs), dtype=xs[0].dtype)

    return inlined(c, broadcast, e, inputs)


@rule("zeta")
def _zeta(c: Context, e: Any, *inputs: ir.Value) -> Any:
    """Translate Hurwitz's zeta function by the formula of Euler and Maclaurin after ten terms."""
    import jax.numpy as jnp

    def function(x: Any, q: Any) -> Any:
        q = jnp.broadcast_to(q, jnp.broadcast_shapes(x.shape, q.shape))
        total = sum((q + i) ** -x for i in range(_TERMS))
        end = q + _TERMS
        total = total + end ** (1 - x) / (x - 1) + end**-x / 2
        factor, power = x, end ** (-x - 1)
        for i, coefficient in enumerate(_EULER_MACLAURIN):
            total = total + coefficient * factor * power
            factor = factor * (x + 2 * i + 1) * (x + 2 * i + 2)
            power = power / (end * end)
        return jnp.where(x == 1, jnp.inf, jnp.where(x < 1, jnp.nan, total))

    return inlined(c, function, e, inputs)


@rule("polygamma")
def _polygamma(c: Context, e: Any, *inputs: ir.Value) -> Any:
    """Translate derivatives of digamma by factorials and the zeta function."""
    import jax.numpy as jnp
    from jax import lax

    def function(order: Any, x: Any) -> Any:
        order, x = jnp.broadcast_arrays(order, x)
        sign = jnp.where(order % 2 == 1, 1, -1).astype(x.dtype)
        higher = sign * jnp.exp(lax.lgamma(order + 1)) * lax.zeta(order + 1, x)
        return jnp.where(order == 0, lax.digamma(x), higher)

    return inlined(c, function, e, inputs)


_TERMS = 10
_EULER_MACLAURIN = tuple(
    bernoulli / math.factorial(2 * i + 2)
    for i, bernoulli in enumerate((1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510))
)
"""Bernoulli numbers over factorials."""


# Bits


@replaced("population_count")
def _population_count(x: Any) -> Any:
    from jax import lax

    total = x * 0
    for k in range(x.dtype.itemsize * 8):
        total = total + (lax.shift_right_logical(x, np.asarray(k, x.dtype)) & np.asarray(1, x.dtype))
    return total


@replaced("clz")
def _leading_zeros(x: Any) -> Any:
    from jax import lax

    total, bits = x * 0, x.dtype.itemsize * 8
    for k in range(bits):
        shifted = lax.shift_right_logical(x, np.asarray(k, x.dtype))
        total = total + (shifted == 0).astype(x.dtype)
    return total


@replaced("nextafter")
def _nextafter(x: Any, y: Any) -> Any:
    """Return the number beside x in the direction of y."""
    import jax.numpy as jnp
    from jax import lax

    kind = np.dtype(f"i{x.dtype.itemsize}")
    bits = lax.bitcast_convert_type(x, kind)
    away = (y > x) == (x > 0)
    moved = lax.bitcast_convert_type(bits + jnp.where(away, 1, -1).astype(kind), x.dtype)
    least = jnp.asarray(np.finfo(x.dtype).smallest_subnormal, x.dtype)
    moved = jnp.where(x == 0, jnp.where(y > 0, least, -least), moved)
    return jnp.where(x == y, y, jnp.where(jnp.isnan(x) | jnp.isnan(y), x + y, moved))


@rule("bitcast_convert_type")
def _bitcast(c: Context, e: Any, x: ir.Value) -> ir.Value:
    source, target = dtype_of(e.invars[0]), np.dtype(e.params["new_dtype"])
    if source.itemsize != target.itemsize:
        raise UnsupportedError(f"reinterpretation of {source} as {target} changes the rank", where="jax")
    c.require_opset(BITCAST_OPSET)
    return c.node("BitCast", x, to=ir.DataType.from_numpy(target))


def _rounded(bits: int) -> Any:
    """Return the function of JAX that rounds float32 to fewer bits of the mantissa, to the nearest even number."""
    import jax.numpy as jnp
    from jax import lax

    cut = 23 - bits

    def rounded(x: Any) -> Any:
        code = lax.bitcast_convert_type(x, np.int32)
        above = lax.shift_right_arithmetic(code, np.int32(cut)) & np.int32(1)
        code = (code + np.int32((1 << (cut - 1)) - 1) + above) & np.int32(-(1 << cut))
        return jnp.where(jnp.isfinite(x), lax.bitcast_convert_type(code, np.float32), x)

    return rounded


@rule("reduce_precision")
def _reduce_precision(c: Context, e: Any, x: ir.Value) -> Any:
    """Translate rounding to a type with fewer bits; numbers below its normal ones become zero."""
    source = dtype_of(e.invars[0])
    bits = int(e.params["exponent_bits"]), int(e.params["mantissa_bits"])
    info = ir.DataType.from_numpy(source)
    kinds = {(8, 23): ir.DataType.FLOAT, (11, 52): ir.DataType.DOUBLE, (8, 7): ir.DataType.BFLOAT16}
    kind = {**kinds, (5, 10): ir.DataType.FLOAT16}.get(bits)
    if kind is None and bits[0] == 8 and bits[1] < 23 and source == np.float32:
        return inlined(c, _rounded(bits[1]), e, (x,))
    if kind is None or kind.bitwidth > info.bitwidth:
        raise UnsupportedError(f"rounding to {bits[0]} bits of exponent and {bits[1]} of mantissa", where="jax")
    if kind == info:
        return c.node("Identity", x)
    rounded = c.node("Cast", c.node("Cast", x, to=kind), to=info)
    normal = c.scalar(2.0 ** (2 - 2 ** (bits[0] - 1)), source)
    is_small = c.node("Less", c.node("Abs", rounded), normal)
    return c.node("Where", is_small, c.node("Mul", rounded, c.scalar(0, source)), rounded)


@rule("shift_left", "shift_right_logical", "shift_right_arithmetic")
def _shift(c: Context, e: Any, x: ir.Value, y: ir.Value) -> ir.Value:
    """Translate shifts; those of signed integers by powers of two in a wider type, or in the unsigned type."""
    name, dtype = e.primitive.name, dtype_of(e.invars[0])
    bits = dtype.itemsize * 8
    unsigned = np.dtype(f"u{dtype.itemsize}")
    is_arithmetic = dtype.kind == "i" and name == "shift_right_arithmetic"
    negative = c.node("Less", x, c.scalar(0, dtype)) if is_arithmetic else None
    plain = x if negative is None else c.node("Where", negative, c.node("BitwiseNot", x), x)
    by = c.cast(y, unsigned)
    is_beyond = c.node("Less", c.scalar(bits - 1, unsigned), by)
    some = c.node("Min", by, c.scalar(bits - 1, unsigned))
    direction = "LEFT" if name == "shift_left" else "RIGHT"
    shifted = c.node("BitShift", c.cast(plain, unsigned), some, direction=direction)
    result = c.cast(c.node("Where", is_beyond, c.scalar(0, unsigned), shifted), dtype)
    return result if negative is None else c.node("Where", negative, c.node("BitwiseNot", result), result)
