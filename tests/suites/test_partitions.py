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

from sardonyx.errors import ExecutionError, SardonyxError  # noqa: E402
from sardonyx.ops.registry import find  # noqa: E402
from sardonyx.runtime import Session  # noqa: E402
from tests.suites.left_out import JUDGED_APART  # noqa: E402
from tests.suites.partitions import cut_at_random  # noqa: E402
from tests.suites.real_models import REAL, REAL_FOLDER, assert_agrees, stored  # noqa: E402

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    CASES = {case.name: case for case in onnx_backend_node.collect_testcases(None)}

SEVERAL = sorted(name for name, case in CASES.items() if len(case.model.graph.node) > 1)
LONG_SIZES, OTHER_BRANCH = "test_center_crop_pad_crop_expanded", "test_affine_grid_3d_expanded"
"""Cases with sizes too long to multiply, and with a branch whose shapes do not fit where it is not taken."""

SAMPLE = random.Random(0).sample(SEVERAL, 25) + random.Random(1).sample(sorted(CASES), 25) + [LONG_SIZES, OTHER_BRANCH]

QUICK_MODELS = ("cnn_mnist_pytorch", "dtln_1", "sklearn_randomforest", "xgb_regressor")

ROUNDED = {"test_dynamicquantizelinear_expanded": "a quotient is a tie, which engines round to either side"}
"""Cases in which providers may differ, with the reason."""


STEPS = {"bfloat16": 2e-2, "float16": 5e-3} | dict.fromkeys(("float32", "float64", "complex64", "complex128"), 1e-3)
"""How far apart results may be, of themselves, by element type."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """That a provider does not compile a node that it claimed is said in the log, and is no matter here."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def draws(model: Any) -> bool:
    imports = {opset.domain: opset.version for opset in model.opset_import}
    operators = [find(node.domain, node.op_type, imports.get(node.domain, 1)) for node in model.graph.node]
    return any(operator is not None and operator.is_random for operator in operators)


def check(case: Any, seed: int) -> None:
    """That a case cut at random gives what the reference gives; engines that alone give something else are left out."""
    if draws(case.model) or case.name in ROUNDED:
        return
    reference = Session(case.model, providers=["reference"])
    names = [info.name for info in reference.get_inputs()]
    for inputs, _ in case.data_sets:
        feeds = dict(zip(names, inputs, strict=False))
        try:
            expected = reference.run(None, feeds)
        except SardonyxError:
            continue  # Left out by the backend suite, which gives the reasons.
        if gives(cut_at_random(case.model, seed), feeds, expected):
            continue
        apart = [name for name in ("onnxruntime", "openvino") if not gives_alone(case.model, name, feeds, expected)]
        assert apart, f"cut at random {case.name} gives something else, and on each engine alone it does not"
        print(f"{case.name}: not on {', '.join(apart)}: alone they fail, or give another result than the reference")
        results = cut_at_random(case.model, seed, without=apart).run(None, feeds)
        for actual, result in zip(results, expected, strict=True):
            assert is_same(actual, result), f"{actual} is not {result}"


def gives(session: Session, feeds: dict[str, Any], expected: list[Any], outputs: list[str] | None = None) -> bool:
    """Whether a session gives what is wanted; one that an engine fails in does not."""
    try:
        results = session.run(outputs, feeds)
    except ExecutionError as error:
        if not str(error).startswith(("onnxruntime:", "openvino:")):
            raise
        return False
    return all(map(is_same, results, expected))


def gives_alone(model: Any, name: str, feeds: dict[str, Any], expected: list[Any]) -> bool:
    """Whether an engine gives what the reference does, of the model and of each of its nodes."""
    inner = [output for node in model.graph.node for output in node.output if output]
    alone, values = Session(model, providers=[name, "reference"]), Session(model, providers=["reference"])
    return gives(alone, feeds, expected) and gives(alone, feeds, values.run(inner, feeds), inner)


def is_same(actual: Any, expected: Any) -> bool:
    """Whether values are equal up to what their element type holds."""
    if isinstance(expected, list):
        return len(actual) == len(expected) and all(map(is_same, actual, expected))
    if not isinstance(expected, np.ndarray):
        return bool(actual == expected)
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return False
    step = STEPS.get(expected.dtype.name)
    if step is None:
        return bool(actual.tolist() == expected.tolist())
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    one, other = actual.astype(wide), expected.astype(wide)
    largest = np.abs(other[np.isfinite(other)]).max(initial=0.0)
    return bool(np.allclose(one, other, rtol=step, atol=max(step * 1e-1 * largest, 1e-5), equal_nan=True))


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
    path: Path = REAL_FOLDER / f"{name}.onnx"
    feeds, expected = stored(name, "in::"), stored(name, "out::")
    for seed in range(2):
        session = cut_at_random(path, seed, share=0.9)
        providers = {placed.provider for placed in session.placement if placed.provider}
        assert len(providers) > 1 or len(session.placement) < 4
        outputs = [info.name for info in session.get_outputs()]
        for output, actual in zip(outputs, session.run(None, feeds), strict=True):
            if output in expected:
                assert_agrees(actual, expected[output], 1e-3, 1e-4)
