"""What a program does, step by step: kernels that run in one native call, and values that the interpreter computes."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sardonyx.compiler.analysis.bounded_output import has_kernel, most_results
from sardonyx.compiler.analysis.control_flow import counted
from sardonyx.compiler.analysis.shape_stable_loops import Settling, settling
from sardonyx.compiler.lower.launch import Launch
from sardonyx.core.dim import Size
from sardonyx.core.ir.graph import Value


@dataclass
class Segment:
    """Kernels that run in one native call.

    Attributes:
        launches: The kernels.
        counted: What is all of it and counts a size of what follows: a loop its iterations, a host its results.
        symbol: That size.
        most: The most results that a host may give.
        settling: What must hold for the loop that is all of it to be native; else the interpreter has it.
    """

    launches: list[Launch] = field(default_factory=list)
    counted: Value | None = None
    symbol: str = ""
    most: Size = 0
    settling: Settling | None = None

    @property
    def is_alone(self) -> bool:
        """Whether no other kernels can be in it."""
        return self.counted is not None or self.settling is not None

    @property
    def repeats(self) -> bool:
        """Whether there may be loops in it, which take as long as they like."""
        return any(launch.bodies for launch in self.launches)


Step = Segment | Value
"""Kernels, or a value that the interpreter computes."""


def split_segments(order: Iterable[Value], launches: Sequence[Launch], host: Container[Value]) -> list[Step]:
    """Return the steps that compute a function.

    Args:
        order: Its values, in the order in which launches and the interpreter can compute them.
        launches: Its kernels, in order.
        host: The values that the interpreter computes.
    """
    by_root: dict[Value, list[Launch]] = {}
    for launch in launches:
        by_root.setdefault(launch.writes, []).append(launch)
    steps: list[Step] = []
    for value in order:
        if value in by_root:
            last = steps[-1] if steps else None
            counting = value.operands[0] if value.op == "get" and has_kernel(value.operands[0]) else value
            settles = settling(value) if value.op == "loop" else None
            if counting.op == "host":
                (symbol,) = counting.params["symbols"]
                steps.append(Segment(by_root[value], counting, symbol, most_results(counting), settles))
            elif (symbol := counted(counting)) is not None:
                steps.append(Segment(by_root[value], counting, symbol, settling=settles))
            elif settles is not None:
                steps.append(Segment(by_root[value], settling=settles))
            elif isinstance(last, Segment) and not last.is_alone:
                last.launches += by_root[value]
            else:
                steps.append(Segment(list(by_root[value])))
        elif value in host:
            steps.append(value)
    return steps


def launches_of(steps: Iterable[Step]) -> list[Launch]:
    """The kernels of steps, in the order in which they are played."""
    return [launch for step in steps if isinstance(step, Segment) for launch in step.launches]


def beneath(
    host: Iterable[Value], results: Iterable[Value], in_memory: Callable[[Value], bool]
) -> tuple[Mapping[Value, Sequence[Value]], frozenset[Value]]:
    """What the interpreter reads from memory for each of its values, and all that it computes on its way.

    Args:
        host: The values that the interpreter computes.
        results: What is read after all steps.
        in_memory: Whether a value is in memory when the interpreter reads it.
    """
    inner = set(host)

    def found(value: Value) -> list[Value]:
        if value.is_constant:
            return []
        if in_memory(value):
            return [value]
        inner.add(value)
        return [each for operand in value.operands for each in found(operand)]

    reads = {value: [each for operand in value.operands for each in found(operand)] for value in host}
    for result in results:
        found(result)
    return reads, frozenset(inner)


def last_readers(
    steps: Sequence[Step], results: Iterable[Value], reads: Mapping[Value, Sequence[Value]]
) -> dict[Value, int]:
    """The step after which a value in memory is not read any more.

    Args:
        steps: The steps.
        results: What is read after all of them.
        reads: What the interpreter reads for its values, see :func:`beneath`.
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


def is_of_constants(step: Step) -> bool:
    """Whether more of a step than its kernels is made with the constants at hand."""
    counts = isinstance(step, Segment) and step.counted is not None and step.counted.op == "host"
    return counts or (isinstance(step, Segment) and step.settling is not None)


def not_native(steps: Iterable[Step], host: Mapping[Value, str]) -> list[str]:
    """What of a program more than native code runs, in words: the interpreter, or a plan with sizes that were counted.

    Args:
        steps: The steps.
        host: What the interpreter computes, and why.
    """
    segments = [step for step in steps if isinstance(step, Segment)]
    left = [f"{_named(value)} is left to the interpreter ({reason})" for value, reason in host.items()]
    counting = [f"{_named(each.counted)} counts sizes while it runs" for each in segments if each.counted is not None]
    return left + counting + [
        f"{_named(each.launches[0].writes)} may change its state's sizes"
        for each in segments if each.settling is not None and each.counted is None
    ]  # fmt: skip


def _named(value: Value) -> str:
    name = f"host {value.params['function'].name}" if value.op == "host" else value.op
    return f"{name} ({value.origin})" if value.origin else name
