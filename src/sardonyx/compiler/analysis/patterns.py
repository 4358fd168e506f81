"""Patterns of contractions that have kernel templates: convolutions of images, and attention.

Core writes a convolution over ``[G, N, C, spatial]``; the movements between the image and this form belong to the
pattern.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from sardonyx.compiler.analysis.primitive_traits import dtype_of, is_elementwise
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.core.dim import Size, equal
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value


@dataclass(frozen=True)
class Convolution:
    """A convolution of an image.

    Attributes:
        core: The ``convolve`` value.
        result: The result image, ``[N, G * M, spatial]``.
        image: The input image, ``[N, G * C, spatial]``.
        weights: ``[G, M, C, kernel]``.
        groups: Number of groups.
        ends: True if no other convolution and no pooling reads a value computed elementwise from the result.
        absorbed: The movements between the images and the ``convolve``.
        margins: Elements that the kernel puts around the image along each spatial axis, before and after.
        filling: The value of these elements.
        shift: Integer that the kernel subtracts from each element of the image.
        flips: True if the kernel reads int8 as uint8, greater by 128.
    """

    core: Value
    result: Value
    image: Value
    weights: Value
    groups: int
    ends: bool
    absorbed: tuple[Value, ...]
    margins: tuple[tuple[int, int], ...] = ()
    filling: int = 0
    shift: int = 0
    flips: bool = False

    def absorb_flip(self) -> Convolution | None:
        """Return the convolution of the int8 image of which the uint8 image is greater by 128, or None."""
        if self.image.op != "xor" or self.flips:
            return None
        narrow, sign = self.image.operands
        sign = skip_broadcasts(sign)
        if narrow.op != "bitcast" or not sign.is_constant or np.any(np.asarray(sign.known) != 128):
            return None
        absorbed = (narrow, self.image, *self.absorbed)
        return replace(self, image=narrow.operands[0], absorbed=absorbed, flips=True)

    def absorb_shift(self) -> Convolution | None:
        """Return the convolution of 8-bit integers less a constant, of which the image is the difference, or None."""
        if self.image.op != "sub" or self.image.operands[0].op != "convert":
            return None
        wide, zero = self.image.operands
        zero = skip_broadcasts(zero)
        if dtype_of(wide.operands[0]) not in (t.UINT8, t.INT8) or not zero.is_constant or np.size(zero.known) != 1:
            return None
        (number,) = np.asarray(zero.known).reshape(-1)
        return replace(self, image=wide.operands[0], absorbed=(wide, self.image, *self.absorbed), shift=int(number))

    def absorb_pad(self) -> Convolution | None:
        """Return the convolution of the image before a constant ``pad`` of spatial axes; None without such a pad."""
        pad = self.image
        if pad.op != "pad" or any(pad.params["interior"]):
            return None
        low, high = pad.params["low"], pad.params["high"]
        known = all(isinstance(size, int) and size >= 0 for size in (*low, *high))
        filling = pad.operands[1]
        if not known or any((*low[:2], *high[:2])) or not filling.is_constant:
            return None
        (number,) = np.asarray(filling.known).reshape(-1)
        margins = tuple(zip(low[2:], high[2:], strict=True))
        return replace(
            self, image=pad.operands[0], absorbed=(pad, *self.absorbed), margins=margins, filling=int(number)
        )


def match_convolution(core: Value, users: Mapping[Value, list[Value]]) -> Convolution | None:
    """Match a ``convolve`` as a convolution of images; return None if its movements differ."""
    operand, weights = core.operands
    groups = shape_of(core)[0]
    rank = len(shape_of(core))
    swapped = (1, 0, *range(2, rank))
    if not isinstance(groups, int) or operand.op != "permute" or operand.params["axes"] != swapped:
        return None
    before = operand.operands[0]
    if before.op != "reshape":
        return None
    image = before.operands[0]
    (after,) = users[core] if len(users[core]) == 1 else (None,)
    if after is None or after.op != "permute" or after.params["axes"] != swapped or len(users[after]) != 1:
        return None
    result = users[after][0]
    if result.op != "reshape":
        return None
    n, c = shape_of(operand)[1], shape_of(operand)[2]
    m = shape_of(core)[2]
    if not _is_image(image, n, c * groups, shape_of(operand)[3:]):
        return None
    if not _is_image(result, n, m * groups, shape_of(core)[3:]):
        return None
    ends = not _reaches_windows(result, users)
    return Convolution(core, result, image, weights, groups, ends, (before, operand, core, after))


def _reaches_windows(image: Value, users: Mapping[Value, list[Value]]) -> bool:
    """Return True if windows slide over an image, or over a value computed elementwise from the image."""
    seen = {image}
    waiting = [image]
    while waiting:
        value = waiting.pop()
        for user in users[value]:
            if user.op == "reduce_window" or (user.op == "reshape" and _is_split_for_convolve(user, users)):
                return True
            if user not in seen and (is_elementwise(user) or user.op in ("concat", "pad")):
                seen.add(user)
                waiting.append(user)
    return False


def _is_split_for_convolve(split: Value, users: Mapping[Value, list[Value]]) -> bool:
    """Return True if an image with split channels is permuted to the operand of a ``convolve``."""
    readers = [reader for user in users[split] if user.op == "permute" for reader in users[user]]
    return any(reader.op == "convolve" for reader in readers)


@dataclass(frozen=True)
class Attention:
    """Two products with a softmax between.

    Attributes:
        scores: The first ``contract``, ``[batch, queries, keys]``.
        masked: The operand of the softmax: the scores, scaled and masked.
        result: The second ``contract``.
        interior: All values between the operands of the first product and the result.
    """

    scores: Value
    masked: Value
    result: Value
    interior: frozenset[Value]


def match_attention(result: Value, users: Mapping[Value, list[Value]]) -> Attention | None:
    """Match a ``contract`` as the second product of an attention; return None if the pattern differs."""
    weights = result.operands[0]
    rank = len(shape_of(weights))
    pairs = tuple((axis, axis) for axis in range(rank - 2))
    if rank not in (3, 4) or result.params["batch"] != pairs or result.params["left"] != (rank - 1,):
        return None
    if dtype_of(result) != t.FLOAT or weights.op != "div":
        return None
    exponential, broadcast_sums = weights.operands
    sums = skip_broadcasts(broadcast_sums)
    if exponential.op != "exp" or exponential.operands[0].op != "sub" or not _reduces_last(sums, "add", rank):
        return None
    difference = exponential.operands[0]
    masked, broadcast_most = difference.operands
    most = skip_broadcasts(broadcast_most)
    if sums.operands[0] is not exponential or not _reduces_last(most, "max", rank) or most.operands[0] is not masked:
        return None
    between = _path(masked)
    products = [value for value in between if value.op == "contract"]
    if len(products) != 1 or products[0].params["batch"] != pairs or dtype_of(products[0]) != t.FLOAT:
        return None
    (scores,) = products
    if shape_of(scores) != shape_of(masked) or len(scores.params["left"]) != 1:
        return None
    movements = [*_broadcasts(broadcast_sums), *_broadcasts(broadcast_most)]
    interior = {*between, difference, exponential, weights, sums, most, *movements}
    if any(user not in interior and user is not result for value in interior for user in users[value]):
        return None
    return Attention(scores, masked, result, frozenset(interior))


def skip_broadcasts(value: Value) -> Value:
    """Return the value below broadcasts, reshapes and stopped gradients."""
    while value.op in ("broadcast", "reshape", "stop_gradient"):
        value = value.operands[0]
    return value


def _broadcasts(value: Value) -> list[Value]:
    movements = []
    while value.op in ("broadcast", "reshape", "stop_gradient"):
        movements.append(value)
        value = value.operands[0]
    return movements


def _reduces_last(value: Value, kind: str, rank: int) -> bool:
    return value.op == "reduce" and value.params == {"kind": kind, "axes": (rank - 1,)}


def _path(value: Value) -> list[Value]:
    """Return a ``contract`` and the elementwise values from there to ``value``, operands first.

    The result is empty if no such path exists.
    """
    if value.op == "contract":
        return [value]
    if not is_elementwise(value):
        return []
    below = [member for operand in value.operands for member in _path(operand)]
    return [*dict.fromkeys(below), value] if below else []


def _is_image(value: Value, batch: Size, channels: Size, spatial: tuple[Size, ...]) -> bool:
    expected = (batch, channels, *spatial)
    return len(shape_of(value)) == len(expected) and all(
        a == b or equal(a, b) for a, b in zip(shape_of(value), expected, strict=True)
    )
