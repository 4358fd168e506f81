"""Fuzzer of compiled code: hostile feeds in guarded memory, compared with the interpreter.

Children run the variants of :mod:`.hostile_cases`. An access outside of a buffer ends the child by a signal; the parent
reports the case from a shared page that the child updates before each run. A run is also a finding if compiled code
and the interpreter neither give equal answers nor raise the same class of :class:`.SardonyxError`. A group that the
compiler leaves to the interpreter because of an internal error is a finding too.
"""

from __future__ import annotations

import faulthandler
import functools
import mmap
import os
import pickle
import resource
import signal
import struct
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sardonyx.errors import ResourceError, SardonyxError, SizeLimitError
from sardonyx.runtime import Session
from tests.fuzz.answers import difference, has_extreme
from tests.fuzz.guarded_memory import Edge, copied, guarded
from tests.fuzz.hostile_cases import CASES, Variant, variant_of
from tests.fuzz.other_roundings import other_roundings

MAX_MEMORY = 1 << 26
MAX_ITERATIONS = 1000
ADDRESS_SPACE = 1 << 34
"""Bytes of address space of a child: a size from a tensor must not take the memory of the machine."""

PROCESSOR_SECONDS, SECONDS = 60, 1200
"""Most seconds of compiling, and of a run; a child that takes longer is ended, which is a finding.

Processor time counts, because a busy machine may stop the process; the time of the clock ends a child that waits.
"""

BATCH = 20
"""Variants of a child: enough that starting processes takes a small part of the time."""

NOT_CALLED = "not called"
"""The outcome of feeds that need more than the limits allow, for a session without limits; no run."""

_COUNTED_BY_SUMS = ("Loop",)
"""Operators whose generators end loops by a sum, which depends on the order of additions for extreme floats."""

_INTERPOLATED = ("Resize", "Upsample")
"""Operators that interpolate integers as floats: results that round another way differ by 1."""

_QUANTIZED_INSIDE = ("DynamicQuantizeLSTM",)
"""Operators that quantize results of functions: a function's last bit moves an answer by a step of the quantization."""

ROUNDINGS = 32
"""Most other roundings of the interpreter that an answer of these operators is compared with."""

_LIMITS = ResourceError, SizeLimitError
"""Errors of limits, which depend on the engine: compiled code knows the sizes of a call before the first value."""

_POSITION = struct.Struct("qqq")


@dataclass(frozen=True)
class Finding:
    """A run that was wrong.

    Attributes:
        label: The variant, and the number of the run.
        problem: The signal that ended the process, or the difference from the interpreter.
        feeds: The feeds in words.
    """

    label: str
    problem: str
    feeds: str = ""

    def __str__(self) -> str:
        return f"{self.label}: {self.problem}" + (f"\n    {self.feeds}" if self.feeds else "")


