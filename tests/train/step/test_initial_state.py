"""The state before the first step."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from sardonyx.model import load
from sardonyx.train import AdamW, Trainer
from sardonyx.train.step.initial_state import initial_state
from tests.base.resident_memory import resident
from tests.train.networks import classifier


def test_initial_state_copies_no_weights() -> None:
    model = load(classifier())
    plan = Trainer(model, "cross-entropy", AdamW()).plan
    arrays = initial_state(plan, model)
    assert [array.shape for array in arrays] == [one.type.shape for one in plan.state]
    for one, array in zip(plan.state, arrays, strict=True):
        kind, _, name = one.name.partition(":")
        if kind == "parameter":
            assert np.shares_memory(array, model.graph.initializers[name].const_value.numpy()), name
        else:
            assert set(array.strides) == {0}, one.name
            assert array.flat[0] == one.initial


@pytest.mark.skipif(sys.platform != "linux", reason="counts resident pages by /proc")
def test_weights_of_the_file_leave_memory_once_they_are_state(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    w = np.zeros((512, 2048), np.float32)
    w[:] = np.linspace(-1, 1, w.size).reshape(w.shape)
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[N, 512] x) => (float[N, 2048] y) { y = MatMul(x, w) }'
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    onnx.save(model, path)
    trainer = Trainer(path, "mse", AdamW())
    assert resident(path) < w.nbytes / 4
    np.testing.assert_array_equal(trainer.state()["parameter:w"], w)
