"""Recurrent layers: ``RNN``, ``GRU``, ``LSTM``.

Source: ONNX Operators, *RNN*, *GRU*, *LSTM*. Cases that the standard leaves open follow ONNX Runtime: a sequence
shorter than the longest has zeros after its end, its last state is the state at its end, and the backward direction
begins there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sardonyx.core import language as L
from sardonyx.core.dim import floor_div
from sardonyx.core.language import Tensor
from sardonyx.errors import ExecutionError, InvalidModelError
from sardonyx.ops.registry import operator

State = Sequence[Tensor]
Cell = Callable[[Tensor, State], State]
"""One step: from gate inputs [batch, gates * hidden] and states to new states, the hidden state first."""


class _Form(NamedTuple):
    """An activation of ``x`` and the defaults of its scaling values (None for a required value)."""

    compute: Callable[..., Tensor]
    defaults: tuple[float | None, ...] = ()


_FORMS: dict[str, _Form] = {
    "relu": _Form(lambda x: L.maximum(x, 0)),
    "tanh": _Form(L.tanh),
    "sigmoid": _Form(L.sigmoid),
    "affine": _Form(lambda x, alpha, beta: alpha * x + beta, (1.0, 0.0)),
    "leakyrelu": _Form(lambda x, alpha: L.where(x < 0, alpha * x, x), (0.01,)),
    "thresholdedrelu": _Form(lambda x, alpha: L.where(x >= alpha, x, 0), (1.0,)),
    "scaledtanh": _Form(lambda x, alpha, beta: alpha * L.tanh(beta * x), (None, None)),
    "hardsigmoid": _Form(lambda x, alpha, beta: L.clip(alpha * x + beta, 0, 1), (0.2, 0.5)),
    "elu": _Form(lambda x, alpha: L.where(x < 0, alpha * (L.exp(L.minimum(x, 0)) - 1), x), (1.0,)),
    "softsign": _Form(lambda x: x / (1 + L.abs_(x))),
    "softplus": _Form(L.softplus),
}


def _activate(form: _Form, scales: Sequence[float], clip: float | None, x: Tensor) -> Tensor:
    return form.compute(x if clip is None else L.clip(x, -clip, clip), *scales)


def activation_functions(
    names: Sequence[str], alpha: Sequence[float], beta: Sequence[float], clip: float | None, count: int
) -> list[Callable[[Tensor], Tensor]]:
    """Return the activations by name; each consumes the next scaling values if it has any.

    Args:
        names: The names.
        alpha: The first scaling values, of the activations that have one.
        beta: The second scaling values.
        clip: The largest magnitude of an input; None for no limit.
        count: The number of activations that the directions of the layer need.

    Raises:
        InvalidModelError: There are fewer activations, or one is unknown or lacks a scaling value.
    """
    if len(names) < count:
        raise InvalidModelError(f"expected {count} names in `activations`, got {len(names)}.")
    functions: list[Callable[[Tensor], Tensor]] = []
    alphas, betas = iter(alpha), iter(beta)
    for name in names:
        form = _FORMS.get(name.lower())
        if form is None:
            raise InvalidModelError(f"unknown activation {name!r}.", remedy=f"Use one of: {', '.join(_FORMS)}.")
        values = [next(scale, default) for scale, default in zip((alphas, betas), form.defaults, strict=False)]
        scales = [scale for scale in values if scale is not None]
        if len(scales) < len(values):
            raise InvalidModelError(f"the activation {name} needs `activation_alpha` and `activation_beta`.")
        functions.append(functools.partial(_activate, form, scales, clip))
    return functions


class Layer:
    """The common part of recurrent layers: weights by direction, and the loop over time steps.

    Args:
        x: [sequence, batch, input], or [batch, sequence, input] by ``layout``.
        w: [directions, gates * hidden, input].
        r: [directions, gates * hidden, hidden].
        b: [directions, 2 * gates * hidden]: of the input, then of the hidden state.
        lengths: Sequence lengths, [batch].
        states: Initial states, each [directions, batch, hidden].
        gates: Number of gates of the cell.
        direction: ``forward``, ``reverse`` or ``bidirectional``.
        layout: 1 for batch first.
        hidden_size: The declared hidden size.
    """

    def __init__(
        self,
        x: Tensor,
        w: Tensor,
        r: Tensor,
        b: Tensor | None,
        lengths: Tensor | None,
        states: Sequence[Tensor | None],
        *,
        gates: int,
        direction: str,
        layout: int,
        hidden_size: int | None,
    ) -> None:
        if direction not in ("forward", "reverse", "bidirectional"):
            raise InvalidModelError(
                f"unknown direction {direction!r}.", remedy="Use 'forward', 'reverse' or 'bidirectional'."
            )
        self.backward = {"forward": (False,), "reverse": (True,)}.get(direction, (False, True))
        for index, v in enumerate((x, *states)):
            if v is not None:
                L.of_rank(v, 3, "an initial state" if index else "X")
        self.gates, self.layout, self.dtype = gates, layout, x.dtype
        w, r, b = L.widened(w), L.widened(r), None if b is None else L.widened(b)
        wide = (None if v is None else L.widened(v) for v in (x, *states))
        x, *initial = (v if v is None or not layout else L.swap_axes(v, 0, 1) for v in wide)  # type: ignore[assignment]
        features = L.of_rank(w, 3, "W").shape[2]
        if isinstance(features, int) and not isinstance(L.of_rank(x, 3, "X").shape[2], int):
            x = L.of_size(x, 2, features, "X")  # The weights keep their size, and are packed once.
        sequence, batch, inputs = L.of_rank(x, 3, "X").shape
        hidden, directions = L.of_rank(r, 3, "R").shape[-1], len(self.backward)
        self.x, self.hidden = x, hidden if hidden_size is None else hidden_size
        self.w = L.of_shape(w, (directions, gates * self.hidden, inputs), "W")
        self.r = L.of_shape(r, (directions, gates * self.hidden, self.hidden), "R")
        self.b = L.full((directions, 2 * gates * self.hidden), 0, x.dtype) if b is None else b
        self.b = L.of_shape(self.b, (directions, 2 * gates * self.hidden), "B")
        self.lengths = None if lengths is None else _within(L.of_shape(lengths, (batch,), "sequence_lens"), sequence)
        zero = L.full((directions, batch, self.hidden), 0, x.dtype)
        self.states = [zero if v is None else L.of_shape(v, zero.shape, "an initial state") for v in initial]

    def recurrence(self, direction: int, first: int = 0, limit: int | None = None) -> Callable[[Tensor], Tensor]:
        """Return the function from the hidden state [batch, hidden] to its contribution to a range of gates."""
        r, b = L.entry(self.r, direction), L.entry(self.b, direction)
        begin, end = first * self.hidden, (self.gates if limit is None else limit) * self.hidden
        after = self.gates * self.hidden
        r, b = L.slice_(r, 0, begin, end), L.slice_(b, 0, after + begin, after + end)
        return lambda h: self.hidden_product(h, r, direction) + b

    def input_product(self, x: Tensor, w: Tensor, direction: int) -> Tensor:
        """Return the contribution of the input to the gates."""
        return L.matmul(x, L.swap_axes(w, 0, 1))

    def hidden_product(self, h: Tensor, r: Tensor, direction: int) -> Tensor:
        """Return the contribution of the hidden state to the gates of ``r``."""
        return L.matmul(h, L.swap_axes(r, 0, 1))

    def run(self, cell: Callable[[int], Cell]) -> tuple[Tensor, ...]:
        """Return the hidden states at every step, and the last states, in the requested layout."""
        results = [self._iterate(d, cell(d)) for d in range(len(self.backward))]
        # The directions are stacked in the result's layout: [sequence, directions, batch, hidden], or batch first.
        axis, parts = (2, [L.swap_axes(y, 0, 1) for y, _ in results]) if self.layout else (1, [y for y, _ in results])
        y = L.cast(L.concat([L.unsqueeze(part, [axis]) for part in parts], axis), self.dtype)
        states = zip(*(states for _, states in results), strict=True)
        last = [L.cast(L.stack(state), self.dtype) for state in states]
        return y, *(L.swap_axes(state, 0, 1) if self.layout else state for state in last)

    def _iterate(self, direction: int, cell: Cell) -> tuple[Tensor, State]:
        w, b = L.entry(self.w, direction), L.entry(self.b, direction)
        x = _reverse(self.x, self.lengths) if self.backward[direction] else self.x
        inputs = self.input_product(x, w, direction) + L.slice_(b, 0, 0, self.gates * self.hidden)

        def step(i: Tensor, *state: Tensor) -> tuple[None, State, State]:
            new = cell(L.take(inputs, i, 0), state)
            if self.lengths is None:
                return None, new, new[:1]
            inside = L.unsqueeze(L.cast(i, self.lengths.dtype) < self.lengths, [-1])
            state_after = [L.where(inside, after, before) for after, before in zip(new, state, strict=True)]
            return None, state_after, [L.where(inside, new[0], 0)]

        count = L.size_tensor([x.shape[0]], ())
        last, (hidden,) = L.loop(count, None, [L.entry(state, direction) for state in self.states], step)
        return (_reverse(hidden, self.lengths) if self.backward[direction] else hidden), last


def _within(lengths: Tensor, longest: L.Size) -> Tensor:
    """Return sequence lengths after checking that these are from 0 to ``longest``."""
    known = L.elements(lengths)
    if known is None or not isinstance(longest, int):
        # Each length is read from 0, 1 … longest: another length is an index out of range.
        return L.gather_nd(L.arange(longest + 1, lengths.dtype), L.unsqueeze(lengths, [-1]), from_end=False)
    for length in known:
        if isinstance(length, int) and not 0 <= length <= longest:
            raise ExecutionError(f"expected sequence lengths from 0 to {longest}, got {length}.")
    return lengths


def _reverse(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Reverse the steps of [sequence, batch, …] within each sequence; steps after its end stay."""
    if lengths is None:
        return L.reverse(x, [0])
    step = L.iota((*x.shape[:2], 1), 0, lengths.dtype)
    ends = L.unsqueeze(lengths, [0, -1])
    return L.gather_elements(x, L.broadcast_to(L.where(step < ends, ends - 1 - step, step), x.shape), 0)


