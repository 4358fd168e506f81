"""Steps of a program: segments of kernels for one native call, and interpreted values."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sardonyx.compiler.analysis.bounded_output import has_kernel, most_results
from sardonyx.compiler.analysis.control_flow import iteration_symbol
from sardonyx.compiler.analysis.shape_stable_loops import ShapeStability, shape_stability
from sardonyx.compiler.lower.launch import Launch
from sardonyx.core.dim import Size
from sardonyx.core.ir.graph import Value


@dataclass
class Segment:
    """Launches that run in one native call.

    Attributes:
        launches: The launches.
        counted: The loop or host function whose number of iterations or results is a size of later steps; the only
            value of the segment.
        symbol: The symbol of this size.
        max_results: Maximum number of results of a host function.
        stability: Conditions under which the only loop of the segment is native; otherwise the interpreter executes
            the loop.
    """

    launches: list[Launch] = field(default_factory=list)
    counted: Value | None = None
    symbol: str = ""
    max_results: Size = 0
    stability: ShapeStability | None = None

    @property
    def is_alone(self) -> bool:
        """True if the segment cannot have further launches."""
        return self.counted is not None or self.stability is not None

    @property
    def has_control_flow(self) -> bool:
        """True if the segment may contain loops, whose time has no bound."""
        return any(launch.bodies for launch in self.launches)


Step = Segment | Value
"""A segment, or a value that the interpreter computes."""


def split_segments(order: Iterable[Value], launches: Sequence[Launch], host: Container[Value]) -> list[Step]:
    """Return the steps that compute a function.

    Args:
        order: The values, in a valid order of computation.
        launches: The launches, in order.
        host: The interpreted values.
    """
    by_root: dict[Value, list[Launch]] = {}
    for launch in launches:
        by_root.setdefault(_computed_by(launch), []).append(launch)
    steps: list[Step] = []
    for value in order:
        if value in by_root:
            last = steps[-1] if steps else None
            stability = shape_stability(value) if value.op == "loop" else None
            if value.op == "host":
                (symbol,) = value.params["symbols"]
                steps.append(Segment(by_root[value], value, symbol, most_results(value), stability))
            elif (symbol := iteration_symbol(value)) is not None:
                steps.append(Segment(by_root[value], value, symbol, stability=stability))
            elif stability is not None:
                steps.append(Segment(by_root[value], stability=stability))
            elif isinstance(last, Segment) and not last.is_alone:
                last.launches += by_root[value]
            else:
                steps.append(Segment(list(by_root[value])))
        elif value in host:
            steps.append(value)
    return steps


def _computed_by(launch: Launch) -> Value:
    """Return the value whose step contains the launch: the written value, or its host function.

    A function may read the number of results of a host function alone, and none of the results.
    """
    value = launch.writes
    return value.operands[0] if value.op == "get" and has_kernel(value.operands[0]) else value


def launches_of(steps: Iterable[Step]) -> list[Launch]:
    """Return the launches of steps, in the order of execution."""
    return [launch for step in steps if isinstance(step, Segment) for launch in step.launches]


def find_interpreted(
    host: Iterable[Value], results: Iterable[Value], in_memory: Callable[[Value], bool]
) -> tuple[Mapping[Value, Sequence[Value]], frozenset[Value]]:
    """Return the memory reads of each interpreted value, and all interpreted values.

    Args:
        host: The values interpreted as steps.
        results: The results of the program, read after all steps.
        in_memory: True for a value in memory at its time of reading.
    """
    inner = set(host)

    def reads_of(value: Value) -> list[Value]:
        if value.is_constant:
            return []
        if in_memory(value):
            return [value]
        inner.add(value)
        return [read for operand in value.operands for read in reads_of(operand)]

    reads = {value: [read for operand in value.operands for read in reads_of(operand)] for value in host}
    for result in results:
        reads_of(result)
    return reads, frozenset(inner)


def find_last_readers(
    steps: Sequence[Step], results: Iterable[Value], reads: Mapping[Value, Sequence[Value]]
) -> dict[Value, int]:
    """Return the index of the last reading step of each value in memory; of results, the number of steps.

    Args:
        steps: The steps.
        results: The results of the program, read after all steps.
        reads: Memory reads of interpreted values, see :func:`find_interpreted`.
    """
    last: dict[Value, int] = {}
    for number, step in enumerate(steps):
        if isinstance(step, Segment):
            for launch in step.launches:
                last.update((buffer, number) for buffer in launch.buffers if isinstance(buffer, Value))
        else:
            last.update(dict.fromkeys(reads[step], number))
    last.update(dict.fromkeys(results, len(steps)))
    return last


def depends_on_constants(step: Step) -> bool:
    """Return True if a step depends on constants outside of its kernels.

    Such a step is a segment with a counted host function or with a shape-stable loop.
    """
    counts = isinstance(step, Segment) and step.counted is not None and step.counted.op == "host"
    return counts or (isinstance(step, Segment) and step.stability is not None)


def describe_interpreted(steps: Iterable[Step], host: Mapping[Value, str]) -> list[str]:
    """Describe each part of a program outside of native code.

    Parts are interpreted values, and segments whose sizes or state are known only at run time.

    Args:
        steps: The steps.
        host: The interpreted values, with reasons.
    """
    segments = [step for step in steps if isinstance(step, Segment)]
    interpreted = [f"{_name(value)} is left to the interpreter ({reason})" for value, reason in host.items()]
    counting = [
        f"{_name(segment.counted)} counts sizes at run time" for segment in segments if segment.counted is not None
    ]
    return interpreted + counting + [
        f"{_name(segment.launches[0].writes)} may change the sizes of its state"
        for segment in segments if segment.stability is not None and segment.counted is None
    ]  # fmt: skip


def _name(value: Value) -> str:
    name = f"host {value.params['function'].name}" if value.op == "host" else value.op
    return f"{name} ({value.origin})" if value.origin else name
