"""Files of Keras, loaded without code of theirs, and the import of Keras with a backend that can be captured."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

from sardonyx.errors import MissingDependencyError, ModelFileError

BACKENDS = ("torch", "jax")
"""Backends whose computation is captured in this process, by preference."""

OLDEST = (3, 13, 2)
"""The first version of Keras whose loading executes no code of HDF5 files, and follows none of their external links.

Before, a dataset in external storage had Keras read any file of the machine as weights (CVE-2026-1669).
"""

MOST_INFLATION = 200
"""The largest quotient of unpacked and packed sizes of an archive that is loaded without trust."""


MOST_WEIGHTS_PER_BYTE = 4
"""Weights that a byte of the file may stand for; packed weights have two."""

SMALLEST_COUNT = 1 << 20
"""Weights that a file may lack."""


def imported_keras() -> Any:
    """Return Keras, imported with the backend torch or jax if the process has not chosen one.

    Raises:
        MissingDependencyError: No backend is installed.
    """
    if "keras" in sys.modules:
        return sys.modules["keras"]
    backend = next((name for name in BACKENDS if importlib.util.find_spec(name) is not None), None)
    if backend is None:
        raise MissingDependencyError(
            "reading a file of Keras needs a backend, torch or jax; neither is installed",
            remedy="pip install sardonyx[keras]",
        )
    before = os.environ.get("KERAS_BACKEND")
    os.environ["KERAS_BACKEND"] = backend
    try:
        import keras
    finally:
        if before is None:
            del os.environ["KERAS_BACKEND"]
        else:
            os.environ["KERAS_BACKEND"] = before
    return keras


def load_file(path: str | os.PathLike[str], *, trust: bool) -> Any:
    """Return the model of a file.

    Args:
        path: A file of ``Model.save``.
        trust: True if Python code in the file (``Lambda``) may be executed.

    Raises:
        ModelFileError: The file is damaged, holds code, or needs classes that are not registered.
    """
    where = os.fspath(path)
    keras = imported_keras()
    _require_safe_version(keras, where, trust=trust)
    if zipfile.is_zipfile(where):
        _require_safe_archive(Path(where), trust=trust)
        if not trust:
            _require_few_weights(keras, Path(where))
    elif _first_bytes(where) != b"\x89HDF\r\n\x1a\n":
        raise ModelFileError("expected an archive of Keras or HDF5.", where=where, remedy="Save it by `Model.save`.")
    try:
        return keras.saving.load_model(where, compile=False, safe_mode=not trust)
    except Exception as error:  # Keras raises exceptions of a dozen unrelated classes.
        raise _load_error(error, where) from error


def _first_bytes(where: str) -> bytes:
    try:
        with Path(where).open("rb") as file:
            return file.read(8)
    except OSError as error:
        raise ModelFileError(f"cannot be read: {error.strerror}", where=where) from error


def _load_error(error: Exception, where: str) -> ModelFileError:
    text = " ".join(str(error).split())
    if re.search(r"unsafe|safe_mode|[Ll]ambda", text):
        return ModelFileError(
            f"holds Python code, which would be executed when loaded: {text[:200]}",
            where=where,
            remedy="Load it with `--trust` if you trust its author, or replace Lambda layers by classes.",
        )
    if re.search(r"[Cc]ould not locate (class|function)|Unknown (layer|object)|Could not deserialize", text):
        return ModelFileError(
            f"needs a class that is not registered: {text[:300]}",
            where=where,
            remedy="Convert a file.py:function that registers the class and returns the loaded model.",
        )
    problem = f"cannot be read: {type(error).__name__}: {text[:300]}"
    return ModelFileError(problem, where=where, remedy="Save it again with this version of Keras.")


def _require_safe_version(keras: Any, where: str, *, trust: bool) -> None:
    version = tuple(int(part) for part in re.findall(r"\d+", keras.__version__)[:3])
    if version < OLDEST and not trust:
        raise ModelFileError(
            f"Keras {keras.__version__} executes code of some files, or reads files that they name",
            where=where,
            remedy=f"Install Keras {'.'.join(map(str, OLDEST))} or newer, or use `--trust`.",
        )


def _require_few_weights(keras: Any, path: Path) -> None:
    """Refuse a configuration with far more weights than the file holds, which would fill the memory."""
    if keras.backend.backend() != "torch":
        return
    import torch

    with zipfile.ZipFile(path) as archive:
        held = sum(member.file_size for member in archive.infolist() if member.filename != "config.json")
        text = archive.read("config.json")
    scope = importlib.import_module("keras.src.backend.torch.core").device_scope
    try:
        # On the device "meta", weights have shapes and no memory.
        with scope("meta"), torch.device("meta"):
            model = keras.saving.deserialize_keras_object(json.loads(text), safe_mode=True)
        count = sum(math.prod(weight.shape) for weight in model.weights)
    except Exception:  # The model is loaded next, which names what is wrong with the file.
        return
    if count > MOST_WEIGHTS_PER_BYTE * held + SMALLEST_COUNT:
        raise ModelFileError(f"the configuration has {count} weights, the file holds {held} bytes", where=str(path))


def _require_safe_archive(path: Path, *, trust: bool) -> None:
    """Refuse archives without the members of Keras, and those that unpack to far more than their size."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise ModelFileError(f"cannot be read: {error}", where=str(path)) from error
    if "config.json" not in {member.filename for member in members}:
        raise ModelFileError(
            "expected the file of a whole model, which has a config.json", where=str(path), remedy="Use `Model.save`."
        )
    unpacked = sum(member.file_size for member in members)
    if unpacked > MOST_INFLATION * max(path.stat().st_size, 1) and not trust:
        raise ModelFileError(f"unpacks to {unpacked} bytes, {MOST_INFLATION} times its size", where=str(path))
