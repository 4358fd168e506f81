"""The state before the first step."""

from __future__ import annotations

import numpy as np

from sardonyx.model import load
from sardonyx.train import AdamW, Trainer
from sardonyx.train.step.initial_state import initial_state
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
