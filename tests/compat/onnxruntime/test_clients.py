"""Programs written for ONNX Runtime have the same results on Sardonyx, unchanged.

``SARDONYX_CLIENTS`` may name a folder, in addition to Python's search path, with packages that only these tests need:
``pip install --target FOLDER rapidocr-onnxruntime silero-vad``.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sardonyx import demo
from sardonyx.compat import onnxruntime as ours

real = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: test)")

PROGRAMS = Path(__file__).parent / "clients"
FOLDER = os.environ.get("SARDONYX_CLIENTS", "")


def run_program(program: str, *arguments: str, on_ours: bool) -> dict[str, Any]:
    """Return the JSON that a program prints, on Sardonyx or on ONNX Runtime."""
    runner = ["-m", "sardonyx.compat.onnxruntime"] if on_ours else []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), *filter(None, [FOLDER])])}
    environment.pop("SARDONYX_COMPILE", None)
    outcome = subprocess.run(
        [sys.executable, *runner, str(PROGRAMS / f"{program}.py"), *arguments],
        capture_output=True, text=True, env=environment, check=False, timeout=900,
    )  # fmt: skip
    assert outcome.returncode == 0, outcome.stderr
    answer: dict[str, Any] = json.loads(outcome.stdout.splitlines()[-1])
    assert answer["module"] == ("sardonyx.compat.onnxruntime" if on_ours else "onnxruntime")
    return answer


def assert_alike(program: str, *arguments: str, atol: float) -> None:
    actual, expected = (run_program(program, *arguments, on_ours=on_ours) for on_ours in (True, False))
    assert actual["texts"] == expected["texts"] and expected["texts"]
    assert len(actual["numbers"]) == len(expected["numbers"])
    for one, other in zip(actual["numbers"], expected["numbers"], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=atol)


def require(package: str) -> None:
    known = importlib.util.find_spec(package) is not None or (Path(FOLDER or os.devnull) / package).is_dir()
    if not known:
        pytest.skip(f"{package} is not installed, and not in the folder that SARDONYX_CLIENTS names")


@pytest.mark.parametrize("name", demo.names())
def test_common_call_patterns_have_the_same_results(name: str) -> None:
    assert_alike("patterns", str(demo.path(name)), atol=1e-5)


@pytest.mark.long
def test_rapidocr_reads_the_same_text() -> None:
    require("rapidocr_onnxruntime")
    assert_alike("ocr", atol=1e-2)


@pytest.mark.long
def test_silero_vad_detects_the_same_speech() -> None:
    require("silero_vad")
    assert_alike("vad", atol=1e-3)


# Pipelines of scikit-learn.


def pipelines() -> dict[str, Any]:
    sklearn = pytest.importorskip("sklearn", reason="scikit-learn is not installed (extra: test)")
    assert sklearn.__version__
    from sklearn import (
        ensemble,
        linear_model,
        naive_bayes,
        neighbors,
        neural_network,
        pipeline,
        preprocessing,
        svm,
        tree,
    )

    scaled = preprocessing.StandardScaler
    return {
        "logistic": pipeline.make_pipeline(scaled(), linear_model.LogisticRegression()),
        "forest": ensemble.RandomForestClassifier(n_estimators=20, random_state=0),
        "boosting": ensemble.GradientBoostingClassifier(n_estimators=10, random_state=0),
        "svm": pipeline.make_pipeline(scaled(), svm.SVC(probability=False, random_state=0)),
        "tree": tree.DecisionTreeClassifier(random_state=0),
        "bayes": naive_bayes.GaussianNB(),
        "neighbours": neighbors.KNeighborsClassifier(),
        "network": pipeline.make_pipeline(
            preprocessing.MinMaxScaler(), neural_network.MLPClassifier((8,), random_state=0)
        ),
    }


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", ["logistic", "forest", "boosting", "svm", "tree", "bayes", "neighbours", "network"]
)  # fmt: skip
def test_pipelines_of_scikit_learn_predict_the_same(name: str) -> None:
    skl2onnx = pytest.importorskip("skl2onnx", reason="skl2onnx is not installed (extra: test)")
    from sklearn.datasets import load_iris

    x, y = load_iris(return_X_y=True)
    x = x.astype(np.float32)
    model = skl2onnx.to_onnx(pipelines()[name].fit(x, y), x[:1]).SerializeToString()
    (labels, scores), (expected_labels, expected_scores) = (
        ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"X": x}) for ort in (ours, real)
    )
    assert labels.tolist() == expected_labels.tolist()
    if isinstance(expected_scores, list):
        assert [list(row) for row in scores] == [list(row) for row in expected_scores]
        scores, expected_scores = ([list(row.values()) for row in side] for side in (scores, expected_scores))
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-4, atol=1e-5)
