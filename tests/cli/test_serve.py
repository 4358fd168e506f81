"""The verbs ``serve`` and ``call``."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("msgspec", reason="serving requires the extra serve: msgspec is not installed")
pytest.importorskip("httptools", reason="serving requires the extra serve: httptools is not installed")

from sardonyx.serve import Server
from tests.cli.conftest import Run
from tests.serve.models import save, session

X = np.ones((1, 4), np.float32)


def test_the_command_line_calls_a_server(run: Run, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    with Server({"net": session("net")}, http="127.0.0.1:0") as server:
        url = server.url
        outcome = run("call", server.url, "net", f"x={tmp_path / 'x.npy'}", "--json", "-o", tmp_path / "out.npz")
        assert json.loads(outcome.out)["outputs"]["y"]["data"] == [16, 20]
        with np.load(tmp_path / "out.npz") as written:
            assert list(written) == ["out::y"] or list(written) == ["y"]
        assert json.loads(run("call", server.url, "net").out)["inputs"][0]["name"] == "x"
        assert json.loads(run("call", server.url, "net", "x=[[1,0,0,0]]", "--json").out)["revision"] == 0
        for words in (["none"], ["net", "z=1"], ["net", "x=text"], ["net", "x=[[1]]"]):
            assert run("call", server.url, *words).code in (1, 2)
        assert "the model has no input 'z'. Inputs: x." in run("call", server.url, "net", "z=1").err
    assert run("call", url, "net").code == 1


def test_the_command_line_makes_tokens_and_refuses_contradictions(run: Run, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    token = json.loads(run("serve", "--new-token", "infer,read", "--json").out)
    assert token["line"].endswith(" infer,read")
    model = save("net", tmp_path / "net.onnx")
    for words in (
        ["--workers", "2", "--control", "edit"], ["--http", "0.0.0.0:0"],
        ["--http", "nowhere"], ["--control", "all"], ["--max-body", "many"],
        ["--tls-cert", "x"], ["--token-file", tmp_path / "absent"], ["--workers", "0"], ["--batch", "maybe"],
    ):  # fmt: skip
        assert run("serve", model, *words).code == 2, words
    assert run("serve").code == 2
    assert run("serve", tmp_path / "absent").code == 2
    (tmp_path / "text.onnx").write_text("hello")
    refused = run("serve", tmp_path / "text.onnx", "--http", "127.0.0.1:0")
    assert refused.code == 2 and "is a text file" in refused.err
    assert signal.getsignal(signal.SIGINT) is before, "Ctrl-C after a server is that of the caller"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--poll", "-1"], "--poll: expected 0 seconds or more"),
        (["--drain", "nan"], "--drain: expected 0 seconds or more"),
        (["--batch", "maybe"], "--batch: expected one of"),
        (["--max-run", "0"], "--max-run: expected a limit above 0"),
        (["--access-log", "/nowhere/log"], "--access-log: cannot be written"),
    ],
)
def test_wrong_options_are_named_as_written(run: Run, tmp_path: Path, words: list[str], message: str) -> None:
    save("net", tmp_path / "net.onnx")
    outcome = run("serve", tmp_path / "net.onnx", *words)
    assert outcome.code == 2 and message in outcome.err


@pytest.mark.parametrize("url", ["http://[::1", "http://127.0.0.1:99999", "ftp://x", ""])
def test_malformed_addresses_and_times_of_a_client_are_refused(run: Run, url: str) -> None:
    assert run("call", url, "net").code == 2
    assert "--timeout: expected" in run("call", "http://127.0.0.1:1", "net", "--timeout", "-1").err
