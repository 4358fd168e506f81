"""Recurrent layers as ONNX LSTM and RNN.

A state tensor of the file is zero at the first call of an interpreter; the model begins every call with zeros.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.convert.tflite.operators.movement import axes_constant
from sardonyx.convert.tflite.translation import Call, tflite

_ACTIVATIONS = {0: "Affine", 1: "Relu", 4: "Tanh"}
"""ONNX names of fused activations; Affine with its defaults is the identity."""

_GATES = (0, 3, 1, 2)
"""Order of ONNX (input, output, forget, cell) in the file's order (input, forget, cell, output)."""


def _joined(c: Call, start: int, rank: int) -> ir.Value | None:
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


@tflite("UNIDIRECTIONAL_SEQUENCE_LSTM")
def sequence_lstm(c: Call) -> ir.Value:
    """Translate an LSTM over a sequence [batch, time, features], or [time, batch, features] if time-major."""
    if c.has(16) or any(c.has(number) for number in range(20, 24)):
        raise c.unsupported("an LSTM with projection or layer normalization")
    if float(c.option("cell_clip")) or float(c.option("proj_clip")):
        raise c.unsupported("an LSTM that clips its state")
    w, r, b = _joined(c, 1, 2), _joined(c, 5, 2), _joined(c, 12, 1)
    hidden = c.sizes(8)[0]
    if b is not None:
        b = c.node("Concat", b, c.constant(np.zeros((1, 4 * hidden), np.float32)), axis=1)
    peephole = None
    if c.has(10):
        first = c.optional(9) or c.node("Neg", c.input(10))
        joined = c.node("Concat", first, c.input(11), c.input(10), axis=0)
        peephole = c.node("Unsqueeze", joined, axes_constant(c, [0]))
    function = int(c.option("fused_activation_function", 4))
    if function not in _ACTIVATIONS:
        raise c.unsupported(f"fused activation {function} of an LSTM")
    name = _ACTIVATIONS[function]
    sequence = c.input(0)
    if not c.option("time_major"):
        sequence = c.node("Transpose", sequence, perm=[1, 0, 2])
    result = c.node(
        "LSTM", sequence, w, r, b, None, None, None, peephole, hidden_size=hidden, activations=["Sigmoid", name, name]
    )
    result = c.node("Squeeze", result, axes_constant(c, [1]))
    return result if c.option("time_major") else c.node("Transpose", result, perm=[1, 0, 2])


@tflite("UNIDIRECTIONAL_SEQUENCE_RNN")
def sequence_rnn(c: Call) -> ir.Value:
    """Translate a plain recurrent layer: sequence, weights, recurrent weights, bias, state."""
    function = int(c.option("fused_activation_function"))
    if function not in _ACTIVATIONS:
        raise c.unsupported(f"fused activation {function} of a recurrent layer")
    hidden = c.sizes(2)[0]
    w, r, b = (c.node("Unsqueeze", c.input(i), axes_constant(c, [0])) for i in (1, 2, 3))
    b = c.node("Concat", b, c.constant(np.zeros((1, hidden), np.float32)), axis=1)
    sequence = c.input(0)
    if not c.option("time_major"):
        sequence = c.node("Transpose", sequence, perm=[1, 0, 2])
    result = c.node("RNN", sequence, w, r, b, hidden_size=hidden, activations=[_ACTIVATIONS[function]])
    result = c.node("Squeeze", result, axes_constant(c, [1]))
    return result if c.option("time_major") else c.node("Transpose", result, perm=[1, 0, 2])
