"""Encrypted files: opened by every recipient and by nobody else, and refused after any change."""

from __future__ import annotations

import dataclasses
import shutil
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx import Session
from sardonyx.base.encrypted_files import ENCRYPTED_MAGIC
from sardonyx.errors import EncryptionError, ExternalDataError, OptionError, UnsupportedError
from sardonyx.trust.encryption import Passphrase, add_key, decrypt, encrypt, generate_key, read_key, rewrap, write_key
from sardonyx.trust.encryption.head import read_head, write_head
from sardonyx.trust.encryption.recipients import wrap
from sardonyx.trust.encryption.sealed_store import sealed_store
from tests.trust.encryption.conftest import feeds, network

KEY, OTHER, SHARED = generate_key(), generate_key(), generate_key("aes256")


def answers(path: Path) -> np.ndarray:
    return np.asarray(Session(path, compile="wait").run(None, feeds())[0])


def test_a_session_of_the_encrypted_model_answers_as_one_of_the_model(model: Path, tmp_path: Path) -> None:
    expected = answers(model)
    encrypt(model, tmp_path / "model.onnxe", to=[KEY.public()])
    with add_key(KEY):
        for _ in range(2):  # The second session finds the program in the encrypted store.
            np.testing.assert_array_equal(answers(tmp_path / "model.onnxe"), expected)
        np.testing.assert_array_equal(sardonyx.run(tmp_path / "model.onnxe", feeds())["y"], expected)
    with pytest.raises(EncryptionError, match=r"x25519 × 1.*this process has no key"):
        Session(tmp_path / "model.onnxe")


