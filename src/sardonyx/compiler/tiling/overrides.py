"""Schedules given by the user, by ``SARDONYX_SCHEDULE`` or :func:`override_schedules`.

A file holds the output of ``sardonyx explain --json``, edited or not, or ``{"target": name, "schedules": {problem:
schedule}}``. Overrides belong to the process: each compilation that starts while overrides are active applies them. A
program loaded from a compiled file keeps the schedules with which the file was compiled.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sardonyx.base.blake import blake2b
from sardonyx.errors import OptionError

VARIABLE = "SARDONYX_SCHEDULE"
"""The environment variable that names a file of schedules."""


@dataclass(frozen=True)
class Overrides:
    """Schedules by problem.

    Attributes:
        schedules: Plain data of a schedule, by the problem as text.
        target: Name of the target that the schedules are for; empty for any.
        source: The file, for messages.
    """

    schedules: Mapping[str, Mapping[str, Any]]
    target: str = ""
    source: str = ""

    @functools.cached_property
    def fingerprint(self) -> str:
        """A digest of problems and schedules."""
        text = json.dumps([self.target, self.schedules], sort_keys=True)
        return blake2b(text.encode(), digest_size=16).hexdigest()


_active: list[Overrides] = []


@contextmanager
def override_schedules(source: Mapping[str, Any] | str | os.PathLike[str]) -> Iterator[None]:
    """Replace the schedules of matching problems in programs that are compiled inside the block.

    Args:
        source: A file, or the content of one; see :mod:`sardonyx.compiler.tiling.overrides`.

    Raises:
        OptionError: The file cannot be read, or holds no schedules.
    """
    layer = parse(source) if isinstance(source, Mapping) else read(os.fspath(source))
    _active.append(layer)
    try:
        yield
    finally:
        _active.remove(layer)


def find(problem: str, target: str) -> Mapping[str, Any] | None:
    """Return the plain data of the user's schedule for a problem; None without one.

    Raises:
        OptionError: The file cannot be read, or is for another target.
    """
    for layer in _layers():
        schedule = layer.schedules.get(problem)
        if schedule is not None:
            if layer.target not in ("", target):
                raise OptionError(
                    f"the schedules are for {layer.target}, the code for {target}.", where=layer.source or VARIABLE,
                    remedy=f"Write them anew with SARDONYX_TARGET={target}, or remove them.",
                )  # fmt: skip
            return schedule
    return None


def fingerprint() -> str:
    """Return a digest of the active overrides, which is part of a program's cache key; empty without any."""
    return " ".join(layer.fingerprint for layer in _layers())


def read(path: str) -> Overrides:
    """Read a file of schedules.

    Raises:
        OptionError: The file cannot be read, or holds no schedules.
    """
    try:
        state = Path(path).stat()
        return _read(path, state.st_mtime_ns, state.st_size)
    except (OSError, ValueError) as error:
        raise OptionError(
            f"cannot read the schedules: {error}.", where=path, remedy="Give a file of `sardonyx explain --json`."
        ) from error


def parse(data: Any, source: str = "") -> Overrides:
    """Return the schedules in the content of a file.

    Raises:
        OptionError: The data hold no schedules.
    """
    if isinstance(data, Mapping) and isinstance(data.get("schedules"), Mapping):
        schedules = dict(data["schedules"])
    elif isinstance(data, Mapping) and isinstance(data.get("kernels"), list):
        kernels = [kernel for kernel in data["kernels"] if isinstance(kernel, Mapping)]
        notes = [note for kernel in kernels for note in kernel.get("choices", ())]
        schedules = {note["problem"]: note["schedule"] for note in notes}
    else:
        raise OptionError(
            "expected an object with `schedules` or `kernels`.", where=source or VARIABLE,
            remedy="Give the output of `sardonyx explain --json`.",
        )  # fmt: skip
    for problem, schedule in schedules.items():
        if not isinstance(schedule, Mapping):
            raise OptionError(f"expected an object as the schedule of {problem!r}.", where=source or VARIABLE)
    return Overrides(schedules, str(data.get("target") or ""), source)


@functools.lru_cache(maxsize=8)
def _read(path: str, modified: int, size: int) -> Overrides:
    return parse(json.loads(Path(path).read_text(encoding="utf-8")), path)


def _layers() -> list[Overrides]:
    """The active overrides, innermost first."""
    path = os.environ.get(VARIABLE)
    return [*reversed(_active), *([read(path)] if path else [])]
