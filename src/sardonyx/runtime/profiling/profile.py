"""The time of a run by kernel, compared with the peak rates of the machine."""

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
from sardonyx.runtime.compiled.compiled_file import is_compiled_file
from sardonyx.runtime.compiled.native_provider import NativeRunner
from sardonyx.runtime.live.model_version import ModelVersion
from sardonyx.runtime.model_info import ValueInfo
from sardonyx.runtime.partition.partition import Part
from sardonyx.runtime.profiling.interface import interface_model
from sardonyx.runtime.profiling.provenance import with_absorbed

_WARM_UP = 3
"""Runs before the measured runs: plans are made, workers wake."""

_TRACED = 3
"""Runs with a clock in each thread, of which the fastest is reported."""


@dataclass(frozen=True)
class KernelTime:
    """A kernel with its median time.

    Attributes:
        note: The kernel.
        seconds: Time from its start to its end on all threads.
        rate: Operations per second.
        bandwidth: Bytes per second.
        share: Share of the peak of multiply-adds.
        roofline: Time of its operations at the peak plus time of its bytes from memory, over the measured time. Above
            1, the bytes came from a cache.
        part: The index of its part in a partitioned session; otherwise 0.
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
    """A part of a partitioned session with its median time.

    Attributes:
        provider: Its provider.
        label: The labels of its nodes.
        tensors: The outputs of its nodes.
        seconds: The time.
        known: True if its kernels are among the kernels of the profile.
    """

    provider: str
    label: str
    tensors: tuple[str, ...]
    seconds: float
    known: bool


@dataclass(frozen=True)
class Event:
    """A computation within one run.

    Attributes:
        kind: ``"kernel"``, ``"interpreter"`` or ``"part"``.
        title: A short title.
        tensors: The computed tensors of the model; the tensor with most of the time is first.
        begin: Start in seconds after the first event.
        seconds: Duration.
        depth: Number of enclosing events.
        thread: 0 for the whole event; the number of a thread, from 1, for its share.
        kernel: The index of the kernel in the profile; -1 for other events.
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
    """The profile of a model.

    Attributes:
        target: The processor that the model is compiled for.
        threads: Number of threads.
        runs: Number of runs, for medians.
        seconds: Time of a run without a clock inside.
        kernels: The kernels in execution order.
        interpreted: Interpreted computations, with the medians of their seconds.
        parts: The parts of a partitioned session; otherwise empty.
        peak: The peak of the machine, measured just before.
        events: The events of one run.
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
        """Operations of all kernels."""
        return sum(kernel.note.operations or 0 for kernel in self.kernels)

    @property
    def bytes(self) -> int:
        """Bytes of all kernels."""
        return sum(kernel.note.bytes or 0 for kernel in self.kernels)

    @property
    def elsewhere(self) -> float:
        """Seconds of a run outside of kernels, interpreter and other providers: checks, memory, calls."""
        inside = sum(kernel.seconds for kernel in self.kernels) + sum(seconds for _, seconds in self.interpreted)
        return max(self.seconds - inside - sum(part.seconds for part in self.parts if not part.known), 0.0)

    def as_dict(self) -> dict[str, Any]:
        """Return the profile as plain data."""
        kernels = [
            {**{name: value for name, value in asdict(kernel).items() if name != "note"}, **asdict(kernel.note)}
            for kernel in self.kernels
        ]
        interpreted = [{**asdict(note), "seconds": seconds} for note, seconds in self.interpreted]
        plain = {name: getattr(self, name) for name in ("target", "threads", "runs", "seconds", "elsewhere")}
        listed = {"parts": [asdict(part) for part in self.parts], "events": [asdict(event) for event in self.events]}
        sums = {"operations": self.operations, "bytes": self.bytes}
        return {
            **plain, **sums, "peak": asdict(self.peak), "kernels": kernels, "interpreted": interpreted, **listed
        }  # fmt: skip


def profile(version: ModelVersion, run: Callable[[], object], feeds: Mapping[str, Any], runs: int) -> Profile:
    """Run a model repeatedly, alternately with and without a clock.

    Args:
        version: The model, once compiling is over.
        run: Runs the model without a clock.
        feeds: Inputs by name.
        runs: Number of measured runs of both kinds.

    Raises:
        OptionError: `runs` is less than 1.
        SardonyxError: A run fails.
    """
    if runs < 1:
        raise OptionError(f"expected at least 1 run, got {runs}.", where="runs")
    programs = _programs(version)
    first = next((program for program, _, _ in programs), None)
    workers = pool(version.options.threads) if first is None else first.pool
    target = host_target() if first is None else first.target
    recorded(version, feeds)
    peak = measured_peak(target, workers)
    whole: list[float] = []
    recorders: list[Recorder] = []
    for _ in range(_WARM_UP + runs):
        begin = time.perf_counter()
        run()
        whole.append(time.perf_counter() - begin)
        recorders.append(recorded(version, feeds))
    traced = [recorded(version, feeds, threads=True) for _ in range(_TRACED)]
    whole, recorders = whole[_WARM_UP:], recorders[_WARM_UP:]
    times = _Times(recorders)
    launches: list[tuple[Launch, KernelNote, int, int]] = []
    interpreted: list[tuple[InterpretedNote, float]] = []
    for program, part, depth in programs:
        explanation = explain(program, recorders[-1].sizes.get(id(program), {}))
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
        tuple(_part_time(part, times.of(part, 0)) for part in parts), peak,
        _events(min(traced, key=_length).spans, kernels, numbers),
    )  # fmt: skip


class Nodes:
    """The nodes of a version, for each recorded computation; a program from the store is compiled again for its graph.

    Args:
        version: The model.
    """

    def __init__(self, version: ModelVersion) -> None:
        self.version = version
        self._programs = _programs(version)
        self._mains: dict[int, str] | None = None
        self._makers = {str(output.name): node for node in version.model.graph.all_nodes() for output in node.outputs}

    def of(self, recorder: Recorder) -> list[tuple[Span, ir.Node]]:
        """Return each span of a record with the node of most of its operations."""
        if self._mains is None:
            self._mains = self._main_tensors(recorder)
        pairs = []
        for span in recorder.spans:
            tensors = (self._mains.get(id(span.what), ""), *_describe(span.what)[2])
            makers = (self._makers[tensor] for tensor in tensors if tensor in self._makers)
            node = span.what if isinstance(span.what, ir.Node) else next(makers, None)
            if node is not None and not isinstance(span.what, Part):
                pairs.append((span, node))
        return pairs

    def _main_tensors(self, recorder: Recorder) -> dict[int, str]:
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
        threads: If True, each thread records its share.
    """
    recorder = Recorder(threads=threads)
    version.run(None, feeds, RunContext(**version.options.limits, recorder=recorder))
    return recorder


