"""What tells the contents of weights apart, without reading more of them than it takes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import onnx_ir as ir

from sardonyx.rewrite.engine import Engine
from sardonyx.rewrite.weight_dependencies import compared

GLIMPSE = 64
"""Bytes that are compared first; what has fewer is compared whole."""


class Contents:
    """What tells the contents of weights apart: how they begin, then more places, and a digest only where all agree."""

    def __init__(self) -> None:
        self._glimpses: dict[ir.TensorProtocol, bytes] = {}
        self._samples: dict[ir.TensorProtocol, bytes] = {}
        self._digests: dict[ir.TensorProtocol, bytes] = {}
        self._compared: dict[ir.TensorProtocol, None] = {}

    def glimpse(self, tensor: ir.TensorProtocol) -> bytes:
        """How the contents begin: weights that are equal have it in common."""
        known = self._glimpses.get(tensor)
        if known is None:
            known = self._glimpses[tensor] = _pieces(compared(tensor, self._compared), (0,))
        return known

    def equal(self, a: ir.TensorProtocol, b: ir.TensorProtocol) -> bool:
        """Whether two weights of one type and shape are equal in every bit."""
        if a is b:
            return True
        glimpse = self.glimpse(a)
        if glimpse != self.glimpse(b):
            return False
        if a.dtype != ir.DataType.STRING and len(glimpse) < GLIMPSE:
            return True
        return self._sample(a) == self._sample(b) and self.digest(a) == self.digest(b)

    def _sample(self, tensor: ir.TensorProtocol) -> bytes:
        known = self._samples.get(tensor)
        if known is None:
            known = self._samples[tensor] = _pieces(compared(tensor, self._compared), (0.5, 1))
        return known

    def digest(self, tensor: ir.TensorProtocol) -> bytes:
        """What only contents have in common that are equal in every bit."""
        known = self._digests.get(tensor)
        if known is None:
            contents = _bytes(compared(tensor, self._compared))
            known = self._digests[tensor] = hashlib.blake2b(contents, digest_size=16).digest()
        return known


def contents_in(engine: Engine) -> Contents:
    """What is known of the contents of the model's weights: told once, for whoever asks."""
    known: Contents = engine.memo.setdefault("contents", Contents())
    return known


def _pieces(tensor: ir.TensorProtocol, places: Sequence[float]) -> bytes:
    """As many bytes as a glimpse at each place of a tensor's contents, from 0 at the beginning to 1 at the end."""
    if tensor.dtype == ir.DataType.STRING:
        return b""
    array = tensor.numpy()
    # `reshape` would copy all of what is transposed.
    flat = array.reshape(-1) if array.flags.c_contiguous else array.flat
    part = -(-GLIMPSE // array.itemsize)
    last = max(array.size - part, 0)
    return b"".join([flat[int(place * last) : int(place * last) + part].tobytes() for place in places])


def _bytes(tensor: ir.TensorProtocol) -> bytes:
    return repr(tensor.numpy().tolist()).encode() if tensor.dtype == ir.DataType.STRING else tensor.tobytes()
