"""Folders of models: Triton's layout, and plain files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sardonyx.errors import ModelFileError, RequestError
from sardonyx.serve.models.auxiliary_files import AuxiliaryFiles
from sardonyx.serve.models.triton_config import MAX_BYTES, Config, read_config, read_json_config
from sardonyx.serve.protocol.limits import MODEL_NAME

_FILES = 10_000
"""Limit of the files of one model that polling looks at."""

_LABEL_BYTES = 1 << 26
"""Limit of the bytes of a file of labels."""

_SUFFIXES = (".onnx", ".sdx")


@dataclass(frozen=True)
class ModelFiles:
    """The files of one model in a repository.

    Attributes:
        name: The name of the model.
        versions: The model file of every version that the policy selects, by number; a folder for an ensemble.
        auxiliary: The files beside the model.
        config: The configuration; a default one without ``config.pbtxt``.
        has_config: True if there is a ``config.pbtxt``.
        signature: Identity, size and time of all files: equal as long as nothing changed.
        owner: Keeps the folder of the files of a request; None for files of the repository.
    """

    name: str
    versions: dict[int, Path]
    auxiliary: AuxiliaryFiles
    config: Config = field(default_factory=Config)
    has_config: bool = False
    signature: tuple[Any, ...] = ()
    owner: Any = None

    @property
    def newest(self) -> float:
        """The time of the latest change of a file, in seconds since 1970."""
        return max((entry[3] for entry in self.signature), default=0) * 1e-9


def _is_special(path: Path) -> bool:
    """Return True for a pipe, which would wait for a writer, a socket or a device; False for a link to nothing."""
    return path.is_fifo() or path.is_socket() or path.is_char_device() or path.is_block_device()


def model_names(root: Path) -> list[str]:
    """Return the names of the models in a repository; names that the protocol cannot express are left out.

    A folder that cannot be read counts as a model, so that its load states the reason.

    Raises:
        ModelFileError: The repository cannot be read.
    """
    names = set()
    for name, path in _listed(root).items():
        try:
            is_folder, is_special = path.is_dir(), _is_special(path)
            if is_folder and MODEL_NAME.fullmatch(name) and _has_model(root, path):
                names.add(name)
        except (OSError, RuntimeError):
            names.add(name)
            continue
        if not is_folder and not is_special and name.endswith(_SUFFIXES) and MODEL_NAME.fullmatch(Path(name).stem):
            names.add(Path(name).stem)
    return sorted(names)


def model_files(root: Path, name: str, config: str | None = None, known: ModelFiles | None = None) -> ModelFiles:
    """Return the files of a model, by the listing of the repository: the name is compared, never joined to a path.

    Args:
        root: The repository, or one model file.
        name: The name of the model.
        config: A configuration in JSON in place of the repository's; None for none.
        known: The files at an earlier look with this configuration, returned again if unchanged.

    Raises:
        RequestError: The repository has no such model.
        ModelFileError: The configuration of the model is invalid, or a file cannot be read or is outside of the
            repository.
    """
    try:
        return _model_files(root, name, config, known)
    except (OSError, RuntimeError) as error:  # RuntimeError: a link that leads to itself.
        reason = error.strerror if isinstance(error, OSError) else error
        raise ModelFileError(f"the files cannot be read: {reason}.", where=name[:64]) from error


def _model_files(root: Path, name: str, json_config: str | None, known: ModelFiles | None) -> ModelFiles:
    if root.is_file():
        if name != root.stem:
            raise _unknown(name)
        return _one_file(root, name, json_config)
    listed = _listed(root)
    folder = listed.get(name)
    if folder is None or not folder.is_dir():
        file = next((listed[name + end] for end in _SUFFIXES if name + end in listed), None)
        if file is None or _is_special(file) or not MODEL_NAME.fullmatch(name):
            raise _unknown(name)
        _require_inside(file, root, name)
        return _one_file(file, name, json_config)
    auxiliary = AuxiliaryFiles(root, folder)
    _require_inside(folder, root, name)
    # Before the files are read: a change meanwhile is another signature at the next look.
    signature = _signature(_walk(folder))
    if known is not None and known.signature == signature:
        return known
    has_config = json_config is not None or os.path.lexists(folder / "config.pbtxt")
    if json_config is not None:
        config = read_json_config(json_config, name, auxiliary)
    else:
        config = read_config(auxiliary, name) if has_config else Config(policy=("latest", 1))
    numbered = dict(_versions(root, folder, config)) if config.ensemble is None else _ensemble_versions(folder)
    versions = _selected(numbered, config.policy)
    if not versions:
        raise ModelFileError("expected a numbered version with a model file.", where=name)
    for path in versions.values():
        _require_inside(path, root, name)
    return ModelFiles(name, versions, auxiliary, config, has_config, signature)


def _one_file(file: Path, name: str, json_config: str | None) -> ModelFiles:
    auxiliary = AuxiliaryFiles(file.parent, None)
    config = Config() if json_config is None else read_json_config(json_config, name, auxiliary)
    if config.ensemble is not None:
        raise ModelFileError("an ensemble has no model file.", where=name)
    return ModelFiles(name, {1: file}, auxiliary, config, json_config is not None, _signature([file]))


def _listed(root: Path) -> dict[str, Path]:
    """Return the entries of a repository by name."""
    try:
        with os.scandir(root) as entries:
            return {entry.name: Path(entry.path) for entry in entries}
    except OSError as error:
        raise ModelFileError(f"the repository cannot be read: {error.strerror}.") from error


def read_labels(files: ModelFiles) -> dict[str, list[str]]:
    """Return the names of classes by output.

    Raises:
        ModelFileError: A file of labels cannot be read.
    """
    labels = {}
    for output, filename in files.config.label_files.items():
        where = f"{files.name}/{filename}"
        try:
            text = files.auxiliary.read(filename, _LABEL_BYTES, where).decode()
        except UnicodeDecodeError as error:
            raise ModelFileError(f"the labels cannot be read: {error}.", where=where) from error
        labels[output] = text.splitlines()
    return labels


def _unknown(name: str) -> RequestError:
    return RequestError("the repository has no such model.", kind="not_found", where=name[:64])


def _has_model(root: Path, folder: Path) -> bool:
    return any(True for _ in _versions(root, folder, Config())) or (folder / "config.pbtxt").is_file()


def _versions(root: Path, folder: Path, config: Config) -> Iterator[tuple[int, Path]]:
    """Yield numbers and model files: ``1/model.onnx``, ``1.onnx``, ``model.onnx`` or a file of MLServer's settings."""
    plain = None
    for path in sorted(folder.iterdir()):
        if path.is_dir() and _is_version(path.name):
            file = path / config.filename
            if not file.is_file():
                if config.named_file:
                    continue
                models = [inner for inner in sorted(path.iterdir()) if inner.suffix in _SUFFIXES and inner.is_file()]
                if len(models) != 1:
                    continue
                file = models[0]
            yield int(path.name), file
        elif path.suffix in _SUFFIXES and path.is_file():
            if _is_version(path.stem):
                yield int(path.stem), path
            elif path.name == config.filename:
                plain = path
    if plain is None:
        plain = _settings_file(root, folder)
    if plain is not None:
        yield 1, plain


