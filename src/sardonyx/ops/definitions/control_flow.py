"""Control flow: ``If``, ``Loop``, ``Scan``.

Source: ONNX Operators, *If*, *Loop*, *Scan*. Bodies read values of the enclosing graph.
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
            f"a body with {body.input_count} inputs and {body.output_count} outputs does not fit {size} carried values."
        )

    def iterate(i: Tensor, *carried: Value) -> tuple[Tensor | None, list[Value], list[Value]]:
        running, *rest = body(*map(_scalar_as_declared, (i, L.constant(True)), body.input_types), *carried)
        assert isinstance(running, Tensor)
        return (
            _continue_condition(condition, running, i),
            list(map(_convert_optional, rest[:size], body.input_types[2:])),
            rest[size:],
        )

    limit = None if count is None else L.reshape(count, ())
    running = None if condition is None else L.reshape(condition, ())
    initial = list(map(_convert_optional, state, body.input_types[2:]))
    declared = [type for type in body.output_types[1 + size :] if type is not None]
    rows = declared if len(declared) == body.output_count - 1 - size else None
    final, collected = L.loop(limit, running, initial, iterate, rows)
    return *map(_convert_optional, final, body.output_types[1:]), *collected


def _continue_condition(condition: Tensor | None, running: Tensor, i: Tensor) -> Tensor | None:
    """Return the continue condition; a Loop without an initial condition ignores its body's condition, of any shape.

    Engines differ here: some stop. The iteration count is therefore static only if the condition of the body is always
    true; otherwise the result, though always true, depends on the run, and so does the count.
    """
    if condition is not None:
        return L.reshape(running, ())
    return None if running.is_constant and bool(running.known.all()) else i >= 0


def _scalar_as_declared(value: Tensor, declared: Type | None) -> Tensor:
    """Return a scalar in the rank that a body declares for this input."""
    shape = declared.shape if isinstance(declared, TensorType) else None
    return L.reshape(value, (1,) * len(shape or ()))


def _convert_optional(value: Value, declared: Type | None) -> Value:
    """Wrap a carried value in an optional, or unwrap it, to match its declared type."""
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
        raise InvalidModelError(f"a body with {body.output_count} outputs does not fit {len(state)} carried values.")
    axes, backward = _fill(scan_input_axes, len(scanned)), _fill(scan_input_directions, len(scanned))
    rows = [_move_to_front(x, axis) for x, axis in zip(scanned, axes, strict=True)]
    final, collected = _scan(state, rows, backward, L.size_tensor([rows[0].shape[0]], ()), body)
    axes, backward = _fill(scan_output_axes, outputs), _fill(scan_output_directions, outputs)
    stacked = [
        _move_from_front(L.reverse(y, [0] if back else []), axis)
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
    """Scan with a batch axis first and a sequence axis second in every input (the first version)."""
    state, scanned = _split(inputs, num_scan_inputs)
    backward = _fill(directions, len(scanned))
    batch, longest = scanned[0].shape[:2]

    def image(i: Tensor) -> tuple[None, list[Value], list[Value]]:
        count = L.size_tensor([longest], ()) if lengths is None else L.take(lengths, i, 0)
        initial, rows = ([L.take(x, i, 0) for x in tensors] for tensors in (state, scanned))
        final, collected = _scan(initial, rows, backward, count, body)
        # The standard leaves the elements after the end of a shorter sequence undefined: zeros here.
        padded = [L.pad(y, (0,) * y.rank, (longest - y.shape[0], *(0,) * (y.rank - 1))) for y in collected]
        return None, [], [*final, *padded]

    return L.loop(L.size_tensor([batch], ()), None, [], image)[1]


def _split(inputs: Sequence[Tensor], scanned: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    if not 0 < scanned <= len(inputs):
        raise InvalidModelError(f"expected 1 to {len(inputs)} scanned inputs, got {scanned}.")
    return inputs[: len(inputs) - scanned], inputs[len(inputs) - scanned :]


def _fill(values: Sequence[int], count: int) -> Sequence[int]:
    """Return one number for each input or output, 0 by default."""
    if values and len(values) != count:
        raise InvalidModelError(f"expected one axis or direction for each of {count} values, got {len(values)}.")
    return values or (0,) * count


def _scan(
    state: Sequence[Tensor], rows: Sequence[Tensor], backward: Sequence[int], count: Tensor, body: Body
) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    for other in rows:
        if equal(other.shape[0], rows[0].shape[0]) is False:
            raise ShapeError(f"expected scanned sequences of one length, got {rows[0].shape[0]} and {other.shape[0]}.")
    rows = [rows[0], *(L.of_size(x, 0, rows[0].shape[0], "a scanned sequence") for x in rows[1:])]

    def iterate(i: Tensor, *carried: Tensor) -> tuple[None, Sequence[Value], Sequence[Value]]:
        items = [L.take(x, count - 1 - i if back else i, 0) for x, back in zip(rows, backward, strict=True)]
        results = body(*carried, *items)
        return None, results[: len(state)], results[len(state) :]

    return L.loop(count, None, state, iterate)


def _move_to_front(x: Tensor, axis: int) -> Tensor:
    at = L.normalized_axis(axis, x.rank)
    return L.permute(x, [at, *(a for a in range(x.rank) if a != at)])


def _move_from_front(x: Tensor, axis: int) -> Tensor:
    at = L.normalized_axis(axis, x.rank)
    order = list(range(1, x.rank))
    order.insert(at, 0)
    return L.permute(x, order)
