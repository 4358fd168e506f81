"""The verbs ``serve`` and ``call``."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("msgspec", reason="serving requires the extra serve: msgspec is not installed")
pytest.importorskip("httptools", reason="serving requires the extra serve: httptools is not installed")

from sardonyx.serve import Server
from sardonyx.serve.security.tls import Tls
from sardonyx.serve.security.tokens import Tokens, new_token, read_tokens
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


def test_a_client_presents_its_certificate_and_a_token_that_may_only_infer(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("server", "user"):
        words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-days", "1",
                 "-nodes", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1",
                 "-keyout", f"{name}.key", "-out", f"{name}.pem"]  # fmt: skip
        try:
            subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
        except FileNotFoundError:
            pytest.skip("openssl is not installed")
    np.save(tmp_path / "x.npy", X)
    token, line = new_token(["infer"])
    tls = Tls(tmp_path / "server.pem", tmp_path / "server.key", tmp_path / "user.pem")
    tokens = Tokens([(line.split()[0], ["infer"])])
    monkeypatch.setenv("SARDONYX_TOKEN", token)
    trust = ["--tls-ca", tmp_path / "server.pem"]
    own = [*trust, "--tls-cert", tmp_path / "user.pem", "--tls-key", tmp_path / "user.key"]
    with Server({"net": session("net")}, http="127.0.0.1:0", tls=tls, tokens=tokens) as server:
        words = ["call", server.url, "net", f"x={tmp_path / 'x.npy'}", "--json"]
        assert json.loads(run(*words, *own).out)["outputs"]["y"]["data"] == [16, 20]
        assert run(*words).code == run(*words, *trust).code == 1
        assert run("call", server.url, "net", "x=[[1,0,0,0]]", *own).code == 1
        assert run(*words, *trust, "--tls-key", tmp_path / "user.key").code == 2
        assert run(*words, "--tls-ca", tmp_path / "absent").code == 2


def test_the_command_line_makes_tokens_and_refuses_contradictions(run: Run, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    token = json.loads(run("serve", "--new-token", "infer,read", "--json").out)
    assert token["line"].endswith(" infer,read")
    printed = run("serve", "--new-token", "infer,read")
    (tmp_path / "tokens.txt").write_text(printed.out)
    secret = printed.err.split()[-1]
    assert secret not in printed.out
    read_tokens(tmp_path / "tokens.txt").require(f"Bearer {secret}", "read")
    model = save("net", tmp_path / "net.onnx")
    for words in (
        ["--workers", "2", "--allow-client-shm"], ["--http", "0.0.0.0:0"],
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
