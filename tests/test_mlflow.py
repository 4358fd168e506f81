"""MLflow, the real one on SQLite: models saved and logged by either flavor load in the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from sardonyx import Session, demo
from sardonyx.errors import FeedError

mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed (extra: mlflow)")

FEEDS = {"image": demo.inputs("digits_classifier")["image"][:8]}
PATH = demo.path("digits_classifier")


@pytest.fixture
def store(tmp_path: Path) -> Any:
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    mlflow.create_experiment("test", artifact_location=str(tmp_path / "artifacts"))
    mlflow.set_experiment("test")
    yield mlflow
    mlflow.set_tracking_uri("")


def test_a_model_is_logged_by_ours_and_loaded_by_both(store: Any) -> None:
    import sardonyx.mlflow as flavor

    expected = Session(PATH).run(None, FEEDS)[0]
    with store.start_run():
        logged = flavor.log_model(PATH, name="digits", report="proved")
    assert onnx.load_from_string(store.onnx.load_model(logged.model_uri).SerializeToString()).graph.node
    np.testing.assert_array_equal(flavor.load_model(logged.model_uri).run(None, FEEDS)[0], expected)
    function = store.pyfunc.load_model(logged.model_uri)
    assert function.metadata.signature.inputs.inputs[0].shape[0] == -1
    for data in (FEEDS, FEEDS["image"]):
        np.testing.assert_allclose(next(iter(function.predict(data).values())), expected, rtol=1e-5, atol=1e-6)


def test_a_model_of_the_stock_flavor_is_loaded_by_ours(tmp_path: Path) -> None:
    import sardonyx.mlflow as flavor

    mlflow.onnx.save_model(onnx.load(PATH), str(tmp_path / "stock"))
    expected = Session(PATH).run(None, FEEDS)[0]
    np.testing.assert_array_equal(flavor.load_model(str(tmp_path / "stock")).run(None, FEEDS)[0], expected)


def test_a_missing_input_is_named(tmp_path: Path) -> None:
    import sardonyx.mlflow as flavor

    flavor.save_model(PATH, tmp_path / "saved", report="proved")
    assert (tmp_path / "saved" / "report.txt").read_text() == "proved"
    function = mlflow.pyfunc.load_model(str(tmp_path / "saved"), model_config=None)
    assert isinstance(function.get_raw_model(), Session)
    # Without the signature, which MLflow checks itself.
    function.metadata.signature = None
    with pytest.raises(FeedError, match="no column 'image'"):
        function.predict({"x": FEEDS["image"]})


@pytest.mark.long
def test_mlflow_serves_a_model_over_http(tmp_path: Path) -> None:
    import contextlib
    import json
    import os
    import signal
    import socket
    import subprocess
    import sys
    import time
    import urllib.request

    import sardonyx.mlflow as flavor

    pytest.importorskip("uvicorn", reason="uvicorn is not installed (MLflow's server)")
    flavor.save_model(PATH, tmp_path / "saved")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", str(tmp_path / "saved"), "-h", "127.0.0.1",
               "-p", str(port), "--env-manager", "local"]  # fmt: skip
    with (tmp_path / "log").open("wb") as log:
        # MLflow starts `uvicorn` by its name.
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
        environment = {**os.environ, "PATH": path}
        server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env=environment)
    try:
        end = time.monotonic() + 300  # MLflow imports for a minute on a busy machine.
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=2)
                break
            assert server.poll() is None and time.monotonic() < end, (tmp_path / "log").read_text()[-2000:]
            time.sleep(0.3)
        body = json.dumps({"inputs": {"image": FEEDS["image"].tolist()}}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/invocations", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as reply:
            answer = json.load(reply)["predictions"]
    finally:
        with contextlib.suppress(ProcessLookupError):  # It ended by itself: the assertion shows its log.
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    values = next(iter(answer.values())) if isinstance(answer, dict) else answer
    np.testing.assert_allclose(np.array(values), Session(PATH).run(None, FEEDS)[0], rtol=1e-4, atol=1e-5)
