"""Random numbers of keys that are data: JAX's generator Threefry, and Philox as XLA computes `rbg` on processors.

Source: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (2011); keys are two words on a last axis, those of
`rbg` four.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.convert.jax.complex_numbers import complex_rule
from sardonyx.convert.jax.translation import Context, dtype_of, rule
from sardonyx.errors import UnsupportedError

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def _traced(c: Context, function: Callable[..., Any], variables: Sequence[Any], inputs: Sequence[ir.Value]) -> Any:
    """Return the results of a function of JAX over inputs; keys are their words."""
    import jax

    specifications = [
        jax.ShapeDtypeStruct((*v.aval.shape, *v.aval.dtype._impl.key_shape), np.uint32)
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


_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_STEPS = (0x9E3779B9, 0xBB67AE85)
_NARROW = (np.uint8, np.uint16, np.uint32)
"""Types of which each element has the low bits of a word."""


@rule("rng_bit_generator")
def _generator(c: Context, e: Any, key: ir.Value) -> Any:
    """Translate ten rounds of Philox over the numbers of blocks of four words.

    The first two words of the state are the key and the upper half of the counter, the last two its lower half.
    """
    import jax
    from jax import numpy as jnp

    shape, dtype = e.params["shape"], np.dtype(e.params["dtype"])
    if e.invars[0].aval.shape != (4,) or dtype not in _NARROW or "THREE" in str(e.params["algorithm"]):
        raise UnsupportedError(
            "rng_bit_generator: expected a state of four words, integers of at most 32 bits, and the algorithm Philox"
        )

    def generate(state: Any) -> tuple[Any, Any]:
        count: Any = 1
        for size in shape:
            count = count * size
        blocks = (count + 3) // 4
        low = state[2] + jax.lax.iota(np.uint32, blocks)
        high = state[3] + (low < state[2]).astype(np.uint32)
        third = state[0] + (high < state[3]).astype(np.uint32)
        fourth = state[1] + (third < state[0]).astype(np.uint32)
        words = _philox([low, high, third, fourth], [state[0], state[1]])
        bits = jnp.reshape(jnp.stack(words, axis=1), (blocks * 4,))[:count]
        following = state[2] + jnp.asarray(blocks, np.uint32)
        carry = (following < state[2]).astype(np.uint32)
        return jnp.stack([state[0], state[1], following, state[3] + carry]), jnp.reshape(bits, shape).astype(dtype)

    return _traced(c, generate, e.invars, [key])


def _philox(counter: list[Any], key: list[Any]) -> list[Any]:
    for step in range(10):
        keys = [part + np.uint32(increment * step & 0xFFFFFFFF) for part, increment in zip(key, _STEPS, strict=True)]
        (high, low), (upper, lower) = (_product(counter[2 * i], _MULTIPLIERS[i]) for i in range(2))
        counter = [upper ^ counter[1] ^ keys[0], lower, high ^ counter[3] ^ keys[1], low]
    return counter


def _product(x: Any, factor: int) -> tuple[Any, Any]:
    """Return the upper and the lower word of a product of words, by halves of 16 bits."""
    half, mask = np.uint32(16), np.uint32(0xFFFF)
    a, b = np.uint32(factor >> 16), np.uint32(factor & 0xFFFF)
    top, bottom = x >> half, x & mask
    middle = top * b + (bottom * b >> half)
    inner = bottom * a + (middle & mask)
    return top * a + (middle >> half) + (inner >> half), x * np.uint32(factor)
