"""Reading of programs without pickled objects."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from sardonyx.errors import ModelFileError


class _Guard(threading.local):
    """State of a thread: the number of ``with`` statements of ``without_pickles`` around it."""

    depth = 0


_GUARD = _Guard()
_LOCK = threading.Lock()


class _Pickles:
    """The module ``pickle``, whose readers refuse in guarded threads."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def __getattr__(self, name: str) -> Any:
        if name in ("load", "loads", "Unpickler") and _GUARD.depth:
            raise ModelFileError("the archive holds a pickled object")
        return getattr(self._own, name)


def _guarded(own: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``torch.load`` that reads tensors alone in guarded threads."""

    def load(*args: Any, **kwargs: Any) -> Any:
        return own(*args, **{**kwargs, "weights_only": True} if _GUARD.depth else kwargs)

    return load


class _Patches:
    """Replacements of torch's readers, made by the first thread that enters and removed by the last that leaves."""

    def __init__(self) -> None:
        self._users = 0
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def enter(self) -> None:
        """Replace the readers if no thread has."""
        with _LOCK:
            self._users += 1
            if self._users > 1:
                return
            package = torch.export.pt2_archive._package
            self._replace(torch, "load", _guarded(torch.load))
            if hasattr(package, "pickle"):
                self._replace(package, "pickle", _Pickles(package.pickle))

    def leave(self) -> None:
        """Restore the readers if no other thread needs the replacements."""
        with _LOCK:
            self._users -= 1
            if self._users:
                return
            for owner, name, own, replacement in self._replaced:
                if getattr(owner, name) is replacement:
                    setattr(owner, name, own)
            self._replaced.clear()

    def _replace(self, owner: Any, name: str, replacement: Any) -> None:
        self._replaced.append((owner, name, getattr(owner, name), replacement))
        setattr(owner, name, replacement)


_PATCHES = _Patches()


@contextlib.contextmanager
def without_pickles() -> Iterator[None]:
    """Refuse pickled objects inside of the ``with`` statement: torch reads tensors alone, in this thread."""
    _PATCHES.enter()
    _GUARD.depth += 1
    try:
        yield
    finally:
        _GUARD.depth -= 1
        _PATCHES.leave()