@dataclass
class Tally:
    """Counts of runs.

    Attributes:
        runs: Runs of compiled code.
        variants: Models.
        outcomes: Number of runs by outcome.
        findings: Runs that were wrong.
    """

    runs: int = 0
    variants: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add the counts of other runs."""
        self.runs += other.runs
        self.variants += other.variants
        self.outcomes.update(other.outcomes)
        self.findings += other.findings


StorePosition = Callable[[int, int], None]
"""Function that stores the number of the current run, and the number of runs before it, for the parent."""

RunVariant = Callable[[str, int, int, StorePosition], Tally]
"""Function from a name, a seed, a number of runs and a :data:`StorePosition` to the counts of a variant."""


def fuzz(
    names: Sequence[str], runs: int, first_seed: int = 0, feeds_per_model: int = 40,
    progress: Callable[[Tally], None] = lambda tally: None, run_variant: RunVariant | None = None,
) -> Tally:  # fmt: skip
    """Run hostile cases until compiled code was called ``runs`` times.

    Args:
        names: Generators of :data:`.hostile_cases.CASES`, used in turn.
        runs: Number of runs.
        first_seed: The first seed of each generator.
        feeds_per_model: Runs of a variant.
        progress: Called after each child.
        run_variant: Runs one variant in a child; by default one of compiled code.
    """
    tally = Tally()
    jobs = _jobs(names, first_seed)
    while tally.runs < runs:
        batch = [next(jobs) for _ in range(min(BATCH, -(-(runs - tally.runs) // feeds_per_model)))]
        while batch:
            done, counts = run_in_child(batch, feeds_per_model, run_variant)
            tally.add(counts)
            batch = batch[done:]
        progress(tally)
    return tally


def _jobs(names: Sequence[str], seed: int) -> Iterator[tuple[str, int]]:
    while True:
        for name in names:
            yield name, seed
        seed += 1


def run_in_child(
    batch: Sequence[tuple[str, int]], feeds_per_model: int, run_variant: RunVariant | None = None
) -> tuple[int, Tally]:
    """Run variants in a child process; return the number of variants that are done, and the counts.

    A child that a signal ends leaves the variants after the current one undone.
    """
    shared = mmap.mmap(-1, mmap.PAGESIZE)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.close(read)
            _limit_child()
            with os.fdopen(write, "wb") as pipe:
                for number, (name, seed) in enumerate(batch):
                    store_position = functools.partial(_POSITION.pack_into, shared, 0, number)
                    store_position(-1, 0)
                    pickle.dump((run_variant or _run_variant)(name, seed, feeds_per_model, store_position), pipe)
                    pipe.flush()
            status = 0
        except BaseException:  # The child has no caller to raise to.
            import traceback

            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(write)
    tally, done = Tally(), 0
    with os.fdopen(read, "rb") as pipe:
        while True:
            try:
                tally.add(pickle.load(pipe))
            except (EOFError, pickle.UnpicklingError):
                break
            done += 1
    _, status = os.waitpid(child, 0)
    if status == 0:
        return done, tally
    number, run, runs = _POSITION.unpack_from(shared)
    name, seed = batch[number]
    tally.runs += runs
    problem = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"exit status {status >> 8}"
    label = f"{name} seed {seed}" + (f" run {run}" if run >= 0 else " while compiling")
    tally.findings.append(Finding(label, problem, "" if run_variant else _describe_run(name, seed, run)))
    return number + 1, tally


def _limit_child() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.disable()
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")


def limit_time(processor_seconds: int = PROCESSOR_SECONDS, seconds: int = SECONDS) -> None:
    """End this process by a signal after these seconds from now; 0 for no limit."""
    signal.setitimer(signal.ITIMER_PROF, processor_seconds)
    signal.alarm(seconds)


def _run_variant(name: str, seed: int, feeds_per_model: int, store_position: StorePosition) -> Tally:
    tally = Tally(variants=1)
    edge: Edge = "start" if seed % 2 else "end"
    limit_time()
    variant = variant_of(name, seed)
    pair = _Pair(variant, edge, unlimited=seed % 4 > 1)
    tally.findings += [Finding(f"{variant.label} while compiling", reason) for reason in pair.defects]
    for run, feeds in enumerate(variant.feeds(feeds_per_model)):
        limit_time()
        store_position(run, tally.runs)
        outcome, problem = pair.compare(feeds)
        tally.runs += outcome != NOT_CALLED
        tally.outcomes[outcome] += 1
        if problem:
            tally.findings.append(Finding(f"{variant.label} run {run}", problem, describe(feeds)))
    limit_time(0, 0)
    return tally


def _describe_run(name: str, seed: int, run: int) -> str:
    variant = variant_of(name, seed)
    for number, feeds in enumerate(variant.feeds(max(run, 0) + 1)):
        if number == run:
            return describe(feeds)
    return ""


def describe(feeds: dict[str, Any]) -> str:
    """Return feeds in words."""
    return str(replace_inputs(list(feeds.values())))


def replace_inputs(values: list[Any]) -> str:
    """Return values in words, small ones with their elements."""
    words = []
    for x in values:
        if isinstance(x, np.ndarray):
            words.append(f"{x.dtype}{list(x.shape)}" + (f"={x.tolist()}" if x.size < 13 else ""))
        else:
            words.append(f"a {type(x).__name__}")
    return " ".join(words)


class _Pair:
    """A model in compiled code, whose memory is guarded, and in the interpreter."""

    def __init__(self, variant: Variant, edge: Edge, unlimited: bool) -> None:
        self._variant, self._edge = variant, edge
        limits = {"max_memory": MAX_MEMORY, "max_loop_iterations": MAX_ITERATIONS}
        self._reference = _session(variant, compile="off", **limits)
        with guarded(edge):
            self._native = _session(variant, compile="wait", threads=1, **({} if unlimited else limits))
            self._unlimited = unlimited and isinstance(self._native, Session) and _is_one_call(self._native, variant)
            if unlimited and not self._unlimited:
                self._native = _session(variant, compile="wait", threads=1, **limits)

    @property
    def defects(self) -> list[str]:
        """The internal errors of the compiler, which left groups to the interpreter."""
        return compiler_defects(self._native) if isinstance(self._native, Session) else []

    def compare(self, feeds: dict[str, Any]) -> tuple[str, str]:
        """Return the outcome of a run, and the difference between compiled code and interpreter, or nothing."""
        expected = answer_of(self._reference, feeds)
        if self._unlimited and isinstance(expected, _LIMITS):
            return NOT_CALLED, ""
        with guarded(self._edge):
            actual = answer_of(self._native, {key: copied(x) for key, x in feeds.items()})
        problem = self._difference(feeds, actual, expected)
        if problem:
            return "different", problem
        if isinstance(expected, SardonyxError):
            return type(expected).__name__, ""
        compiled = isinstance(self._native, Session) and self._native.native is not None
        return "compiled" if compiled else "interpreted", ""

    def _difference(self, feeds: dict[str, Any], actual: Any, expected: Any) -> str:
        if isinstance(self._native, SardonyxError) and isinstance(expected, SardonyxError):
            return ""  # The model is refused as a whole, for the first of its errors.
        if isinstance(actual, _LIMITS) or isinstance(expected, _LIMITS):
            return ""
        if isinstance(actual, SardonyxError) or isinstance(expected, SardonyxError):
            return "" if type(actual) is type(expected) else f"native {_text(actual)}; reference {_text(expected)}"
        name = self._variant.case.name
        if name in _COUNTED_BY_SUMS and has_extreme(feeds):
            return ""
        problem = difference(feeds, actual, expected, nearby_integers=name in _INTERPOLATED)
        return "" if problem and name in _QUANTIZED_INSIDE and self._is_rounding(feeds, actual) else problem

    def _is_rounding(self, feeds: dict[str, Any], actual: list[Any]) -> bool:
        """Return True if the interpreter gives this answer with functions rounded another way."""
        for seed in range(ROUNDINGS):
            with other_roundings(seed):
                expected = answer_of(self._reference, feeds)
            if isinstance(expected, list) and not difference(feeds, actual, expected):
                return True
        return False


def compiler_defects(session: Session) -> list[str]:
    """Return the internal errors of the compiler that a session reports instead of raising."""
    nodes = session.placement if session.native is not None else []
    reasons = [session.not_compiled, *(node.reason for node in nodes)]
    return [reason for reason in dict.fromkeys(reasons) if "internal error" in reason]


def _is_one_call(session: Session, variant: Variant) -> bool:
    """Return True if calls without limits take the generated entry."""
    native = session.native
    return native is not None and native.program.in_one and variant.case.name not in ("Loop", "Scan", "If")


def _text(outcome: Any) -> str:
    if isinstance(outcome, SardonyxError):
        return f"{type(outcome).__name__}: {outcome}"
    return "answers " + replace_inputs(list(outcome))


def _session(variant: Variant, **options: Any) -> Session | SardonyxError:
    try:
        return Session(variant.model, log_severity=4, **options)
    except SardonyxError as error:
        return error


def answer_of(session: Session | SardonyxError, feeds: dict[str, Any]) -> list[Any] | SardonyxError:
    """Return the outputs of a session, or the error of the session or the call."""
    if isinstance(session, SardonyxError):
        return session
    try:
        return session.run(None, feeds)
    except SardonyxError as error:
        return error


__all__ = ["CASES", "Finding", "Tally", "fuzz", "run_in_child"]
