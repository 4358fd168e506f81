"""Gradients that compute parts of the forward pass twice instead of keeping their values.

The forward pass is cut into segments. Between two segments only the values that later segments read are kept; the
backward pass of a segment computes the segment again, in a function of its own. The branch of a choice separates the
second computation from the first: equal values of one function are one value. The choice is whether the result is
finite, because gradients of other results are not used.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from sardonyx.core import language as L
from sardonyx.core.dim import Size, evaluate, symbols
from sardonyx.core.eval.trace import cond, inline, trace
from sardonyx.core.ir.graph import CLOSED, Function, Value, defined_by, function, symbols_in
from sardonyx.core.ir.types import TensorType
from sardonyx.core.language import Tensor
from sardonyx.core.transform.cost import VIEWS, cost, nbytes, trips
from sardonyx.core.transform.differentiation import active_values, apply_call, is_differentiable, pull_back

_COUNTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Numbers of segments to choose from."""

_MOVEMENTS = VIEWS | {"broadcast", "permute", "slice", "reverse", "dims", "iota"}
"""Primitives whose results are read from their operands or computed where they are read."""

_PRODUCTS = frozenset({"contract", "convolve"})


@dataclass(frozen=True)
class Segments:
    """A division of a forward pass.

    Attributes:
        ends: For each segment, the number of values of the function before its end.
        repeated: Indices of the segments that the backward pass computes again.
        bytes: Estimated bytes of the values that are in memory at a time.
        operations: Estimated operations of the repeated segments.
    """

    ends: tuple[int, ...]
    repeated: frozenset[int]
    bytes: int
    operations: int


def whole(inner: Function, sizes: Mapping[str, int]) -> Segments:
    """Return the division into one segment, which is computed once.

    Args:
        inner: The forward pass.
        sizes: Values of the symbols of its sizes.
    """
    stored = sum(_kept_bytes(value, sizes) for value in _computed(inner))
    return Segments((len(_computed(inner)),), frozenset(), stored, 0)


def divisions(inner: Function, sizes: Mapping[str, int]) -> list[Segments]:
    """Return divisions of a forward pass that need less memory than one segment, by increasing operations.

    Args:
        inner: The forward pass; its first result is differentiated.
        sizes: Values of the symbols of its sizes.
    """
    values = _computed(inner)
    stored = [_kept_bytes(value, sizes) for value in values]
    work = [_number(cost(value).operations, sizes) for value in values]
    between = _bytes_between(values, sizes)
    products = _products_follow(values)
    most = sum(stored)
    options: dict[tuple[tuple[int, ...], frozenset[int]], Segments] = {}
    for count in _COUNTS:
        ends = _cuts(stored, between, products, count)
        parts = list(itertools.pairwise((0, *ends)))
        own = [sum(stored[first:end]) for first, end in parts]
        operations = [sum(work[first:end]) for first, end in parts]
        saved = {i: own[i] - between[ends[i]] for i in range(len(parts) - 1)}  # type: ignore[operator]
        order = sorted((i for i in saved if saved[i] > 0), key=lambda i: -saved[i] / (operations[i] + 1))
        for number in range(1, len(order) + 1):
            repeated = frozenset(order[:number])
            once = sum(size for i, size in enumerate(own) if i not in repeated)
            edges = sum(cast(int, between[ends[i]]) for i in repeated)
            peak = once + edges + max(own[i] for i in repeated)
            if peak < most:
                one = Segments(ends, repeated, peak, sum(operations[i] for i in repeated))
                options.setdefault((ends, repeated), one)
    return sorted(options.values(), key=lambda one: (one.operations, one.bytes))


def gradient_in_segments(inner: Function, wrt: Sequence[int], segments: Segments) -> Function:
    """Return the function of :func:`.gradient`, which computes some segments twice.

    Cotangents are added in the same order, so that results are equal to the bit if kernels add in the same order: the
    layout of images may differ between a segment and the whole.

    Args:
        inner: The function to differentiate.
        wrt: Positions of the inputs to differentiate by.
        segments: The segments.

    Raises:
        UnsupportedError: See :func:`.gradient`.
    """
    values = _computed(inner)
    parts = [values[first:end] for first, end in itertools.pairwise((0, *segments.ends))]
    part_of = {value: number for number, part in enumerate(parts) for value in part}
    edges = list(
        dict.fromkeys(
            operand
            for value in values
            for operand in value.operands
            if operand in part_of and part_of[operand] != part_of[value]
        )
    )
    if inner.results[0] not in edges:
        edges.append(inner.results[0])
    active = active_values(inner.values, [inner.inputs[i] for i in wrt])
    extended = function(inner.name, inner.inputs, [*inner.results, *edges], inner.level)

    def body(*inputs: Value) -> list[Value]:
        every = inline(extended, inputs)
        results, at = every[: len(inner.results)], dict(zip(inner.inputs, inputs, strict=True))
        at |= dict(zip(edges, every[len(inner.results) :], strict=True))
        first = cast(Tensor, results[0])
        is_finite = L.reduce_sum(L.abs_(first)) < math.inf
        cotangents: dict[Value, Tensor] = {inner.results[0]: L.ones_like(first)}
        for number in reversed(range(len(parts))):
            own = set(parts[number])
            outs = [value for value in edges if value in own and value in cotangents]
            if not outs:
                continue
            part = _Part.of(inner, own, outs, active, cotangents)
            arguments = [*(at[x] for x in part.reads), *(cotangents[y] for y in (*outs, *part.sums))]
            if number in segments.repeated:
                new = list(
                    cond(
                        is_finite,
                        lambda part=part, arguments=arguments: apply_call(part.pull, arguments),
                        lambda part=part: [L.zeros_like(cast(Tensor, at[x])) for x in part.targets],
                    )
                )
            else:
                new = inline(part.pull, arguments)
            cotangents |= dict(zip(part.targets, cast("list[Tensor]", new), strict=True))
        gradients = [cotangents.get(inner.inputs[i]) for i in wrt]
        zeros = [L.zeros_like(cast(Tensor, inputs[i])) for i in wrt]
        return [*results, *(zero if dx is None else dx for zero, dx in zip(zeros, gradients, strict=True))]

    return trace(f"gradient of {inner.name}", body, [value.type for value in inner.inputs])