def _ensemble_versions(folder: Path) -> dict[int, Path]:
    """Return the numbered folders of an ensemble, which are empty; version 1 without any, as git keeps none."""
    versions = {int(path.name): path for path in folder.iterdir() if path.is_dir() and _is_version(path.name)}
    return versions or {1: folder}


def _is_version(text: str) -> bool:
    return text.isdecimal() and len(text) < 19 and int(text) > 0


def _settings_file(root: Path, folder: Path) -> Path | None:
    """Return the model file that ``model-settings.json`` names; the file must be in the same folder."""
    if not (folder / "model-settings.json").is_file():
        return None
    try:
        content = AuxiliaryFiles(root, folder).read("model-settings.json", MAX_BYTES, folder.name)
        name = str(json.loads(content)["parameters"]["uri"]).removeprefix("./")
    except (ModelFileError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return next((path for path in folder.iterdir() if path.name == name and path.suffix in _SUFFIXES), None)


def _selected(versions: dict[int, Path], policy: tuple[Any, ...]) -> dict[int, Path]:
    if policy[0] == "latest":
        return {number: versions[number] for number in sorted(versions)[-policy[1] :]}
    if policy[0] == "specific":
        return {number: versions[number] for number in policy[1] if number in versions}
    return versions


def _require_inside(path: Path, root: Path, name: str) -> None:
    """Refuse a link that leads out of the repository."""
    if not path.resolve().is_relative_to(root.resolve()):
        raise ModelFileError("expected a file in the repository, got a link to a file outside of it.", where=name)


def _walk(folder: Path) -> list[Path]:
    paths: list[Path] = []
    for current, folders, names in os.walk(folder):
        folders.sort()
        paths += [Path(current) / name for name in sorted(names)]
        if len(paths) > _FILES:
            raise ModelFileError(f"expected at most {_FILES} files.", where=folder.name)
    return paths


def _signature(paths: list[Path]) -> tuple[Any, ...]:
    stats = []
    for path in paths:
        try:
            stat = path.stat()
        except OSError:  # Removed meanwhile: the next look differs.
            continue
        stats.append((str(path), stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return tuple(stats)
