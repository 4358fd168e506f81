"""The cache of compiled models: programs in the store, keyed by the model's contents.

A program is named by a digest of the model's bytes and of everything that decides the result of compilation: this
package and its dependencies, the target, the number of threads. Digests of external data are part of the entry and are
compared. A file is not re-read while its inode, size and timestamps are unchanged.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.base import background_threads, signature_policy
from sardonyx.base.artifact_store import Store, digest, is_guarded, store, user_store
from sardonyx.base.blake import blake2b
from sardonyx.base.cpu_count import thread_count
from sardonyx.base.deferred_imports import imported_module
from sardonyx.base.encrypted_files import is_encrypted
from sardonyx.base.hooks import hook
from sardonyx.base.thread_priority import lower_priority
from sardonyx.compiler.llvm.build_digest import build_digest
from sardonyx.compiler.target.denormals import Denormals
from sardonyx.compiler.target.description import host
from sardonyx.compiler.tiling import overrides
from sardonyx.errors import ModelFileError, UnsupportedError
from sardonyx.runtime.compiled.compiled_file import is_compiled_file

if TYPE_CHECKING:
    import onnx_ir as ir

    from sardonyx.compiler.program import Program
    from sardonyx.core.eval.host_function import HostFunction
    from sardonyx.model import Loadable
    from sardonyx.runtime.editing.weighted_model import WeightedModel

_log = logging.getLogger(__name__)

_PACKAGE = "sardonyx."

_BLOCK = 1 << 18
"""Bytes to read at a time, so that the block stays in the cache."""

SOON_BYTES = 4 << 20
"""Bytes that are read and digested in a few milliseconds."""

_DIGITS = len(digest())
_MOST_FILES = 1000
"""Files whose digests are cached in memory."""

_SETTLED_SECONDS = 2.0
"""Age from which a file's timestamps are reliable: timestamps of file systems are coarse."""


