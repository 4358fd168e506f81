"""Recurrent layers: traced results equal eager ones and ONNX Runtime's."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from sardonyx.errors import ExecutionError, InvalidModelError, ShapeError
from tests.ops.agreement import assert_equal, eager, model_of, traced

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
S, B, INPUTS, H = 5, 3, 4, 2
LENGTHS = np.array([5, 2, 3], np.int32)


def layer(op: str, directions: int, *, states: bool, lengths: np.ndarray | None) -> list[np.ndarray | None]:
    rng = np.random.default_rng(7)
    g = GATES[op]

    def draw(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    arrays: list[np.ndarray | None] = [draw(S, B, INPUTS), draw(directions, g * H, INPUTS), draw(directions, g * H, H)]
    arrays += [draw(directions, 2 * g * H), lengths, draw(directions, B, H) if states else None]
    if op == "LSTM":
        arrays += [draw(directions, B, H) if states else None, draw(directions, 3 * H)]
    return arrays


CASES = [
    ("RNN", "forward", True, None, {}),
    (
        "RNN",
        "reverse",
        False,
        LENGTHS,
        {"activations": ["Affine"], "activation_alpha": [0.3], "activation_beta": [0.1]},
    ),
    ("RNN", "bidirectional", True, LENGTHS, {"activations": ["Elu", "HardSigmoid"], "activation_alpha": [0.9, 0.3]}),
    ("GRU", "forward", False, LENGTHS, {"linear_before_reset": 1}),
    ("GRU", "reverse", True, None, {"activations": ["Softsign", "LeakyRelu"], "activation_alpha": [0.2]}),
    ("GRU", "bidirectional", True, LENGTHS, {"linear_before_reset": 0}),
    ("LSTM", "forward", True, LENGTHS, {}),
    ("LSTM", "reverse", False, None, {"input_forget": 1}),
    ("LSTM", "bidirectional", True, LENGTHS, {}),
]


@pytest.mark.parametrize(("op", "direction", "states", "lengths", "attributes"), CASES)
def test_equals_onnx_runtime_eagerly_and_traced(
    op: str, direction: str, states: bool, lengths: np.ndarray | None, attributes: dict[str, Any]
) -> None:
    directions = 2 if direction == "bidirectional" else 1
    arrays = layer(op, directions, states=states, lengths=lengths)
    options = {**attributes, "direction": direction, "hidden_size": H, "opset": 14, "outputs": 3 if op == "LSTM" else 2}
    actual = eager(op, arrays, **options)
    g = GATES[op]
    state = f"{directions} B {H}"
    shapes = ["S B 4", f"{directions} {g * H} 4", f"{directions} {g * H} {H}", f"{directions} {2 * g * H}", "B",
              state, state, f"{directions} {3 * H}"]  # fmt: skip
    assert_equal(traced(op, arrays, shapes[: len(arrays)], **options), actual)
    session = ort.InferenceSession(
        model_of(op, arrays, **options).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    expected = session.run(None, {f"i{i}": a for i, a in enumerate(arrays) if a is not None})
    assert_equal(actual, expected, 1e-4, 1e-6)


@pytest.mark.parametrize("op", GATES)
def test_batch_first_swaps_axes(op: str) -> None:
    arrays = layer(op, 2, states=True, lengths=LENGTHS)
    outputs = 3 if op == "LSTM" else 2
    y, *states = eager(op, arrays, outputs=outputs, direction="bidirectional")
    exchanged = [a.swapaxes(0, 1) if i in (0, 5, 6) and a is not None else a for i, a in enumerate(arrays)]
    y_batch, *states_batch = eager(op, exchanged, outputs=outputs, direction="bidirectional", layout=1)
    assert_equal([y_batch, *states_batch], [y.transpose(2, 0, 1, 3), *(s.swapaxes(0, 1) for s in states)])


def test_outputs_after_a_sequence_are_zero_and_its_state_is_final() -> None:
    x, w, r, b, _, h = layer("GRU", 1, states=True, lengths=None)
    y, last = eager("GRU", [x, w, r, b, np.array([2, 0, 5], np.int32), h], outputs=2)
    assert not y[2:, :, 0].any()
    np.testing.assert_array_equal(last[0, 0], y[1, 0, 0])
    assert h is not None
    np.testing.assert_array_equal(last[0, 1], h[0, 1])


def test_no_steps_return_the_initial_state() -> None:
    x, w, r, b, _, h, c, p = layer("LSTM", 1, states=True, lengths=None)
    assert x is not None and h is not None and c is not None
    y, last_h, last_c = eager("LSTM", [x[:0], w, r, b, None, h, c, p], outputs=3)
    assert_equal([y, last_h, last_c], [np.empty((0, 1, B, H), np.float32), h, c])


def test_clip_bounds_the_inputs_of_activations() -> None:
    x, w, r = layer("RNN", 1, states=False, lengths=None)[:3]
    (y, _) = eager("RNN", [x, w, r], outputs=2, clip=0.25, activations=["Affine"])
    assert np.abs(y).max() == np.float32(0.25)


@pytest.mark.parametrize(
    ("change", "attributes", "error"),
    [
        ({}, {"direction": "sideways"}, InvalidModelError),
        ({}, {"activations": ["Cosine"]}, InvalidModelError),
        ({}, {"activations": ["ScaledTanh"]}, InvalidModelError),
        ({}, {"hidden_size": 3}, ShapeError),
        ({}, {"direction": "bidirectional"}, ShapeError),
        ({4: np.array([6, 1, 1], np.int32)}, {}, ExecutionError),
        ({5: np.zeros((1, 1, H), np.float32)}, {}, ShapeError),
        ({3: np.zeros((1, H), np.float32)}, {}, ShapeError),
    ],
)
def test_mismatched_inputs_are_refused(
    change: dict[int, np.ndarray], attributes: dict[str, Any], error: type[Exception]
) -> None:
    arrays = layer("RNN", 1, states=True, lengths=None)
    for position, array in change.items():
        arrays[position] = array
    with pytest.raises(error):
        eager("RNN", arrays, outputs=2, **attributes)


@pytest.mark.parametrize("op", GATES)
def test_all_sizes_may_be_open(op: str) -> None:
    x, w, r = layer(op, 1, states=False, lengths=None)[:3]
    g = GATES[op]
    actual = eager(op, [x, w, r], outputs=2, hidden_size=H)
    assert_equal(traced(op, [x, w, r], ["S B I", f"D {g}*H I", f"D {g}*H H"], outputs=2), actual)
    assert_equal(traced(op, [x, w, r], ["S B I", "D G I", "D G H"], outputs=2, hidden_size=H), actual)