def _programs(version: ModelVersion) -> list[tuple[Program, int, int]]:
    """Return the programs of a run, each with the index of its part and its depth in the record."""
    if version.partitioned is not None:
        return [
            (part.runner.program, number, 1)
            for number, part in enumerate(version.partitioned.parts) if isinstance(part.runner, NativeRunner)
        ]  # fmt: skip
    program = version.program
    return [] if program is None else [(program, 0, 0)]


def _in_order(program: Program, explanation: Explanation) -> list[tuple[Launch, KernelNote]]:
    """Return the kernels in execution order."""
    notes = {id(launch): note for launch, note in zip(program.launches, explanation.kernels, strict=True)}
    launches = [launch for step in program.steps if isinstance(step, Segment) for launch in step.launches]
    return [(launch, notes[id(launch)]) for launch in launches]


class _Times:
    """The recorded times of several runs.

    Args:
        recorders: The records.
    """

    def __init__(self, recorders: Sequence[Recorder]) -> None:
        self._sums: dict[tuple[int, int], list[float]] = {}
        self._nodes: dict[tuple[int, int], ir.Node] = {}
        for number, recorder in enumerate(recorders):
            for span in recorder.spans:
                key = id(span.what), span.depth
                self._sums.setdefault(key, [0.0] * len(recorders))[number] += span.seconds
                if isinstance(span.what, ir.Node):
                    self._nodes.setdefault(key, span.what)

    def of(self, what: object, depth: int) -> float:
        """Return the median time of a computation, summed over its executions in a run."""
        sums = self._sums.get((id(what), depth))
        return 0.0 if sums is None else statistics.median(sums)

    def nodes(self, depth: int) -> list[ir.Node]:
        """Return the nodes that were interpreted one by one."""
        return [node for (_, at), node in self._nodes.items() if at == depth]


