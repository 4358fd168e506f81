"""Clients of other servers run unmodified against this server.

KSERVE_PYTHON and MLSERVER_PYTHON name interpreters of environments with `kserve` and `mlserver`, whose requirements
contradict those of the tests; SCHEMATHESIS names the program, and OIP_REST the file ``open_inference_rest.yaml`` of the
Open Inference Protocol. PERF_ANALYZER names the program of Triton, which the wheel of `tritonclient` 2.50.0 for
manylinux1 holds; LD_LIBRARY_PATH then names the folders of libb64 and libcudart.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("msgspec", reason="msgspec is not installed (extra: serve)")
pytest.importorskip("httptools", reason="httptools is not installed (extra: serve)")
pytest.importorskip("hpack", reason="hpack is not installed (extra: grpc)")

from sardonyx.serve import Server
from tests.serve.models import session


def named(variable: str) -> str:
    """Return the value of a variable, or skip the test."""
    value = os.environ.get(variable, "")
    if not value:
        pytest.skip(f"{variable} is not set")
    return value


def run(words: list[str], seconds: float = 120) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    result = subprocess.run(
        words, capture_output=True, text=True, timeout=seconds, check=False, env=environment, cwd="/"
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-2000:]
    return result.stdout


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    models = {name: session(name) for name in ("net", "half", "strings", "gather")}
    with Server(models, http="127.0.0.1:0", grpc="127.0.0.1:0", allow_shared_memory=True) as running:
        yield running


def test_clients_of_kserve_get_right_answers(server: Server) -> None:
    script = Path(__file__).with_name("kserve_calls.py")
    run([named("KSERVE_PYTHON"), str(script), server.url, f"127.0.0.1:{server.grpc_port}"])


def test_the_batch_client_of_mlserver_gets_right_answers(server: Server, tmp_path: Path) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4]}
    lines = [json.dumps({"inputs": [{**tensor, "data": [number, 0, 0, 1]}]}) for number in range(20)]
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_text("\n".join(lines) + "\n")
    words = [named("MLSERVER_PYTHON"), "-c", "from mlserver.cli import main; main()", "infer", "-m", "net", "-i",
             str(source), "-o", str(target), "-u", server.url.split("//")[1]]  # fmt: skip
    run(words)
    answers = {}
    for line in target.read_text().splitlines():
        answer = json.loads(line)
        answers[answer["parameters"]["batch_index"]] = answer["outputs"][0]["data"]
    assert answers == {number: [number + 7, 2 * number + 8] for number in range(20)}


def test_answers_conform_to_the_description_of_the_protocol(server: Server) -> None:
    run([named("SCHEMATHESIS"), "run", named("OIP_REST"), "--url", server.url, "--max-examples", "40",
         "--checks", "not_a_server_error,response_schema_conformance", "--phases", "examples,coverage,fuzzing"],
        seconds=550)  # fmt: skip


@pytest.mark.parametrize("words", [[], ["--async"], ["--streaming"], ["--shared-memory=system"]], ids=" ".join)
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_perf_analyzer_measures_the_server(server: Server, protocol: str, words: list[str]) -> None:
    if protocol == "http" and "--streaming" in words:
        pytest.skip("streams are of gRPC")
    address = server.url.split("//")[1] if protocol == "http" else f"127.0.0.1:{server.grpc_port}"
    # Unstable measurements, on a busy machine, end with 2: the time is a bound of requests instead.
    printed = run([named("PERF_ANALYZER"), "-m", "net", "-u", address, "-i", protocol, "--concurrency-range=8",
                   "--request-count=1500", *words])  # fmt: skip
    assert "Concurrency: 8, throughput:" in printed