def _split_gates(x: Tensor, count: int) -> list[Tensor]:
    """Split the last axis into parts of equal size."""
    size = floor_div(x.shape[-1], count)
    return [L.slice_(x, -1, i * size, (i + 1) * size) for i in range(count)]


@operator("RNN", since=1)
def rnn(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    activations: Sequence[str] = ("Tanh", "Tanh"),
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    output_sequence: int = 0,
) -> tuple[Tensor, ...]:
    layer = Layer(x, w, r, b, sequence_lens, [initial_h], gates=1, direction=direction, layout=layout,
                  hidden_size=hidden_size)  # fmt: skip
    count = len(layer.backward)
    functions = activation_functions(activations, activation_alpha, activation_beta, clip, count)

    def cell(d: int) -> Cell:
        f, recurrence = functions[d], layer.recurrence(d)
        return lambda xt, state: [f(xt + recurrence(state[0]))]

    return layer.run(cell)


@operator("GRU", since=1)
def gru(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    activations: Sequence[str] = ("Sigmoid", "Tanh") * 2,
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
    output_sequence: int = 0,
) -> tuple[Tensor, ...]:
    layer = Layer(x, w, r, b, sequence_lens, [initial_h], gates=3, direction=direction, layout=layout,
                  hidden_size=hidden_size)  # fmt: skip
    count = 2 * len(layer.backward)
    functions = activation_functions(activations, activation_alpha, activation_beta, clip, count)

    def cell(d: int) -> Cell:
        f, g = functions[2 * d : 2 * d + 2]
        of_gates, of_hidden = layer.recurrence(d, 0, 2), layer.recurrence(d, 2, 3)

        def step(xt: Tensor, state: State) -> State:
            (h,) = state
            xz, xr, xh = _split_gates(xt, 3)
            hz, hr = _split_gates(of_gates(h), 2)
            z, reset = f(xz + hz), f(xr + hr)
            new = g(xh + (reset * of_hidden(h) if linear_before_reset else of_hidden(reset * h)))
            return [(1 - z) * new + z * h]

        return step

    return layer.run(cell)


