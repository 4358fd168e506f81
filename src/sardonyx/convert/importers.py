"""The table of importers, and the detection of a source's importer.

Detection reads names alone: suffixes of paths, files in folders, modules of classes. No framework is imported.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sardonyx.convert.imported import Options, Way
from sardonyx.errors import MissingDependencyError, ModelFileError, OptionError


@dataclass(frozen=True)
class Importer:
    """An importer.

    Attributes:
        name: The framework, as ``--from`` names it.
        module: The package with the function ``ways``.
        requires: Packages that reading needs, by import name.
        extra: The extra of ``pip install sardonyx[…]`` that installs them.
        suffixes: Suffixes of files.
        files: Files that identify a folder, by their names.
        contents: Suffixes that many programs use, each with bytes among the first ones of the importer's files.
        classes: First parts of the modules of classes, of which a source object or an ancestor of its class is.
    """

    name: str
    module: str
    requires: tuple[str, ...] = ()
    extra: str = ""
    suffixes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    contents: tuple[tuple[str, bytes], ...] = ()
    classes: tuple[str, ...] = ()


IMPORTERS: tuple[Importer, ...] = (
    Importer(
        "keras",
        "sardonyx.convert.keras.importer",
        requires=("keras",),
        extra="keras",
        suffixes=(".keras", ".h5", ".hdf5"),
        classes=("keras",),
    ),
    Importer(
        "torch",
        "sardonyx.convert.torch",
        requires=("torch",),
        extra="torch",
        suffixes=(".pt2", ".pt", ".pth", ".torchscript"),
        classes=("torch",),
    ),
    Importer("tensorflow", "sardonyx.convert.tensorflow.importer", files=("saved_model.pb",)),
    Importer("tflite", "sardonyx.convert.tflite.importer", suffixes=(".tflite", ".lite")),
    Importer(
        "tabular",
        "sardonyx.convert.tabular.importer",
        suffixes=(".joblib", ".pkl", ".pickle", ".ubj", ".xgb", ".cbm", ".lgb"),
        contents=(
            (".json", b'"learner"'),
            (".json", b'"oblivious_trees"'),
            (".json", b'"ctr_data"'),
            (".json", b'"features_info"'),
            (".txt", b"tree\nversion="),
        ),
        classes=("sklearn", "xgboost", "lightgbm", "catboost"),
    ),
    Importer("jax", "sardonyx.convert.jax.importer", requires=("jax",), extra="jax", classes=("jax", "jaxlib", "flax")),
    Importer(
        "weights", "sardonyx.convert.weights.importer", suffixes=(".gguf", ".safetensors"), files=("config.json",)
    ),
    Importer("onnx", "sardonyx.convert.old_onnx.importer", suffixes=(".onnx",)),
)
"""All importers; the first that accepts a source reads it."""


_HEAD = 4096
"""Bytes of a file by which its importer is found, if the suffix is not enough."""


def importer_of(source: Any, name: str | None = None, examples: Any = ()) -> Importer:
    """Return the importer of a source.

    Args:
        source: A path, an object of a framework, or a function.
        name: The framework, if the caller names one.
        examples: The example inputs, whose classes tell the framework of a function.

    Raises:
        OptionError: No importer accepts the source, or no importer has this name.
        ModelFileError: The file does not exist.
    """
    if name is not None:
        chosen = next((importer for importer in IMPORTERS if importer.name == name), None)
        if chosen is None:
            names = ", ".join(importer.name for importer in IMPORTERS)
            raise OptionError(f"unknown framework '{name}'.", where="framework", remedy=f"Known are: {names}.")
        return chosen
    if isinstance(source, (str, os.PathLike)):
        return _importer_of_path(os.fspath(source))
    if source is None:
        raise OptionError("expected a program, got None", where="source", remedy="Return it from the function.")
    if isinstance(source, type):
        name = source.__qualname__
        raise OptionError(
            f"expected an object, got the class {name}", where="source", remedy=f"Create one: `{name}(…)`."
        )
    is_function = inspect.isroutine(source) or isinstance(source, functools.partial)
    for value in _leaves(examples) if is_function else (source,):
        modules = {base.__module__.partition(".")[0] for base in type(value).__mro__}
        for importer in IMPORTERS:
            if not modules.isdisjoint(importer.classes):
                return importer
    if is_function:
        remedy = "Name it (`framework='torch'` or 'jax', `--from torch`), or pass example inputs of the framework."
        raise OptionError("the framework of a function is unknown", where="source", remedy=remedy)
    kind = f"{type(source).__module__}.{type(source).__qualname__}"
    raise OptionError(f"no importer reads a {kind}", where="source", remedy=_accepted())


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the values in nested sequences and mappings."""
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        for part in value:
            yield from _leaves(part)
    else:
        yield value


def _importer_of_path(path: str) -> Importer:
    location = Path(path)
    if not location.exists():
        raise ModelFileError("no such file.", where=path, remedy="Check the path.")
    for importer in IMPORTERS:
        if location.is_dir() and any((location / name).exists() for name in importer.files):
            return importer
        if not location.is_dir() and location.name.lower().endswith(importer.suffixes or ("\0",)):
            return importer
    head = _first_bytes(location)
    for importer in IMPORTERS:
        if any(location.name.lower().endswith(suffix) and part in head for suffix, part in importer.contents):
            return importer
    if location.suffix == ".py":
        remedy = f"Name the function that returns the program: {path}:function."
        raise OptionError("expected file.py:function, got a file of Python", where=path, remedy=remedy)
    raise OptionError("no importer reads this file", where=path, remedy=_accepted())


def _first_bytes(location: Path) -> bytes:
    if location.is_dir():
        return b""
    try:
        with location.open("rb") as file:
            return file.read(_HEAD)
    except OSError as error:
        raise ModelFileError(f"cannot be read: {error}", where=str(location)) from error


def _accepted() -> str:
    names = [
        (one.name, dict.fromkeys((*one.suffixes, *(suffix for suffix, _ in one.contents), *one.files)))
        for one in IMPORTERS
    ]
    forms = "; ".join(f"{name}: {', '.join(forms) or 'objects'}" for name, forms in names)
    return f"Name the framework with `--from`, or give one of: {forms}."


def ways_of(importer: Importer, source: Any, options: Options) -> Sequence[Way]:
    """Return the ways of an importer to read a source.

    Raises:
        MissingDependencyError: A package is not installed; names the extra.
    """
    missing = [package for package in importer.requires if importlib.util.find_spec(package) is None]
    if missing:
        raise MissingDependencyError(
            f"reading {importer.name} needs {', '.join(missing)}, which is not installed",
            remedy=f"pip install sardonyx[{importer.extra}]",
        )
    ways: Callable[[Any, Options], Sequence[Way]] = importlib.import_module(importer.module).ways
    return ways(source, options)