@dataclass(frozen=True)
class _Part:
    """The backward pass of a segment.

    Attributes:
        pull: From the values that the segment reads, the cotangents of its results, and the cotangents that later
            segments have computed of ``sums``, to the cotangents of ``targets``.
        reads: Values of other segments that the segment reads.
        targets: Those that have cotangents.
        sums: Those of which later segments have computed cotangents.
    """

    pull: Function
    reads: tuple[Value, ...]
    targets: tuple[Value, ...]
    sums: tuple[Value, ...]

    @classmethod
    def of(
        cls,
        inner: Function,
        own: set[Value],
        outs: Sequence[Value],
        active: set[Value],
        cotangents: Mapping[Value, Tensor],
    ) -> _Part:
        reads = tuple(
            dict.fromkeys(
                operand
                for value in inner.values
                if value in own
                for operand in value.operands
                if operand not in own and operand.level != CLOSED
            )
        )
        targets = tuple(x for x in reads if x in active and is_differentiable(x.type))
        sums = tuple(x for x in targets if x in cotangents)
        segment = function("segment", reads, outs, inner.level)

        def backward(*values: Value) -> list[Value]:
            inputs, rest = values[: len(reads)], list(cast("Sequence[Tensor]", values[len(reads) :]))
            results = inline(segment, inputs)
            by_value = dict(zip(reads, inputs, strict=True))
            return pull_back([*results, *(by_value[x] for x in sums)], rest, [by_value[x] for x in targets])

        types = [value.type for value in (*reads, *outs, *sums)]
        return cls(trace("backward segment", backward, types), reads, targets, sums)


def _computed(inner: Function) -> list[Value]:
    return [value for value in inner.values if value.op != "input" and value.level != CLOSED]


def _kept_bytes(value: Value, sizes: Mapping[str, int]) -> int:
    """Return the bytes that a value needs until the backward pass; a loop saves the states of its iterations."""
    if value.op in _MOVEMENTS:
        return 0
    own = _bytes(value, sizes)
    if value.op != "loop":
        return own
    states = sum(_bytes(state, sizes) for state in value.operands[2 : 2 + value.params["carried"]])
    return own + states * _number(trips(value), sizes)


def _bytes(value: Value, sizes: Mapping[str, int]) -> int:
    return _number(nbytes(value.type), sizes)


def _number(size: Size, sizes: Mapping[str, int]) -> int:
    """Return a size, or 0 for one that only a run tells."""
    return evaluate(size, sizes) if symbols(size) <= sizes.keys() else 0


def _bytes_between(values: Sequence[Value], sizes: Mapping[str, int]) -> list[int | None]:
    """Return the bytes of the values that are read after each position; None where no cut is possible.

    A cut between a primitive with several results and its results is not possible, nor one between the definition of a
    size and a value of this size.
    """
    position = {value: i for i, value in enumerate(values)}
    last = dict(position)
    definition = {symbol: i for value, i in position.items() for symbol in defined_by(value)}
    impossible = [0] * (len(values) + 2)
    changes = [0] * (len(values) + 2)
    for value, i in position.items():
        for operand in value.operands:
            if operand in last:
                last[operand] = max(last[operand], i)
        for symbol in set(symbols_in((value.params, value.type))) & definition.keys():
            impossible[definition[symbol] + 1] += 1
            impossible[i + 1] -= 1
    for value, i in position.items():
        if isinstance(value.type, TensorType):
            changes[i + 1] += _bytes(value, sizes)
            changes[last[value] + 1] -= _bytes(value, sizes)
        else:
            impossible[i + 1] += 1
            impossible[last[value] + 1] -= 1
    pairs = zip(itertools.accumulate(changes), itertools.accumulate(impossible), strict=True)
    return [None if refused else size for size, refused in pairs][: len(values) + 1]


def _products_follow(values: Sequence[Value]) -> list[bool]:
    """Return for each position if the next operation is a product, whose operand is in memory anyway."""
    follows = [False] * (len(values) + 1)
    for i in reversed(range(len(values))):
        op = values[i].op
        follows[i] = follows[i + 1] if op in _MOVEMENTS else op in _PRODUCTS
    return follows


def _cuts(
    stored: Sequence[int], between: Sequence[int | None], products: Sequence[bool], count: int
) -> tuple[int, ...]:
    """Return the ends of about equal segments, each where few bytes are read later, before a product if possible."""
    total = list(itertools.accumulate(stored, initial=0))
    ends: list[int] = []
    for number in range(1, count):
        low, high = (total[-1] * (number + step) / count for step in (-0.5, 0.5))
        positions = [i for i in range(1, len(stored)) if low <= total[i] <= high and between[i] is not None]
        if positions:
            best = min(positions, key=lambda i: (between[i], not products[i], -i))
            if not ends or best > ends[-1]:
                ends.append(best)
    return (*ends, len(stored))
