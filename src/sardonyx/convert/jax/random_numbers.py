"""Random numbers of keys that are data: JAX's generator Threefry over pairs of 32-bit integers.

Source: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (2011); keys are pairs on a last axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.convert.jax.complex_numbers import complex_rule
from sardonyx.convert.jax.translation import Context, dtype_of, rule

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def _traced(c: Context, function: Callable[..., Any], variables: Sequence[Any], inputs: Sequence[ir.Value]) -> Any:
    """Return the results of a function of JAX over inputs; keys are their pairs of integers."""
    import jax

    specifications = [
        jax.ShapeDtypeStruct((*v.aval.shape, 2), np.uint32)
        if str(v.aval.dtype).startswith("key<")
        else jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype)
        for v in variables
    ]
    closed = jax.make_jaxpr(function)(*specifications)
    return c.call(closed.jaxpr, closed.consts, list(inputs))


def _mapped(function: Callable[..., Any], rank: int) -> Callable[..., Any]:
    """Return a function of one key as a function of an array of keys."""
    import jax

    for _ in range(rank):
        function = jax.vmap(function)
    return function


@complex_rule("random_wrap")
def _wrap(c: Context, _: Any, data: ir.Value) -> ir.Value:
    return c.node("Identity", data)


@complex_rule("random_unwrap")
def _unwrap(c: Context, _: Any, key: ir.Value) -> ir.Value:
    return c.node("Identity", key)


@complex_rule("random_seed")
def _seed(c: Context, e: Any, seeds: ir.Value) -> Any:
    function = _mapped(e.params["impl"].seed, len(e.invars[0].aval.shape))
    return _traced(c, function, e.invars, [seeds])


@complex_rule("random_split")
def _split(c: Context, e: Any, keys: ir.Value) -> Any:
    implementation, shape = e.invars[0].aval.dtype._impl, e.params["shape"]
    function = _mapped(lambda key: implementation.split(key, shape), len(e.invars[0].aval.shape))
    return _traced(c, function, e.invars, [keys])


@complex_rule("random_fold_in")
def _fold_in(c: Context, e: Any, keys: ir.Value, data: ir.Value) -> Any:
    import jax

    implementation = e.invars[0].aval.dtype._impl
    of_keys, of_data = (len(variable.aval.shape) for variable in e.invars)
    function = implementation.fold_in
    for _ in range(min(of_keys, of_data)):
        function = jax.vmap(function)
    for _ in range(abs(of_keys - of_data)):
        function = jax.vmap(function, (0, None) if of_keys > of_data else (None, 0))
    return _traced(c, function, e.invars, [keys, data])


@complex_rule("random_bits")
def _bits(c: Context, e: Any, keys: ir.Value) -> Any:
    implementation, width, shape = e.invars[0].aval.dtype._impl, e.params["bit_width"], e.params["shape"]
    function = _mapped(lambda key: implementation.random_bits(key, width, shape), len(e.invars[0].aval.shape))
    return _traced(c, function, e.invars, [keys])


@rule("iota_2x32_shape")
def _counters(c: Context, e: Any) -> list[ir.Value]:
    """Translate indices of all elements as high and low parts: a tensor has less than 2 ** 32 elements."""
    shape = e.params["shape"]
    sizes = c.sizes(shape)
    count = c.node("ReduceProd", sizes, keepdims=0)
    indices = c.node("Range", c.constant(0, np.int64), count, c.constant(1, np.int64))
    low = c.cast(c.node("Reshape", indices, sizes), np.uint32)
    return [c.node("Sub", low, low), low]


@rule("threefry2x32")
def _threefry(c: Context, e: Any, *inputs: ir.Value) -> Any:
    """Translate twenty rounds of additions, rotations and exclusive ors, with the key added after each four."""
    assert dtype_of(e.outvars[0]) == np.uint32
    return _traced(c, _rounds, e.invars, inputs)


def _rounds(first: Any, second: Any, x: Any, y: Any) -> tuple[Any, Any]:
    keys = (first, second, first ^ second ^ np.uint32(_PARITY))
    x, y = x + first, y + second
    for step in range(5):
        for distance in _ROTATIONS[step % 2]:
            x = x + y
            y = ((y << np.uint32(distance)) | (y >> np.uint32(32 - distance))) ^ x
        x, y = x + keys[(step + 1) % 3], y + keys[(step + 2) % 3] + np.uint32(step + 1)
    return x, y
