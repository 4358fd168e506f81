"""Losses of a hundred steps in float32 are within 1e-4 of those of torch, from the same weights."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from sardonyx import train

torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
curves = pytest.importorskip("tests.suites.curves", reason="torch, the oracle, is not installed")

pytestmark = pytest.mark.long

STEPS = 100


def largest_difference(net: object, steps: int) -> tuple[float, float]:
    """Return the largest relative difference of a loss, and of the parameters and statistics after the last step."""
    trainer = train.Trainer(curves.exported(net), net.loss, net.optimizer)  # type: ignore[attr-defined]
    module, rng = net.module.train(), np.random.default_rng(1)  # type: ignore[attr-defined]
    theirs = net.twin(module.parameters())  # type: ignore[attr-defined]
    assert len(trainer.parameters) >= len(list(module.parameters()))
    worst = 0.0
    for step in range(steps):
        inputs = net.inputs(rng, step)  # type: ignore[attr-defined]
        labels = net.labels(rng, inputs)  # type: ignore[attr-defined]
        ours = trainer.step({**inputs, **labels})
        theirs.zero_grad()
        outputs = module(*(torch.tensor(array) for array in inputs.values()))
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        loss = net.theirs(*outputs, *(torch.tensor(array) for array in labels.values()))  # type: ignore[attr-defined]
        loss.backward()
        theirs.step()
        worst = max(worst, abs(ours - loss.item()) / abs(loss.item()))
    state = {
        name.partition(":")[2]: array
        for name, array in trainer.state().items()
        if name.startswith(("parameter:", "statistic:"))
    }
    parameters = 0.0
    for name, tensor in module.state_dict().items():
        if name.endswith("running_var"):
            continue  # Running variances are those of a population in ONNX, and of a sample in torch.
        if name in state and state[name].shape == tuple(tensor.shape):
            expected = tensor.numpy()
            parameters = max(
                parameters, float(np.abs(state[name] - expected).max() / max(np.abs(expected).max(), 1e-3))
            )
    return worst, parameters


@pytest.mark.parametrize("name", curves.NETS)
def test_the_curve_is_that_of_torch(name: str) -> None:
    torch.manual_seed(0)
    loss, parameters = largest_difference(curves.NETS[name](), STEPS)
    assert loss <= 1e-4
    assert parameters <= 1e-2  # Adam moves parameters without gradient by noise.


def test_the_curve_of_a_graph_network_on_cora_is_that_of_torch() -> None:
    folder = Path(os.environ.get("SARDONYX_SUITES", "")).parent / "train" / "graph"
    if not (folder / "ind.cora.graph").exists():
        pytest.skip("Cora is not there; SARDONYX_SUITES names the folder of suites")
    torch.manual_seed(0)
    loss, parameters = largest_difference(curves.graph(curves.read_cora(folder)), STEPS)
    assert loss <= 1e-4
    assert parameters <= 1e-2
