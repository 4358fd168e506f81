"""Random recurrent operators with initial states that are, or are not, zeros."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.rewrite.fuzz import GraphMaker, generator, run_many


def initial_state(g: GraphMaker, shape: tuple[int, int, int]) -> str | None:
    """Zeros in some spelling, or nearly."""
    match g.pick(["constant", "fill", "expand", "slice", "concat", "input", "negative", "one", "absent", "transposed"]):
        case "constant":
            return g.const(np.zeros(shape, np.float32))
        case "fill":
            value = onnx.numpy_helper.from_array(np.array([g.pick([0.0, 0.0, -0.0, 1.0])], np.float32))
            return str(g.node("ConstantOfShape", g.ints(*shape), value=g.maybe(value)))
        case "expand":
            return str(g.node("Expand", g.const(np.float32(0)), g.ints(*shape)))
        case "slice":
            whole = g.const(np.zeros((shape[0] + 1, *shape[1:]), np.float32))
            return str(g.node("Slice", whole, g.ints(1), g.ints(9), g.ints(0)))
        case "concat":
            part = g.const(np.full((shape[0], shape[1], 1), g.pick([0.0, 0.0, 2.0]), np.float32))
            rest = g.const(np.zeros((*shape[:2], shape[2] - 1), np.float32))
            return str(g.node("Concat", part, rest, axis=-1))
        case "input":
            return g.input(shape, dynamic=False)
        case "negative":
            return g.const(np.full(shape, -0.0, np.float32))
        case "one":
            array = np.zeros(shape, np.float32)
            array.flat[-1] = 1.0
            return g.const(array)
        case "transposed":
            return str(g.node("Transpose", g.const(np.zeros(shape[::-1], np.float32))))
    return None


@generator("eliminate_zero_initial_state")
def recurrences(g: GraphMaker) -> None:
    g.special = False
    op = g.pick(["LSTM", "GRU", "RNN"])
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    length, batch, width, hidden = g.int(1, 3), g.int(1, 2), g.int(1, 3), g.int(1, 3)
    direction = g.pick([None, "forward", "reverse", "bidirectional"])
    count = 2 if direction == "bidirectional" else 1
    x = g.input((length, batch, width))
    operands: list[str | None] = [
        x,
        g.weight((count, gates * hidden, width)),
        g.weight((count, gates * hidden, hidden)),
        g.weight((count, 2 * gates * hidden)) if g.chance() else None,
        g.const(np.full((batch,), g.int(1, length), np.int32)) if g.chance(0.3) else None,
        initial_state(g, (count, batch, hidden)),
    ]
    if op == "LSTM":
        operands.append(initial_state(g, (count, batch, hidden)))
        if g.chance(0.3):
            operands.append(g.weight((count, 3 * hidden)))
    outputs = g.node(op, *operands, n_outputs=3 if op == "LSTM" else 2, hidden_size=hidden, direction=direction)
    for y in outputs:
        if g.chance(0.7):
            g.output(y)
    g.output(g.node("Neg", outputs[0]))


@pytest.mark.parametrize("label", ["eliminate_zero_initial_state"])
def test_outputs_stay_equal(label: str) -> None:
    run_many(label, 200)
