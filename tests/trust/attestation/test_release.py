"""Data keys go to machines whose quotes fit the policy, and to nobody else; the tests have a verifier of their own."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="cryptography is not installed (extra: encrypt)")

from sardonyx import Session
from sardonyx.errors import EncryptionError, OptionError
from sardonyx.trust.attestation import (
    AttestedProvider,
    Evidence,
    Policy,
    ReleaseService,
    TsmQuotes,
    attested,
    serve_keys,
)
from sardonyx.trust.attestation import quotes as quotes_module
from sardonyx.trust.encryption import add_key, encrypt, generate_key
from sardonyx.trust.encryption.ciphers import Ed25519PrivateKey
from sardonyx.trust.encryption.recipients import NamedProvider
from tests.serve.models import save

GOOD = "a" * 96


class Machine:
    """A machine whose processor signs quotes with a key of the test."""

    def __init__(self, processor: Ed25519PrivateKey, measurement: str = GOOD, debug: bool = False) -> None:
        self.processor, self.measurement, self.debug = processor, measurement, debug
        self.last = b""

    def quote(self, report_data: bytes) -> bytes:
        text = json.dumps([self.measurement, report_data.hex(), self.debug]).encode()
        self.last = self.processor.sign(text) + text
        return self.last


class Verifier:
    """Accepts quotes of one processor."""

    def __init__(self, processor: Ed25519PrivateKey) -> None:
        self.public = processor.public_key()

    def verify(self, quote: bytes) -> Evidence:
        self.public.verify(quote[:64], quote[64:])
        measurement, data, debug = json.loads(quote[64:])
        return Evidence(measurement, bytes.fromhex(data), debug)


@pytest.fixture(scope="module")
def processor() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


KEY = generate_key("x25519")


@pytest.fixture(scope="module")
def url(processor: Ed25519PrivateKey) -> Iterator[str]:
    service = ReleaseService(KEY, Policy(frozenset({GOOD}), Verifier(processor)))
    server = serve_keys(service)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def provider(url: str, machine: Machine) -> AttestedProvider:
    return AttestedProvider(url, KEY.public(), machine)


def test_an_attested_machine_opens_an_encrypted_model(url: str, processor: Ed25519PrivateKey, tmp_path: Path) -> None:
    model = save("net", tmp_path / "model.onnx")
    key = NamedProvider("attested", provider(url, Machine(processor)))
    encrypt(model, tmp_path / "model.onnxe", to=[key])
    with add_key(key):
        session = Session(tmp_path / "model.onnxe", compile="off")
        assert session.run(None, {"x": np.ones((1, 4), np.float32)})[0].tolist() == [[16.0, 20.0]]


def test_other_machines_and_quotes_are_refused(url: str, processor: Ed25519PrivateKey) -> None:
    wrapped = provider(url, Machine(processor)).wrap(bytes(32))
    for machine, message in (
        (Machine(processor, "b" * 96), "is not accepted"),
        (Machine(processor, debug=True), "debug mode"),
        (Machine(Ed25519PrivateKey.generate()), "not authentic"),
    ):
        with pytest.raises(EncryptionError, match=message):
            provider(url, machine).unwrap(wrapped)


def test_the_words_of_a_verifier_reach_the_log_alone(
    processor: Ed25519PrivateKey, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing:
        def verify(self, quote: bytes) -> Evidence:
            raise OSError("https://user:password@collateral.internal")

    server = serve_keys(ReleaseService(KEY, Policy(frozenset({GOOD}), Failing())))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        client = provider(f"http://127.0.0.1:{server.server_address[1]}", Machine(processor))
        with pytest.raises(EncryptionError, match=r"refuses \(403\): the quote is not authentic\.") as refusal:
            client.unwrap(client.wrap(bytes(32)))
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert "password" not in str(refusal.value)
    assert "collateral.internal" in caplog.text


def test_a_quote_of_another_request_is_refused(url: str, processor: Ed25519PrivateKey) -> None:
    good = Machine(processor)
    wrapped = provider(url, good).wrap(bytes(range(32)))
    assert provider(url, good).unwrap(wrapped) == bytes(range(32))

    class Repeating:
        def quote(self, report_data: bytes) -> bytes:
            return good.last

    with pytest.raises(EncryptionError, match="belongs to another request"):
        AttestedProvider(url, KEY.public(), Repeating()).unwrap(wrapped)


def test_a_nonce_is_valid_once(processor: Ed25519PrivateKey) -> None:
    from sardonyx.trust.attestation.messages import encoded, report_data

    service = ReleaseService(KEY, Policy(frozenset({GOOD}), Verifier(processor)))
    wrapped = AttestedProvider("http://localhost:1", KEY.public(), Machine(processor)).wrap(bytes(32))
    share = generate_key("x25519").public().value
    nonce = service.nonce()
    quote = Machine(processor).quote(report_data(nonce, share, wrapped))
    message = encoded({"nonce": nonce, "share": share, "wrapped": wrapped, "quote": quote})
    assert service.release(message)
    with pytest.raises(EncryptionError, match="unknown, used or old"):
        service.release(message)


@pytest.mark.parametrize("message", [b"", b"[]", b"{}", b"\xff", b'{"nonce": 1}', b"[" * 10_000, b"x" * (1 << 19)])
def test_malformed_messages_are_refused(message: bytes, processor: Ed25519PrivateKey) -> None:
    service = ReleaseService(KEY, Policy(frozenset({GOOD}), Verifier(processor)))
    with pytest.raises(EncryptionError, match="expected a message with"):
        service.release(message)


def test_an_answer_of_another_service_is_refused(url: str, processor: Ed25519PrivateKey) -> None:
    wrapped = provider(url, Machine(processor)).wrap(bytes(32))
    other = AttestedProvider(url, generate_key("x25519").public(), Machine(processor))
    with pytest.raises(EncryptionError, match="not from the service with this key"):
        other.unwrap(wrapped)
    with pytest.raises(EncryptionError, match="wrapped for another service"):
        provider(url, Machine(processor)).unwrap(other.wrap(bytes(32)))


def test_the_entry_point_reads_a_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    public = KEY.public().text()
    provider = attested(f"http://127.0.0.1:1#{public}")
    with pytest.raises(EncryptionError, match="cannot be reached"):
        provider.unwrap(provider.wrap(bytes(32)))
    for text in ("", "http://x", f"ftp://x#{public}", f"unknown@http://x#{public}"):
        with pytest.raises(OptionError):
            attested(text)
    with pytest.raises(EncryptionError, match="makes no quotes"):
        TsmQuotes(tmp_path / "missing").quote(bytes(64))
    assert quotes_module.REPORT_BYTES == 64
