"""The functions of ``onnx.hub``, which onnx 1.22 removed, over the manifest of the old model zoo at a pinned commit."""

from __future__ import annotations

import os
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import onnx

from sardonyx.errors import DownloadError, OptionError
from sardonyx.hub import get
from sardonyx.hub.cache import FOLDER, Cache
from sardonyx.hub.download import Digest, download
from sardonyx.hub.sources import onnx_manifest, resolve, safe_name

_REPOSITORIES = ("onnx/models", "onnx/models:main", "onnx/models:master")
_MOST_UNPACKED = 8 << 30
_MOST_MEMBERS = 10_000


@dataclass(frozen=True)
class ModelInfo:
    """An entry of the manifest.

    Attributes:
        model: The name.
        model_path: The path in the repository.
        metadata: The other fields of the entry.
        model_sha: SHA-256 digest of the model file.
        tags: Tags, in small letters.
        opset: The operator set.
        raw_model_info: The entry itself.
    """

    model: str
    model_path: str
    metadata: dict[str, Any]
    model_sha: str | None
    tags: set[str]
    opset: int
    raw_model_info: dict[str, Any]


def set_dir(new_dir: str) -> None:
    """Set the folder of downloads of this process."""
    os.environ[FOLDER] = str(new_dir)


def get_dir() -> str:
    """Return the folder of downloads."""
    return str(Cache().folder)


def list_models(
    repo: str = "onnx/models:main", model: str | None = None, tags: list[str] | None = None
) -> list[ModelInfo]:
    """Return the models whose name contains ``model`` and that have one of ``tags``, in any case of letters."""
    _require_repository(repo)
    labels = {tag.lower() for tag in tags or ()}
    entries = [_info(row) for row in onnx_manifest()]
    return [
        entry
        for entry in entries
        if (model is None or entry.model.lower() == model.lower()) and (not labels or labels & entry.tags)
    ]


def get_model_info(model: str, repo: str = "onnx/models:main", opset: int | None = None) -> ModelInfo:
    """Return the entry of a model: of an operator set, or the newest one.

    Raises:
        DownloadError: The manifest has no such model.
    """
    matches = [entry for entry in list_models(repo, model) if opset is None or entry.opset == opset]
    if not matches:
        raise DownloadError("the manifest has no such model.", where=f"{model}, opset {opset}")
    return max(matches, key=lambda entry: entry.opset)


def load(
    model: str,
    repo: str = "onnx/models:main",
    opset: int | None = None,
    force_reload: bool = False,
    silent: bool = False,
) -> onnx.ModelProto:
    """Download a model, unless it is here, and return it.

    Args:
        model: The name.
        repo: ``onnx/models``; its branch is ignored, because the manifest is pinned.
        opset: The operator set; None for the newest.
        force_reload: No effect: files are verified on every use.
        silent: No effect: nothing is printed.
    """
    info = get_model_info(model, repo, opset)
    return onnx.load(get(f"onnx:{info.model}:{info.opset}").path)


def download_model_with_test_data(
    model: str,
    repo: str = "onnx/models:main",
    opset: int | None = None,
    force_reload: bool = False,
    silent: bool = False,
) -> str | None:
    """Download a model with its test data, unpack it, and return the folder; None if there is no test data."""
    info = get_model_info(model, repo, opset)
    path = info.metadata.get("model_with_data_path")
    if not path:
        return None
    resolved = resolve(f"onnx:{info.model}:{info.opset}")
    remote = resolved.find(PurePosixPath(path).name)
    assert isinstance(remote.digest, Digest)
    cache = Cache()
    target = cache.folder / "test-data" / remote.digest.value
    if not target.is_dir():
        with cache.incomplete(remote.url) as part:
            download(remote.url, part, remote.digest, remote.size, cache.room())
            _unpack(part, target)
            part.unlink()
    folders = [entry for entry in target.iterdir() if entry.is_dir()]
    return str(folders[0] if len(folders) == 1 else target)


def _unpack(archive: Path, target: Path) -> None:
    """Unpack files of an archive, bounded in number and size; links and paths that lead outside are refused."""
    unfinished = target.with_name(f"{target.name}.part")
    unfinished.mkdir(parents=True, exist_ok=True)
    total = 0
    try:
        with tarfile.open(archive) as members:
            for count, member in enumerate(members):
                total += member.size
                if count >= _MOST_MEMBERS or total > _MOST_UNPACKED:
                    raise DownloadError("the archive is too large when unpacked.", where=str(archive))
                name = safe_name(member.name)
                if member.isfile() and (source := members.extractfile(member)) is not None:
                    path = unfinished / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with path.open("wb") as file:
                        while chunk := source.read(1 << 20):
                            file.write(chunk)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DownloadError(f"the archive cannot be unpacked: {error}.", where=str(archive)) from error
    unfinished.replace(target)


def _info(row: dict[str, Any]) -> ModelInfo:
    metadata = row["metadata"]
    return ModelInfo(
        row["model"],
        row["model_path"],
        metadata,
        metadata.get("model_sha"),
        {tag.lower() for tag in metadata.get("tags") or ()},
        int(row["opset_version"]),
        row,
    )


def _require_repository(repo: str) -> None:
    if repo not in _REPOSITORIES:
        raise OptionError(f"expected one of {', '.join(_REPOSITORIES)}, got {repo!r}.", where="repo")


__all__ = ["ModelInfo", "download_model_with_test_data", "get_dir", "get_model_info", "list_models", "load", "set_dir"]
