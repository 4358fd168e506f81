"""The pass that plans a segment; a program from the store runs it too, so this module imports no lowering."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from sardonyx.compiler.pass_runner import TAPE, Contract, Pass
from sardonyx.compiler.plan.compiled_function import CompiledFunction
from sardonyx.compiler.plan.planner import Planner
from sardonyx.compiler.plan.tape import Plan


def _plan_faults(plan: Plan) -> Iterator[str]:
    last = len(plan.words)
    for name in ("size_words", "arena_words", "tape_words"):
        words = getattr(plan, name)
        if len(words) and not (words[:, 0].min() >= 0 and words[:, 0].max() < last):
            yield f"a word in {name} is outside of the tape"
    if any(not 0 <= word < last for word, _ in plan.links):
        yield "a link is outside of the tape"


def dump_plan(plan: Plan, *_: Any) -> Iterator[tuple[int, Callable[[], str]]]:
    """Dump the tape and the memory plan of a segment."""
    yield TAPE, lambda: "\n".join(_plan_lines(plan))


def _plan_lines(plan: Plan) -> Iterator[str]:
    yield f"  tape: {len(plan.words)} words, {plan.kernels} kernels, {len(plan.links)} links"
    yield f"  sizes: {len(plan.instructions)} instructions; symbols: {', '.join(plan.symbols) or 'none'}"
    yield from (f"  guard: {a} = {b}" for a, b in plan.equal)
    for number, (register, first, last) in enumerate(plan.buffers.tolist()):
        yield f"  arena buffer {number}: {plan.titles[number]}, bytes in register {register}, alive {first} to {last}"


PLAN = Contract("all described words are inside of the tape", _plan_faults)
PLAN_SEGMENT = Pass("plan segment", Planner.plan, ensures=(PLAN,), dump=dump_plan)


def plan_segment(compiled: CompiledFunction, *args: Any, **options: Any) -> Plan:
    """Plan launches of a compiled function; arguments are those of :meth:`Planner.plan`."""
    return PLAN_SEGMENT(Planner(compiled.threads, compiled.prepared), *args, **options)
