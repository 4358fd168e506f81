"""Recurrent layers as ONNX LSTM and RNN, or step by step where these have no form for the layer.

A state tensor of the file is zero at the first call of an interpreter; the model begins every call with zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.convert.tflite.operators.movement import axes_constant
from sardonyx.convert.tflite.translation import Call, Scope, tflite

_ACTIVATIONS = {0: "Affine", 1: "Relu", 4: "Tanh"}
"""ONNX names of fused activations; Affine with its defaults is the identity."""

_GATES = (0, 3, 1, 2)
"""Order of ONNX (input, output, forget, cell) in the file's order (input, forget, cell, output)."""

_EPSILON = 1e-8
"""Summand of the variance of a normalized gate."""

_PARAMETERS = 17
"""Number of inputs with parameters of one direction of an LSTM, in the order of the unidirectional operator."""


def _joined(c: Call, start: int) -> ir.Value | None:
    """Return the four gates' parameters from input `start` on as one tensor; None if all are absent.

    A layer without an input gate couples it to the forget gate: 1 - sigmoid(z) is sigmoid(-z).
    """
    gates = [c.optional(start + gate) for gate in _GATES]
    if all(gate is None for gate in gates):
        return None
    if gates[0] is None:
        gates[0] = c.node("Neg", gates[2])
    if any(gate is None for gate in gates):
        raise c.invalid(f"inputs {start} to {start + 3}: expected all gates but the input gate")
    return c.node("Unsqueeze", c.node("Concat", *gates, axis=0), axes_constant(c, [0]))


def _activation(c: Call, default: int = 0) -> str:
    function = int(c.option("fused_activation_function", default))
    if function not in _ACTIVATIONS:
        raise c.unsupported(f"fused activation {function} of a recurrent layer")
    return _ACTIVATIONS[function]


def _time_major(c: Call, value: ir.Value, is_time_major: bool) -> ir.Value:
    """Return a sequence with exchanged first axes unless the file's sequences are time-major."""
    return value if is_time_major else c.node("Transpose", value, perm=[1, 0, 2])


def _lstm(c: Call, sequence: ir.Value, start: int, norms: Sequence[int], *, is_backward: bool) -> ir.Value:
    """Return the outputs [time, batch, units] of an LSTM whose parameters are the inputs from `start` on."""
    is_plain = not c.has(start + 15) and not norms
    if not is_plain or float(c.option("cell_clip")) or float(c.option("proj_clip")):
        return _stepwise(c, sequence, start, norms, is_backward=is_backward)
    w, r, b = _joined(c, start), _joined(c, start + 4), _joined(c, start + 11)
    hidden = c.sizes(start + 7)[0]
    if b is not None:
        b = c.node("Concat", b, c.constant(np.zeros((1, 4 * hidden), np.float32)), axis=1)
    peephole = None
    if c.has(start + 9):
        first = c.optional(start + 8) or c.node("Neg", c.input(start + 9))
        joined = c.node("Concat", first, c.input(start + 10), c.input(start + 9), axis=0)
        peephole = c.node("Unsqueeze", joined, axes_constant(c, [0]))
    name = _activation(c, 4)
    result = c.node(
        "LSTM",
        sequence,
        w,
        r,
        b,
        None,
        None,
        None,
        peephole,
        hidden_size=hidden,
        activations=["Sigmoid", name, name],
        direction="reverse" if is_backward else None,
    )
    return c.node("Squeeze", result, axes_constant(c, [1]))


