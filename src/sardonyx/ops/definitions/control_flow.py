"""Control flow: ``If``, ``Loop``, ``Scan``.

Source: ONNX Operators, *If*, *Loop*, *Scan*. Bodies see the values around them.
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.core import language as L
from sardonyx.core.dim import equal
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import OptionalType, TensorType, Type
from sardonyx.core.language import Tensor
from sardonyx.errors import InvalidModelError, ShapeError
from sardonyx.ops.definitions.sequences import as_optional, optional_element
from sardonyx.ops.graph import Body
from sardonyx.ops.registry import operator


@operator("If", since=1)
def if_(condition: Tensor, *, then_branch: Body, else_branch: Body) -> tuple[Value, ...]:
    return L.cond(L.reshape(condition, ()), then_branch, else_branch)


@operator("Loop", since=1)
def loop(count: Tensor | None = None, condition: Tensor | None = None, *state: Value, body: Body) -> tuple[Value, ...]:
    size = len(state)
    if body.input_count != 2 + size or body.output_count < 1 + size:
        raise InvalidModelError(
            f"a body of {body.input_count} inputs and {body.output_count} outputs does not fit {size} carried values."
        )

    def once(i: Tensor, *carried: Value) -> tuple[Tensor | None, list[Value], list[Value]]:
        going, *rest = body(*map(_number, (i, L.constant(True)), body.input_types), *carried)
        assert isinstance(going, Tensor)
        return (
            _again(condition, L.reshape(going, ()), i),
            list(map(_as_declared, rest[:size], body.input_types[2:])),
            rest[size:],
        )

    most = None if count is None else L.reshape(count, ())
    going = None if condition is None else L.reshape(condition, ())
    initial = list(map(_as_declared, state, body.input_types[2:]))
    declared = [type for type in body.output_types[1 + size :] if type is not None]
    rows = declared if len(declared) == body.output_count - 1 - size else None
    final, collected = L.loop(most, going, initial, once, rows)
    return *map(_as_declared, final, body.output_types[1:]), *collected


def _again(condition: Tensor | None, going: Tensor, i: Tensor) -> Tensor | None:
    """Whether to go on. Without a condition to begin with, that of the body does not count.

    Engines differ there: some stop. So the count is said to be the number of iterations only where the body never asks
    for an end; elsewhere the answer, though always yes, is one that only the run gives.
    """
    if condition is not None:
        return going
    return None if going.is_constant and bool(going.known) else i >= 0


def _number(value: Tensor, declared: Type | None) -> Tensor:
    """A scalar, with as many axes as a body declares of it."""
    shape = declared.shape if isinstance(declared, TensorType) else None
    return L.reshape(value, (1,) * len(shape or ()))


def _as_declared(value: Value, declared: Type | None) -> Value:
    """A carried value with an optional around it, or without, as it is declared."""
    if isinstance(declared, OptionalType) and not isinstance(value.type, OptionalType):
        return as_optional(value)
    if isinstance(value.type, OptionalType) and declared is not None and not isinstance(declared, OptionalType):
        return optional_element(value)
    return value


@operator("Scan", since=9)
def scan(
    *inputs: Tensor,
    body: Body,
    num_scan_inputs: int,
    scan_input_axes: Sequence[int] = (),
    scan_input_directions: Sequence[int] = (),
    scan_output_axes: Sequence[int] = (),
    scan_output_directions: Sequence[int] = (),
) -> tuple[Value, ...]:
    state, scanned = _split(inputs, num_scan_inputs)
    outputs = body.output_count - len(state)
    if outputs < 0:
        raise InvalidModelError(f"a body of {body.output_count} outputs does not fit {len(state)} carried values.")
    axes, backward = _each(scan_input_axes, len(scanned)), _each(scan_input_directions, len(scanned))
    rows = [_first(x, axis) for x, axis in zip(scanned, axes, strict=True)]
    final, collected = _scanned(state, rows, backward, L.size_tensor([rows[0].shape[0]], ()), body)
    axes, backward = _each(scan_output_axes, outputs), _each(scan_output_directions, outputs)
    stacked = [
        _first_to(L.reverse(y, [0] if back else []), axis)
        for y, axis, back in zip(collected, axes, backward, strict=True)
    ]
    return *final, *stacked


@operator("Scan", since=8)
def scan_batched(
    lengths: Tensor | None = None,
    *inputs: Tensor,
    body: Body,
    num_scan_inputs: int,
    directions: Sequence[int] = (),
) -> tuple[Value, ...]:
    """The first version: every input has a batch axis first, and a sequence axis second."""
    state, scanned = _split(inputs, num_scan_inputs)
    backward = _each(directions, len(scanned))
    batch, longest = scanned[0].shape[:2]

    def image(i: Tensor) -> tuple[None, list[Value], list[Value]]:
        count = L.size_tensor([longest], ()) if lengths is None else L.take(lengths, i, 0)
        initial, rows = ([L.take(x, i, 0) for x in each] for each in (state, scanned))
        final, collected = _scanned(initial, rows, backward, count, body)
        # The rest of a shorter sequence is left open by the standard: zeros here.
        padded = [L.pad(y, (0,) * y.rank, (longest - y.shape[0], *(0,) * (y.rank - 1))) for y in collected]
        return None, [], [*final, *padded]

    return L.loop(L.size_tensor([batch], ()), None, [], image)[1]


def _split(inputs: Sequence[Tensor], scanned: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    if not 0 < scanned <= len(inputs):
        raise InvalidModelError(f"{scanned} of {len(inputs)} inputs cannot be scanned.")
    return inputs[: len(inputs) - scanned], inputs[len(inputs) - scanned :]


def _each(values: Sequence[int], count: int) -> Sequence[int]:
    """One number for each input or output, 0 by default."""
    if values and len(values) != count:
        raise InvalidModelError(f"{len(values)} axes or directions are given for {count} values.")
    return values or (0,) * count


def _scanned(
    state: Sequence[Tensor], rows: Sequence[Tensor], backward: Sequence[int], count: Tensor, body: Body
) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    for other in rows:
        if equal(other.shape[0], rows[0].shape[0]) is False:
            raise ShapeError(f"sequences of {rows[0].shape[0]} and of {other.shape[0]} are scanned together.")

    def once(i: Tensor, *carried: Tensor) -> tuple[None, Sequence[Value], Sequence[Value]]:
        items = [L.take(x, count - 1 - i if back else i, 0) for x, back in zip(rows, backward, strict=True)]
        found = body(*carried, *items)
        return None, found[: len(state)], found[len(state) :]

    return L.loop(count, None, state, once)


def _first(x: Tensor, axis: int) -> Tensor:
    at = L.normalized_axis(axis, x.rank)
    return L.permute(x, [at, *(a for a in range(x.rank) if a != at)])


def _first_to(x: Tensor, axis: int) -> Tensor:
    at = L.normalized_axis(axis, x.rank)
    order = list(range(1, x.rank))
    order.insert(at, 0)
    return L.permute(x, order)
