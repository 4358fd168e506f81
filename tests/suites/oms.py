"""Cases of OpenSSF Model Signing without a network: signatures to accept, and changes to refuse.

The cases follow the normative sentences of the specification, version 1.0: the envelope, the statement, the manifest,
keys and certificates. Each case changes a signed folder, its bundle, or the trusted key.
"""

from __future__ import annotations

import base64
import datetime
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILES = {"model.onnx": b"graph" * 100, "weights/part.bin": b"weights" * 999, "empty": b"", "ü name.txt": b"text"}


@dataclass(frozen=True)
class Material:
    """Keys and certificates of one run, as files: the signer's, the root, and those of a stranger."""

    key: Path
    public: Path
    certificate: Path
    root: Path
    other_public: Path
    other_root: Path


@dataclass(frozen=True)
class Case:
    """One change of a signed folder `model` with the bundle `model.sig`, and the expected verdict."""

    name: str
    accepted: bool
    change: Callable[[Path, Path], None]
    trust: str = "own"


def write_files(folder: Path) -> None:
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def _nothing(model: Path, signature: Path) -> None:
    pass


def _bundle(change: Callable[[dict[str, Any]], None]) -> Callable[[Path, Path], None]:
    def changed(model: Path, signature: Path) -> None:
        bundle = json.loads(signature.read_text())
        change(bundle)
        signature.write_text(json.dumps(bundle))

    return changed


def _statement(change: Callable[[dict[str, Any]], None]) -> Callable[[Path, Path], None]:
    def changed(bundle: dict[str, Any]) -> None:
        envelope = bundle["dsseEnvelope"]
        statement = json.loads(base64.b64decode(envelope["payload"]))
        change(statement)
        envelope["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()

    return _bundle(changed)


def _file(name: str, content: bytes | None) -> Callable[[Path, Path], None]:
    def changed(model: Path, signature: Path) -> None:
        path = model / name
        if content is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    return changed


def _flip_signature(bundle: dict[str, Any]) -> None:
    entry = bundle["dsseEnvelope"]["signatures"][0]
    raw = bytearray(base64.b64decode(entry["sig"]))
    raw[-1] ^= 1
    entry["sig"] = base64.b64encode(raw).decode()


def _remove(*path: str) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        for part in path[:-1]:
            data = data[part]
        del data[path[-1]]

    return change


def _assign(value: Any, *path: str) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        for part in path[:-1]:
            data = data[part]
        data[path[-1]] = value

    return change


def _content(text: bytes) -> Callable[[Path, Path], None]:
    return lambda model, signature: signature.write_bytes(text) and None


def _rename(model: Path, signature: Path) -> None:
    (model / "empty").rename(model / "renamed")


def _exchange(model: Path, signature: Path) -> None:
    (model / "model.onnx").write_bytes(FILES["weights/part.bin"])
    (model / "weights/part.bin").write_bytes(FILES["model.onnx"])


def _link(model: Path, signature: Path) -> None:
    target = model.parent / "outside"
    target.write_bytes(FILES["model.onnx"])
    (model / "model.onnx").unlink()
    (model / "model.onnx").symlink_to(target)


def cases() -> Iterator[Case]:
    """Yield the cases."""
    yield Case("as signed", True, _nothing)
    yield Case("file of git is not part", True, _file(".gitignore", b"x"))
    for name in FILES:
        yield Case(f"changed {name}", False, _file(name, b"changed"))
        yield Case(f"missing {name}", False, _file(name, None))
    yield Case("additional file", False, _file("extra.bin", b"x"))
    yield Case("additional file in a folder", False, _file("deep/er/extra.bin", b""))
    yield Case("renamed file", False, _rename)
    yield Case("exchanged files", False, _exchange)
    yield Case("link instead of a file", False, _link)
    yield Case("changed signature", False, _bundle(_flip_signature))
    yield Case("no signatures", False, _bundle(_assign([], "dsseEnvelope", "signatures")))
    yield Case("no envelope", False, _bundle(_remove("dsseEnvelope")))
    yield Case("no payload", False, _bundle(_remove("dsseEnvelope", "payload")))
    yield Case("no verification material", False, _bundle(_remove("verificationMaterial")))
    yield Case("other payload type", False, _bundle(_assign("text/plain", "dsseEnvelope", "payloadType")))
    yield Case("payload is not base64", False, _bundle(_assign("?", "dsseEnvelope", "payload")))
    yield Case("payload is not JSON", False, _bundle(_assign("AAAA", "dsseEnvelope", "payload")))
    yield Case("statement of another type", False, _statement(_assign("x", "_type")))
    yield Case("other predicate type", False, _statement(_assign("x", "predicateType")))
    yield Case("no resources", False, _statement(_assign([], "predicate", "resources")))
    yield Case("resources missing", False, _statement(_remove("predicate", "resources")))
    yield Case("no serialization", False, _statement(_remove("predicate", "serialization")))
    yield Case("other subject", False, _statement(_assign([{"name": "x", "digest": {"sha256": "0" * 64}}], "subject")))
    resource = {"name": "../outside", "algorithm": "sha256", "digest": "0" * 64}
    yield Case("resource outside of the model", False, _statement(_assign([resource], "predicate", "resources")))
    resource = {"name": "/etc/passwd", "algorithm": "sha256", "digest": "0" * 64}
    yield Case("absolute resource", False, _statement(_assign([resource], "predicate", "resources")))
    for name, text in (("empty", b""), ("text", b"text"), ("null", b"null"), ("list", b"[]"), ("object", b"{}")):
        yield Case(f"bundle is {name}", False, _content(text))
    yield Case("bundle is deeply nested", False, _content(b"[" * 100_000))
    yield Case("bundle is binary", False, _content(bytes(range(256))))
    yield Case("no bundle", False, lambda model, signature: signature.unlink())
    yield Case("trust in another key", False, _nothing, trust="other")


def make_material(folder: Path) -> Material:
    """Write keys and certificates: a root that issued the signer's certificate, and an unrelated pair."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def key(name: str) -> ec.EllipticCurvePrivateKey:
        private = ec.generate_private_key(ec.SECP256R1())
        (folder / f"{name}.pem").write_bytes(
            private.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        (folder / f"{name}.pub").write_bytes(
            private.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )
        return private

    now = datetime.datetime.now(datetime.UTC)

    def certificate(file: str, subject: str, public: Any, issuer: str, signer: Any, is_root: bool) -> Path:
        names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in (subject, issuer)]
        builder = (
            x509.CertificateBuilder()
            .subject_name(names[0])
            .issuer_name(names[1])
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=60))
            .not_valid_after(now + datetime.timedelta(days=30))
            .add_extension(x509.BasicConstraints(ca=is_root, path_length=None), critical=True)
            .add_extension(
                x509.KeyUsage(not is_root, False, False, False, False, is_root, is_root, False, False), critical=True
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        )
        if not is_root:
            builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
        path = folder / file
        path.write_bytes(builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return path

    own, root, _, other_root = (key(name) for name in ("own", "root", "other", "other_root"))
    return Material(
        folder / "own.pem",
        folder / "own.pub",
        certificate("own.crt", "signer", own.public_key(), "root", root, False),
        certificate("root.crt", "root", root.public_key(), "root", root, True),
        folder / "other.pub",
        certificate("other_root.crt", "root", other_root.public_key(), "root", other_root, True),
    )
