"""The number of threads to work with: chosen by the user, or available to the process."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

from sardonyx.errors import OptionError

_log = logging.getLogger(__name__)


def thread_count(option: int | None = None) -> int:
    """Return the number of threads to work with, including the caller's.

    The first defined value of: the option; ``SARDONYX_THREADS``; ``OMP_NUM_THREADS`` (of a list, the outermost level);
    the cores that this process may run on, one thread a core, bounded by the control group's share of time.

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
        _log.warning("OMP_NUM_THREADS: expected a number of threads, got %r; the variable is ignored.", shared)
    limit = quota()
    cores = len(one_a_core(allowed()))
    return max(1, cores if limit is None else min(cores, limit))


def _checked(value: int | str, where: str) -> int:
    text = str(value).strip()
    if not text.isdecimal() or int(text) < 1:
        raise OptionError(f"expected a number of threads, got {value!r}.", where=where, remedy="Give 1 or more.")
    return int(text)


def allowed() -> set[int]:
    """Return the processors that the calling thread may run on."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def one_a_core(processors: set[int], system: Path = Path("/sys/devices/system/cpu")) -> set[int]:
    """Return one processor of each core: a second hardware thread adds no arithmetic."""
    chosen: set[int] = set()
    siblings: set[int] = set()
    for processor in sorted(processors):
        if processor not in siblings:
            chosen.add(processor)
            siblings |= _siblings(system / f"cpu{processor}/topology/thread_siblings_list")
    return chosen


def _siblings(file: Path) -> set[int]:
    """Return the numbers in a list such as ``0,4`` or ``0-1``; an empty set without the file."""
    try:
        text = file.read_text(encoding="ascii").strip()
    except OSError:
        return set()
    spans = [[int(end) for end in part.split("-")] for part in text.split(",") if part]
    return {number for span in spans for number in range(span[0], span[-1] + 1)}


def quota(root: Path = Path("/")) -> int | None:
    """Return the limit of control groups in processors, rounded up; None without a limit.

    Args:
        root: Root of the system's files.
    """
    shares = list(_shares(root))
    return max(1, min(shares)) if shares else None


def _shares(root: Path) -> Iterator[int]:
    """Yield the limits of this process's group and its ancestors, in both versions of control groups."""
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
    """Yield a group's folder and its ancestors; a container may see only the last of them."""
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    for length in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:length])


def _words(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="ascii").split()
    except OSError:
        return []
