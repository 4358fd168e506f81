"""A watch on a model's file: whoever replaces it has the session answer from the new one."""

from __future__ import annotations

import logging
import os
import weakref
from pathlib import Path

from sardonyx.base import background_threads
from sardonyx.errors import SardonyxError
from sardonyx.runtime.live.live_model import LiveModel

_SECONDS = 0.25
"""How often the file is looked at; it is loaded when it is the same twice in a row."""

_log = logging.getLogger("sardonyx")


def watch(live: LiveModel, path: str | os.PathLike[str]) -> None:
    """Reload a file whenever it is another, as long as the live model is used.

    A file that cannot be loaded is refused, with a warning in the log, and the model goes on as it was.

    Args:
        live: The model.
        path: The file, which should be replaced as a whole (written beside and renamed).
    """
    known = _state(path)
    background_threads.start("sardonyx-watch", _watch, weakref.ref(live), path, known)


def _watch(live: weakref.ref[LiveModel], path: str | os.PathLike[str], loaded: tuple[int, ...] | None) -> None:
    before = loaded
    while live() is not None:
        background_threads.pause(_SECONDS)
        state = _state(path)
        if state is not None and state != loaded and state == before:
            loaded = state
            _reload(live, path)
        before = state


def _reload(live: weakref.ref[LiveModel], path: str | os.PathLike[str]) -> None:
    found = live()
    if found is None:
        return
    try:
        found.reload(path)
    except Exception as error:  # Whatever it is, the next file is looked at.
        said = str(error) if isinstance(error, SardonyxError) else f"{type(error).__name__}: {error}"
        _log.warning("the new file is not loaded, the session goes on as it was: %s", said)


def _state(path: str | os.PathLike[str]) -> tuple[int, ...] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
