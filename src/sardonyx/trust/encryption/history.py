"""Memory of this user about encrypted files: highest generations and latest time seen, against old copies and clocks.

The file is ``~/.local/state/sardonyx/encrypted.json``; ``SARDONYX_STATE`` names another folder, ``off`` none. Who can
write the file can reset the memory.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

from sardonyx.base.artifact_store import write_whole
from sardonyx.errors import EncryptionError

_log = logging.getLogger(__name__)
_lock = threading.Lock()
_MAX_BYTES = 1 << 22
_MAX_SETS = 10_000
_CLOCK_SECONDS = 60.0
"""Resolution of the stored time."""


def _path() -> Path | None:
    setting = os.environ.get("SARDONYX_STATE")
    if setting in ("", "off"):
        return None
    if setting is not None:
        return Path(setting) / "encrypted.json"
    try:
        return Path.home() / ".local" / "state" / "sardonyx" / "encrypted.json"
    except RuntimeError as error:
        _log.warning("generations of encrypted files are not remembered: %s", error)
        return None


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES + 1)
        data = json.loads(text) if len(text) <= _MAX_BYTES else None
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise EncryptionError(
            f"the memory of encrypted files is damaged: {error}.", where=str(path), remedy="Delete the file."
        ) from error
    if not isinstance(data, dict) or not isinstance(data.get("sets", {}), dict):
        raise EncryptionError("the memory of encrypted files is damaged.", where=str(path), remedy="Delete the file.")
    return data


def latest_time() -> float:
    """Return the latest time that was stored, in seconds since 1970; 0 before the first."""
    path = _path()
    clock = _read(path).get("clock", 0.0) if path is not None else 0.0
    return float(clock) if isinstance(clock, int | float) else 0.0


def remember(set_name: str, generation: int, where: str, *, clock: bool) -> None:
    """Store the generation of a file and, if ``clock``, the current time.

    Raises:
        EncryptionError: A copy with a higher generation was seen before, or the memory is damaged.
    """
    path = _path()
    if path is None:
        return
    with _lock:
        data = _read(path)
        sets = data.setdefault("sets", {})
        highest = sets.get(set_name, 0)
        if isinstance(highest, int) and generation < highest:
            raise EncryptionError(
                f"is an old copy: its recipients were replaced {highest - generation} times since.",
                where=where,
                remedy="Get the current file from its author.",
            )
        now = time.time()
        stale = clock and now > float(data.get("clock", 0.0)) + _CLOCK_SECONDS
        if generation == highest and not stale:
            return
        if generation:
            if len(sets) >= _MAX_SETS and set_name not in sets:
                sets.pop(next(iter(sets)))
            sets[set_name] = generation
        if clock:
            data["clock"] = max(now, float(data.get("clock", 0.0)))
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(path, json.dumps(data).encode())
        except OSError as error:
            _log.warning("generations of encrypted files are not remembered in %s: %s", path, error)
