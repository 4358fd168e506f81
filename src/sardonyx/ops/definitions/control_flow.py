"""Control flow: ``If``, ``Loop``, ``Scan``.

Source: ONNX Operators, *If*, *Loop*, *Scan*. Bodies see the values around them.
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.core import language as L
from sardonyx.core.graph import Value
from sardonyx.core.language import Tensor
from sardonyx.ops.graph import Body
from sardonyx.ops.registry import operator


@operator("If", since=1)
def if_(condition: Tensor, *, then_branch: Body, else_branch: Body) -> tuple[Value, ...]:
    return L.cond(L.reshape(condition, ()), then_branch, else_branch)


@operator("Loop", since=1)
def loop(count: Tensor | None = None, condition: Tensor | None = None, *state: Value, body: Body) -> tuple[Value, ...]:
    def once(i: Tensor, *carried: Value) -> tuple[Tensor | None, list[Value], list[Value]]:
        going, *rest = body(i, L.constant(True), *carried)
        # Without a condition to begin with, that of the body does not count.
        again = None if condition is None else L.reshape(going, ())  # type: ignore[arg-type]
        return again, rest[: len(state)], rest[len(state) :]

    most = None if count is None else L.reshape(count, ())
    going = None if condition is None else L.reshape(condition, ())
    final, collected = L.loop(most, going, state, once)
    return *final, *collected


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
    state, scanned = inputs[: len(inputs) - num_scan_inputs], inputs[len(inputs) - num_scan_inputs :]
    axes = scan_input_axes or (0,) * num_scan_inputs
    backward = scan_input_directions or (0,) * num_scan_inputs
    rows = [
        L.reverse(_first(x, axis), [0] if back else []) for x, axis, back in zip(scanned, axes, backward, strict=True)
    ]

    def once(i: Tensor, *carried: Value) -> tuple[None, Sequence[Value], Sequence[Value]]:
        found = body(*carried, *(L.take(x, i, 0) for x in rows))
        return None, found[: len(state)], found[len(state) :]

    count = L.size_tensor([rows[0].shape[0]], ())
    final, collected = L.loop(count, None, state, once)
    axes = scan_output_axes or (0,) * len(collected)
    backward = scan_output_directions or (0,) * len(collected)
    stacked = [
        _last_to(L.reverse(y, [0] if back else []), axis)
        for y, axis, back in zip(collected, axes, backward, strict=True)
    ]
    return *final, *stacked


def _first(x: Tensor, axis: int) -> Tensor:
    at = L.normalized_axis(axis, x.rank)
    return L.permute(x, [at, *(a for a in range(x.rank) if a != at)])


def _last_to(x: Tensor, axis: int) -> Tensor:
    at = L.normalized_axis(axis, x.rank)
    order = list(range(1, x.rank))
    order.insert(at, 0)
    return L.permute(x, order)


@operator("Scan", since=8)
def scan_batched(
    lengths: Tensor | None, *inputs: Tensor, body: Body, num_scan_inputs: int, directions: Sequence[int] = ()
) -> tuple[Value, ...]:
    """The first version: every input has a batch axis first, and a sequence axis second."""
    if lengths is not None:
        inputs = _cut(lengths, inputs, num_scan_inputs)
    batch = inputs[0].shape[0]
    results: list[list[Value]] = []
    for image in range(int(L.static(L.size_tensor([batch]), "the batch of Scan")[0])):
        rows = [L.take(x, L.constant(image, L.t.INT64), 0) for x in inputs]
        results.append(list(scan(*rows, body=body, num_scan_inputs=num_scan_inputs, scan_input_directions=directions)))
    return tuple(L.stack(each) for each in zip(*results, strict=True))


def _cut(lengths: Tensor, inputs: Sequence[Tensor], scanned: int) -> tuple[Tensor, ...]:
    longest = max(L.static(lengths, "the sequence lengths of Scan"), default=0)
    kept = inputs[: len(inputs) - scanned]
    return *kept, *(L.slice_(x, 1, 0, longest) for x in inputs[len(inputs) - scanned :])
