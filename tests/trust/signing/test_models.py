"""Signatures of models with their data files, and the policy of sessions."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx import Session
from sardonyx.cli import main
from sardonyx.errors import OptionError, SignatureError
from sardonyx.trust.encryption import add_key, encrypt, generate_key
from sardonyx.trust.signing import Policy, Verifier, generate_signing_key, read_policy, sign, use_policy, verify


@pytest.fixture
def key(tmp_path: Path) -> Path:
    generate_signing_key(tmp_path / "author.pem")
    return tmp_path / "author.pem"


@pytest.fixture
def public(key: Path) -> Path:
    return key.with_name("author.pem.pub")


def saved(path: Path, *, external: bool, value: float = 1.0) -> Path:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 32])],
        [numpy_helper.from_array(np.full((64, 32), value, np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.parent.mkdir(exist_ok=True)
    onnx.save(model, path, save_as_external_data=external, location="w.bin" if external else None, size_threshold=0)
    return path


def answer(path: Path) -> Any:
    return Session(path, compile="wait").run(None, {"x": np.ones((1, 64), np.float32)})[0][0, 0]


@pytest.mark.parametrize("external", [False, True])
def test_a_model_is_signed_with_its_data_files(external: bool, key: Path, public: Path, tmp_path: Path) -> None:
    path = saved(tmp_path / "m" / "net.onnx", external=external)
    (tmp_path / "m" / "neighbour").write_text("not part of the model")
    assert sign(path, key=key) == tmp_path / "m" / "net.onnx.sig"
    assert len(verify(path, public_key=public).files) == 1 + external
    (tmp_path / "m" / "neighbour").write_text("changed")
    verify(path, public_key=public)
    changed = tmp_path / "m" / ("w.bin" if external else "net.onnx")
    changed.write_bytes(changed.read_bytes()[:-1] + b"x")
    with pytest.raises(SignatureError, match="does not match"):
        verify(path, public_key=public)


def test_an_encrypted_model_is_signed(key: Path, public: Path, tmp_path: Path) -> None:
    path = saved(tmp_path / "m" / "net.onnx", external=True)
    secret = generate_key()
    (tmp_path / "e").mkdir()
    encrypt(path, tmp_path / "e" / "net.onnxe", to=[secret])
    with add_key(secret):
        sign(tmp_path / "e" / "net.onnxe", key=key)
        assert len(verify(tmp_path / "e" / "net.onnxe", public_key=public).files) == 2
    with pytest.raises(sardonyx.SardonyxError, match="unknown without a key"):
        sign(tmp_path / "e" / "net.onnxe", key=key)
    with add_key(secret), use_policy(Policy((Verifier(public),))):
        for _ in range(2):
            assert answer(tmp_path / "e" / "net.onnxe") == 64


@pytest.mark.parametrize("external", [False, True])
def test_a_session_under_a_policy_loads_signed_models_alone(
    external: bool, key: Path, public: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "cache"))
    path = saved(tmp_path / "m" / "net.onnx", external=external)
    assert answer(path) == 64
    with use_policy(Policy((Verifier(public),))):
        with pytest.raises(SignatureError, match="no trusted key signed the model"):
            answer(path)
        sign(path, key=key)
        for _ in range(2):  # The second session finds the program in the store.
            assert answer(path) == 64
        other = saved(tmp_path / "other" / "net.onnx", external=external, value=2.0)
        changed = "w.bin" if external else "net.onnx"
        shutil.copy(other.with_name(changed), path.with_name(changed))
        with pytest.raises(SignatureError, match="does not match"):
            answer(path)
    assert answer(path) == 128


def test_a_program_in_the_store_does_not_replace_the_signature_of_data_files(
    key: Path, public: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signature lists the model file alone: a session that compiles and one that finds the program refuse."""
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "cache"))
    path = saved(tmp_path / "m" / "net.onnx", external=True)
    assert answer(path) == 64
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(path, alone)
    # Signed as a folder of one file, which a signature of a model with data never is.
    shutil.move(sign(alone, key=key), path.with_name("net.onnx.sig"))
    with (
        use_policy(Policy((Verifier(public),))),
        pytest.raises(SignatureError, match=r"'w\.bin' of the model is not signed"),
    ):
        answer(path)
    with pytest.raises(SignatureError, match=r"'w\.bin' of the model is not signed"):
        verify(path, public_key=public)


