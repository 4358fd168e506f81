"""Where a run's time goes: kernel by kernel, against what the machine can do."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sardonyx.compiler.explain import InterpretedNote, KernelNote, explain
from sardonyx.compiler.launch import Launch
from sardonyx.compiler.peak import Peak, measured_peak
from sardonyx.compiler.program import Program
from sardonyx.compiler.settled import Settling
from sardonyx.compiler.steps import Segment
from sardonyx.compiler.timed_player import play_timed
from sardonyx.core.graph import Value
from sardonyx.core.interpreter import Sizes
from sardonyx.errors import EvaluationError, OptionError, SardonyxError, UnsupportedError
from sardonyx.rewrite import measure
from sardonyx.runtime.session import Session

_WARM_UP = 3
"""Runs before those that count: plans are made, workers wake."""


@dataclass(frozen=True)
class KernelTime:
    """A kernel, and the median of what it took.

    Attributes:
        note: The kernel.
        seconds: From its start to its end on all threads.
        rate: Operations a second.
        bandwidth: Bytes a second.
        share: Of the peak of multiply-adds.
        roofline: What its operations at the peak and its bytes from memory take together, over what it took. What it
            reads from a cache comes faster than that: above 1 the bytes were not in memory.
    """

    note: KernelNote
    seconds: float
    rate: float
    bandwidth: float
    share: float
    roofline: float


@dataclass(frozen=True)
class Profile:
    """A model's run, taken apart.

    Attributes:
        target: What it is compiled for.
        threads: How many threads share the work.
        runs: How many runs the medians are of.
        seconds: Of a run, nothing measured inside.
        kernels: In the order in which they run.
        interpreted: What the interpreter computes, with the median of its seconds.
        peak: What the machine reached just before.
    """

    target: str
    threads: int
    runs: int
    seconds: float
    kernels: tuple[KernelTime, ...]
    interpreted: tuple[tuple[InterpretedNote, float], ...]
    peak: Peak

    @property
    def operations(self) -> int:
        """Of all kernels."""
        return sum(each.note.operations or 0 for each in self.kernels)

    @property
    def bytes(self) -> int:
        """Of all kernels."""
        return sum(each.note.bytes or 0 for each in self.kernels)

    @property
    def elsewhere(self) -> float:
        """Seconds of a run outside of kernels and interpreter: checking inputs, finding memory, calling."""
        inside = sum(each.seconds for each in self.kernels) + sum(seconds for _, seconds in self.interpreted)
        return max(self.seconds - inside, 0.0)

    def as_dict(self) -> dict[str, Any]:
        """The profile as plain data."""
        kernels = [
            {**{name: value for name, value in asdict(each).items() if name != "note"}, **asdict(each.note)}
            for each in self.kernels
        ]
        interpreted = [{**asdict(note), "seconds": seconds} for note, seconds in self.interpreted]
        plain = {name: getattr(self, name) for name in ("target", "threads", "runs", "seconds", "elsewhere")}
        sums = {"operations": self.operations, "bytes": self.bytes}
        return {**plain, **sums, "peak": asdict(self.peak), "kernels": kernels, "interpreted": interpreted}


class _Timed(Program):
    """A program, with all that it holds, that is played with a clock.

    Args:
        program: The program.

    Attributes:
        kernel_seconds: Of the kernels, in order.
        value_seconds: Of the values that the interpreter computes, in order.
        sizes: The open sizes, those among them that are counted from data.
    """

    def __init__(self, program: Program) -> None:
        self.__dict__.update(program.__dict__)
        self.kernel_seconds: list[float] = []
        self.value_seconds: list[float] = []
        self.sizes: Sizes = {}

    def play_tape(self, address: int, kernels: int) -> None:
        self.kernel_seconds += play_timed(self.target, address, kernels, self.pool.address, flush=self.flushes)

    def interpret(self, value: Value, env: dict[Value, Any], sizes: Sizes) -> None:
        begin = time.perf_counter()
        super().interpret(value, env, sizes)
        self.value_seconds.append(time.perf_counter() - begin)
        self.sizes |= sizes

    def play_counted(
        self, number: int, segment: Segment, sizes: Sizes, env: dict[Value, Any], limit: int | None
    ) -> None:
        before = len(self.kernel_seconds)
        super().play_counted(number, segment, sizes, env, limit)
        # With more room it was played again.
        played, kernels = self.kernel_seconds[before:], len(segment.launches)
        self.kernel_seconds[before:] = [sum(played[number::kernels]) for number in range(kernels)]
        self.sizes |= sizes

    def play_settled(
        self, number: int, segment: Segment, settling: Settling, sizes: Sizes, env: dict[Value, Any], limit: int | None
    ) -> None:
        kernels, values, begin = len(self.kernel_seconds), len(self.value_seconds), time.perf_counter()
        super().play_settled(number, segment, settling, sizes, env, limit)
        # Whoever repeated the body, it is one kernel.
        self.kernel_seconds[kernels:] = [time.perf_counter() - begin]
        del self.value_seconds[values:]
        self.sizes |= sizes


def profile(session: Session, feeds: Mapping[str, Any], runs: int = 20) -> Profile:
    """Run a model again and again, with a clock and without in turns.

    Args:
        session: The model.
        feeds: Inputs by name.
        runs: How many runs of both kinds count.

    Raises:
        UnsupportedError: The model is not compiled.
        OptionError: There is nothing to take a median of.
        SardonyxError: What a run raises.
    """
    program, native = session.program, session.native
    if program is None or native is None:
        raise UnsupportedError(f"the model is not compiled: {session.not_compiled or 'not yet'}.")
    if runs < 1:
        raise OptionError("at least one run is needed.", where="runs")
    arrays = native.arrays(feeds)
    peak = measured_peak(program.target, program.pool)
    whole: list[float] = []
    played: list[_Timed] = []
    for _ in range(_WARM_UP + runs):
        begin = time.perf_counter()
        session.run(None, feeds)
        whole.append(time.perf_counter() - begin)
        timed = _Timed(program)
        timed.run(arrays)
        played.append(timed)
    return _profile(program, program.sizes_of(arrays) | played[-1].sizes, whole[_WARM_UP:], played[_WARM_UP:], peak)


def _profile(program: Program, sizes: Sizes, whole: Sequence[float], played: Sequence[_Timed], peak: Peak) -> Profile:
    explanation = explain(program, sizes)
    notes = {id(launch): note for launch, note in zip(program.launches, explanation.kernels, strict=True)}
    launches = [launch for step in program.steps if isinstance(step, Segment) for launch in step.launches]
    kernels = [
        _kernel_time(notes, each, seconds, peak)
        for each, seconds in zip(launches, _medians([p.kernel_seconds for p in played]), strict=True)
    ]
    interpreted = zip(explanation.interpreted, _medians([each.value_seconds for each in played]), strict=True)
    return Profile(
        explanation.target, explanation.threads, len(played), statistics.median(whole), tuple(kernels),
        tuple(interpreted), peak,
    )  # fmt: skip


def _medians(rows: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.median(column) for column in zip(*rows, strict=True)]


def _kernel_time(notes: Mapping[int, KernelNote], launch: Launch, seconds: float, peak: Peak) -> KernelTime:
    note = notes[id(launch)]
    operations, moved = note.operations or 0, note.bytes or 0
    # The clock may not have moved.
    seconds = max(seconds, 1e-9)
    rate = operations / seconds
    least = operations / peak.operations + moved / peak.bytes
    return KernelTime(note, seconds, rate, moved / seconds, rate / peak.operations, least / seconds)


def drawn_feeds(path: str | os.PathLike[str], session: Session) -> tuple[dict[str, Any], dict[str, int]]:
    """Seeded inputs on which a model runs, and what its open sizes are in them.

    Args:
        path: The model's file.
        session: Runs it.

    Raises:
        EvaluationError: It runs on none of those drawn.
    """

    def run(feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            found = session.run(None, feeds)
        except SardonyxError as error:
            raise EvaluationError(error.problem, where=error.where) from error
        return dict(zip((output.name for output in session.get_outputs()), found, strict=True))

    return measure.draw(path, run)
