"""Where a run's time goes: kernel by kernel, against what the machine can do."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import onnx_ir as ir

from sardonyx.base.span_recorder import Recorder, Span
from sardonyx.compiler.executor.thread_pool import pool
from sardonyx.compiler.explain import Explanation, InterpretedNote, KernelNote, explain
from sardonyx.compiler.lower.launch import Launch
from sardonyx.compiler.machine_peak import Peak, measured_peak
from sardonyx.compiler.plan.segments import Segment
from sardonyx.compiler.program import Program
from sardonyx.compiler.target.description import host as host_target
from sardonyx.core.eval.run_context import RunContext
from sardonyx.core.ir.graph import Value
from sardonyx.errors import EvaluationError, OptionError, SardonyxError
from sardonyx.model.copying import copy_model
from sardonyx.rewrite import measure
from sardonyx.runtime.compiled.native_provider import NativeRunner
from sardonyx.runtime.live.model_version import ModelVersion
from sardonyx.runtime.model_info import ValueInfo
from sardonyx.runtime.partition.partition import Part
from sardonyx.runtime.profiling.provenance import with_absorbed

_WARM_UP = 3
"""Runs before those that count: plans are made, workers wake."""

_TRACED = 3
"""Runs with a clock in each thread, of which the one that took least is kept."""


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
        part: Which part of a session that providers share it is in, by number; 0 in any other.
    """

    note: KernelNote
    seconds: float
    rate: float
    bandwidth: float
    share: float
    roofline: float
    part: int = 0


@dataclass(frozen=True)
class PartTime:
    """A part of a session that providers share, and the median of what it took.

    Attributes:
        provider: Who runs it.
        label: Its nodes, in words.
        tensors: What its nodes give.
        seconds: What it took.
        known: Whether its kernels are among those of the profile; others' are their own.
    """

    provider: str
    label: str
    tensors: tuple[str, ...]
    seconds: float
    known: bool


