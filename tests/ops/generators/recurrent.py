"""Cases of recurrent layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ops.generators.draw import Case, Draw
from tests.ops.generators.table import draws

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_ACTIVATIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}


@draws("RNN", "GRU", "LSTM")
def layer(draw: Draw, name: str) -> Case:
    steps, batch, inputs, hidden = (draw.integer(1, 3) for _ in range(4))
    direction = draw.pick("forward", "reverse", "bidirectional")
    directions, gates = 2 if direction == "bidirectional" else 1, _GATES[name]

    def optional(*shape: int) -> Any:
        return draw.maybe(lambda: draw.array(shape, special=False))

    lengths = draw.maybe(lambda: draw.numbers.integers(1, steps + 1, batch).astype(np.int32), 0.3)
    parameters = [
        draw.array((steps, batch, inputs), special=False),
        draw.array((directions, gates * hidden, inputs), special=False),
        draw.array((directions, gates * hidden, hidden), special=False),
        optional(directions, 2 * gates * hidden), lengths, optional(directions, batch, hidden),
    ]  # fmt: skip
    if name == "LSTM":
        parameters += [optional(directions, batch, hidden), optional(directions, 3 * hidden)]
    options: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    options |= draw.options(linear_before_reset=draw.integer(0, 1)) if name == "GRU" else {}
    options |= draw.options(input_forget=draw.integer(0, 1)) if name == "LSTM" else {}
    if draw.chance(0.2):
        names = [draw.pick("Tanh", "Sigmoid", "Relu") for _ in range(_ACTIVATIONS[name] * directions)]
        options["activations"] = names
    if draw.chance(0.1):
        options["clip"] = 0.5
    return Case(name, 14, parameters, options, draw.pick(2, 3) if name == "LSTM" else 2)
