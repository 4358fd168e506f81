"""Compiled models that are kept in the store: found again by the model's contents.

A program is named by a digest of the bytes that the model is of, and of all that decides what they become: this
package, what it stands on, the target, the number of threads. What external data it was made with stands in the entry
and is compared. Files are not read again as long as their inode, size and times are what they were when they were.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.base.artifact_store import Store, digest, store
from sardonyx.base.cpu_count import thread_count
from sardonyx.compiler.llvm.object_code import toolchain
from sardonyx.compiler.program import Program
from sardonyx.compiler.program_image import Image, NoImage, OtherFormatError
from sardonyx.compiler.target.denormals import Denormals
from sardonyx.compiler.target.description import host
from sardonyx.compiler.tiling import overrides
from sardonyx.errors import ModelFileError, UnsupportedError
from sardonyx.model import Loadable, load
from sardonyx.ops.registry import host_function, user_operators
from sardonyx.rewrite.language import REGISTRY
from sardonyx.rewrite.sweep import SWEEPS
from sardonyx.runtime.compiled.compiled_file import is_compiled_file

_log = logging.getLogger(__name__)

_PACKAGE = "sardonyx."

COMPILING = ("base", "compiler", "core", "model", "ops", "rewrite", "runtime")
"""The parts of the package that decide what a model becomes: what stands above them only asks for it."""

_BLOCK = 1 << 18
"""Bytes that are read at a time; they stay in the processor's cache."""

_SOON_BYTES = 4 << 20
"""What is read and digested in a few milliseconds."""

_DIGITS = len(digest())
_REMEMBERED = 1000
"""Files whose digests are remembered."""

_SETTLED_SECONDS = 2.0
"""A file that was written so shortly ago may be written again without its times telling: file systems' clocks are
coarse."""


class ModelSource:
    """What a session was given: the model, and what its compiled form is kept by.

    Args:
        given: See :func:`sardonyx.model.load`.
    """

    def __init__(self, given: Loadable) -> None:
        self._given = given
        self._model: ir.Model | None = None
        self._state = _state_of_file(given) if isinstance(given, (str, os.PathLike)) else None

    @property
    def model(self) -> ir.Model:
        """The model, loaded when it is first asked for.

        Raises:
            ModelFileError: It cannot be read, or the file is another since.
            UnsupportedError: There is no model in a compiled file.
        """
        if is_compiled_file(self._given):
            raise UnsupportedError("there is no model in a compiled file.", where=self._path)
        if self._model is None:
            self._require_state()
            self._model = load(self._given)
        return self._model

    @property
    def has_name(self) -> bool:
        """Whether the model has contents that can name it, and becomes what this package alone makes of it."""
        return (isinstance(self._given, bytes) or self._state is not None) and _is_standard()

    @property
    def is_named_soon(self) -> bool:
        """Whether :meth:`name` takes milliseconds: little has to be read for it, or nothing, as it was read before."""
        if isinstance(self._given, bytes):
            return len(self._given) <= _SOON_BYTES
        if self._state is None or self._state[2] <= _SOON_BYTES:
            return True
        try:
            return known_contents(self._path) is not None
        except OSError:  # Who reads it says what is wrong with it.
            return True

    def _is_elsewhere(self, tensor: Any) -> bool:
        """Whether a tensor is in another file."""
        return isinstance(tensor, ir.ExternalTensor) and _state(tensor.path) != self._state

    def _require_state(self) -> None:
        if self._state is not None and _state(self._path) != self._state:
            raise ModelFileError(
                "was changed since the session was made.", where=self._path, remedy="Make a new session."
            )

    def key(self, threads: int | None, schedules: str | None = None) -> str:
        """What names the program of this model.

        Args:
            threads: How many threads it is for.
            schedules: Fingerprint of the schedules given by the user; of the active ones by default.

        Raises:
            OSError: The file cannot be read.
        """
        schedules = overrides.fingerprint() if schedules is None else schedules
        sum = _sum([self._given]) if isinstance(self._given, bytes) else contents(self._path)
        return digest("model", sum, str(thread_count(threads)), _build(), *([schedules] if schedules else []))

    def name(self, threads: int | None) -> str | None:
        """As :meth:`key`; None where nothing names the model."""
        try:
            return self.key(threads) if self.has_name else None
        except OSError as error:  # Loading says what is wrong with the model's files.
            _log.info("the model has no name: %s", error)
            return None

    @property
    def folder(self) -> Path:
        """Where its external data are."""
        return Path(self._path).parent

    def external(self) -> dict[str, str]:
        """The files of external data, relative to the folder, with what they hold.

        Raises:
            OSError: One cannot be read.
        """
        files = {
            os.path.relpath(tensor.path, self.folder) for tensor in _tensors(self.model) if self._is_elsewhere(tensor)
        }
        return {name: contents(self.folder / name) for name in sorted(files)}

    @property
    def _path(self) -> str:
        return os.fspath(self._given) if isinstance(self._given, (str, os.PathLike)) else ""


def _is_standard() -> bool:
    """Whether operators and rewriting are the package's alone, so that a digest of it names them."""
    modules = {rule.module for rules in REGISTRY.values() for rule in rules}
    modules.update(sweep.rule.module for sweep in SWEEPS.values())
    return not user_operators() and all(module.startswith(_PACKAGE) for module in modules)


def restored(source: ModelSource, threads: int | None, denormals: Denormals) -> tuple[Program, dict[str, Any]] | None:
    """The program that is kept for a model, and what was noted of it; None where there is none."""
    kept = store()
    if not source.has_name or kept.folder is None:
        return None
    try:
        return _restored(source, threads, denormals, kept)
    except OSError as error:  # Loading says what is wrong with the model's files.
        _log.info("no program is looked for: %s", error)
        return None


