"""The key of a stored kernel decides its code: checked on every kernel of the public models."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from sardonyx.base.artifact_store import Store
from sardonyx.compiler import pipeline
from sardonyx.compiler.lower.kernel_store import KernelStore
from sardonyx.compiler.lower.shared_kernels import SharedKernels
from sardonyx.compiler.target.description import host
from sardonyx.errors import UnsupportedError
from sardonyx.model.node_order import load_sorted
from sardonyx.runtime.compiled.frontend import lower_model
from tests.suites.real_models import REAL_FOLDER, SUITES, needs_suites

pytestmark = pytest.mark.sampled

_NETWORKS = Path(SUITES).parent / "models"
"""Networks without weights, with a script that draws some."""

MODELS = sorted([*REAL_FOLDER.glob("*.onnx"), *_NETWORKS.glob("*.onnx")]) if SUITES else []

QUICK = ("byte_sb_bilstm", "gtcrn", "lstm", "minilm.dyn", "silero_vad", "silero_vad_16k_op15", "yolov3_post")
"""Models that are lowered by default; ``-m long`` lowers all."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a store that all models share."""
    return tmp_path_factory.mktemp("kernels")


@needs_suites
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=() if path.stem in QUICK else pytest.mark.long) for path in MODELS],
)
def test_equal_keys_mean_equal_kernels(path: Path, folder: Path, tmp_path: Path) -> None:
    if path.parent == _NETWORKS:
        complete = tmp_path / path.name
        runpy.run_path(str(_NETWORKS / "materialize.py"))["materialize"](path, complete)
        path = complete
    try:
        function: Any = lower_model(load_sorted(path), "all")[0]
    except UnsupportedError as reason:
        pytest.skip(f"the model is not traced before its inputs are known: {reason}")
    core = pipeline.rewrite_core(function, host())

    def lowered() -> KernelStore:
        # A verifying store raises an error if a stored kernel is not the one that is emitted.
        stored = KernelStore(Store(folder), host(), 2, verifies=True)
        shared = SharedKernels(stored)
        pipeline.lower_function(core, host(), 2, kernels=shared)
        shared.keep()
        return stored

    lowered()
    again = lowered()
    assert again.reused and not again.emitted
