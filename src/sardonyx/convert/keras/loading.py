"""Files of Keras, loaded without code of theirs, and the import of Keras with a backend that can be captured."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from sardonyx.base.replaced_attributes import replaced
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
    elif _first_bytes(where) != b"\x89HDF\r\n\x1a\n":
        raise ModelFileError("expected an archive of Keras or HDF5.", where=where, remedy="Save it by `Model.save`.")
    try:
        with nullcontext() if trust else _few_weights(keras, where):
            return keras.saving.load_model(where, compile=False, safe_mode=not trust)
    except ModelFileError:
        raise
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


@contextmanager
def _few_weights(keras: Any, where: str) -> Iterator[None]:
    """Refuse a configuration with far more weights than the file holds, which would fill the memory.

    Variables of every backend are counted before they have memory.
    """
    kind = next(one for one in keras.Variable.__mro__ if one.__module__.endswith("common.variables"))
    held, original = _held_bytes(Path(where)), kind.__init__
    count = 0

    def initialize(variable: Any, initializer: Any, shape: Any = None, *rest: Any, **options: Any) -> None:
        nonlocal count
        # Without a shape, the initializer is an array that exists already.
        count += math.prod(size or 1 for size in ([shape] if isinstance(shape, int) else shape or ()))
        if count > MOST_WEIGHTS_PER_BYTE * held + SMALLEST_COUNT:
            raise MemoryError  # What Keras makes of the exception has no meaning: `count` tells.
        original(variable, initializer, shape, *rest, **options)

    problem = "the configuration has {} weights or more, the file holds {} bytes"
    try:
        with replaced(kind, "__init__", initialize):
            yield
    except Exception as error:
        if count > MOST_WEIGHTS_PER_BYTE * held + SMALLEST_COUNT:
            raise ModelFileError(problem.format(count, held), where=where) from error
        raise


def _held_bytes(path: Path) -> int:
    """Return the bytes that a file has for weights."""
    if not zipfile.is_zipfile(path):
        return path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        return sum(member.file_size for member in archive.infolist() if member.filename != "config.json")


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