@operator("LSTM", since=1)
def lstm(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    initial_c: Tensor | None = None,
    p: Tensor | None = None,
    *,
    activations: Sequence[str] = ("Sigmoid", "Tanh", "Tanh") * 2,
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
    output_sequence: int = 0,
) -> tuple[Tensor, ...]:
    layer = Layer(x, w, r, b, sequence_lens, [initial_h, initial_c], gates=4, direction=direction, layout=layout,
                  hidden_size=hidden_size)  # fmt: skip
    count = 3 * len(layer.backward)
    functions = activation_functions(activations, activation_alpha, activation_beta, clip, count)
    return run_lstm(layer, functions, p, input_forget)


def run_lstm(
    layer: Layer, functions: Sequence[Callable[[Tensor], Tensor]], p: Tensor | None, input_forget: int
) -> tuple[Tensor, ...]:
    """Return the results of an LSTM with three activations per direction and optional peepholes."""
    peepholes = None if p is None else L.of_shape(L.widened(p), (len(layer.backward), 3 * layer.hidden), "P")

    def cell(d: int) -> Cell:
        (f, g, h), recurrence = functions[3 * d : 3 * d + 3], layer.recurrence(d)
        pi, po, pf = (None,) * 3 if peepholes is None else _split_gates(L.entry(peepholes, d), 3)

        def step(xt: Tensor, state: State) -> State:
            hidden, c = state
            i, o, forget, new = _split_gates(xt + recurrence(hidden), 4)
            i = f(_add_peephole(i, pi, c))
            forget = 1 - i if input_forget else f(_add_peephole(forget, pf, c))
            c = forget * c + i * g(new)
            return [f(_add_peephole(o, po, c)) * h(c), c]

        return step

    return layer.run(cell)


def _add_peephole(gate: Tensor, weights: Tensor | None, c: Tensor) -> Tensor:
    """Add the peephole term of the cell state to a gate."""
    return gate if weights is None else gate + weights * c
