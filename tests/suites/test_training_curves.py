"""Training curves of eight networks over a hundred steps are those of torch, from the same weights.

In float64, where rounding stays small, all losses agree closely. In float32 the order of sums may decide the sign of an
input of a ReLU, after which two curves part: torch's own curves depend on the number of its threads. Ours must be one
of torch's, over all steps: one in float32, or the one in float64 that both approximate.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sardonyx import train

torch: Any = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
curves = pytest.importorskip("tests.suites.curves", reason="torch, the oracle, is not installed")

pytestmark = pytest.mark.long

STEPS = 100

LARGEST_DOUBLE = 1e-9
"""Largest relative difference of losses in float64."""

LARGEST_SINGLE = 1e-4
"""Largest relative difference of losses in float32."""

THREADS = (1, 2)
"""Numbers of threads of torch's curves in float32."""


def batches(net: Any, dtype: type) -> Iterator[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]:
    """Yield inputs and labels; numbers in floating point are those of float32 in another type."""
    rng = np.random.default_rng(1)
    for step in range(STEPS):
        inputs = net.inputs(rng, step)
        labels = net.labels(rng, inputs)
        yield tuple(  # type: ignore[misc]
            {name: x.astype(dtype) if x.dtype == np.float32 else x for name, x in part.items()}
            for part in (inputs, labels)
        )


def as_type(net: Any, dtype: type) -> Any:
    """Return a copy of a network whose weights and batches are of a type."""
    module = copy.deepcopy(net.module).to(torch.float64 if dtype is np.float64 else torch.float32)
    return curves.replaced(net, module, lambda x: x.astype(dtype) if x.dtype == np.float32 else x)


def curve_of_torch(net: Any, dtype: type, threads: int = 1) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the losses of torch's steps, and the state after the last one."""
    torch.set_num_threads(threads)
    own = as_type(net, dtype)
    module = own.module.train()
    optimizer, losses = own.twin(module.parameters()), []
    for inputs, labels in batches(net, dtype):
        optimizer.zero_grad()
        outputs = module(*(torch.tensor(array) for array in inputs.values()))
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        loss = own.theirs(*outputs, *(torch.tensor(array) for array in labels.values()))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses), {name: tensor.numpy() for name, tensor in module.state_dict().items()}


def our_curve(net: Any, dtype: type) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the losses of our steps, and parameters and statistics after the last one."""
    trainer = train.Trainer(curves.exported(as_type(net, dtype)), net.loss, net.optimizer)
    assert len(trainer.parameters) >= len(list(net.module.parameters()))
    losses = [trainer.step({**inputs, **labels}) for inputs, labels in batches(net, dtype)]
    state = {
        name.partition(":")[2]: array
        for name, array in trainer.state().items()
        if name.startswith(("parameter:", "statistic:"))
    }
    return np.array(losses), state


def relative(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    return np.asarray(np.abs(ours - theirs) / np.abs(theirs))


def compare(net: Any, name: str) -> None:
    exact, expected = curve_of_torch(net, np.float64)
    ours, state = our_curve(net, np.float64)
    worst = relative(ours, exact).max()
    # Running variances are those of a population in ONNX, and of a sample in torch.
    compared = [key for key in expected if key in state and not key.endswith("running_var")]
    assert compared
    parameters = max(
        float(np.abs(state[key] - expected[key]).max() / max(np.abs(expected[key]).max(), 1e-3))
        for key in compared
        if state[key].shape == expected[key].shape
    )
    single = our_curve(net, np.float32)[0]
    theirs = {f"float32, {threads} threads": curve_of_torch(net, np.float32, threads)[0] for threads in THREADS}
    apart = {form: relative(single, curve).max() for form, curve in ({"float64": exact} | theirs).items()}
    rounding = max(relative(curve, exact).max() for curve in theirs.values())
    print(
        f"{name}: float64 losses within {worst:.1e}, parameters {parameters:.1e}; float32 losses differ from torch's by"
        f" {', '.join(f'{number:.1e} ({form})' for form, number in apart.items())}; torch's own by {rounding:.1e}"
    )
    assert worst <= LARGEST_DOUBLE
    assert parameters <= 1e-4, "in float64"  # Adam moves parameters without gradient by noise.
    assert min(apart.values()) <= LARGEST_SINGLE


@pytest.mark.parametrize("name", curves.NETS)
def test_the_curve_is_that_of_torch(name: str) -> None:
    torch.manual_seed(0)
    compare(curves.NETS[name](), name)


def test_the_curve_of_a_graph_network_on_cora_is_that_of_torch() -> None:
    folder = Path(os.environ.get("SARDONYX_SUITES", "")).parent / "train" / "graph"
    if not (folder / "ind.cora.graph").exists():
        pytest.skip("Cora is not there; SARDONYX_SUITES names the folder of suites")
    torch.manual_seed(0)
    compare(curves.graph(curves.read_cora(folder)), "graph")
