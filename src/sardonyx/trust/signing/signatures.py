"""Sign and verify models with `model_signing`: with a key or with certificates, without a network.

A signature is one file, a Sigstore bundle: an in-toto statement with the digest of every file of the model, and a
signature of the statement. A model file is signed together with its files of external data.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sardonyx.base.encrypted_files import is_encrypted
from sardonyx.base.extras import require
from sardonyx.base.neighbour_files import neighbour
from sardonyx.errors import EncryptionError, OptionError, SignatureError, SignatureMismatchError
from sardonyx.model.external import find_data_file
from sardonyx.model.load import load

SUFFIX = ".sig"
_MAX_SIGNATURE = 16 << 20
_MAX_KEY = 1 << 16


@dataclass(frozen=True)
class Verifier:
    """A way to trust a signature.

    Attributes:
        public_key: A file with an elliptic-curve public key (PEM); None if certificates are trusted.
        certificates: Files of root and intermediate certificates (PEM).
    """

    public_key: Path | None = None
    certificates: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        if (self.public_key is None) == (not self.certificates):
            raise OptionError("expected a public key or certificates.", where="verify", remedy="Give one of the two.")

    def __str__(self) -> str:
        return str(self.public_key or ", ".join(map(str, self.certificates)))


@dataclass(frozen=True)
class Signed:
    """The result of a verification.

    Attributes:
        files: The signed files, absolute.
        verifier: The key or the certificates that the signature matches.
    """

    files: tuple[Path, ...]
    verifier: Verifier


def generate_signing_key(path: str | os.PathLike[str]) -> Path:
    """Write a new key for signatures (ECDSA, P-256, PEM), readable by its owner alone, and its public half.

    Returns:
        The file of the public key: the path with ``.pub``.

    Raises:
        OptionError: The file exists.
        SignatureError: A file cannot be written.
    """
    require("cryptography", "sign", "signing")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    public_path = neighbour(path, ".pub")
    for target, content, mode in ((Path(path), secret, stat.S_IRUSR | stat.S_IWUSR), (public_path, public, 0o644)):
        try:
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        except FileExistsError as error:
            raise OptionError("exists; a key is not overwritten.", where=str(target)) from error
        except OSError as error:
            raise SignatureError(f"cannot be written: {error.strerror}.", where=str(target)) from error
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
    return public_path


def sign(
    model: str | os.PathLike[str],
    signature: str | os.PathLike[str] | None = None,
    *,
    key: str | os.PathLike[str],
    password: str | None = None,
    certificate: str | os.PathLike[str] | None = None,
    chain: Sequence[str | os.PathLike[str]] = (),
) -> Path:
    """Sign a model file with its data files, or all files of a folder.

    Args:
        model: The model file (plain, encrypted or compiled), or a folder.
        signature: The file to write; None: the model's path with ``.sig``.
        key: The file of the elliptic-curve secret key (PEM).
        password: The password of the key file.
        certificate: The certificate of the key (PEM), for verification by certificates.
        chain: Intermediate certificates (PEM).

    Returns:
        The file of the signature.

    Raises:
        SignatureError: The key or a file cannot be read, or the key does not fit the certificate.
        EncryptionError: The files of an encrypted model are unknown without a key; sign its folder instead.
        MissingDependencyError: `model_signing` is not installed.
    """
    _require()
    from model_signing import hashing, signing

    _require_key(Path(key), "PRIVATE KEY", "secret")
    source = Path(model)
    target = neighbour(source, SUFFIX) if signature is None else Path(signature)
    root, files = _root(source)
    config = signing.Config()
    try:
        if certificate is None:
            config.use_elliptic_key_signer(private_key=Path(key), password=password)
        else:
            # `model_signing` refuses an empty chain.
            others = [Path(other) for other in chain] or [Path(certificate)]
            config.use_certificate_signer(
                private_key=Path(key), signing_certificate=Path(certificate), certificate_chain=others
            )
        if files is not None:
            config.set_hashing_config(_FileList(files))
        elif target.is_relative_to(source):
            config.set_hashing_config(hashing.Config().set_ignored_paths(paths=[target.relative_to(source)]))
        config.sign(root, target)
    except (OSError, ValueError, TypeError) as error:
        raise SignatureError(f"cannot be signed: {error}.", where=str(source)) from error
    return target


def verify(
    model: str | os.PathLike[str],
    signature: str | os.PathLike[str] | None = None,
    *,
    public_key: str | os.PathLike[str] | None = None,
    certificates: Sequence[str | os.PathLike[str]] = (),
) -> Signed:
    """Verify the signature of a model file with its data files, or of a folder.

    Args:
        model: The model file or folder.
        signature: The file of the signature; None: the model's path with ``.sig``.
        public_key: The file of the trusted public key (PEM).
        certificates: Files of the trusted certificates (PEM).

    Returns:
        The signed files. In a folder, every file but those that the signature excludes is signed.

    Raises:
        SignatureError: The signature is missing, malformed, not by the key, or for other contents; or a data file of
            the model is not signed.
        OptionError: Neither a key nor certificates, or both.
        MissingDependencyError: `model_signing` is not installed.
    """
    source = Path(model)
    path = neighbour(source, SUFFIX) if signature is None else Path(signature)
    trusted = Verifier(None if public_key is None else Path(public_key), tuple(map(Path, certificates)))
    files = verify_files(source, path, trusted)
    if source.is_file():
        _, needed = _root(source)
        require_signed(needed or [source], files, source)
    return Signed(files, trusted)


def verify_files(source: Path, signature: Path, verifier: Verifier) -> tuple[Path, ...]:
    """Verify a signature and the digests of all files that it lists; return these files.

    Raises:
        SignatureError: The signature is malformed, not by the verifier's key, or for other contents.
    """
    _require()
    from model_signing import verifying

    where = str(signature)
    if verifier.public_key is not None:
        _require_key(verifier.public_key, "PUBLIC KEY", "public")
    names = _signed_names(signature)
    _require_material(signature, "publicKey" if verifier.public_key is not None else "x509CertificateChain")
    # A signature of a single file names it by a point: it is the file itself.
    root = source if source.is_dir() or names == ["."] else source.parent
    config = verifying.Config()
    try:
        if verifier.public_key is not None:
            config.use_elliptic_key_verifier(public_key=verifier.public_key)
        else:
            config.use_certificate_verifier(certificate_chain=list(verifier.certificates))
        if not source.is_dir() and root != source:
            config.set_ignore_unsigned_files(True)
        config.verify(root, signature)
    except Exception as error:  # `model_signing` and the libraries below raise many types for malformed signatures.
        raise SignatureMismatchError(
            f"the signature does not match: {_reason(error, source)}.",
            where=where,
            remedy="Get the model and its signature again from the author.",
        ) from error
    return signed_files(source, signature)


def _require_key(path: Path, label: str, kind: str) -> None:
    """Refuse a file that is not a key in the form of PEM, before it counts as a signature that does not match."""
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_KEY)
    except OSError as error:
        raise SignatureError(f"the key cannot be read: {error.strerror}.", where=str(path)) from error
    if not re.search(rb"-----BEGIN [A-Z ]*" + label.encode() + b"-----", text):
        raise SignatureError(
            f"expected a {kind} key (PEM).", where=str(path), remedy="Make a pair: sardonyx keygen --kind ecdsa."
        )


_MATERIAL = {
    "publicKey": "a public key",
    "x509CertificateChain": "a chain of certificates",
    "certificate": "a certificate of Sigstore",
}
"""Forms of verification material, by the field of a signature."""


def _require_material(signature: Path, expected: str) -> None:
    """Refuse a signature whose verification material is of another form than the verifier."""
    material = json.loads(signature.read_bytes()).get("verificationMaterial")
    known = [name for name in _MATERIAL if isinstance(material, dict) and name in material]
    if expected not in known:
        actual = _MATERIAL[known[0]] if known else "nothing that it could be verified by"
        raise SignatureMismatchError(
            f"expected a signature with {_MATERIAL[expected]}, got one with {actual}.", where=str(signature),
            remedy="Verify it with the key, or the root certificate, of its author.",
        )  # fmt: skip


def _reason(error: Exception, source: Path) -> str:
    """Return the names of the files whose contents differ, instead of their digests; or the text of an error."""
    names = re.findall(r"Hash mismatch for \\?'(.*?)\\?':", str(error))
    if names:
        return "other contents than signed: " + ", ".join(source.name if name == "." else name for name in names[:8])
    return str(error)[:300].rstrip(". ") or type(error).__name__


def signed_files(source: Path, signature: Path) -> tuple[Path, ...]:
    """Return the files that a signature lists, absolute; nothing is authentic before the verification.

    Raises:
        SignatureError: The signature is malformed.
    """
    names = _signed_names(signature)
    files = [source if name == "." else (source if source.is_dir() else source.parent) / name for name in names]
    return tuple(Path(os.path.realpath(file)) for file in files)


def require_signed(needed: Sequence[Path], signed: Sequence[Path], source: Path) -> None:
    """Refuse a model of which a file is not signed.

    Raises:
        SignatureError: A needed file is not among the signed ones.
    """
    known = set(signed)
    for file in needed:
        if Path(os.path.realpath(file)) not in known:
            raise SignatureMismatchError(
                f"the file '{file.name}' of the model is not signed.", where=str(source), remedy="Sign the model anew."
            )


class _FileList:
    """A hashing configuration for `model_signing` that signs certain files of a folder."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files

    def hash(self, model_path: Path) -> Any:
        from model_signing import hashing

        return hashing.Config().hash(model_path, files_to_hash=self._files)


