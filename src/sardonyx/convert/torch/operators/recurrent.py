"""Recurrent layers: LSTM, GRU and simple ones, with several layers, two directions and projections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from sardonyx.convert.torch.operators.promotion import cast
from sardonyx.convert.torch.operators.registry import aten
from sardonyx.convert.torch.operators.sizes import reshaped, size_of
from sardonyx.core import language as L
from sardonyx.core.dim import Size
from sardonyx.core.eval.tensor import Tensor
from sardonyx.core.ir import types as t
from sardonyx.errors import UnsupportedError
from sardonyx.ops.nodes import node, onnx


def _regated(x: Tensor, order: Sequence[int], size: int) -> Tensor:
    """Return the parts of the first axis, one a gate, in ONNX's order."""
    if len(order) == 1:
        return x
    return L.concat([L.slice_(x, 0, gate * size, (gate + 1) * size) for gate in order], 0)


class _Layers:
    """The layers of one call.

    Args:
        kind: The kind of layer.
        x: The input [T, N, features].
        states: Initial states [layers * directions, N, size].
        params: Weights as torch flattens them.
        biases: If False, the layers have no biases.
        bidirectional: If True, each layer has two directions.
        lengths: Number of steps of each sequence, if they differ.
    """

    def __init__(
        self, kind: _Layer, x: Tensor, states: Sequence[Tensor], params: Sequence[Tensor], biases: bool, layers: int,
        bidirectional: bool, lengths: Tensor | None,
    ) -> None:  # fmt: skip
        self.kind, self.order, self.lengths = kind, kind.order, lengths
        self.directions = 2 if bidirectional else 1
        hidden = params[1].shape[0]
        assert isinstance(hidden, int)
        self.size = hidden // len(kind.order)
        arrays = 4 if biases else 2
        projected = len(params) > layers * self.directions * arrays
        if projected:
            arrays += 1
        self.params = [list(params[i : i + arrays]) for i in range(0, len(params), arrays)]
        self.biases, self.projected = biases, projected
        finals: list[list[Tensor]] = [[] for _ in states]
        for layer in range(layers):
            first = layer * self.directions
            own = [L.slice_(state, 0, first, first + self.directions) for state in states]
            x, last = self._projected_layer(x, layer, own) if projected else self._layer(x, layer, own)
            for parts_of_state, state in zip(finals, last, strict=True):
                parts_of_state.append(state)
        self.output = x
        self.states = [L.concat(parts_of_state, 0) for parts_of_state in finals]

    def _weights(self, layer: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return W, R and B of a layer, directions on the first axis."""
        parts = self.params[layer * self.directions : (layer + 1) * self.directions]
        stack = [[_regated(p, self.order, self.size) for p in part[: 4 if self.biases else 2]] for part in parts]
        w = L.concat([L.unsqueeze(part[0], [0]) for part in stack], 0)
        r = L.concat([L.unsqueeze(part[1], [0]) for part in stack], 0)
        if not self.biases:
            return w, r, None
        return w, r, L.concat([L.unsqueeze(L.concat([part[2], part[3]], 0), [0]) for part in stack], 0)

    def _layer(self, x: Tensor, layer: int, states: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
        w, r, b = self._weights(layer)
        y, *last = node(
            self.kind.operator, x, w, r, b, self.lengths, *states, outputs=1 + len(states), hidden_size=self.size,
            direction="bidirectional" if self.directions == 2 else None, **self.kind.options(self.directions),
        )  # fmt: skip
        steps, _, batch, size = y.shape
        if self.directions == 1:
            return onnx.Squeeze(y, L.constant([1])), last
        joined = onnx.Transpose(y, perm=[0, 2, 1, 3])
        return reshaped(joined, [steps, batch, self.directions * size]), last

    def _projected_layer(self, x: Tensor, layer: int, states: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
        """Return an LSTM layer with projected hidden states: a loop, as ONNX has no such operator."""
        outputs, hidden, cells = [], [], []
        for direction in range(self.directions):
            parts = self.params[layer * self.directions + direction]
            h, c = (L.entry(state, direction) for state in states)
            y, h, c = self._projected(x, parts, h, c, reverse=direction == 1)
            outputs.append(y)
            hidden.append(L.unsqueeze(h, [0]))
            cells.append(L.unsqueeze(c, [0]))
        return L.concat(outputs, -1), (L.concat(hidden, 0), L.concat(cells, 0))

    def _projected(
        self, x: Tensor, parts: Sequence[Tensor], h: Tensor, c: Tensor, reverse: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        if self.lengths is not None:
            raise UnsupportedError("a projected LSTM of packed sequences has no translation.")
        w, r, projection = parts[0], parts[1], parts[-1]
        steps, size = x.shape[0], self.size
        x = L.reverse(x, [0]) if reverse else x
        gates = L.matmul(x, L.permute(w, [1, 0]))
        if self.biases:
            gates = gates + parts[2] + parts[3]

        def step(i: Tensor, h: Any, c: Any) -> Any:
            now = L.squeeze(L.take(gates, L.reshape(i, [1]), 0), [0]) + L.matmul(h, L.permute(r, [1, 0]))
            entry, forget, cell, out = (L.slice_(now, 1, k * size, (k + 1) * size) for k in range(4))
            c = L.sigmoid(forget) * c + L.sigmoid(entry) * L.tanh(cell)
            h = L.matmul(L.sigmoid(out) * L.tanh(c), L.permute(projection, [1, 0]))
            return None, (h, c), (h,)

        (h, c), (y,) = L.loop(L.number(steps), None, (h, c), step)
        return (L.reverse(y, [0]) if reverse else y), h, c


class _Layer(NamedTuple):
    """A kind of recurrent layer.

    Attributes:
        operator: The ONNX operator.
        order: ONNX's order of torch's gates.
        options: Attributes of a node, from the number of directions.
    """

    operator: str
    order: tuple[int, ...]
    options: Callable[[int], dict[str, Any]]


_KINDS = {
    "lstm": _Layer("LSTM", (0, 3, 1, 2), lambda _: {}),
    "gru": _Layer("GRU", (1, 0, 2), lambda _: {"linear_before_reset": 1}),
    "rnn_tanh": _Layer("RNN", (0,), lambda directions: {"activations": ["Tanh"] * directions}),
    "rnn_relu": _Layer("RNN", (0,), lambda directions: {"activations": ["Relu"] * directions}),
}
"""ONNX has the gates input, output, forget, cell, and update, reset, new."""


def _run(
    kind: _Layer, x: Tensor, states: Sequence[Tensor] | Tensor, params: Sequence[Tensor], biases: bool, layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool = False, lengths: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    if train and dropout:
        raise UnsupportedError("dropout between recurrent layers has no translation; call module.eval() before.")
    states = [states] if isinstance(states, Tensor) else list(states)
    x = onnx.Transpose(x, perm=[1, 0, 2]) if batch_first else x
    result = _Layers(kind, x, states, params, biases, int(layers), bidirectional, lengths)
    y = onnx.Transpose(result.output, perm=[1, 0, 2]) if batch_first else result.output
    return y, *result.states


# Packed sequences: rows of all steps, those of one step adjacent, sequences by falling length.


class _Packing(NamedTuple):
    """The steps of a padded tensor that packed rows have.

    Attributes:
        mask: True for the steps [T, N] that sequences have.
        rows: The row of each step [T, N]; any for missing ones.
    """

    mask: Tensor
    rows: Tensor

    def padded(self, rows: Tensor, padding: Any = 0) -> Tensor:
        """Return packed rows as [T, N, ...]."""
        steps = onnx.Gather(rows, self.rows, axis=0)
        mask = L.reshape(self.mask, [*self.mask.shape, *[1] * (steps.rank - 2)])
        return L.where(mask, steps, L.constant(padding, steps.dtype))

    def packed(self, x: Tensor) -> Tensor:
        """Return the steps that sequences have, as rows."""
        count = L.product(x.shape[:2])
        rows = reshaped(x, [count, *x.shape[2:]])
        return onnx.Compress(rows, reshaped(self.mask, [count]), axis=0)  # type: ignore[no-any-return]


def _packing(batch_sizes: Tensor, batch: Size, rows: Size) -> _Packing:
    sizes = L.unsqueeze(batch_sizes, [1])
    number = L.unsqueeze(L.arange(batch), [0])
    begin = L.unsqueeze(L.cumulative("add", batch_sizes, 0) - batch_sizes, [1])
    last = L.number(rows) - 1
    return _Packing(number < sizes, L.minimum(begin + number, last))


def _run_packed(
    kind: _Layer, x: Tensor, batch_sizes: Tensor, states: Sequence[Tensor], params: Sequence[Tensor], biases: bool,
    layers: int, dropout: float, train: bool, bidirectional: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    packing = _packing(batch_sizes, states[0].shape[1], x.shape[0])
    lengths = L.reduce_sum(cast(packing.mask, t.INT32), [0])
    y, *last = _run(
        kind, packing.padded(x), states, params, biases, layers, dropout, train, bidirectional, lengths=lengths
    )
    return packing.packed(y), *last


@aten("sardonyx.pack_padded.default")
def _pack_padded(x: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    x = onnx.Transpose(x, perm=[1, 0, *range(2, x.rank)]) if batch_first else x
    longest = L.one_size(L.reduce_max(lengths), "the longest length")
    x = L.slice_(x, 0, 0, longest)
    mask = L.unsqueeze(L.arange(longest), [1]) < L.unsqueeze(lengths, [0])
    sizes = L.reduce_sum(cast(mask, t.INT64), [1])
    return _Packing(mask, sizes).packed(x), sizes


@aten("sardonyx.pad_packed.default")
def _pad_packed(x: Tensor, batch_sizes: Tensor, batch_first: bool, padding: Any, total: Any) -> tuple[Tensor, Tensor]:
    batch = L.one_size(L.reduce_max(batch_sizes), "the batch")
    packing = _packing(batch_sizes, batch, x.shape[0])
    y = packing.padded(x, padding)
    if not isinstance(total, int) or total > 0:
        more = [0] * y.rank
        y = L.pad(y, more, [size_of(total) - y.shape[0], *more[1:]], L.constant(padding, y.dtype))
    y = onnx.Transpose(y, perm=[1, 0, *range(2, y.rank)]) if batch_first else y
    return y, L.reduce_sum(cast(packing.mask, t.INT64), [0])


for _name, _kind in _KINDS.items():
    aten(f"{_name}.input", f"sardonyx.{_name}.default")(partial(_run, _kind))
    aten(f"sardonyx.{_name}_packed.default")(partial(_run_packed, _kind))
