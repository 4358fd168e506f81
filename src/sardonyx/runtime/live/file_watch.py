"""Reloading a session's model when its file is replaced."""

from __future__ import annotations

import logging
import os
import weakref
from pathlib import Path

from sardonyx.base import background_threads
from sardonyx.errors import SardonyxError
from sardonyx.runtime.live.live_model import LiveModel

INTERVAL_SECONDS = 0.25
"""Seconds between looks at the file; a new file is loaded once it is unchanged between two looks."""

_log = logging.getLogger("sardonyx")


def watch(live: LiveModel, path: str | os.PathLike[str]) -> None:
    """Reload a file after each replacement, as long as the live model is in use.

    A file that cannot be loaded is refused with a warning in the log; the current model continues to answer.

    Args:
        live: The model.
        path: The file, which should be replaced as a whole (written under another name and renamed).
    """
    loaded = _state(path)
    background_threads.start("sardonyx-watch", _watch, weakref.ref(live), path, loaded)


def _watch(live: weakref.ref[LiveModel], path: str | os.PathLike[str], loaded: tuple[int, ...] | None) -> None:
    before = loaded
    while live() is not None:
        background_threads.pause(INTERVAL_SECONDS)
        state = _state(path)
        if state is not None and state != loaded and state == before:
            loaded = state
            _reload(live, path)
        before = state


def _reload(live: weakref.ref[LiveModel], path: str | os.PathLike[str]) -> None:
    model = live()
    if model is None:
        return
    try:
        model.reload(path)
    except Exception as error:  # The watch continues: the next file may be valid.
        reason = str(error) if isinstance(error, SardonyxError) else f"{type(error).__name__}: {error}"
        _log.warning("the new file is not loaded, the session keeps its model: %s", reason)


def _state(path: str | os.PathLike[str]) -> tuple[int, ...] | None:
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
