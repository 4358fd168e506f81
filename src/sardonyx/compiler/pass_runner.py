"""Passes: named stages of the compiler, each with a contract, a dump and a time.

A :class:`Pass` is called like its function. ``SARDONYX_DEBUG`` selects the information printed to standard error:

====  =====================================================================
1     names and times of passes
2     the Core graph after each pass over Core
3     groups, layouts, launches, segments
4     the tape and the memory plan of each segment
5     the LLVM IR of each kernel
6     assembly of each kernel; contracts are verified
====  =====================================================================

A level includes the levels below. Without the variable, and while no times are recorded, a pass is a plain call.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, TypeVar

from sardonyx.errors import OptionError, SardonyxError

VARIABLE = "SARDONYX_DEBUG"

NAMES, CORE, GROUPS, TAPE, LLVM_IR, ASSEMBLY = range(1, 7)
"""Debug levels; the name is the information that the level adds."""

VERIFY = ASSEMBLY
"""The debug level from which contracts are verified."""

_MOST_FAULTS = 5
"""Violations of a contract that an error lists."""

P = ParamSpec("P")
R = TypeVar("R")


class ContractError(SardonyxError):
    """A pass violated its contract, or its argument did: a defect of this package."""


@dataclass(frozen=True)
class Contract:
    """A property of the first argument or of the result of a pass.

    Attributes:
        statement: The property, in one sentence.
        faults: Yields a description of each violation.
    """

    statement: str
    faults: Callable[[Any], Iterable[str]]


@dataclass(frozen=True)
class Pass(Generic[P, R]):
    """One stage of the compiler.

    Attributes:
        name: Names the pass in dumps and tables of times.
        transform: Computes the result.
        requires: Properties of the first argument.
        ensures: Properties of the result.
        dump: Yields the parts of a dump, from the result and the arguments: the debug level of each part, and a
            function for its text.
    """

    name: str
    transform: Callable[P, R]
    requires: tuple[Contract, ...] = ()
    ensures: tuple[Contract, ...] = ()
    dump: Callable[..., Iterable[tuple[int, Callable[[], str]]]] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the pass.

        Raises:
            ContractError: The contract does not hold, at a debug level that verifies.
            OptionError: ``SARDONYX_DEBUG`` is not a level.
        """
        level = debug_level()
        if not level and not _recorders:
            return self.transform(*args, **kwargs)
        subject = args[0] if args else None
        if level >= VERIFY:
            self._verify(self.requires, subject, "requires")
        result, seconds = _timed(self.name, lambda: self.transform(*args, **kwargs))
        if level:
            self._print(level, args, result, seconds)
        if level >= VERIFY:
            self._verify(self.ensures, result, "ensures")
        return result

    def _print(self, level: int, args: Sequence[Any], result: R, seconds: float) -> None:
        parts = [f"sardonyx: {self.name}{_label(args)}: {seconds * 1e3:.1f} ms"]
        if self.dump is not None:
            parts += [text() for least, text in self.dump(result, *args) if level >= least]
        # One write, so that the output of several threads does not mix.
        sys.stderr.write("\n".join(part.rstrip("\n") for part in parts if part) + "\n")

    def _verify(self, contracts: Sequence[Contract], subject: Any, verb: str) -> None:
        for contract in contracts:
            faults = list(contract.faults(subject))
            if faults:
                more = f"; and {len(faults) - _MOST_FAULTS} more" if len(faults) > _MOST_FAULTS else ""
                listed = "; ".join(faults[:_MOST_FAULTS])
                raise ContractError(f"the pass {verb}: {contract.statement}; {listed}{more}.", where=self.name)


def debug_level() -> int:
    """Return the level in ``SARDONYX_DEBUG``, 0 without the variable.

    Raises:
        OptionError: The variable has another value.
    """
    text = os.environ.get(VARIABLE)
    if not text:
        return 0
    if text not in ("0", "1", "2", "3", "4", "5", "6"):
        raise OptionError(f"expected a level from 0 to 6, got {text!r}.", where=VARIABLE, remedy="Set it to 1 to 6.")
    return int(text)


def _label(args: Sequence[Any]) -> str:
    subject = args[0] if args else None
    name = getattr(getattr(subject, "function", subject), "name", None)
    return f" ({name})" if isinstance(name, str) and name else ""


# Times.


@dataclass
class PassTimes:
    """Recorded times of passes.

    Attributes:
        seconds: Time of each pass, by name, without nested passes; in the order of their first end.
        runs: Number of runs of each pass, by name.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    runs: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, seconds: float) -> None:
        """Add one run of a pass."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        self.runs[name] = self.runs.get(name, 0) + 1


_recorders: list[PassTimes] = []
_lock = threading.Lock()
_thread = threading.local()


@contextmanager
def recorded_pass_times(enabled: bool = True) -> Iterator[PassTimes]:
    """Record the times of all passes of the process, in any thread, until the context ends.

    Args:
        enabled: False to record nothing.
    """
    times = PassTimes()
    if not enabled:
        yield times
        return
    _recorders.append(times)
    try:
        yield times
    finally:
        # By identity: two empty records are equal.
        _recorders[:] = [other for other in _recorders if other is not times]


def _timed(name: str, run: Callable[[], R]) -> tuple[R, float]:
    """Run a pass; return its result, and its time without nested passes."""
    outer = getattr(_thread, "nested", 0.0)
    _thread.nested = 0.0
    start = time.perf_counter()
    try:
        result = run()
    finally:
        whole = time.perf_counter() - start
        seconds = whole - _thread.nested
        _thread.nested = outer + whole
    with _lock:
        for times in _recorders:
            times.add(name, seconds)
    return result, seconds
