"""Kernels in the artifact store, by the canonical form of their group: looked up before anything is emitted.

The key of an entry is a digest of everything that emission may read: the canonical form with general names of size
symbols, the target, the number of threads, the sources of this package and its dependencies. So an entry never becomes
stale, and models with other names or weights share it. At the debug level that prints LLVM IR, groups are lowered
nevertheless and compared with their entries.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Hashable
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from sardonyx.base.artifact_store import Store, digest
from sardonyx.base.blake import blake2b
from sardonyx.compiler.llvm.build_digest import build_digest
from sardonyx.compiler.lower.canonical_form import CanonicalForm
from sardonyx.compiler.lower.launch import Launch
from sardonyx.compiler.lower.stored_launches import Symbols, UnstorableError, is_stored_alike, read, written
from sardonyx.compiler.schedule.groups import Group
from sardonyx.compiler.target.description import Target
from sardonyx.core.dim import Dim
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import TensorType
from sardonyx.errors import SardonyxError

_log = logging.getLogger(__name__)

_MALFORMED = (ArithmeticError, AttributeError, ImportError, LookupError, TypeError, ValueError, zlib.error)
"""Errors of reading an entry that this revision did not write."""


class StoredKernelError(SardonyxError):
    """A stored kernel is not the one that its group needs: a defect of this package."""


class KernelStore:
    """The launches of groups, in the store.

    Args:
        store: The store.
        target: The processor.
        threads: Number of threads that share the work.
        verifies: True to lower each group, and to compare the result with the stored one.

    Attributes:
        reused: Number of forms whose launches were in the store.
        emitted: Number of forms whose launches were not.
    """

    def __init__(self, store: Store, target: Target, threads: int, verifies: bool = False) -> None:
        self._store = store
        self._target = target
        self._around = digest("kernel", build_digest(), repr(target), str(threads))
        self._verifies = verifies
        self._new: list[tuple[StoredForm, list[Launch]]] = []
        self.reused = self.emitted = 0

    def launches(self, form: CanonicalForm, group: Group, lower: Callable[[Group], list[Launch]]) -> list[Launch]:
        """Return the launches of a group: those in the store, or new ones.

        Args:
            form: The canonical form of the group.
            group: The group.
            lower: Emits the kernels of a group; raises if the group has none.

        Raises:
            StoredKernelError: The group is verified, and the store has other launches.
        """
        try:
            named = StoredForm(form)
        except UnstorableError as reason:
            _log.debug("the kernel of %s is not stored: %s", group.root, reason)
            return lower(group)
        stored = self._read(named, group)
        if stored is None:
            launches = lower(group)
            self.emitted += 1
            self._new.append((named, launches))
            return launches
        self.reused += 1
        if self._verifies:
            launches = lower(group)
            if len(launches) != len(stored) or not all(map(is_stored_alike, launches, stored)):
                raise StoredKernelError(
                    "a stored kernel differs from the one that is emitted.", where=str(group.root),
                    remedy="Report this; delete the folder of the cache until then.",
                )  # fmt: skip
        return stored

    def keep(self) -> None:
        """Put the launches of new groups into the store, after their kernels were compiled."""
        for named, launches in self._new:
            try:
                data = written(launches, named.values, named.symbols, self._target)
            except UnstorableError as reason:
                _log.debug("a kernel is not stored: %s", reason)
            else:
                self._store.put("kernel", self._key(named), data)
        self._new = []

    def _key(self, named: StoredForm) -> str:
        return digest(self._around, named.text)

    def _read(self, named: StoredForm, group: Group) -> list[Launch] | None:
        key = self._key(named)
        data = self._store.get("kernel", key)
        if data is None:
            return None
        try:
            return read(data, named.values, named.symbols, self._target, group)
        except _MALFORMED as error:
            _log.warning("the stored kernel %s is malformed and is replaced: %r", key, error)
            return None


class StoredForm:
    """A canonical form as text that does not depend on the process or the model.

    Args:
        form: The form.

    Attributes:
        text: Equal for equal forms alone.
        values: The values of the form, in order.
        symbols: The size symbols of the form.

    Raises:
        UnstorableError: A part of the form has no such text.
    """

    def __init__(self, form: CanonicalForm) -> None:
        parts: list[str | Dim] = []
        _append(parts, form.key)
        names = dict.fromkeys(name for part in parts if isinstance(part, Dim) for name in sorted(part.symbols()))
        self.values = form.values
        self.symbols = Symbols(tuple(names))
        texts = [part if isinstance(part, str) else repr(self.symbols.general(part)) for part in parts]
        self.text = "\0".join(texts)


def _append(parts: list[str | Dim], part: Any) -> None:
    """Append texts and sizes that together determine a part of a canonical form.

    Raises:
        UnstorableError: The part has no text.
    """
    kind = type(part)
    if kind is tuple:
        parts.append(f"tuple {len(part)}")
        for inner in part:
            _append(parts, inner)
    elif kind in _SCALARS:
        parts.append(repr(part))
    elif kind is t.DType:
        parts.append(part.name)
    elif kind is Dim:
        parts.append(part)
    elif kind is TensorType:
        parts.append(f"tensor {part.dtype.name}")
        _append(parts, part.shape)
    elif kind is float:
        parts.append(part.hex())
    elif kind is frozenset:
        parts += [f"set {len(part)}", *sorted(map(_whole_text, part))]
    elif isinstance(part, Value) and part.is_constant:
        parts.append(_elements(part))
    elif is_dataclass(part) and not isinstance(part, type):
        parts.append(f"record {kind.__qualname__}")
        for field in fields(part):
            _append(parts, getattr(part, field.name))
    else:
        raise UnstorableError(f"a {kind.__name__} has no text")


_SCALARS = frozenset({type(None), bool, int, str, bytes})


def _whole_text(part: Hashable) -> str:
    """Return the text of a part without sizes."""
    parts: list[str | Dim] = []
    _append(parts, part)
    texts = [text for text in parts if isinstance(text, str)]
    if len(texts) < len(parts):
        raise UnstorableError("a set of sizes has no order")
    return "\1".join(texts)


def _elements(constant: Value) -> str:
    """Return a digest of the elements of a constant."""
    array: Any = constant.known
    if not isinstance(array, np.ndarray) or array.dtype == object:
        raise UnstorableError("a constant without a fixed element size has no digest")
    sum = blake2b(digest_size=20)
    sum.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return f"constant {array.dtype} {array.shape} {sum.hexdigest()}"