def _restored(
    source: ModelSource, threads: int | None, denormals: Denormals, kept: Store
) -> tuple[Program, dict[str, Any]] | None:
    key = source.key(threads)
    found = kept.get("program", key)
    if found is None:
        return None
    weights = _weights(kept, found[:_DIGITS].decode())
    if weights is None:
        return None
    try:
        image = Image.read(found[_DIGITS:], weights)
    except OtherFormatError as error:  # The program that is compiled now replaces the entry.
        _log.info("a cached program is ignored: %s", error)
        return None
    noted: dict[str, Any] = image.head["noted"]
    if any(contents(source.folder / name) != sum for name, sum in noted["external"].items()):
        return None
    return Program.from_image(image, threads=threads, denormals=denormals, hosts=host_function), noted


def keep(program: Program, source: ModelSource, threads: int | None, noted: dict[str, Any]) -> None:
    """Put a program into the store, unless it needs the graph while it runs.

    Args:
        program: The program.
        source: What the model was loaded from.
        threads: How many threads were asked for.
        noted: What JSON can hold, to be given back with the program.
    """
    kept = store()
    if not source.has_name or kept.folder is None or program.overrides is None:
        return
    try:
        image = program.image()
        image.head["noted"] = {**noted, "external": source.external()}
        key = source.key(threads, program.overrides)
    except (NoImage, OSError) as reason:
        _log.info("the program is not kept: %s", reason)
        return
    # By what they hold: programs for other numbers of threads have the same, and one that another process wrote
    # meanwhile may have them in another order.
    weights = image.weights()
    name = digest(weights)
    kept.put("weights", name, weights)
    kept.put("program", key, name.encode() + image.texts())


_mapped: weakref.WeakValueDictionary[tuple[Path | None, str], np.ndarray] = weakref.WeakValueDictionary()
"""Weights in memory, once for all programs of the process that use them: their arrays are views of it."""

_lock = threading.Lock()


def _weights(kept: Store, key: str) -> np.ndarray | None:
    with _lock:
        found = _mapped.get((kept.folder, key))
        if found is None:
            view = kept.get("weights", key)
            if view is not None:
                found = _mapped[kept.folder, key] = np.frombuffer(view, np.uint8)
        return found


# What files hold.

_read_before: dict[tuple[Path | None, str], str] = {}


def contents(path: str | os.PathLike[str]) -> str:
    """A digest of a file's contents; a known one, where the file is as it was when it was read.

    Raises:
        OSError: It cannot be read.
    """
    known = known_contents(path)
    if known is not None:
        return known
    state = _state(path)
    settled = _is_settled(state)
    with Path(path).open("rb") as file:
        found = _sum(iter(lambda: file.read(_BLOCK), b""))
    if settled and _state(path) == state:
        store().put("program", _place(path, state), found.encode())
        _remember(path, state, found)
    return found


def known_contents(path: str | os.PathLike[str]) -> str | None:
    """The digest of a file that is as it was when it was read; None where it has to be read.

    Raises:
        OSError: Nothing is known of the file.
    """
    state = _state(path)
    found = _read_before.get((store().folder, _place(path, state)))
    if found is None:
        kept = store().get("program", _place(path, state))
        if kept is not None:
            found = kept.decode()
            if _is_settled(state):
                _remember(path, state, found)
    return found


def _place(path: str | os.PathLike[str], state: tuple[int, ...]) -> str:
    """What names a file as it is."""
    return digest("file", str(Path(path).absolute()), *map(str, state))


def _remember(path: str | os.PathLike[str], state: tuple[int, ...], found: str) -> None:
    if len(_read_before) >= _REMEMBERED:
        _read_before.clear()
    _read_before[store().folder, _place(path, state)] = found


def _is_settled(state: tuple[int, ...]) -> bool:
    return max(state[3], state[4]) / 1e9 < time.time() - _SETTLED_SECONDS


def _state_of_file(path: str | os.PathLike[str]) -> tuple[int, ...] | None:
    try:
        return _state(path)
    except OSError:  # Loading says what is wrong with it.
        return None


def _state(path: str | os.PathLike[str]) -> tuple[int, ...]:
    found = Path(path).stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _sum(blocks: Iterable[bytes]) -> str:
    sum = hashlib.blake2b(digest_size=20)
    for block in blocks:
        sum.update(block)
    return sum.hexdigest()


def _tensors(model: ir.Model) -> Iterator[Any]:
    for graph in (model.graph, *model.graph.subgraphs()):
        yield from (value.const_value for value in graph.initializers.values())
    nodes = itertools.chain(model.graph.all_nodes(), *(each.all_nodes() for each in model.functions.values()))
    for node in nodes:
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                yield attribute.value


def _sources(folders: list[str]) -> list[str]:
    """The files of Python in folders, with their sizes and when they were written."""
    found, pending = [], [*folders]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for each in entries:
                name = each.name
                if name.endswith(".py"):
                    state = each.stat()
                    found.append(f"{each.path} {state.st_size} {state.st_mtime_ns}")
                elif "." not in name and name != "__pycache__" and each.is_dir():
                    pending.append(each.path)
    return sorted(found)


_SOURCES = "\n".join(_sources([f"{Path(__file__).parents[2]}/{part}" for part in COMPILING]))
"""The package as this process imports it: what is edited later is not what computes here, and names nothing here."""


@functools.cache
def _build() -> str:
    """Names the target, this package and what it computes with, down to when its files were written."""
    others = [str(sys.modules[name].__version__) for name in ("numpy", "ml_dtypes", "onnx", "onnx_ir")]
    return digest(sys.modules["sardonyx"].__version__, toolchain(), repr(host()), _SOURCES, *others)