class ModelSource:
    """The source of a session's model, and the key of the compiled form.

    Args:
        source: See :func:`sardonyx.model.load`; None if `weighted` is the source.
        weighted: A graph with weights, which is assembled when a caller needs the model.

    Attributes:
        weighted: See above.
    """

    def __init__(self, source: Loadable | None, weighted: WeightedModel | None = None) -> None:
        self._source = source
        self.weighted = weighted
        self._model: ir.Model | None = None
        self._state = _state_of_file(source) if isinstance(source, (str, os.PathLike)) else None
        self.require_signed([])
        self._is_encrypted_file = self._state is not None and is_encrypted(source)

    @property
    def model(self) -> ir.Model:
        """The model, loaded on first access.

        Raises:
            ModelFileError: The file cannot be read, or changed since the session began.
            UnsupportedError: The source is a compiled file.
        """
        if self.weighted is not None:
            return self.weighted.model
        if is_compiled_file(self._source):
            raise UnsupportedError(
                "expected a model, got a compiled file.",
                where=self._path,
                remedy="Give the model from which the file was compiled.",
            )
        if self._model is None:
            from sardonyx.model.node_order import load_sorted

            self.require_state()
            self._model = load_sorted(self._source)  # type: ignore[arg-type]  # What is no model is refused there.
            if signature_policy.is_active():
                files = {id(file): file for tensor in _tensors(self._model) if (file := getattr(tensor, "file", None))}
                self.require_signed(list(files.values()))
        return self._model

    def require_signed(self, files: Sequence[Any]) -> None:
        """Refuse a model file that the signature policy of the process does not trust.

        Args:
            files: Further files of the model: paths, or opened files.

        Raises:
            SignatureError: See :func:`sardonyx.trust.signing.policy.verify_on_load`.
        """
        if signature_policy.is_active() and isinstance(self._source, (str, os.PathLike)):
            hook("verify_on_load")(self._source, files)

    @property
    def is_encrypted(self) -> bool:
        """True if a file of the model is encrypted, as far as the model is loaded."""
        if self._is_encrypted_file or not is_guarded():
            return self._is_encrypted_file
        model = self._model if self.weighted is None else self.weighted.model
        return model is not None and _is_decrypted(model)

    def artifacts(self) -> Store:
        """Return the store for artifacts of this model.

        The artifacts of an encrypted model are encrypted with the model's key; those of a plain graph with encrypted
        weights are not stored.

        Raises:
            EncryptionError: No key of this process opens the model.
        """
        if self._is_encrypted_file:
            sealed: Store = hook("sealed_store")(self._source)
            return sealed
        return Store(None) if self.is_encrypted else user_store()

    @property
    def has_name(self) -> bool:
        """True if a digest can name the compiled model: the contents are known, and no user-defined operators or rules
        exist.
        """
        return (isinstance(self._source, bytes) or self._state is not None) and _is_standard()

    @property
    def is_large_file(self) -> bool:
        """True if the model is in a file whose digest takes long."""
        return self._state is not None and self._state[2] > SOON_BYTES

    @property
    def is_named_soon(self) -> bool:
        """True if :meth:`name` takes milliseconds, because little has to be read or the digest is known."""
        if isinstance(self._source, bytes):
            return len(self._source) <= SOON_BYTES
        if self._state is None or self._state[2] <= SOON_BYTES:
            return True
        try:
            return known_contents(self._path) is not None
        except OSError:  # The load reports the error.
            return True

    def _is_elsewhere(self, tensor: Any) -> bool:
        """Return True if a tensor is stored in another file."""
        import onnx_ir as ir

        return isinstance(tensor, ir.ExternalTensor) and _state(tensor.path) != self._state

    def require_state(self) -> None:
        """Refuse a file that changed since the session began.

        Raises:
            ModelFileError: The file changed, or was removed.
        """
        if self._state is None:
            return
        try:
            state = _state(self._path)
        except OSError as error:
            raise ModelFileError(
                f"cannot be read any more: {error.strerror}.", where=self._path, remedy="Make a new session."
            ) from error
        if state != self._state:
            raise ModelFileError(
                "was changed since the session was made.", where=self._path, remedy="Make a new session."
            )

    def key(self, threads: int | None, schedules: str | None = None) -> str:
        """Return the name of the program of this model.

        Args:
            threads: Number of threads.
            schedules: Fingerprint of the schedules given by the user; of the active ones by default.

        Raises:
            OSError: The file cannot be read.
        """
        schedules = overrides.fingerprint() if schedules is None else schedules
        sum = _sum([self._source]) if isinstance(self._source, bytes) else contents(self._path)
        return digest("model", sum, str(thread_count(threads)), _build(), *([schedules] if schedules else []))

    def size_key(self, threads: int | None) -> str:
        """Return the name of the entry that exists if the store has, or had, a program of a large file of this size."""
        assert self._state is not None
        return digest("size", str(self._state[2]), str(thread_count(threads)), _build())

    def may_be_stored(self, threads: int | None) -> bool:
        """Return False if the store has no program of this model, as far as can be known without a long reading.

        Raises:
            OSError: The file cannot be read.
        """
        return (
            not self.is_large_file or self.is_named_soon or store().get("program", self.size_key(threads)) is not None
        )

    def name(self, threads: int | None) -> str | None:
        """Return :meth:`key`, or None if the model has no name."""
        try:
            return self.key(threads) if self.has_name else None
        except OSError as error:  # Loading says what is wrong with the model's files.
            _log.info("the model has no name: %s", error)
            return None

    @property
    def folder(self) -> Path:
        """The folder of external data."""
        return Path(self._path).parent

    def external(self) -> dict[str, str]:
        """Return the digests of external data files, by path relative to the folder.

        Raises:
            OSError: A file cannot be read.
        """
        files = {
            os.path.relpath(tensor.path, self.folder) for tensor in _tensors(self.model) if self._is_elsewhere(tensor)
        }
        return {name: contents(self.folder / name) for name in sorted(files)}

    @property
    def _path(self) -> str:
        return os.fspath(self._source) if isinstance(self._source, (str, os.PathLike)) else ""


