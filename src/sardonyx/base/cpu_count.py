"""How many threads to work with: what the user says, or what the system leaves this process."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

from sardonyx.errors import OptionError

_log = logging.getLogger(__name__)


def thread_count(option: int | None = None) -> int:
    """How many threads to work with, the caller's own among them.

    The first of these that is there: the option; ``SARDONYX_THREADS``; ``OMP_NUM_THREADS`` (of a list, the outermost
    level); the cores that this process may run on, one thread a core, bounded by the control group's share of time.

    Raises:
        OptionError: The option or ``SARDONYX_THREADS`` is not a number of at least 1.
    """
    if option is not None:
        return _checked(option, "threads")
    if own := os.environ.get("SARDONYX_THREADS"):
        return _checked(own, "SARDONYX_THREADS")
    if shared := os.environ.get("OMP_NUM_THREADS"):
        outermost = shared.split(",")[0].strip()
        if outermost.isdecimal() and int(outermost) > 0:
            return int(outermost)
        _log.warning("OMP_NUM_THREADS is %r, no number of threads: it is not followed.", shared)
    limit = quota()
    cores = len(one_a_core(allowed()))
    return max(1, cores if limit is None else min(cores, limit))


def _checked(value: int | str, where: str) -> int:
    text = str(value).strip()
    if not text.isdecimal() or int(text) < 1:
        raise OptionError(f"{value!r} is no number of threads.", where=where, remedy="Give 1 or more.")
    return int(text)


def allowed() -> set[int]:
    """The processors that the calling thread may run on."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def one_a_core(processors: set[int], system: Path = Path("/sys/devices/system/cpu")) -> set[int]:
    """Of the processors that share a core, one each: arithmetic at full rate leaves a second one nothing."""
    chosen: set[int] = set()
    taken: set[int] = set()
    for processor in sorted(processors):
        if processor not in taken:
            chosen.add(processor)
            taken |= _siblings(system / f"cpu{processor}/topology/thread_siblings_list")
    return chosen


def _siblings(file: Path) -> set[int]:
    """The numbers in a list such as ``0,4`` or ``0-1``; none where the system does not say."""
    try:
        text = file.read_text(encoding="ascii").strip()
    except OSError:
        return set()
    spans = [[int(end) for end in part.split("-")] for part in text.split(",") if part]
    return {number for span in spans for number in range(span[0], span[-1] + 1)}


def quota(root: Path = Path("/")) -> int | None:
    """How many processors' worth of time the control groups leave this process, rounded up; None without a limit.

    Args:
        root: Where the system's files are.
    """
    shares = list(_shares(root))
    return max(1, min(shares)) if shares else None


def _shares(root: Path) -> Iterator[int]:
    """The limits of this process's group and of the groups around it, in both versions of control groups."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    mounts = root / "sys/fs/cgroup"
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            for group in _upwards(mounts, path):
                words = _words(group / "cpu.max")
                if len(words) == 2 and words[0] != "max":
                    yield -(-int(words[0]) // int(words[1]))
        elif "cpu" in controllers.split(","):
            for mount in (mounts / controllers, mounts / "cpu"):
                for group in _upwards(mount, path):
                    words = _words(group / "cpu.cfs_quota_us") + _words(group / "cpu.cfs_period_us")
                    if len(words) == 2 and int(words[0]) > 0:
                        yield -(-int(words[0]) // int(words[1]))


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """A group's folder and those around it; a container's own view may hold only the last."""
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    for length in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:length])


def _words(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="ascii").split()
    except OSError:
        return []