def test_a_policy_file_is_in_force_for_a_process(
    key: Path, public: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path / "m" / "net.onnx", external=False)
    policy = tmp_path / "policy.toml"
    policy.write_text('unsigned = "allow"\n[[verifier]]\npublic_key = "author.pem.pub"\n')
    monkeypatch.setenv("SARDONYX_TRUST_POLICY", str(policy))
    assert answer(path) == 64
    sign(path, key=key)
    assert answer(path) == 64
    path.write_bytes(path.read_bytes() + b"\x12\x01x")
    with pytest.raises(SignatureError):
        answer(path)
    assert read_policy(policy).unsigned == "allow"


@pytest.mark.parametrize(
    "text",
    ["unsigned = 'maybe'", "other = 1", "[[verifier]]", "[[verifier]]\npublic_key = 1", "[[verifier]]\nx = 'y'", "["],
)
def test_a_malformed_policy_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(text)
    with pytest.raises((OptionError, SignatureError)):
        read_policy(tmp_path / "policy.toml")


def test_a_wrong_key_is_named_and_so_is_a_changed_file(key: Path, public: Path, tmp_path: Path) -> None:
    path = saved(tmp_path / "m" / "net.onnx", external=False)
    with pytest.raises(SignatureError, match=r"author\.pem\.pub: expected a secret key"):
        sign(path, key=public)
    with pytest.raises(SignatureError, match=r"absent\.pem: the key cannot be read: No such file"):
        sign(path, key=tmp_path / "absent.pem")
    sign(path, key=key)
    with pytest.raises(SignatureError, match=r"author\.pem: expected a public key"):
        verify(path, public_key=key)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(SignatureError, match=r"does not match: other contents than signed: net\.onnx\."):
        verify(path, public_key=public)


def test_keys_are_not_overwritten(key: Path) -> None:
    assert key.stat().st_mode & 0o777 == 0o600
    with pytest.raises(OptionError, match="not overwritten"):
        generate_signing_key(key)


def test_the_command_tells_a_signature_that_does_not_hold_from_one_that_cannot_be_read(
    key: Path, public: Path, tmp_path: Path
) -> None:
    model = saved(tmp_path / "m" / "net.onnx", external=False)

    def code(trusted: Path = public) -> Any:
        with pytest.raises(SystemExit) as ended:
            main(["verify", str(model), "--key", str(trusted)])
        return ended.value.code or 0

    assert code() == 2
    sign(model, key=key)
    assert code() == 0
    assert code(tmp_path / "absent.pub") == 2
    model.write_bytes(model.read_bytes() + b"\x3a\x00")
    assert code() == 1
    model.with_name(model.name + ".sig").write_text("no signature")
    assert code() == 1


def test_the_current_folder_is_signed_next_to_itself(
    key: Path, public: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(tmp_path / "models" / "net.onnx", external=True).parent
    (folder / "inner").mkdir()
    for current, source in ((folder, "."), (folder / "inner", "..")):
        monkeypatch.chdir(current)
        assert sign(source, key=key) == tmp_path / "models.sig"
        assert len(verify(source, public_key=public).files) == 2
    with pytest.raises(OptionError, match="name"):
        verify("/", public_key=public)


@pytest.mark.parametrize("output", [".", "/", ""])
def test_a_key_is_not_written_to_a_folder(output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for kind in ("x25519", "ecdsa"):
        with pytest.raises(SystemExit) as ended:
            main(["keygen", "-o", output, "--kind", kind])
        assert ended.value.code == 2 and not list(tmp_path.parent.glob("*.pub"))
