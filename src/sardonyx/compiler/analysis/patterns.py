"""Anchors: the contractions that a kernel is built around, as the templates want them.

Core writes a convolution over ``[G, N, C, spatial]``; the movements that bring an image there and back are part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
        result: The image that it gives, ``[N, G * M, spatial]``.
        image: The image that it reads, ``[N, G * C, spatial]``.
        weights: ``[G, M, C, kernel]``.
        groups: How many groups.
        ends: Whether no other convolution and no pooling reads what is computed from the result place by place.
        absorbed: The movements between the images and the ``convolve``.
    """

    core: Value
    result: Value
    image: Value
    weights: Value
    groups: int
    ends: bool
    absorbed: tuple[Value, ...]


def convolution(core: Value, users: Mapping[Value, list[Value]]) -> Convolution | None:
    """A ``convolve`` as a convolution of images; None where it stands among other movements."""
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
    ends = not _meets_windows(result, users)
    return Convolution(core, result, image, weights, groups, ends, (before, operand, core, after))


def _meets_windows(image: Value, users: Mapping[Value, list[Value]]) -> bool:
    """Whether windows move over an image, or over what is computed from it place by place."""
    seen = {image}
    waiting = [image]
    while waiting:
        value = waiting.pop()
        for user in users[value]:
            if user.op == "reduce_window" or (user.op == "reshape" and _is_convolved(user, users)):
                return True
            if user not in seen and (is_elementwise(user) or user.op in ("concat", "pad")):
                seen.add(user)
                waiting.append(user)
    return False


def _is_convolved(split: Value, users: Mapping[Value, list[Value]]) -> bool:
    """Whether an image with its channels split is brought into the form of a ``convolve``."""
    return any(user.op == "permute" and any(each.op == "convolve" for each in users[user]) for user in users[split])


@dataclass(frozen=True)
class Attention:
    """Two products with a softmax between them.

    Attributes:
        scores: The first ``contract``, ``[batch, queries, keys]``.
        masked: What the softmax is taken of: the scores, scaled and masked.
        result: The second ``contract``.
        interior: All values between the operands of the first and the result.
    """

    scores: Value
    masked: Value
    result: Value
    interior: frozenset[Value]


def attention(result: Value, users: Mapping[Value, list[Value]]) -> Attention | None:
    """A ``contract`` as the second product of an attention; None where it is none."""
    weights = result.operands[0]
    rank = len(shape_of(weights))
    pairs = tuple((axis, axis) for axis in range(rank - 2))
    if rank not in (3, 4) or result.params["batch"] != pairs or result.params["left"] != (rank - 1,):
        return None
    if dtype_of(result) != t.FLOAT or weights.op != "div":
        return None
    exponential, spread = weights.operands
    sums = beneath(spread)
    if exponential.op != "exp" or exponential.operands[0].op != "sub" or not _is_last(sums, "add", rank):
        return None
    difference = exponential.operands[0]
    masked, spread_most = difference.operands
    most = beneath(spread_most)
    if sums.operands[0] is not exponential or not _is_last(most, "max", rank) or most.operands[0] is not masked:
        return None
    between = _path(masked)
    products = [value for value in between if value.op == "contract"]
    if len(products) != 1 or products[0].params["batch"] != pairs or dtype_of(products[0]) != t.FLOAT:
        return None
    (scores,) = products
    if shape_of(scores) != shape_of(masked) or len(scores.params["left"]) != 1:
        return None
    interior = {*between, difference, exponential, weights, sums, most, *_chain(spread), *_chain(spread_most)}
    if any(user not in interior and user is not result for value in interior for user in users[value]):
        return None
    return Attention(scores, masked, result, frozenset(interior))


def beneath(value: Value) -> Value:
    """What a value is, without the movements that repeat it along the last axis."""
    while value.op in ("broadcast", "reshape", "stop_gradient"):
        value = value.operands[0]
    return value


def _chain(value: Value) -> list[Value]:
    found = []
    while value.op in ("broadcast", "reshape", "stop_gradient"):
        found.append(value)
        value = value.operands[0]
    return found


def _is_last(value: Value, kind: str, rank: int) -> bool:
    return value.op == "reduce" and value.params == {"kind": kind, "axes": (rank - 1,)}


def _path(value: Value) -> list[Value]:
    """The value and, through elementwise primitives of equal sizes, what leads to a ``contract``."""
    if value.op == "contract":
        return [value]
    if not is_elementwise(value):
        return []
    below = [found for operand in value.operands for found in _path(operand)]
    return [*dict.fromkeys(below), value] if below else []


def _is_image(value: Value, batch: Size, channels: Size, spatial: tuple[Size, ...]) -> bool:
    wanted = (batch, channels, *spatial)
    return len(shape_of(value)) == len(wanted) and all(
        a == b or equal(a, b) for a, b in zip(shape_of(value), wanted, strict=True)
    )
