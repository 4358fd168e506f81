"""From a function to its kernels: grouped, lowered, and grouped again where lowering finds that it cannot be so."""

from __future__ import annotations

from collections.abc import Callable

from sardonyx.compiler.analysis.shape_guards import required
from sardonyx.compiler.analysis.shape_stable_loops import settling
from sardonyx.compiler.lower.concurrent_loops import side_by_side
from sardonyx.compiler.lower.context import Whole
from sardonyx.compiler.lower.groups import Lowering
from sardonyx.compiler.lower.launch import Body, Launch
from sardonyx.compiler.passes.canonicalize import canonicalize
from sardonyx.compiler.schedule.fusion import Schedule
from sardonyx.compiler.schedule.layout_assignment import blocked_images
from sardonyx.compiler.target.description import Target
from sardonyx.core.ir.graph import Function, Value
from sardonyx.errors import UnsupportedError


class Bodies:
    """Lowers functions, those inside of them once each.

    Args:
        target: What the kernels are for.
        threads: How many threads will share the work.
        written: Told of each kernel when it is written; it may be written otherwise later.
    """

    def __init__(self, target: Target, threads: int, written: Callable[[Launch], None] = lambda launch: None) -> None:
        self.target = target
        self.threads = threads
        self._written = written
        self._bodies: dict[Function, Body | str] = {}

    def lowered(self, function: Function, repeats: bool = False) -> Lowering:
        """The kernels of a function in canonical form.

        Args:
            function: The function.
            repeats: Whether it is the body of a loop, of which the first input is the number of the iteration.

        Raises:
            UnsupportedError: What its kernels need of each other contradicts itself.
        """
        kept: dict[Value, str] = {}
        refused: dict[Value, str] = {}
        while True:
            schedule = Schedule(function, kept, refused, self.target, self.threads)
            blocks, iteration = blocked_images(schedule, self.target), function.inputs[0] if repeats else None
            lowering = Lowering(Whole(schedule, self.target, blocks, self.threads, iteration), self.body, self._written)
            if not lowering.unfusable and not lowering.refused:
                return lowering
            if not lowering.refused and lowering.unfusable.keys() <= kept.keys():
                names = ", ".join(sorted({value.op for value in lowering.unfusable}))
                raise UnsupportedError(f"a kernel needs in memory what is never there: {names}.")
            kept |= lowering.unfusable
            refused |= lowering.refused

    def body(self, function: Function, repeats: bool) -> Body:
        """The kernels of a loop's body, or of a branch.

        Args:
            function: The function.
            repeats: Whether it is a loop's body.

        Raises:
            UnsupportedError: There are no kernels for some of it.
        """
        found = self._bodies.get(function)
        if found is None:
            found = self._bodies[function] = self._lowered_body(canonicalize(function, self.target), repeats)
        if isinstance(found, str):
            raise UnsupportedError(found)
        return found

    def _lowered_body(self, function: Function, repeats: bool) -> Body | str:
        if function.defined_symbols:
            return f"sizes are computed in {function.name}"
        lowering = self.lowered(function, repeats)
        if lowering.schedule.host:
            return f"in {function.name}: {next(iter(lowering.schedule.host.values()))}"
        if any(launch.writes.op == "loop" and settling(launch.writes) is not None for launch in lowering.launches):
            return f"in {function.name}: a loop may carry what changes its size"
        launches = side_by_side(lowering.launches, self.target, self.threads)
        return Body(function, tuple(launches), lowering.blocks, required(function))