@dataclass(frozen=True)
class Event:
    """Something that was computed in one run.

    Attributes:
        kind: ``"kernel"``, ``"interpreter"`` or ``"part"``.
        title: What it is, in a word or two.
        tensors: The model's tensors that it gives; what most of its time is for comes first.
        begin: When, in seconds from the first event.
        seconds: How long it took.
        depth: In how many others it lies.
        thread: 0 for all of it; of the share of one thread its number, from 1.
        kernel: The kernel, by its number in the profile; -1 where it is none of those.
    """

    kind: str
    title: str
    tensors: tuple[str, ...]
    begin: float
    seconds: float
    depth: int
    thread: int
    kernel: int = -1


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
        parts: What the providers compute that share the session; empty in others.
        peak: What the machine reached just before.
        events: One run, as it went on.
    """

    target: str
    threads: int
    runs: int
    seconds: float
    kernels: tuple[KernelTime, ...]
    interpreted: tuple[tuple[InterpretedNote, float], ...]
    parts: tuple[PartTime, ...]
    peak: Peak
    events: tuple[Event, ...]

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
        """Seconds of a run outside of kernels, interpreter and other providers: checking, finding memory, calling."""
        inside = sum(each.seconds for each in self.kernels) + sum(seconds for _, seconds in self.interpreted)
        return max(self.seconds - inside - sum(each.seconds for each in self.parts if not each.known), 0.0)

    def as_dict(self) -> dict[str, Any]:
        """The profile as plain data."""
        kernels = [
            {**{name: value for name, value in asdict(each).items() if name != "note"}, **asdict(each.note)}
            for each in self.kernels
        ]
        interpreted = [{**asdict(note), "seconds": seconds} for note, seconds in self.interpreted]
        plain = {name: getattr(self, name) for name in ("target", "threads", "runs", "seconds", "elsewhere")}
        listed = {"parts": [asdict(each) for each in self.parts], "events": [asdict(each) for each in self.events]}
        sums = {"operations": self.operations, "bytes": self.bytes}
        return {
            **plain, **sums, "peak": asdict(self.peak), "kernels": kernels, "interpreted": interpreted, **listed
        }  # fmt: skip


def profile(version: ModelVersion, run: Callable[[], object], feeds: Mapping[str, Any], runs: int) -> Profile:
    """Run a model again and again, with a clock and without in turns.

    Args:
        version: The model, where compiling is over.
        run: Runs it without a clock.
        feeds: Inputs by name.
        runs: How many runs of both kinds count.

    Raises:
        OptionError: There is nothing to take a median of.
        SardonyxError: What a run raises.
    """
    if runs < 1:
        raise OptionError("at least one run is needed.", where="runs")
    programs = _programs(version)
    first = next((program for program, _, _ in programs), None)
    workers = pool(version.options.threads) if first is None else first.pool
    target = host_target() if first is None else first.target
    recorded(version, feeds)
    peak = measured_peak(target, workers)
    whole: list[float] = []
    played: list[Recorder] = []
    for _ in range(_WARM_UP + runs):
        begin = time.perf_counter()
        run()
        whole.append(time.perf_counter() - begin)
        played.append(recorded(version, feeds))
    traced = [recorded(version, feeds, threads=True) for _ in range(_TRACED)]
    whole, played = whole[_WARM_UP:], played[_WARM_UP:]
    times = _Times(played)
    launches: list[tuple[Launch, KernelNote, int, int]] = []
    interpreted: list[tuple[InterpretedNote, float]] = []
    for program, part, depth in programs:
        explanation = explain(program, played[-1].sizes.get(id(program), {}))
        launches += [(launch, note, part, depth) for launch, note in _in_order(program, explanation)]
        values = [value for value in program.function.values if value in program.host]
        interpreted += [
            (note, times.of(value, depth)) for value, note in zip(values, explanation.interpreted, strict=True)
        ]
    numbers = {id(launch): number for number, (launch, *_) in enumerate(launches)}
    notes = with_absorbed(version.model, [note for _, note, *_ in launches], {note.tensor for note, _ in interpreted})
    kernels = [
        _kernel_time(note, times.of(launch, depth), peak, part)
        for note, (launch, _, part, depth) in zip(notes, launches, strict=True)
    ]
    depth = 0 if version.partitioned is None else 1
    interpreted += [(_node_note(node, version), times.of(node, depth)) for node in times.nodes(depth)]
    parts = [] if version.partitioned is None else version.partitioned.parts
    return Profile(
        target.name, workers.threads, runs, statistics.median(whole), tuple(kernels), tuple(interpreted),
        tuple(_part_time(each, times.of(each, 0)) for each in parts), peak,
        _events(min(traced, key=_length).spans, kernels, numbers),
    )  # fmt: skip


class Nodes:
    """The nodes that what a version computes is for. What came from the store is compiled with what it was made of.

    Args:
        version: The model; nodes are told as long as it stays.
    """

    def __init__(self, version: ModelVersion) -> None:
        self.version = version
        self._programs = _programs(version)
        self._mains: dict[int, str] | None = None
        self._makers = {str(output.name): node for node in version.model.graph.all_nodes() for output in node.outputs}

    def of(self, recorder: Recorder) -> list[tuple[Span, ir.Node]]:
        """What a record tells of nodes: each span with the node that most of it is for."""
        if self._mains is None:
            self._mains = self._found(recorder)
        found = []
        for span in recorder.spans:
            tensors = (self._mains.get(id(span.what), ""), *_told(span.what)[2])
            made = (self._makers[tensor] for tensor in tensors if tensor in self._makers)
            node = span.what if isinstance(span.what, ir.Node) else next(made, None)
            if node is not None and not isinstance(span.what, Part):
                found.append((span, node))
        return found

    def _found(self, recorder: Recorder) -> dict[int, str]:
        listed = [
            pair
            for program, _, _ in self._programs
            for pair in _in_order(program, explain(program, recorder.sizes.get(id(program), {})))
        ]
        notes = with_absorbed(self.version.model, [note for _, note in listed], ())
        return {id(launch): note.main for (launch, _), note in zip(listed, notes, strict=True)}


def recorded(version: ModelVersion, feeds: Mapping[str, Any], *, threads: bool = False) -> Recorder:
    """Run once with a clock; raises as a run does.

    Args:
        version: The model.
        feeds: Inputs by name.
        threads: Whether to note what each thread does.
    """
    recorder = Recorder(threads=threads)
    version.run(None, feeds, RunContext(**version.options.limits, recorder=recorder))
    return recorder


def _programs(version: ModelVersion) -> list[tuple[Program, int, int]]:
    """The programs that a run plays, with what they were made of: of which part, and how deep in the record."""
    if version.partitioned is not None:
        return [
            (part.runner.program, number, 1)
            for number, part in enumerate(version.partitioned.parts) if isinstance(part.runner, NativeRunner)
        ]  # fmt: skip
    program = version.program
    return [] if program is None else [(program, 0, 0)]


def _in_order(program: Program, explanation: Explanation) -> list[tuple[Launch, KernelNote]]:
    """The kernels as they run."""
    notes = {id(launch): note for launch, note in zip(program.launches, explanation.kernels, strict=True)}
    launches = [launch for step in program.steps if isinstance(step, Segment) for launch in step.launches]
    return [(launch, notes[id(launch)]) for launch in launches]


class _Times:
    """What was recorded in several runs.

    Args:
        played: The records.
    """

    def __init__(self, played: Sequence[Recorder]) -> None:
        self._sums: dict[tuple[int, int], list[float]] = {}
        self._nodes: dict[tuple[int, int], ir.Node] = {}
        for number, recorder in enumerate(played):
            for span in recorder.spans:
                key = id(span.what), span.depth
                self._sums.setdefault(key, [0.0] * len(played))[number] += span.seconds
                if isinstance(span.what, ir.Node):
                    self._nodes.setdefault(key, span.what)

    def of(self, what: object, depth: int) -> float:
        """The median of what something took, all times together that a run computed it."""
        found = self._sums.get((id(what), depth))
        return 0.0 if found is None else statistics.median(found)

    def nodes(self, depth: int) -> list[ir.Node]:
        """The nodes that were computed one by one."""
        return [node for (_, at), node in self._nodes.items() if at == depth]


def _node_note(node: ir.Node, version: ModelVersion) -> InterpretedNote:
    output = next((str(output.name) for output in node.outputs if output.name), "")
    return InterpretedNote(node.op_type, output, version.not_compiled)


def _kernel_time(note: KernelNote, seconds: float, peak: Peak, part: int) -> KernelTime:
    operations, moved = note.operations or 0, note.bytes or 0
    # The clock may not have moved.
    seconds = max(seconds, 1e-9)
    rate = operations / seconds
    least = operations / peak.operations + moved / peak.bytes
    return KernelTime(note, seconds, rate, moved / seconds, rate / peak.operations, least / seconds, part)


def _part_time(part: Part, seconds: float) -> PartTime:
    tensors = tuple(str(output.name) for node in part.model.graph for output in node.outputs if output.name)
    known = isinstance(part.runner, NativeRunner) or part.provider == "reference"
    return PartTime(part.provider, part.label, tensors, seconds, known)


def _length(recorder: Recorder) -> int:
    return max(span.end for span in recorder.spans) - min(span.begin for span in recorder.spans)


def _events(spans: Sequence[Span], kernels: Sequence[KernelTime], numbers: Mapping[int, int]) -> tuple[Event, ...]:
    """A record, in words."""
    start = min((span.begin for span in spans), default=0)
    made = []
    for span in sorted(spans, key=lambda span: (span.thread, span.begin, span.depth)):
        kind, title, tensors = _told(span.what)
        number = numbers.get(id(span.what), -1)
        if number >= 0:
            note = kernels[number].note
            tensors = tuple(dict.fromkeys((note.main, *note.tensors))) if note.main else note.tensors
        made.append(
            Event(kind, title, tensors, (span.begin - start) * 1e-9, span.seconds, span.depth, span.thread, number)
        )
    return tuple(made)


def _told(what: Any) -> tuple[str, str, tuple[str, ...]]:
    """The kind of what was recorded, its title, and its tensors."""
    if isinstance(what, Part):
        return "part", what.provider, tuple(what.outputs)
    if isinstance(what, ir.Node):
        return "interpreter", what.op_type, tuple(str(output.name) for output in what.outputs if output.name)
    if isinstance(what, Value):
        name = f"host {what.params['function'].name}" if what.op == "host" else what.op
        return "interpreter", name, (what.origin,) if what.origin else ()
    return "kernel", what.title, tuple(value.origin for value in what.makes if value.origin)


class Runs(Protocol):
    """A session, as far as inputs for it are drawn."""

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """Run once."""

    def get_outputs(self) -> list[ValueInfo]:
        """What comes out."""


def drawn_feeds(
    model: str | os.PathLike[str] | ir.Model, session: Runs, sizes: Mapping[str, int] | None = None
) -> tuple[dict[str, Any], dict[str, int]]:
    """Seeded inputs on which a model runs, and what its open sizes are in them.

    Args:
        model: The model, or its file.
        session: Runs it.
        sizes: What open sizes are to be, 1 for those that are not named; by default what the model runs on.

    Raises:
        OptionError: The model has no such open size.
        EvaluationError: It runs on none of those drawn.
    """
    own = copy_model(model) if isinstance(model, ir.Model) else model
    if sizes is not None:
        return measure.draw_at(own, sizes)

    def run(feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            found = session.run(None, feeds)
        except SardonyxError as error:
            raise EvaluationError(error.problem, where=error.where) from error
        return dict(zip((output.name for output in session.get_outputs()), found, strict=True))

    return measure.draw(own, run)