def _is_decrypted(model: ir.Model) -> bool:
    """Return True if contents of a model were decrypted from a file."""
    from sardonyx.model.external import DecryptedFile
    from sardonyx.model.load import DECRYPTED

    files = (getattr(tensor, "file", None) for tensor in _tensors(model))
    return DECRYPTED in model.meta or any(isinstance(file, DecryptedFile) for file in files)


def _is_standard() -> bool:
    """Return True if no operators or rules are user-defined, so that the package's digest covers all of them.

    Registries that no module has imported yet hold nothing of the user.
    """
    if (registry := imported_module("sardonyx.ops.registry")) is not None and registry.user_operators():
        return False
    modules: set[str] = set()
    if (language := imported_module("sardonyx.rewrite.language")) is not None:
        modules.update(rule.module for rules in language.REGISTRY.values() for rule in rules)
    if (sweep := imported_module("sardonyx.rewrite.sweep")) is not None:
        modules.update(entry.rule.module for entry in sweep.SWEEPS.values())
    return all(module.startswith(_PACKAGE) for module in modules)


def host_function(domain: str, name: str, since: int, present: tuple[bool, ...] | None, module: str) -> HostFunction:
    """Return a host function of a stored program; see :func:`sardonyx.ops.registry.host_function`."""
    from sardonyx.ops import registry

    return registry.host_function(domain, name, since, present, module)


def restored(source: ModelSource, threads: int | None, denormals: Denormals) -> tuple[Program, dict[str, Any]] | None:
    """Return the cached program of a model with its metadata; None without an entry."""
    cache = store()
    if not source.has_name or cache.folder is None:
        return None
    finish_writing()
    try:
        return _restored(source, threads, denormals, cache) if source.may_be_stored(threads) else None
    except OSError as error:  # Loading says what is wrong with the model's files.
        _log.info("the program cache is not read: %s", error)
        return None


def _restored(
    source: ModelSource, threads: int | None, denormals: Denormals, cache: Store
) -> tuple[Program, dict[str, Any]] | None:
    key = source.key(threads)
    entry = cache.get("program", key)
    if entry is None:
        return None
    weights = _weights(cache, entry[:_DIGITS].decode())
    if weights is None:
        return None
    from sardonyx.compiler.program import Program
    from sardonyx.compiler.program_image.image import Image, OtherFormatError

    try:
        image = Image.read(entry[_DIGITS:], weights)
    except OtherFormatError as error:  # The program that is compiled now replaces the entry.
        _log.info("a cached program is ignored: %s", error)
        return None
    metadata: dict[str, Any] = image.head["noted"]
    source.require_signed([source.folder / name for name in metadata["external"]])
    if any(contents(source.folder / name) != sum for name, sum in metadata["external"].items()):
        return None
    return Program.from_image(image, threads=threads, denormals=denormals, hosts=host_function), metadata


def finish_writing() -> None:
    """Wait until the programs that this process compiled are in the store."""
    for writer in list(_writing):
        writer.join()


def keep(program: Program, source: ModelSource, threads: int | None, metadata: dict[str, Any]) -> None:
    """Put a program into the store, unless the program needs the graph at run time.

    Many weights are written in the background; the end of the process waits for them.

    Args:
        program: The program.
        source: The source of the model.
        threads: The requested number of threads.
        metadata: Metadata to return with the program, as JSON.
    """
    cache = store()
    if not source.has_name or cache.folder is None or program.overrides is None:
        return
    if sum(array.nbytes for array in program.weights) <= SOON_BYTES:
        _keep(program, source, threads, metadata, cache)
    else:
        _writing.add(background_threads.start("sardonyx-store", _keep_later, program, source, threads, metadata, cache))


_writing: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
"""Threads that write entries."""


def _keep_later(
    program: Program, source: ModelSource, threads: int | None, metadata: dict[str, Any], cache: Store
) -> None:
    lower_priority()
    try:
        _keep(program, source, threads, metadata, cache)
    except Exception as error:  # The last handler of the thread; later processes compile the model anew.
        _log.warning("the program is not cached: %r", error)