class _Step:
    """One step of an LSTM with projection, normalized gates or limits, as the body of a Scan.

    Args:
        c: The operator.
        scope: The body.
        start: The first input with parameters.
        norms: Inputs with the coefficients of normalized gates; none without normalization.
    """

    def __init__(self, c: Call, scope: Scope, start: int, norms: Sequence[int]) -> None:
        self._c, self._scope, self._start, self._norms = c, scope, start, norms

    def gate(self, number: int, x: ir.Value, h: ir.Value, cell: ir.Value) -> ir.Value:
        """Return gate `number` before its activation."""
        c, node, start = self._c, self._scope.node, self._start
        sums = [
            node("MatMul", x, self._transposed(start + number)),
            node("MatMul", h, self._transposed(start + 4 + number)),
        ]
        if number != 2 and c.has(peephole := start + 8 + (0, 1, 2, 2)[number]):
            sums.append(node("Mul", cell, c.input(peephole)))
        total = sums[0]
        for summand in sums[1:]:
            total = node("Add", total, summand)
        if self._norms:
            total = self._normalized(total, self._norms[number])
        return node("Add", total, c.input(start + 11 + number)) if c.has(start + 11 + number) else total

    def _normalized(self, value: ir.Value, coefficients: int) -> ir.Value:
        node, last = self._scope.node, axes_constant(self._c, [-1])
        centered = node("Sub", value, node("ReduceMean", value, last, keepdims=1))
        variance = node("ReduceMean", node("Mul", centered, centered), last, keepdims=1)
        deviation = node("Sqrt", node("Add", variance, self._c.constant(_EPSILON, np.float32)))
        return node("Mul", node("Div", centered, deviation), self._c.input(coefficients))

    def _transposed(self, number: int) -> ir.Value:
        # Outside of the body, once.
        return self._c.node("Transpose", self._c.input(number), perm=[1, 0])

    def clipped(self, value: ir.Value, limit: float) -> ir.Value:
        """Return a value within limits; 0 is none."""
        if not limit:
            return value
        low, high = (self._c.constant(n, np.float32) for n in (-limit, limit))
        return self._scope.node("Clip", value, low, high)

    def states(self, x: ir.Value, h: ir.Value, cell: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Return the output and the cell's state after the step."""
        c, node, start = self._c, self._scope.node, self._start
        name = _activation(c, 4)

        def active(value: ir.Value) -> ir.Value:
            return value if name == "Affine" else node(name, value)

        forget = node("Sigmoid", self.gate(1, x, h, cell))
        if c.has(start):
            write = node("Sigmoid", self.gate(0, x, h, cell))
        else:
            write = node("Sub", c.constant(1, np.float32), forget)
        update = active(self.gate(2, x, h, cell))
        cell = node("Add", node("Mul", forget, cell), node("Mul", write, update))
        cell = self.clipped(cell, float(c.option("cell_clip")))
        h = node("Mul", node("Sigmoid", self.gate(3, x, h, cell)), active(cell))
        if c.has(start + 15):
            h = node("MatMul", h, self._transposed(start + 15))
            h = node("Add", h, c.input(start + 16)) if c.has(start + 16) else h
            h = self.clipped(h, float(c.option("proj_clip")))
        return h, cell


def _stepwise(c: Call, sequence: ir.Value, start: int, norms: Sequence[int], *, is_backward: bool) -> ir.Value:
    """Return the outputs of an LSTM as a loop over its steps."""
    translation = c.scope.translation
    scope = Scope(translation, c.scope.record, {})
    units = c.sizes(start + 7)[0]
    outputs = c.sizes(start + 15)[0] if c.has(start + 15) else units
    float_type = ir.TensorType(ir.DataType.FLOAT)
    h, cell, x = (ir.Value(name=translation.names.fresh(name), type=float_type) for name in ("output", "cell", "step"))
    after, state = _Step(c, scope, start, norms).states(x, h, cell)
    results = [scope.node("Identity", value) for value in (after, state, after)]
    batch = c.node("Shape", sequence, start=1, end=2)
    zero = ir.tensor(np.zeros(1, np.float32))
    begins = [
        c.node("ConstantOfShape", c.node("Concat", batch, axes_constant(c, [size]), axis=0), value=zero)
        for size in (outputs, units)
    ]
    directions = [int(is_backward)]
    return c.nodes(
        "Scan",
        3,
        *begins,
        sequence,
        body=scope.graph([h, cell, x], results, "step"),
        num_scan_inputs=1,
        scan_input_directions=directions,
        scan_output_directions=directions,
    )[2]


@tflite("UNIDIRECTIONAL_SEQUENCE_LSTM")
def sequence_lstm(c: Call) -> ir.Value:
    """Translate an LSTM over a sequence [batch, time, features], or [time, batch, features] if time-major."""
    is_time_major = bool(c.option("time_major"))
    norms = range(20, 24) if c.has(21) else ()
    result = _lstm(c, _time_major(c, c.input(0), is_time_major), 1, norms, is_backward=False)
    return _time_major(c, result, is_time_major)


@tflite("BIDIRECTIONAL_SEQUENCE_LSTM")
def bidirectional_lstm(c: Call) -> list[ir.Value]:
    """Translate two LSTMs over a sequence, one from its end."""
    if c.has(39):
        raise c.unsupported("a bidirectional LSTM with an auxiliary input")
    is_time_major = bool(c.option("time_major", True))
    sequence = _time_major(c, c.input(0), is_time_major)
    passes = [_lstm(c, sequence, 1, (), is_backward=False), _lstm(c, sequence, 1 + _PARAMETERS, (), is_backward=True)]
    return _both(c, passes, is_time_major)


def _both(c: Call, passes: Sequence[ir.Value], is_time_major: bool) -> list[ir.Value]:
    """Return the results of two directions, joined along the last axis if the options say so."""
    results = [_time_major(c, value, is_time_major) for value in passes]
    return [c.node("Concat", *results, axis=-1)] if c.option("merge_outputs") else results


def _rnn(c: Call, sequence: ir.Value, start: int, *, is_backward: bool) -> ir.Value:
    """Return the outputs [time, batch, units] of a plain recurrent layer: weights, recurrent weights, bias."""
    hidden = c.sizes(start + 1)[0]
    w, r, b = (c.node("Unsqueeze", c.input(start + i), axes_constant(c, [0])) for i in range(3))
    b = c.node("Concat", b, c.constant(np.zeros((1, hidden), np.float32)), axis=1)
    direction = "reverse" if is_backward else None
    result = c.node("RNN", sequence, w, r, b, hidden_size=hidden, activations=[_activation(c)], direction=direction)
    return c.node("Squeeze", result, axes_constant(c, [1]))


@tflite("UNIDIRECTIONAL_SEQUENCE_RNN")
def sequence_rnn(c: Call) -> ir.Value:
    """Translate a plain recurrent layer over a sequence."""
    is_time_major = bool(c.option("time_major"))
    result = _rnn(c, _time_major(c, c.input(0), is_time_major), 1, is_backward=False)
    return _time_major(c, result, is_time_major)


@tflite("BIDIRECTIONAL_SEQUENCE_RNN")
def bidirectional_rnn(c: Call) -> list[ir.Value]:
    """Translate two plain recurrent layers over a sequence, one from its end."""
    if c.has(9):
        raise c.unsupported("a bidirectional recurrent layer with an auxiliary input")
    is_time_major = bool(c.option("time_major"))
    sequence = _time_major(c, c.input(0), is_time_major)
    passes = [_rnn(c, sequence, 1, is_backward=False), _rnn(c, sequence, 5, is_backward=True)]
    return _both(c, passes, is_time_major)


@tflite("RNN")
def rnn_step(c: Call) -> ir.Value:
    """Translate one step of a plain recurrent layer from a state of zeros: the recurrent weights have no part."""
    return c.activated(c.node("Gemm", c.input(0), c.input(1), c.input(3), transB=1))


@tflite("SVDF")
def svdf(c: Call) -> ir.Value:
    """Translate filters of rank 1 over features and time, from a memory of zeros: the newest column alone counts."""
    rank = int(c.option("rank", 1))
    features = c.node("Gemm", c.input(0), c.input(1), transB=1)
    newest = c.node("Slice", c.input(2), *(axes_constant(c, [n]) for n in (-1, np.iinfo(np.int64).max, 1)))
    weighted = c.node("Mul", features, c.node("Reshape", newest, axes_constant(c, [-1])))
    grouped = c.node("Reshape", weighted, axes_constant(c, [0, -1, rank]))
    total = c.node("ReduceSum", grouped, axes_constant(c, [-1]), keepdims=0)
    return c.activated(c.node("Add", total, c.input(3)) if c.has(3) else total)


@tflite("LSTM")
def lstm_step(c: Call) -> list[ir.Value]:
    """Translate one step of an LSTM: the state is an input, or zeros."""
    if int(c.option("kernel_type")) == 0:
        norms = range(20, 24) if c.has(21) else ()
        return [_Step(c, c.scope, 1, norms).states(c.input(0), c.input(18), c.input(19))[0]]
    joined = c.node("Concat", c.input(0), c.input(1), axis=1)
    sums = c.node("Gemm", joined, c.input(2), c.input(3), transB=1)
    write, update, forget, show = c.nodes("Split", 4, sums, axis=1, num_outputs=4)
    kept_part = c.node("Mul", c.node("Sigmoid", forget), c.input(4))
    cell = c.node("Add", kept_part, c.node("Mul", c.node("Sigmoid", write), c.node("Tanh", update)))
    h = c.node("Mul", c.node("Sigmoid", show), c.node("Tanh", cell))
    return [h, cell, joined, sums]
