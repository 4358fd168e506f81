"""Sources of models: the addresses and digests of a model's files, by the prefix of its name."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit

from sardonyx.errors import DownloadError, OptionError
from sardonyx.hub.download import Digest, read_bytes, read_json, require_elsewhere

HF_ENDPOINT = "HF_ENDPOINT"
ONNX_COMMIT = "b1eeaa1ac722dcc1cd1a8284bde34393dab61c3d"
"""Commit of github.com/onnx/models with the last manifest of the old model zoo."""

ONNX_MANIFEST_SHA256 = "569ccd009a5cdc885bac88a1ceaf72e69e69262f0e1c9d16ef5a7339021a2904"
ONNX_ENDPOINT = "SARDONYX_ONNX_HUB"
"""Environment variable with another base address of ``onnx/models/COMMIT/PATH``."""

_ONNX_TEXT = "https://raw.githubusercontent.com"
_ONNX_FILES = "https://media.githubusercontent.com/media"
_OCI_MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
_OCI_TITLE = "org.opencontainers.image.title"
_MAX_FILES = 10_000
_NAME = re.compile(r"[^\0\\]{1,240}")


@dataclass(frozen=True)
class RemoteFile:
    """A file of a source.

    Attributes:
        url: The address.
        digest: The digest that the source states; None if it states none.
        size: The number of bytes; None if unknown.
    """

    url: str
    digest: Digest | None
    size: int | None


@dataclass(frozen=True)
class Entry:
    """A model that a source offers.

    Attributes:
        name: The name for :func:`.get`.
        tags: Tags of the model.
        size: Bytes of the model file; None if unknown.
    """

    name: str
    tags: tuple[str, ...] = ()
    size: int | None = None


@dataclass(frozen=True)
class Resolved:
    """A model at one revision of a source.

    Attributes:
        revision: The name of the exact revision: a commit, the digest of a manifest, or the digest in the name.
        model: Name of the model file among the files of the source.
        find: Returns the file of a name, relative to the source; raises :class:`DownloadError` for an unknown name.
        headers: Headers of requests to the source.
    """

    revision: str
    model: str
    find: Callable[[str], RemoteFile]
    headers: Mapping[str, str] = field(default_factory=dict)


def safe_name(name: str) -> str:
    """Return the name of a file if it stays inside of a folder.

    Raises:
        DownloadError: The name is empty, absolute, has ``..``, a backslash, a null character or a drive, or is long.
    """
    parts = PurePosixPath(name).parts
    if not parts or not _NAME.fullmatch(name) or name.startswith("/") or ".." in parts or ":" in parts[0]:
        raise DownloadError(f"the source names the file {name[:80]!r}, which is not inside of its folder.", where="hub")
    if not name.isprintable() or any(len(part.encode()) > 240 for part in parts):
        raise DownloadError(f"the source names a file {name[:80]!r}, which no folder can hold.", where="hub")
    return str(PurePosixPath(name))


def resolve(name: str, revision: str | None = None) -> Resolved:
    """Return the files of a model.

    Args:
        name: ``hf:ORG/REPO[@REVISION]/PATH``, ``onnx:MODEL[:OPSET]``, ``oci:REGISTRY/REPO[:TAG][@sha256:…]`` or
            ``https://…#sha256=…``.
        revision: The exact revision of the lock file; None for that of the name.

    Raises:
        OptionError: The name has another form.
        DownloadError: The source cannot be reached, does not have the model, or answers malformed data.
    """
    scheme, _, rest = name.partition(":")
    match scheme:
        case "hf":
            return _hugging_face(rest, revision)
        case "onnx":
            return _onnx_zoo(rest)
        case "oci":
            return _oci(rest, revision)
        case "https" | "http":
            return _address(name)
    raise OptionError(
        f"unknown source '{scheme}:'.", where=name[:200], remedy="Name hf:, onnx:, oci:, https: or file:."
    )


def search(source: str, text: str, limit: int = 20) -> list[Entry]:
    """Return models of a source whose names or tags contain a text.

    Raises:
        OptionError: The source cannot be searched.
        DownloadError: The source cannot be reached.
    """
    if source == "onnx":
        words = text.lower().split()
        rows = [row for row in onnx_manifest() if all(word in _searched(row) for word in words)]
        return [
            Entry(
                f"onnx:{row['model']}:{row['opset_version']}", tuple(_tags(row)), _size(row["metadata"], "model_bytes")
            )
            for row in rows[:limit]
        ]
    if source == "hf":
        answer = read_json(
            f"{_hf_endpoint()}/api/models?search={quote(text)}&filter=onnx&limit={limit}", headers=_hf_headers()
        )
        rows = answer if isinstance(answer, list) else []
        named = [row for row in rows if isinstance(row, dict) and isinstance(row.get("id"), str)]
        return [Entry(f"hf:{row['id']}", tuple(_texts(row.get("tags")))) for row in named[:limit]]
    raise OptionError(f"the source '{source}' cannot be searched; expected hf or onnx.", where="source")


# Hugging Face.


def _hf_endpoint() -> str:
    return os.environ.get(HF_ENDPOINT, "https://huggingface.co").rstrip("/")


def _hf_headers() -> dict[str, str]:
    token = os.environ.get("HF_TOKEN")
    return {"Authorization": f"Bearer {token}"} if token else {}


def _hugging_face(rest: str, revision: str | None) -> Resolved:
    match = re.fullmatch(r"([\w.-]+/[\w.-]+)(?:@([\w.-]+(?:/[\w.-]+)*?))?/(.+)", rest)
    if match is None:
        raise OptionError("expected hf:ORG/REPO[@REVISION]/PATH.", where=f"hf:{rest[:200]}")
    repository, named, path = match[1], match[2], safe_name(match[3])
    wanted_revision = quote(revision or named or "main", safe="")
    endpoint = _hf_endpoint()
    answer = read_json(f"{endpoint}/api/models/{repository}/revision/{wanted_revision}?blobs=true", _hf_headers())
    commit = answer.get("sha") if isinstance(answer, dict) else None
    siblings = answer.get("siblings") if isinstance(answer, dict) else None
    if not isinstance(commit, str) or not re.fullmatch(r"[0-9a-f]{40}", commit) or not isinstance(siblings, list):
        raise DownloadError("the answer names no commit and files.", where=f"hf:{repository}")
    if revision is not None and commit != revision:
        raise DownloadError(f"expected the commit {revision}, got {commit}.", where=f"hf:{repository}")
    named_rows = [row for row in siblings[:_MAX_FILES] if isinstance(row, dict)]
    rows = {row["rfilename"]: row for row in named_rows if isinstance(row.get("rfilename"), str)}

    def find(name: str) -> RemoteFile:
        row = rows.get(safe_name(name))
        if row is None:
            raise DownloadError(f"does not have the file '{name}'.", where=f"hf:{repository}@{commit}")
        large = row.get("lfs") if isinstance(row.get("lfs"), dict) else None
        digest = (
            Digest("sha256", str(large.get("sha256") or large.get("oid") or ""))
            if large
            else Digest("git-sha1", str(row.get("blobId", "")))
        )
        size = _size(large or row, "size")
        return RemoteFile(f"{endpoint}/{repository}/resolve/{commit}/{quote(name)}", digest, size)

    return Resolved(commit, path, find, _hf_headers())


# The old ONNX model zoo.


def onnx_manifest() -> list[dict[str, Any]]:
    """Return the manifest of the old ONNX model zoo at the pinned commit; its digest is verified.

    Raises:
        DownloadError: The manifest cannot be read, or is another.
    """
    base = os.environ.get(ONNX_ENDPOINT, _ONNX_TEXT).rstrip("/")
    url = f"{base}/onnx/models/{ONNX_COMMIT}/ONNX_HUB_MANIFEST.json"
    content, _ = read_bytes(url)
    digest = hashlib.sha256(content).hexdigest()
    if digest != ONNX_MANIFEST_SHA256:
        raise DownloadError(f"expected the manifest {ONNX_MANIFEST_SHA256}, got {digest}.", where=url)
    return list(json.loads(content))


def _onnx_zoo(rest: str) -> Resolved:
    name, _, opset = rest.partition(":")
    rows = [row for row in onnx_manifest() if row["model"].lower() == name.lower()]
    if opset:
        rows = [row for row in rows if str(row["opset_version"]) == opset]
    if not rows:
        raise DownloadError("the manifest has no such model.", where=f"onnx:{rest[:200]}", remedy="sardonyx hub search")
    row = max(rows, key=lambda row: int(row["opset_version"]))
    base = os.environ.get(ONNX_ENDPOINT, _ONNX_FILES).rstrip("/")
    files = {
        PurePosixPath(row[path] if path in row else metadata[path]).name: RemoteFile(
            f"{base}/onnx/models/{ONNX_COMMIT}/{quote(row.get(path) or metadata[path])}",
            Digest("sha256", metadata[sum]),
            _size(metadata, size),
        )
        for metadata in (row["metadata"],)
        for path, sum, size in (
            ("model_path", "model_sha", "model_bytes"),
            ("model_with_data_path", "model_with_data_sha", "model_with_data_bytes"),
        )
        if row.get(path) or metadata.get(path)
    }
    return Resolved(ONNX_COMMIT, PurePosixPath(row["model_path"]).name, _finder(files, f"onnx:{rest}"))


def _searched(row: Mapping[str, Any]) -> str:
    return " ".join([row["model"], *_tags(row)]).lower()


def _tags(row: Mapping[str, Any]) -> list[str]:
    return _texts(row["metadata"].get("tags"))


# Registries of the Open Container Initiative.


def _oci(rest: str, revision: str | None) -> Resolved:
    match = re.fullmatch(
        r"([\w.-]+(?::\d+)?)/([a-z0-9._/-]+?)(?::([\w][\w.-]{0,127}))?(?:@(sha256:[0-9a-f]{64}))?(?:#(.+))?", rest
    )
    if match is None:
        raise OptionError("expected oci:REGISTRY/REPOSITORY[:TAG][@sha256:…][#FILE].", where=f"oci:{rest[:200]}")
    registry, repository, tag, pinned, file = match.groups()
    where = f"oci:{registry}/{repository}"
    host = registry.split(":")[0]
    base = f"{'http' if host in ('localhost', '127.0.0.1') else 'https'}://{registry}/v2/{repository}"
    wanted_digest = revision or pinned
    url = f"{base}/manifests/{wanted_digest or tag or 'latest'}"
    headers = {"Accept": ", ".join(_OCI_MANIFESTS)}
    try:
        content, _ = read_bytes(url, headers)
    except DownloadError as error:
        if error.status != 401:
            raise
        headers = {**headers, "Authorization": f"Bearer {_oci_token(error.challenge, url, where)}"}
        content, _ = read_bytes(url, headers)
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    if wanted_digest is not None and digest != wanted_digest:
        raise DownloadError(f"expected the manifest {wanted_digest}, got {digest}.", where=where)
    files: dict[str, RemoteFile] = {}
    for layer in _oci_layers(content, where):
        title = safe_name(str(layer["annotations"][_OCI_TITLE]))
        name = str(layer.get("digest", ""))
        if not name.startswith("sha256:"):
            raise DownloadError(f"expected a SHA-256 digest of '{title}'.", where=where)
        files[title] = RemoteFile(f"{base}/blobs/{name}", Digest("sha256", name[7:]), _size(layer, "size"))
    models = [title for title in files if title.endswith((".onnx", ".onnxe"))]
    if file is None and len(models) != 1:
        raise DownloadError(f"expected one model, got {len(models)}.", where=where, remedy=f"Name one: {where}#FILE")
    blobs = {name: value for name, value in headers.items() if name == "Authorization"}
    return Resolved(digest, safe_name(file) if file else models[0], _finder(files, where), blobs)


def _oci_layers(content: bytes, where: str) -> list[dict[str, Any]]:
    try:
        layers = json.loads(content)["layers"]
        named = [layer for layer in layers[:_MAX_FILES] if isinstance(layer.get("annotations"), dict)]
        return [layer for layer in named if _OCI_TITLE in layer["annotations"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DownloadError("expected an image manifest with layers.", where=where) from error


def _oci_token(challenge: str, url: str, where: str) -> str:
    """Return an anonymous token of the service that a registry names."""
    fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    realm = fields.get("realm", "")
    if not challenge.startswith("Bearer ") or not realm:
        raise DownloadError("the registry requires a login.", where=where)
    service = _split(realm, where)
    if service.scheme != "https" and service.hostname != _split(url, where).hostname:
        raise DownloadError("the registry names a service without https.", where=where)
    require_elsewhere(url, realm)
    query = "&".join(f"{name}={quote(fields[name])}" for name in ("service", "scope") if name in fields)
    answer = read_json(f"{realm}?{query}")
    token = answer.get("token") or answer.get("access_token") if isinstance(answer, dict) else None
    if not isinstance(token, str) or not token.isprintable() or len(token) > 1 << 14:
        raise DownloadError("the registry's service gives no token.", where=where)
    return token


# Addresses.


def _address(name: str) -> Resolved:
    parts = _split(name, name)
    fields = dict(field.partition("=")[::2] for field in parts.fragment.split("&") if field)
    digest = Digest("sha256", fields["sha256"]) if "sha256" in fields else None
    base = parts._replace(fragment="").geturl()
    file = safe_name(unquote(PurePosixPath(parts.path).name) or "model.onnx")

    def find(name: str) -> RemoteFile:
        # Digests of data files: `#sha256=…&weights.bin=…`.
        if safe_name(name) == file:
            return RemoteFile(base, digest, None)
        data = Digest("sha256", fields[name]) if name in fields else None
        return RemoteFile(urljoin(base, quote(name)), data, None)

    return Resolved(fields.get("sha256", base), file, find)


def _split(address: str, where: str) -> SplitResult:
    try:
        return urlsplit(address)
    except ValueError as error:
        raise DownloadError(f"malformed address: {error}.", where=where[:200]) from error


def _finder(files: Mapping[str, RemoteFile], where: str) -> Callable[[str], RemoteFile]:
    def find(name: str) -> RemoteFile:
        if name not in files:
            raise DownloadError(f"does not have the file '{name}'.", where=where)
        return files[name]

    return find


def _size(row: Mapping[str, Any], name: str) -> int | None:
    size = row.get(name)
    if size is None:
        return None
    if type(size) is not int or not 0 <= size < 1 << 50:
        raise DownloadError(f"expected a size, got {str(size)[:40]!r}.", where="hub")
    return size


def _texts(values: Any) -> list[str]:
    rows: Iterable[Any] = values if isinstance(values, list) else ()
    return [value[:80] for value in rows if isinstance(value, str)][:50]


__all__ = ["Entry", "RemoteFile", "Resolved", "onnx_manifest", "resolve", "safe_name", "search"]