def _node_note(node: ir.Node, version: ModelVersion) -> InterpretedNote:
    output = next((str(output.name) for output in node.outputs if output.name), "")
    return InterpretedNote(node.op_type, output, version.not_compiled)


def _kernel_time(note: KernelNote, seconds: float, peak: Peak, part: int) -> KernelTime:
    operations, moved = note.operations or 0, note.bytes or 0
    # The clock may be too coarse for the kernel.
    seconds = max(seconds, 1e-9)
    rate = operations / seconds
    least = operations / peak.operations + moved / peak.bytes
    return KernelTime(note, seconds, rate, moved / seconds, rate / peak.operations, least / seconds, part)


def _part_time(part: Part, seconds: float) -> PartTime:
    tensors = tuple(str(output.name) for node in part.model.graph for output in node.outputs if output.name)
    known = isinstance(part.runner, NativeRunner) or part.provider == "reference"
    return PartTime(part.provider, part.label, tensors, seconds, known)


def _length(recorder: Recorder) -> int:
    """Return the time from the first begin to the last end; 0 of a model without computations."""
    spans = recorder.spans
    return max(span.end for span in spans) - min(span.begin for span in spans) if spans else 0


def _events(spans: Sequence[Span], kernels: Sequence[KernelTime], numbers: Mapping[int, int]) -> tuple[Event, ...]:
    """Return the events of a record."""
    start = min((span.begin for span in spans), default=0)
    events = []
    for span in sorted(spans, key=lambda span: (span.thread, span.begin, span.depth)):
        kind, title, tensors = _describe(span.what)
        number = numbers.get(id(span.what), -1)
        if number >= 0:
            note = kernels[number].note
            tensors = tuple(dict.fromkeys((note.main, *note.tensors))) if note.main else note.tensors
        events.append(
            Event(kind, title, tensors, (span.begin - start) * 1e-9, span.seconds, span.depth, span.thread, number)
        )
    return tuple(events)


def _describe(what: Any) -> tuple[str, str, tuple[str, ...]]:
    """Return the kind, title and tensors of a recorded computation."""
    if isinstance(what, Part):
        return "part", what.provider, tuple(what.outputs)
    if isinstance(what, ir.Node):
        return "interpreter", what.op_type, tuple(str(output.name) for output in what.outputs if output.name)
    if isinstance(what, Value):
        name = f"host {what.params['function'].name}" if what.op == "host" else what.op
        return "interpreter", name, (what.origin,) if what.origin else ()
    return "kernel", what.title, tuple(value.origin for value in what.all_writes if value.origin)


class Runs(Protocol):
    """A session, as needed to draw inputs for it."""

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """Run once."""

    def get_inputs(self) -> list[ValueInfo]:
        """Return the inputs that a call must feed."""

    def get_outputs(self) -> list[ValueInfo]:
        """Return the outputs."""


def drawn_feeds(
    model: str | os.PathLike[str] | ir.Model, session: Runs, sizes: Mapping[str, int] | None = None
) -> tuple[dict[str, Any], dict[str, int]]:
    """Return seeded random inputs on which a model runs, and the values of its open sizes.

    Args:
        model: The model, or its file; for a compiled file, integers are small, because the graph is unknown.
        session: The session to run.
        sizes: Values of open sizes, 1 for missing names; by default sizes on which the model runs.

    Raises:
        OptionError: Unknown open size.
        EvaluationError: The model runs on none of the random inputs.
    """
    own = copy_model(model) if isinstance(model, ir.Model) else model
    if is_compiled_file(model):
        own = interface_model(session.get_inputs())
    if sizes is not None:
        return measure.draw_at(own, sizes)

    def run(feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            results = session.run(None, feeds)
        except SardonyxError as error:
            raise EvaluationError(error.problem, where=error.where) from error
        return dict(zip((output.name for output in session.get_outputs()), results, strict=True))

    return measure.draw(own, run)