def _require() -> None:
    require("model_signing", "sign", "signing")
    require("OpenSSL", "sign", "signing")  # `model_signing` imports it without requiring it.


def _root(source: Path) -> tuple[Path, list[Path] | None]:
    """Return the path to sign, and the files in it; None for all files, or for a single file."""
    if source.is_dir():
        return source, None
    if not source.is_file():
        raise SignatureError("does not exist.", where=str(source))
    locations = _locations(source)
    if not locations:
        return source, None
    suffix = ".onnxe" if is_encrypted(source) else ""
    folder = Path(os.path.realpath(source.parent))
    files = [find_data_file(location + suffix, [folder], [folder], location) for location in locations]
    return folder, [folder / source.name, *files]


def _locations(source: Path) -> list[str]:
    """Return the locations of a model's data files; none for a compiled file."""
    if source.suffix.lower() == ".sdx":
        return []
    locations: dict[str, None] = {}

    def is_skipped(tensor: str, location: str) -> bool:
        locations.setdefault(location)
        return True

    try:
        load(source, skip_external=is_skipped)
    except EncryptionError as error:
        raise EncryptionError(
            "the data files of the encrypted model are unknown without a key.",
            where=str(source),
            remedy="Add a key, or sign and verify the folder of the model.",
        ) from error
    return list(locations)


def _signed_names(signature: Path) -> list[str]:
    """Return the names of the files in a signature; nothing is authentic before the verification."""
    where = str(signature)
    try:
        with signature.open("rb") as file:
            content = file.read(_MAX_SIGNATURE + 1)
    except OSError as error:
        raise SignatureError(
            f"the signature cannot be read: {error.strerror}.", where=where, remedy="Sign the model: sardonyx sign."
        ) from error
    if len(content) > _MAX_SIGNATURE:
        raise SignatureMismatchError(f"expected a signature of at most {_MAX_SIGNATURE:,} bytes.", where=where)
    try:
        statement = json.loads(base64.b64decode(json.loads(content)["dsseEnvelope"]["payload"], validate=True))
        names = [str(entry["name"]) for entry in statement["predicate"]["resources"]]
        "".join(names).encode()  # Refuses halves of surrogate pairs, which no file has in its name.
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error) as error:
        raise SignatureMismatchError(
            "expected a signature in the format of OpenSSF Model Signing.", where=where
        ) from error
    for name in names:
        path = Path(name)
        if path.is_absolute() or ".." in path.parts or "\0" in name:
            raise SignatureMismatchError(f"the signature names the file '{name[:80]}', outside the model.", where=where)
    return names
