"""Models by name: resolved, downloaded with their data files, verified, and locked."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from sardonyx.base.encrypted_files import is_encrypted
from sardonyx.errors import DownloadError, EncryptionError, OptionError
from sardonyx.hub.cache import Cache, Stored
from sardonyx.hub.download import OFFLINE, download, is_offline
from sardonyx.hub.lock import Lock, LockedModel
from sardonyx.hub.sources import RemoteFile, Resolved, resolve, safe_name, search
from sardonyx.model.external import ENCRYPTED_SUFFIX
from sardonyx.model.load import load

_log = logging.getLogger(__name__)

_MACHINE_CODE = (".sdx", ".so", ".dll", ".dylib", ".py", ".pkl", ".pickle", ".pt", ".pth", ".bin.py")
_MOST_DATA_FILES = 1000


@dataclass(frozen=True)
class Obtained:
    """A model on this machine.

    Attributes:
        path: The model file.
        name: The name for :func:`get`.
        revision: The exact revision of the source.
        files: SHA-256 digest and size by file name.
    """

    path: Path
    name: str
    revision: str
    files: Mapping[str, tuple[str, int]]


def get(
    name: str,
    *,
    lock: str | os.PathLike[str] | None = None,
    unverified: bool = False,
    quota: int | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> Obtained:
    """Return a model of a hub, downloaded with its data files if it is not here.

    Every file has a digest that the source states ahead of the download: LFS and git digests (``hf:``), the manifest
    (``onnx:``, ``oci:``), or the name itself (``https://…#sha256=…``).

    Args:
        name: ``hf:ORG/REPO[@REVISION]/PATH``, ``onnx:MODEL[:OPSET]``, ``oci:REGISTRY/REPOSITORY[:TAG][@sha256:…]``,
            ``https://…#sha256=…`` or ``file:PATH``.
        lock: A lock file: a model in the file has exactly the locked revision and digests, another one is added.
        unverified: If True, files without a digest are accepted, and their digests enter the lock file.
        quota: Most bytes of all downloads; None for ``SARDONYX_HUB_QUOTA`` or 100 GiB.
        folder: The folder of downloads; None for ``SARDONYX_HUB`` or ``~/.cache/sardonyx-hub``.

    Raises:
        DownloadError: The source cannot be reached, a file has no digest or another one, or the quota is exceeded.
        OptionError: The name has another form.
        ModelFileError: The file is not a model.
    """
    locked_file = None if lock is None else Lock.read(lock)
    locked = None if locked_file is None else locked_file.models.get(name)
    if name.startswith("file:"):
        obtained = _local(name)
    else:
        cache = Cache(None if folder is None else Path(folder), quota)
        obtained = _remote(name, cache, locked, unverified)
    if locked is not None and dict(obtained.files) != locked.files:
        raise DownloadError("the files are not those of the lock file.", where=name, remedy="Do not use them.")
    if lock is not None and locked is None:
        Lock.add(lock, name, LockedModel(obtained.revision, dict(obtained.files)))
    return obtained


def stored(folder: str | os.PathLike[str] | None = None) -> list[Stored]:
    """Return the models that were downloaded."""
    return Cache(None if folder is None else Path(folder)).models()


def _local(name: str) -> Obtained:
    path = Path(name.removeprefix("file:"))
    locations = _locations(path)
    files = {path.name: _digest(path)}
    files |= {location: _digest(path.parent / location) for location in locations}
    return Obtained(path, name, files[path.name][0], files)


def _digest(path: Path) -> tuple[str, int]:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
            return digest.hexdigest(), file.tell()
    except OSError as error:
        raise DownloadError(f"cannot be read: {error.strerror}.", where=str(path)) from error


def _remote(name: str, cache: Cache, locked: LockedModel | None, unverified: bool) -> Obtained:
    if locked is not None and (present := cache.find(name, locked.revision)) is not None:
        return Obtained(present.path, name, present.revision, present.files)
    if is_offline():
        known = [entry for entry in cache.models() if entry.name == name]
        for entry in known:
            if locked is None and (present := cache.find(name, entry.revision)) is not None:
                return Obtained(present.path, name, present.revision, present.files)
        raise DownloadError(f"was not downloaded before, and {OFFLINE} forbids requests.", where=name)
    resolved = resolve(name, None if locked is None else locked.revision)
    if (present := cache.find(name, resolved.revision)) is not None:
        return Obtained(present.path, name, present.revision, present.files)
    files: dict[str, tuple[str, int]] = {}
    model = safe_name(resolved.model)
    files[model] = _fetch(model, resolved, cache, locked, unverified)
    parent = PurePosixPath(model).parent
    for location in _locations(cache.blob(files[model][0])):
        file = safe_name(str(parent / safe_name(location)))
        files[file] = _fetch(file, resolved, cache, locked, unverified)
    linked = cache.link_files(name, resolved.revision, model, files)
    return Obtained(linked.path, name, linked.revision, files)


def _fetch(
    file: str, resolved: Resolved, cache: Cache, locked: LockedModel | None, unverified: bool
) -> tuple[str, int]:
    if PurePosixPath(file).suffix.lower() in _MACHINE_CODE:
        raise DownloadError(f"'{file}' holds code; a hub delivers models and data alone.", where=resolved.revision)
    remote = resolved.find(file)
    if remote.digest is None and not unverified and locked is None:
        raise DownloadError(
            f"the source states no digest of '{file}'.",
            where=remote.url.split("?")[0][:200],
            remedy="Add #sha256=DIGEST to the name, or accept any file with --unverified.",
        )
    expected = None if locked is None else locked.files.get(file)
    if locked is not None and expected is None:
        raise DownloadError(f"the lock file does not have '{file}'.", where=resolved.revision)
    return _fetched(remote, resolved, cache, expected)


def _fetched(remote: RemoteFile, resolved: Resolved, cache: Cache, expected: tuple[str, int] | None) -> tuple[str, int]:
    digest = remote.digest
    if digest is not None and digest.algorithm == "sha256" and cache.blob(digest.value).is_file():
        present = _digest(cache.blob(digest.value))
        if present[0] == digest.value:
            return present
    with cache.incomplete(remote.url) as part:
        size = remote.size if expected is None else expected[1]
        begun = part.stat().st_size if part.exists() else 0
        sum, count = download(remote.url, part, digest, size, cache.room() + begun, resolved.headers)
        if expected is not None and (sum, count) != expected:
            part.unlink()
            raise DownloadError(
                f"expected the locked digest {expected[0]}, got {sum}.", where=remote.url.split("?")[0][:200]
            )
        if cache.used() > cache.quota:  # Other processes download at the same time.
            error = cache.excess()
            part.unlink()
            raise error
        cache.adopt(part, sum)
    return sum, count


def _locations(path: Path) -> list[str]:
    """Return the locations of the data files of a model, or raise `ModelFileError` if the file is not a model."""
    locations: dict[str, None] = {}

    def is_skipped(tensor: str, location: str) -> bool:
        locations.setdefault(location)
        return True

    suffix = ENCRYPTED_SUFFIX if is_encrypted(path) else ""
    try:
        load(path, skip_external=is_skipped)
    except EncryptionError as error:
        # Without a key, nothing tells the data files: the session that opens the model names a missing one.
        _log.info("%s: the data files of an encrypted model are unknown without a key: %s", path, error)
    if len(locations) > _MOST_DATA_FILES:
        raise OptionError(f"the model names {len(locations):,} data files.", where=str(path))
    return [location + suffix for location in locations]


__all__ = ["Obtained", "get", "search", "stored"]