def test_every_recipient_opens_the_file_and_nobody_else(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_key(SHARED, tmp_path / "shared.key")
    monkeypatch.setenv("MY_KEY", OTHER.text())
    monkeypatch.setenv("MY_PASSPHRASE", "correct horse")
    recipients = [KEY.public(), str(tmp_path / "shared.key"), "env:MY_KEY", "passphrase:env:MY_PASSPHRASE"]
    encrypt(model, tmp_path / "m.onnxe", to=recipients)
    for secret in (KEY, SHARED, OTHER, Passphrase("correct horse")):
        with add_key(secret):
            assert sardonyx.load(tmp_path / "m.onnxe").graph.name == "net"
    for secret in (generate_key(), generate_key("aes256"), Passphrase("battery staple")):
        with add_key(secret), pytest.raises(EncryptionError, match="none of the keys of this process fits"):
            sardonyx.load(tmp_path / "m.onnxe")
    with add_key(KEY.public()), pytest.raises(EncryptionError, match="public keys encrypt only"):
        sardonyx.load(tmp_path / "m.onnxe")


def test_keys_of_the_environment_open_files(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_key(KEY, tmp_path / "owner.key")
    encrypt(model, tmp_path / "m.onnxe", to=[KEY.public().text()])
    monkeypatch.setenv("SARDONYX_KEYS", f"{tmp_path / 'owner.key'}")
    assert sardonyx.load(tmp_path / "m.onnxe").graph.name == "net"


class Vault:
    """A key provider that adds a number to each byte."""

    def __init__(self, text: str) -> None:
        self.shift = int(text)

    def wrap(self, data_key: bytes) -> bytes:
        return bytes((byte + self.shift) % 256 for byte in data_key)

    def unwrap(self, wrapped: bytes) -> bytes:
        return bytes((byte - self.shift) % 256 for byte in wrapped)


def test_a_key_provider_of_an_entry_point_opens_files(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = EntryPoint("vault", f"{__name__}:Vault", "sardonyx.keys")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point])
    encrypt(model, tmp_path / "m.onnxe", to=["vault:7"])
    with add_key("vault:7"):
        assert sardonyx.load(tmp_path / "m.onnxe").graph.name == "net"
    with add_key("vault:8"), pytest.raises(EncryptionError, match="head of the encrypted file was changed"):
        sardonyx.load(tmp_path / "m.onnxe")
    with pytest.raises(OptionError, match="unknown key provider 'kms'"):
        add_key("kms:arn")


def test_decrypt_restores_the_bytes(model: Path, tmp_path: Path) -> None:
    encrypt(model, tmp_path / "m.onnxe", to=[KEY])
    assert decrypt(tmp_path / "m.onnxe", tmp_path / "plain.onnx", keys=[KEY]) == [tmp_path / "plain.onnx"]
    assert (tmp_path / "plain.onnx").read_bytes() == model.read_bytes()
    with pytest.raises(EncryptionError, match="expected an encrypted file"):
        decrypt(model, tmp_path / "again.onnx")
    with pytest.raises(OptionError, match="encrypted already"):
        encrypt(tmp_path / "m.onnxe", tmp_path / "twice.onnxe", to=[KEY])


def changed(path: Path, position: int, tmp_path: Path) -> Path:
    contents = bytearray(path.read_bytes())
    contents[position] ^= 1 << (position % 8)
    target = tmp_path / "changed.onnxe"
    target.write_bytes(contents)
    return target


def test_a_change_of_any_byte_is_refused(tmp_path: Path) -> None:
    """All bytes of the head and of the start of the stream, and each 97th byte of the rest."""
    onnx.save(network(), tmp_path / "m.onnx")
    encrypt(tmp_path / "m.onnx", tmp_path / "m.onnxe", to=[KEY])
    size = (tmp_path / "m.onnxe").stat().st_size
    dense = read_head(memoryview((tmp_path / "m.onnxe").read_bytes())).size + 64
    with add_key(KEY):
        sardonyx.load(tmp_path / "m.onnxe")
        for position in (*range(dense), *range(dense, size, 97), *range(size - 16, size)):
            with pytest.raises(sardonyx.SardonyxError):
                sardonyx.load(changed(tmp_path / "m.onnxe", position, tmp_path))
                pytest.fail(f"byte {position}")


@pytest.mark.parametrize("size", [0, 1, 7, 8, 19, 20, 40, 300])
def test_a_cut_file_is_refused(size: int, model: Path, tmp_path: Path) -> None:
    encrypt(model, tmp_path / "m.onnxe", to=[KEY])
    (tmp_path / "cut.onnxe").write_bytes((tmp_path / "m.onnxe").read_bytes()[:size])
    with add_key(KEY), pytest.raises(sardonyx.SardonyxError):
        sardonyx.load(tmp_path / "cut.onnxe")


def test_the_head_of_another_version_does_not_fit(tmp_path: Path) -> None:
    """A rollback of the head alone: claims of the old file with the contents of the new one, and the reverse."""
    contents = []
    for number, scale in enumerate((1.0, 2.0)):
        onnx.save(network(scale), tmp_path / "m.onnx")
        encrypt(tmp_path / "m.onnx", tmp_path / f"{number}.onnxe", to=[KEY])
        contents.append((tmp_path / f"{number}.onnxe").read_bytes())
    heads = [read_head(memoryview(content)) for content in contents]
    for old, new in ((0, 1), (1, 0)):
        (tmp_path / "mixed.onnxe").write_bytes(contents[old][: heads[old].size] + contents[new][heads[new].size :])
        with add_key(KEY), pytest.raises(EncryptionError, match="authentication tags"):
            sardonyx.load(tmp_path / "mixed.onnxe")


def test_new_recipients_keep_the_contents_and_shut_out_the_old_copy(model: Path, tmp_path: Path) -> None:
    path, old = tmp_path / "m.onnxe", tmp_path / "old.onnxe"
    encrypt(model, path, to=[KEY, OTHER])
    shutil.copy(path, old)
    before = path.read_bytes()
    rewrap(path, to=[KEY], keys=[KEY])
    after = path.read_bytes()
    assert before[read_head(memoryview(before)).size :] == after[read_head(memoryview(after)).size :]
    with add_key(OTHER), pytest.raises(EncryptionError, match="none of the keys"):
        sardonyx.load(path)
    with add_key(KEY):
        assert sardonyx.load(path).graph.name == "net"
        with pytest.raises(EncryptionError, match="old copy: its recipients were replaced 1 times"):
            sardonyx.load(old)


def test_data_files_are_encrypted_with_their_model(external_model: Path, tmp_path: Path) -> None:
    expected = answers(external_model)
    (tmp_path / "out").mkdir()
    written = encrypt(external_model, tmp_path / "out" / "m.onnxe", to=[KEY])
    assert sorted(path.name for path in written) == ["m.onnxe", "weights.bin.onnxe"]
    with add_key(KEY):
        np.testing.assert_array_equal(answers(tmp_path / "out" / "m.onnxe"), expected)
        decrypt(tmp_path / "out" / "m.onnxe", tmp_path / "plain.onnx")
    assert (tmp_path / "weights.bin").read_bytes() == (external_model.parent / "weights.bin").read_bytes()


def test_a_data_file_of_another_version_or_without_encryption_is_refused(external_model: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        encrypt(external_model, tmp_path / name / "m.onnxe", to=[KEY])
    target = tmp_path / "b" / "weights.bin.onnxe"
    shutil.copy(tmp_path / "a" / "weights.bin.onnxe", target)
    with add_key(KEY):
        with pytest.raises(EncryptionError, match="another model or to another version"):
            sardonyx.load(tmp_path / "b" / "m.onnxe")
        shutil.copy(tmp_path / "b" / "m.onnxe", target)
        with pytest.raises(EncryptionError, match="expected an encrypted data file, got model"):
            sardonyx.load(tmp_path / "b" / "m.onnxe")
        shutil.copy(external_model.parent / "weights.bin", target)
        with pytest.raises(EncryptionError):
            sardonyx.load(tmp_path / "b" / "m.onnxe")
        target.unlink()
        with pytest.raises(ExternalDataError, match=r"weights\.bin\.onnxe"):
            sardonyx.load(tmp_path / "b" / "m.onnxe")


def test_weights_alone_are_encrypted_for_a_readable_graph(external_model: Path, tmp_path: Path) -> None:
    expected = answers(external_model)
    out = tmp_path / "out" / "model.onnx"
    out.parent.mkdir()
    encrypt(external_model, out, to=[KEY], weights_only=True)
    assert onnx.load(out, load_external_data=False).graph.node[0].name == "secret_layer"
    with pytest.raises(EncryptionError):
        Session(out)
    with add_key(KEY):
        np.testing.assert_array_equal(answers(out), expected)
        decrypt(out, tmp_path / "plain.onnx")
        graph = onnx.load(out, load_external_data=False)
        graph.graph.node[1].op_type = "Abs"
        out.write_bytes(graph.SerializeToString())
        with pytest.raises(EncryptionError, match="the graph was changed"):
            sardonyx.load(out)
    assert (tmp_path / "weights.bin").read_bytes() == (external_model.parent / "weights.bin").read_bytes()


def test_weights_alone_need_external_data_and_another_folder(model: Path, external_model: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no external data"):
        encrypt(model, tmp_path / "m.onnx", to=[KEY], weights_only=True)
    with pytest.raises(OptionError, match="another folder"):
        encrypt(external_model, external_model.with_name("m.onnx"), to=[KEY], weights_only=True)


def test_a_compiled_file_is_encrypted(model: Path, tmp_path: Path) -> None:
    expected = answers(model)
    sardonyx.compile(model, tmp_path / "m.sdx")
    encrypt(tmp_path / "m.sdx", tmp_path / "e.sdx", to=[KEY])
    with pytest.raises(EncryptionError, match="no key"):
        Session(tmp_path / "e.sdx", compile="wait")
    with add_key(KEY):
        np.testing.assert_array_equal(answers(tmp_path / "e.sdx"), expected)
        decrypt(tmp_path / "e.sdx", tmp_path / "d.sdx")
        shutil.copy(tmp_path / "e.sdx", tmp_path / "e.onnxe")
        with pytest.raises(EncryptionError, match="expected an encrypted model file, got compiled"):
            sardonyx.load(tmp_path / "e.onnxe")
    assert (tmp_path / "d.sdx").read_bytes() == (tmp_path / "m.sdx").read_bytes()
    with pytest.raises(OptionError, match=r"ends in \.sdx"):
        encrypt(tmp_path / "m.sdx", tmp_path / "m.onnxe", to=[KEY])


def test_plain_text_is_written_by_decrypt_alone(model: Path, tmp_path: Path) -> None:
    encrypt(model, tmp_path / "m.onnxe", to=[KEY])
    with add_key(KEY):
        loaded = sardonyx.load(tmp_path / "m.onnxe")
        for write in (
            lambda path: sardonyx.save(loaded, path),
            lambda path: Session(tmp_path / "m.onnxe").save(path),
            lambda path: sardonyx.convert_opset(loaded, 18) and sardonyx.save(sardonyx.convert_opset(loaded, 18), path),
        ):
            with pytest.raises(EncryptionError, match="not written in plain text"):
                write(tmp_path / "written.onnx")
        session = Session(tmp_path / "m.onnxe", compile="wait")
        with pytest.raises(EncryptionError, match="a library would hold its weights"):
            session.save_library(tmp_path / "lib.so")
        session.save_compiled(tmp_path / "m.sdx")
    assert not (tmp_path / "written.onnx").exists()
    with pytest.raises(EncryptionError, match="no key"):
        Session(tmp_path / "m.sdx", compile="wait")
    with add_key(KEY):
        np.testing.assert_array_equal(answers(tmp_path / "m.sdx"), answers(model))


def test_an_encrypted_session_is_edited(model: Path, tmp_path: Path) -> None:
    encrypt(model, tmp_path / "m.onnxe", to=[KEY])
    with add_key(KEY):
        session = Session(tmp_path / "m.onnxe", compile="wait")
    before = session.run(None, feeds())[0]
    session.update_weights({"second": np.zeros((256, 4), np.float32)})
    assert not session.run(None, feeds())[0].any()
    session.undo()
    np.testing.assert_array_equal(session.run(None, feeds())[0], before)
    with pytest.raises(EncryptionError):
        session.save(tmp_path / "edited.onnx")


def test_a_file_without_a_head_has_no_store_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "short").write_bytes(b"x")
    for name, reason in (("empty", "encrypted"), ("short", "encrypted"), ("missing", "read"), (".", "read")):
        with pytest.raises(EncryptionError, match=reason):
            sealed_store(tmp_path / name)


def test_keys_are_refused_if_damaged_public_or_present(tmp_path: Path) -> None:
    write_key(KEY, tmp_path / "owner.key")
    assert (tmp_path / "owner.key").stat().st_mode & 0o777 == 0o600
    assert read_key(tmp_path / "owner.key") == KEY
    with pytest.raises(OptionError, match="not overwritten"):
        write_key(OTHER, tmp_path / "owner.key")
    assert KEY.text() not in repr(KEY) and KEY.public().text() in repr(KEY.public())
    text = KEY.text()
    (tmp_path / "damaged.key").write_text(text[:30] + ("A" if text[30] != "A" else "B") + text[31:])
    with pytest.raises(EncryptionError, match="length or checksum differs") as error:
        read_key(tmp_path / "damaged.key")
    assert text[20:40] not in str(error.value)
    for content in (text[:30] + "ä" + text[31:], text[:30]):
        (tmp_path / "damaged.key").write_text(content, encoding="utf-8")
        with pytest.raises(EncryptionError, match="length or checksum differs"):
            read_key(tmp_path / "damaged.key")
    (tmp_path / "damaged.key").write_bytes(text.encode()[:40] + b"\xff" + text.encode()[41:])
    with pytest.raises(EncryptionError, match="length or checksum differs"):
        read_key(tmp_path / "damaged.key")
    with pytest.raises(EncryptionError, match="cannot be read"):
        add_key("missing.key")
    with pytest.raises(OptionError, match="signs licences"):
        wrap(bytes(32), generate_key("ed25519"))


@pytest.mark.parametrize("to", [[], [KEY] * 65])
def test_the_number_of_recipients_is_limited(to: list[object], model: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="1 to 64 recipients"):
        encrypt(model, tmp_path / "m.onnxe", to=to)  # type: ignore[arg-type]


def test_an_invalid_model_is_not_encrypted(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\x0a\xff\xff")
    with pytest.raises((sardonyx.SardonyxError, UnsupportedError)):
        encrypt(tmp_path / "m.onnx", tmp_path / "m.onnxe", to=[KEY])
    assert not (tmp_path / "m.onnxe").exists()


def test_hostile_work_factors_and_counts_are_refused(model: Path, tmp_path: Path) -> None:
    encrypt(model, tmp_path / "m.onnxe", to=[KEY])
    contents = (tmp_path / "m.onnxe").read_bytes()
    head = read_head(memoryview(contents))
    stanza = {"type": "scrypt", "salt": "AAAAAAAAAAAAAAAAAAAAAA==", "log_n": 40, "wrapped": "A" * 64}
    for recipients, message in (([stanza], "work factor"), ([stanza] * 9, "passphrases"), ([], "recipients")):
        raw, _ = write_head(bytes(32), head.description, dataclasses.replace(head.access, recipients=recipients))
        (tmp_path / "hostile.onnxe").write_bytes(raw + contents[head.size :])
        with add_key(Passphrase("x")), pytest.raises(EncryptionError, match=message):
            sardonyx.load(tmp_path / "hostile.onnxe")


def test_verbs_that_join_or_convert_models_write_no_plain_text(model: Path, tmp_path: Path) -> None:
    encrypt(model, tmp_path / "m.onnxe", to=[KEY])
    with add_key(KEY):
        secret = sardonyx.load(tmp_path / "m.onnxe")
        (name,) = [value.name for value in secret.graph.inputs]
        head = '<ir_version: 8, opset_import: ["": 17]> g (float[N, 64] a)'
        relu = f"{head} => (float[N, 64] {name}) {{ {name} = Relu(a) }}"
        merged = sardonyx.merge([onnx.parser.parse_model(relu), secret])
        way = sardonyx.split_tensors(secret, 2).stages[0].models[0]
        for write in (
            lambda: sardonyx.save(way, tmp_path / "way.onnx"),
            lambda: sardonyx.save(merged, tmp_path / "merged.onnx"),
            lambda: sardonyx.convert_to(tmp_path / "m.onnxe", "stablehlo", verify=False),
            lambda: sardonyx.convert_to(secret, "tflite", verify=False),
        ):
            with pytest.raises(EncryptionError, match="not written in plain text"):
                write()


def test_a_damaged_head_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "cut.onnxe"
    for content in (ENCRYPTED_MAGIC, ENCRYPTED_MAGIC + bytes(100)):
        path.write_bytes(content)
        with pytest.raises(EncryptionError) as refused:
            decrypt(path, tmp_path / "plain.onnx", keys=[generate_key()])
        assert refused.value.where == str(path)
    assert not (tmp_path / "plain.onnx").exists()