def _keep(program: Program, source: ModelSource, threads: int | None, metadata: dict[str, Any], cache: Store) -> None:
    from sardonyx.compiler.program_image.image import UnserializableError

    assert program.overrides is not None
    try:
        image = program.image()
        image.head["noted"] = {**metadata, "external": source.external()}
        key = source.key(threads, program.overrides)
        source.require_state()
    except (UnserializableError, ModelFileError, OSError) as reason:
        _log.info("the program is not cached: %s", reason)
        return
    # Weights are keyed by contents: programs for other numbers of threads share them, and a program that another
    # process wrote may have them in another order.
    weights = image.weights()
    name = digest(*weights)
    cache.put("weights", name, *weights)
    cache.put("program", key, name.encode() + image.texts())
    if source.is_large_file:
        cache.put("program", source.size_key(threads), b"")


_mapped: weakref.WeakValueDictionary[tuple[Path | None, str], np.ndarray] = weakref.WeakValueDictionary()
"""Mapped weights, shared by all programs of the process: their arrays are views of these."""

_lock = threading.Lock()


def _weights(cache: Store, key: str) -> np.ndarray | None:
    with _lock:
        weights = _mapped.get((cache.folder, key))
        if weights is None:
            view = cache.get("weights", key)
            if view is not None:
                weights = _mapped[cache.folder, key] = np.frombuffer(view, np.uint8)
        return weights


# Digests of files.

_read_before: dict[tuple[Path | None, str], str] = {}


def contents(path: str | os.PathLike[str]) -> str:
    """Return a digest of a file's contents, from memory or the store if the file is unchanged.

    Raises:
        OSError: The file cannot be read.
    """
    known = known_contents(path)
    if known is not None:
        return known
    state = _state(path)
    settled = _is_settled(state)
    with Path(path).open("rb") as file:
        checksum = _sum(iter(lambda: file.read(_BLOCK), b""))
    if settled and _state(path) == state:
        store().put("program", _state_key(path, state), checksum.encode())
        _remember(path, state, checksum)
    return checksum


def known_contents(path: str | os.PathLike[str]) -> str | None:
    """Return the digest of an unchanged file; None if the file must be read.

    Raises:
        OSError: The file does not exist or is inaccessible.
    """
    state = _state(path)
    checksum = _read_before.get((store().folder, _state_key(path, state)))
    if checksum is None:
        entry = store().get("program", _state_key(path, state))
        if entry is not None:
            checksum = entry.decode()
            if _is_settled(state):
                _remember(path, state, checksum)
    return checksum


def _state_key(path: str | os.PathLike[str], state: tuple[int, ...]) -> str:
    """Return a key for the current state of a file."""
    return digest("file", str(Path(path).absolute()), *map(str, state))


def _remember(path: str | os.PathLike[str], state: tuple[int, ...], checksum: str) -> None:
    if len(_read_before) >= _MOST_FILES:
        _read_before.clear()
    _read_before[store().folder, _state_key(path, state)] = checksum


def _is_settled(state: tuple[int, ...]) -> bool:
    return max(state[3], state[4]) / 1e9 < time.time() - _SETTLED_SECONDS


def _state_of_file(path: str | os.PathLike[str]) -> tuple[int, ...] | None:
    try:
        return _state(path)
    except OSError:  # The load reports the error.
        return None


def _state(path: str | os.PathLike[str]) -> tuple[int, ...]:
    status = Path(path).stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _sum(blocks: Iterable[bytes]) -> str:
    sum = blake2b(digest_size=20)
    for block in blocks:
        sum.update(block)
    return sum.hexdigest()


def _tensors(model: ir.Model) -> Iterator[Any]:
    import onnx_ir as ir

    for graph in (model.graph, *model.graph.subgraphs()):
        yield from (value.const_value for value in graph.initializers.values())
    nodes = itertools.chain(model.graph.all_nodes(), *(function.all_nodes() for function in model.functions.values()))
    for node in nodes:
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                yield attribute.value


def _build() -> str:
    """Return a digest of the compiler and the processor of this process."""
    return digest(build_digest(), repr(host()))
