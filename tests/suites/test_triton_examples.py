"""Triton's client examples run unmodified against this server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("msgspec", reason="msgspec is not installed (extra: serve)")
pytest.importorskip("httptools", reason="httptools is not installed (extra: serve)")
pytest.importorskip("hpack", reason="hpack is not installed (extra: grpc)")
pytest.importorskip("tritonclient", reason="tritonclient is not installed (extra: test)")

from sardonyx.serve import Server
from tests.suites.oip import DIFFERENT, EXAMPLES, write_repository

FOLDER = Path(os.environ.get("SARDONYX_TRITON_EXAMPLES", ""))
TRITON = os.environ.get("SARDONYX_TRITON_MODELS")

pytestmark = pytest.mark.skipif(
    not os.environ.get("SARDONYX_TRITON_EXAMPLES"), reason="SARDONYX_TRITON_EXAMPLES does not name Triton's examples"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("repository")
    write_repository(root, Path(TRITON) if TRITON else None)
    with Server(root, http="127.0.0.1:0", grpc="127.0.0.1:0", allow_shared_memory=True, control="load") as running:
        yield running


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_of_triton_ends_with_0(name: str, server: Server) -> None:
    if not EXAMPLES[name]:
        pytest.skip("needs a model of a Python backend")
    if "sequence" in name and not TRITON:
        pytest.skip("SARDONYX_TRITON_MODELS does not name Triton's models")
    if name in DIFFERENT:
        pytest.skip(DIFFERENT[name])
    address = server.url.split("//")[1] if EXAMPLES[name] == "http" else f"127.0.0.1:{server.grpc_port}"
    result = subprocess.run(
        [sys.executable, str(FOLDER / name), "-u", address], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stdout[-1000:] + result.stderr[-1000:]
