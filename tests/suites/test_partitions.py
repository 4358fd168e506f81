"""Models shared by providers at random give what one provider gives."""

from __future__ import annotations

import logging
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: test)")
pytest.importorskip("openvino", reason="openvino is not installed (extra: bench)")
onnx_backend_node = pytest.importorskip("onnx.backend.test.case.node")

from sardonyx.errors import SardonyxError  # noqa: E402
from sardonyx.ops.registry import find  # noqa: E402
from sardonyx.runtime import Session  # noqa: E402
from tests.suites.partitions import cut_at_random  # noqa: E402
from tests.suites.test_real_models import _REAL, JUDGED_APART, REAL, assert_agrees, stored  # noqa: E402

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    CASES = {case.name: case for case in onnx_backend_node.collect_testcases(None)}

SEVERAL = sorted(name for name, case in CASES.items() if len(case.model.graph.node) > 1)
SAMPLE = random.Random(0).sample(SEVERAL, 25) + random.Random(1).sample(sorted(CASES), 25)

QUICK_MODELS = ("cnn_mnist_pytorch", "dtln_1", "sklearn_randomforest", "xgb_regressor")

ROUNDED = {"test_dynamicquantizelinear_expanded": "a quotient is a tie, which engines round to either side"}
"""Cases in which providers may differ, with the reason."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """That a provider does not compile a node that it claimed is said in the log, and is no matter here."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def draws(model: Any) -> bool:
    imports = {each.domain: each.version for each in model.opset_import}
    found = [find(node.domain, node.op_type, imports.get(node.domain, 1)) for node in model.graph.node]
    return any(each is not None and each.draws for each in found)


def check(case: Any, seed: int) -> None:
    if draws(case.model) or case.name in ROUNDED:
        return
    reference = Session(case.model, providers=["reference"])
    names = [info.name for info in reference.get_inputs()]
    for inputs, _ in case.data_sets:
        feeds = dict(zip(names, inputs, strict=False))
        try:
            wanted = reference.run(None, feeds)
        except SardonyxError:
            continue  # Left out by the backend suite, which gives the reasons.
        shared = cut_at_random(case.model, seed)
        half = any(getattr(each, "dtype", None) == np.float16 for each in inputs)
        for found, want in zip(shared.run(None, feeds), wanted, strict=True):
            assert_same(found, want, 5e-3 if half else 1e-3)


def assert_same(found: Any, wanted: Any, rtol: float) -> None:
    if isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other, rtol)
    elif isinstance(wanted, np.ndarray) and wanted.dtype.kind in "fc":
        assert found.dtype == wanted.dtype and found.shape == wanted.shape
        largest = np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0)
        np.testing.assert_allclose(found, wanted, rtol=rtol, atol=max(rtol * 1e-1 * largest, 1e-5))
    elif isinstance(wanted, np.ndarray):
        assert found.shape == wanted.shape and found.tolist() == wanted.tolist()
    else:
        assert found == wanted


@pytest.mark.parametrize("name", SAMPLE)
def test_node_models_shared_at_random(name: str) -> None:
    check(CASES[name], SAMPLE.index(name))


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(CASES))
@pytest.mark.parametrize("seed", range(2))
def test_all_node_models_shared_at_random(name: str, seed: int) -> None:
    check(CASES[name], 1000 * seed + len(name))


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in QUICK_MODELS else pytest.mark.long) for n in REAL if n not in JUDGED_APART],
)
def test_trained_models_shared_at_random(name: str) -> None:
    path: Path = _REAL / f"{name}.onnx"
    feeds, wanted = stored(name, "in::"), stored(name, "out::")
    for seed in range(2):
        session = cut_at_random(path, seed, share=0.9)
        assert len({each.provider for each in session.placement if each.provider}) > 1 or len(session.placement) < 4
        outputs = [info.name for info in session.get_outputs()]
        for output, found in zip(outputs, session.run(None, feeds), strict=True):
            if output in wanted:
                assert_agrees(found, wanted[output], 1e-3, 1e-4)
