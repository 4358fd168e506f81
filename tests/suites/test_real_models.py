"""Public models on the reference session: trained ones equal their stored outputs, large graphs equal ONNX Runtime.

Trained models are compared as their collection says: 1e-3 of each element, or 1e-4 of the largest. The stored outputs
are ONNX Runtime's, without optimization.
"""

from __future__ import annotations

import functools
import itertools
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from sardonyx.model import load
from sardonyx.ops.evaluation import evaluate_nodes
from sardonyx.rewrite.analysis import inference
from sardonyx.rewrite.verify import inputs
from sardonyx.runtime import Session
from tests.suites.left_out import JUDGED_APART
from tests.suites.real_models import REAL, REAL_FOLDER, SUITES, assert_agrees, needs_suites, stored

ort = pytest.importorskip("onnxruntime", reason="onnxruntime, which these models are compared with, is not installed")

_NETWORKS = Path(SUITES).parent / "models"
_BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

NETWORKS = sorted(path.stem for path in _NETWORKS.glob("*.onnx")) if SUITES else []

SEEDS = (0, 1)
"""Of the inputs drawn for a network, at every choice of its open sizes."""

QUICK = ("lstm", "minilm.dyn", "mlp", "mlp.dyn", "mobilenetv2", "pointnet", "pointnet.dyn", "super_resolution.dyn")
"""Networks that are run by default; ``-m long`` runs all."""


def runtime(model: str | bytes) -> Any:
    """ONNX Runtime without optimization."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", [name for name in REAL if name not in JUDGED_APART])
def test_trained_models_equal_their_stored_outputs(name: str) -> None:
    session = Session(REAL_FOLDER / f"{name}.onnx")
    feeds, expected = stored(name, "in::"), dict(stored(name, "out::"))
    names = [info.name for info in session.get_outputs()]
    untold = [name for name in names if name not in expected]
    if untold:  # Strings and maps are not stored.
        expected |= dict(zip(untold, runtime(str(REAL_FOLDER / f"{name}.onnx")).run(untold, feeds), strict=True))
    for output, actual in zip(names, session.run(None, feeds), strict=True):
        assert_agrees(actual, expected[output], 1e-3, 1e-4)


@needs_suites
def test_all_are_there() -> None:
    assert (len(REAL), len(NETWORKS)) == (26, 26)


# Quantization.


@needs_suites
def test_every_node_of_the_quantized_model_is_right_on_its_own() -> None:
    """On ONNX Runtime's values for what it reads, a node gives ONNX Runtime's, but where a quotient is a tie."""
    path = REAL_FOLDER / "mobilenet_qdq.onnx"
    proto, model = onnx.load(path), load(path)
    outputs = [value for node in model.graph for value in node.outputs]
    declared = {output.name for output in proto.graph.output}
    proto.graph.output.extend(onnx.ValueInfoProto(name=v.name) for v in outputs if v.name not in declared)
    names = [value.name for value in outputs]
    feeds = stored("mobilenet_qdq", "in::")
    values = feeds | dict(zip(names, runtime(proto.SerializeToString()).run(names, feeds), strict=True))

    def known(value: ir.Value) -> np.ndarray | None:
        return values.get(value.name) if value.const_value is None else value.const_value.numpy()

    borders = 0
    for node in model.graph:
        for value, actual in evaluate_nodes([node], node.outputs, known, model.graph.opset_imports).items():
            expected = values[value.name]
            if node.op_type == "QuantizeLinear":
                borders += on_a_border(node, known, actual, expected)
            else:
                assert_agrees(actual, expected, 1e-4, 1e-5)
    assert borders <= 3


def on_a_border(node: ir.Node, known: Any, actual: np.ndarray, expected: np.ndarray) -> int:
    """How many elements differ, all of which lie on the border of two steps."""
    differ = actual != expected
    x, scale = (np.asarray(known(value), np.float64) for value in node.inputs[:2])
    steps = (x / scale)[differ]
    np.testing.assert_allclose(steps - np.floor(steps), 0.5, atol=1e-5)
    assert np.abs(actual.astype(int) - expected)[differ].max(initial=0) <= 1
    return int(differ.sum())


# Ill-conditioned: what float32 cannot say is asked of doubles.


@pytest.mark.long
@needs_suites
def test_the_ill_conditioned_model_is_nearer_to_the_truth_than_its_stored_output() -> None:
    path = REAL_FOLDER / "candy.onnx"
    feeds, (expected,) = stored("candy", "in::"), stored("candy", "out::").values()
    wide = runpy.run_path(str(_BENCHMARKS / "doubles.py"))["in_doubles"](onnx.load(path))
    (truth,) = Session(wide).run(None, {name: array.astype(np.float64) for name, array in feeds.items()})
    (actual,) = Session(path).run(None, feeds)
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    assert np.abs(actual - truth).max() < np.abs(expected - truth).max() < 1e-3 * np.abs(truth).max()
    assert np.abs(actual - truth).mean() < np.abs(expected - truth).mean()


# Networks whose weights are drawn.


@functools.cache
def materialize() -> Any:
    return runpy.run_path(str(_NETWORKS / "materialize.py"))["materialize"]


@pytest.fixture
def network(name: str, tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / f"{name}.onnx"
    materialize()(_NETWORKS / f"{name}.onnx", path)
    yield path
    path.unlink()


def open_sizes(model: ir.Model) -> list[dict[str, int]]:
    """Five choices of the open sizes; small factors where the model declares multiples of them."""
    whole = {str(size) for value in model.graph.inputs for size in value.shape or ()}
    assignments: list[dict[str, int]] = []
    for i in range(5):
        sizes = {}
        for position, (name, is_batch) in enumerate(inputs.open_sizes(model).items()):
            choices = (1, 2, 3, 1, 2) if is_batch else (7, 16, 33, 48, 64) if name in whole else (1, 2, 3, 1, 4)
            sizes[name] = choices[(i + (not is_batch) * position) % 5]
        assignments.append(sizes)
    return assignments if assignments[0] else []


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.long) for n in NETWORKS])
def test_networks_equal_onnx_runtime(name: str, network: Path) -> None:
    model = load(network)
    inference.infer_shapes(model)
    session, peer = Session(network), runtime(str(network))
    names = [info.name for info in session.get_outputs()]
    choices = open_sizes(model)
    assert bool(choices) == name.endswith(".dyn")
    for sizes, seed in itertools.product(choices or [{}], SEEDS):
        feeds = inputs.draw(model, sizes, seed=seed)
        for actual, expected in zip(session.run(names, feeds), peer.run(names, feeds), strict=True):
            assert_agrees(actual, expected, 1e-4, 1e-5)
