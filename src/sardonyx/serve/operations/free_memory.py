"""Memory that a burst of requests left free is returned to the system, which glibc does not do by itself."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_GROWTH = 64 << 20
"""Bytes of growth below which a return costs more page faults than it frees memory."""

_LONGEST_PAUSE = 64
"""Seconds between two returns of a process that has grown for good."""


class FreeMemory:
    """The memory of this process beside that at its start."""

    def __init__(self) -> None:
        self._begin = resident_bytes()
        self._pause = 1
        self._left = 0

    def is_due(self) -> bool:
        """Return True if the process has grown, and it is time for a return; called about once a second."""
        self._left -= 1
        return self._left <= 0 and self._has_grown()

    def give_back(self) -> None:
        """Return free memory to the system; this takes milliseconds."""
        from sardonyx.runtime.compiled.memory_usage import give_back

        give_back()
        self._pause = min(2 * self._pause, _LONGEST_PAUSE) if self._has_grown() else 1
        self._left = self._pause

    def _has_grown(self) -> bool:
        return resident_bytes() > self._begin + self._begin // 4 + _GROWTH


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 where the system does not tell."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
