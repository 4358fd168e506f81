"""Dropout by a counter-based generator: the mask depends on the key and the index of the element alone.

The generator multiplies and shifts the index, plus the key times an odd number, as in the finalizer of MurmurHash3: 32
bits that kernels compute next to the product, on any number of threads, equal to the interpreter's.
"""

from __future__ import annotations

from sardonyx.core import language as L
from sardonyx.core.eval.tensor import apply
from sardonyx.core.ir import types as t
from sardonyx.core.language import Tensor
from sardonyx.errors import InvalidModelError
from sardonyx.ops.registry import operator

DOMAIN = "sardonyx.train"

_GOLDEN = 0x9E3779B1
_ROUNDS = ((16, 0x85EBCA6B), (13, 0xC2B2AE35))


@operator("CountedDropout", since=1, domain=DOMAIN)
def counted_dropout(x: Tensor, key: Tensor, *, ratio: float, stream: int) -> tuple[Tensor, Tensor]:
    """Return ``x`` with each element zero with probability ``ratio``, scaled to preserve the mean, and the mask.

    Args:
        x: The tensor.
        key: An int64 scalar; another one each step.
        ratio: The probability, in [0, 1).
        stream: Another number for each node.
    """
    if not 0 <= ratio < 1:
        raise InvalidModelError(f"expected a ratio in [0, 1), got {ratio}.")
    mask = random_bits(x, key, stream) >= L.constant(min(int(ratio * 2**32), 2**32 - 1), t.UINT32)
    return L.where(mask, x * (1 / (1 - ratio)), 0), mask


def random_bits(x: Tensor, key: Tensor, stream: int) -> Tensor:
    """Return 32 random bits for each element of ``x``."""

    def word(number: int) -> Tensor:
        return L.constant(number & 0xFFFFFFFF, t.UINT32)

    def mixed(bits: Tensor) -> Tensor:
        for shift, factor in _ROUNDS:
            bits = apply("xor", bits, L.broadcast_to(L.shift_right(bits, word(shift)), bits.shape)) * word(factor)
        return apply("xor", bits, L.shift_right(bits, word(16)))

    index = L.reshape(L.arange(L.product(x.shape)), x.shape)
    wide = L.cast(L.reshape(key, ()), t.UINT64)
    high = L.cast(L.shift_right(wide, L.constant(32, t.UINT64)), t.UINT32)
    low = L.cast(apply("and", wide, L.constant(0xFFFFFFFF, t.UINT64)), t.UINT32)
    seed = mixed(mixed(high + word(stream * 0x632BE5AB)) + low * word(_GOLDEN))
    return mixed(L.cast(index, t.UINT32) * word(_GOLDEN) + seed)
