"""A cache of traced nodes, bounded by entries and by the bytes of the constants that keys and results hold."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable
from typing import Any, Generic, TypeVar

import numpy as np

from sardonyx.core.ir.graph import Value

_Entry = TypeVar("_Entry")


class TraceCache(Generic[_Entry]):
    """Entries by key; the least recently used one is forgotten first.

    A constant of a model is part of the key of every node that reads the constant. A program that updates weights
    again and again would otherwise keep all earlier weights in memory.

    Args:
        entries: Most entries.
        constant_bytes: Most bytes of constants in all entries.
    """

    def __init__(self, entries: int, constant_bytes: int) -> None:
        self._most, self._most_bytes = entries, constant_bytes
        self._entries: dict[Hashable, tuple[_Entry, int]] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def constant_bytes(self) -> int:
        """Bytes of the constants that the entries hold."""
        return self._bytes

    def get(self, key: Hashable) -> _Entry | None:
        """Return an entry, which becomes the most recently used one; None if the key has none.

        Raises:
            TypeError: A part of the key has no hash.
        """
        with self._lock:
            stored = self._entries.pop(key, None)
            if stored is None:
                return None
            self._entries[key] = stored
            return stored[0]

    def put(self, key: Hashable, entry: _Entry, known: Iterable[Any]) -> None:
        """Store an entry.

        Args:
            key: The key.
            entry: The entry.
            known: Parts of key and entry, among them all constants.
        """
        size = sum(map(_constant_bytes, known))
        with self._lock:
            earlier = self._entries.pop(key, None)
            self._bytes += size - (0 if earlier is None else earlier[1])
            self._entries[key] = entry, size
            while len(self._entries) > self._most or (self._bytes > self._most_bytes and len(self._entries) > 1):
                self._bytes -= self._entries.pop(next(iter(self._entries)))[1]


def _constant_bytes(known: Any) -> int:
    """Return the bytes of a known value: its array, and the copy by which equal constants are recognized."""
    array = known.params.get("value") if isinstance(known, Value) else None
    return 2 * array.nbytes if isinstance(array, np.ndarray) else 0
