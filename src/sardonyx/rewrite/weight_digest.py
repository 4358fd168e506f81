"""Equality of weight contents, decided by reading as few elements as possible."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import onnx_ir as ir

from sardonyx.rewrite.engine.engine import Engine
from sardonyx.rewrite.weight_dependencies import for_comparison

GLIMPSE = 64
"""Bytes compared first; shorter contents are compared whole."""


class Contents:
    """Equality of weights by stages: first bytes, then samples, and a digest only if all stages agree."""

    def __init__(self) -> None:
        self._glimpses: dict[ir.TensorProtocol, bytes] = {}
        self._samples: dict[ir.TensorProtocol, bytes] = {}
        self._digests: dict[ir.TensorProtocol, bytes] = {}
        self._compared: dict[ir.TensorProtocol, None] = {}

    def glimpse(self, tensor: ir.TensorProtocol) -> bytes:
        """Return the first bytes of the contents, equal for equal weights."""
        known = self._glimpses.get(tensor)
        if known is None:
            known = self._glimpses[tensor] = _beginning(for_comparison(tensor, self._compared))
        return known

    def equal(self, a: ir.TensorProtocol, b: ir.TensorProtocol) -> bool:
        """Return True if two weights of the same type and shape are bitwise equal."""
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
            known = self._samples[tensor] = _pieces(for_comparison(tensor, self._compared), (0.5, 1))
        return known

    def digest(self, tensor: ir.TensorProtocol) -> bytes:
        """Return a hash of the whole contents, equal only for bitwise equal weights."""
        known = self._digests.get(tensor)
        if known is None:
            contents = _bytes(for_comparison(tensor, self._compared))
            known = self._digests[tensor] = hashlib.blake2b(contents, digest_size=16).digest()
        return known


def contents_in(engine: Engine) -> Contents:
    """Return the shared content comparisons of the engine's model."""
    known: Contents = engine.memo.setdefault("contents", Contents())
    return known


def _beginning(tensor: ir.TensorProtocol) -> bytes:
    """Return the first ``GLIMPSE`` bytes."""
    if tensor.dtype == ir.DataType.STRING:
        return b""
    array = tensor.numpy()
    # `ravel` would copy a transposed array as a whole.
    flat = array.ravel() if array.flags.c_contiguous else array.flat
    return flat[: -(-GLIMPSE // array.itemsize)].tobytes()


def _pieces(tensor: ir.TensorProtocol, positions: Sequence[float]) -> bytes:
    """Return ``GLIMPSE`` bytes at each relative position, from 0 at the beginning to 1 at the end."""
    if tensor.dtype == ir.DataType.STRING:
        return b""
    array = tensor.numpy()
    # `reshape` would copy a transposed array as a whole.
    flat = array.reshape(-1) if array.flags.c_contiguous else array.flat
    part = -(-GLIMPSE // array.itemsize)
    last = max(array.size - part, 0)
    return b"".join([flat[int(position * last) : int(position * last) + part].tobytes() for position in positions])


def _bytes(tensor: ir.TensorProtocol) -> bytes:
    return repr(tensor.numpy().tolist()).encode() if tensor.dtype == ir.DataType.STRING else tensor.tobytes()
