"""Programs: a Core function compiled, and run with one native call.

What a run does is written down as a *tape*, an array of machine words: for each kernel its address, its arguments, and
its work items. What in it depends on sizes is written anew where a call has other sizes than the one before, by native
code; the addresses of inputs and results change from call to call. Nothing of the model is in the code that plays it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sardonyx.compiler import pipeline
from sardonyx.compiler.analysis.shape_guards import select_known
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.call import interpreted
from sardonyx.compiler.call.call_context import Linked
from sardonyx.compiler.call.stepwise import Call, remembered
from sardonyx.compiler.executor.tape_player import player
from sardonyx.compiler.executor.thread_pool import Pool, pool
from sardonyx.compiler.lower.launch import Launch, Prepared
from sardonyx.compiler.plan.compiled_function import CompiledFunction
from sardonyx.compiler.plan.segments import Segment, describe_interpreted, find_last_readers
from sardonyx.compiler.plan.tape import Plan
from sardonyx.compiler.program_image import Hosts, Image, no_host_functions, read_image, write_image
from sardonyx.compiler.schedule.fusion import Schedule
from sardonyx.compiler.target.denormals import Denormals, flushes
from sardonyx.compiler.target.description import Target
from sardonyx.core.dim import Dim, symbols
from sardonyx.core.eval.interpreter import Sizes
from sardonyx.core.eval.run_context import RunContext
from sardonyx.core.ir.graph import Function, Value


class Program:
    """A compiled function that can be run.

    Args:
        compiled: What the program is, from the pipeline, from an image, or from another program.

    Attributes:
        function: Inputs and results of the function; all values of it where ``has_graph``.
        target: The processor that the code is for.
        pool: The threads that share the work.
        launches: The kernels, in order.
        steps: What a call does, one after the other.
        blocks: Channels per block, of values that are images in blocked layout.
        host: Values that the interpreter computes, and why.
        around: The size symbols that come from outside of the function.
        flushes: True if kernels take denormal numbers for zero.
        bodies: The compiled bodies of control flow that is left to the interpreter, or may be by a call.
        in_one: True if a call is one native call, and nothing that waits for it.
        repeating: The numbers of the steps that may take as long as they like.
        row_bytes: Bytes of what an iteration of a loop collects, by its step's number and sizes.
        settlings: The sizes of loops that settle, by their step's number and the sizes before.
    """

    def __init__(self, compiled: CompiledFunction) -> None:
        self._compiled = compiled
        self.function = compiled.function
        self.target = compiled.target
        self.pool: Pool = pool(compiled.threads)
        self.launches: list[Launch] = compiled.launches
        self.steps = list(compiled.steps)
        self.blocks = compiled.blocks
        self.host = compiled.host
        self.around = compiled.around
        self.flushes = flushes(compiled.denormals, compiled.has_denormals)
        self.bodies: dict[Value, list[Program]] = {
            control: [Program(body) for body in bodies] for control, bodies in compiled.bodies.items()
        }
        segments = [(number, step) for number, step in enumerate(self.steps) if isinstance(step, Segment)]
        self.in_one = len(self.steps) == len(segments) == 1 and not segments[0][1].is_alone
        self.repeating = frozenset(number for number, segment in segments if segment.has_control_flow)
        self.row_bytes: dict[tuple[int, ...], int] = {}
        self.settlings: dict[tuple[int, ...], Sizes | None] = {}
        self._last = find_last_readers(self.steps, self.function.results, compiled.reads)
        self._plans: dict[int, Linked] = {}
        self._sizes: dict[tuple[Any, ...], Sizes] = {}

    @classmethod
    def compile(
        cls,
        function: Function,
        *,
        target: Target | None = None,
        threads: int | None = None,
        denormals: Denormals = "auto",
    ) -> Program:
        """Compile a function to a program; see :func:`sardonyx.compiler.pipeline.compile_function`."""
        return cls(pipeline.compile_function(function, target=target, threads=threads, denormals=denormals))

    @classmethod
    def from_image(
        cls,
        image: Image,
        *,
        target: Target | None = None,
        threads: int | None = None,
        denormals: Denormals = "auto",
        hosts: Hosts = no_host_functions,
    ) -> Program:
        """Return the program of an image, which computes the same bits as the program that gave the image.

        Args:
            image: See :meth:`image`.
            target: The processor that the program was compiled for.
            threads: The number of threads that the program was compiled for.
            denormals: The treatment of denormal numbers.
            hosts: Finds the host functions that the program calls.
        """
        return cls(read_image(image, target=target, threads=threads, denormals=denormals, hosts=hosts))

    def reweighted(self, function: Function) -> Program | None:
        """Return the program over other elements of constants, not compiled; None where code would differ."""
        compiled = pipeline.reweight(self._compiled, function)
        return None if compiled is None else Program(compiled)

    def image(self) -> Image:
        """Return the program as data.

        Raises:
            NoImage: There is no text for what the interpreter computes.
        """
        self._compile_bodies()
        return write_image(self._record())

    def _compile_bodies(self) -> None:
        """Compile the bodies of loops whose state may change its sizes: another process cannot when it does."""
        for step in self.steps:
            if isinstance(step, Segment) and step.stability is not None:
                self.compiled(step.launches[0].writes)
        for body in itertools.chain(*self.bodies.values()):
            body._compile_bodies()

    def _record(self) -> CompiledFunction:
        """The record of the program as it is now, with the bodies that were compiled since."""
        bodies = {control: [body._record() for body in bodies] for control, bodies in self.bodies.items()}
        return replace(self._compiled, bodies=bodies)

    def compiled(self, control: Value) -> Sequence[Program] | None:
        """Return the compiled bodies of control flow; None where the interpreter computes the bodies, too."""
        if control not in self.bodies and control not in self.host:
            self.bodies[control] = [*map(Program, pipeline.compile_bodies(self._compiled, control))]
        return self.bodies.get(control)

    # What it consists of.

    @property
    def has_graph(self) -> bool:
        """True if the function has all its values; one from an image has only those that running needs."""
        return self._compiled.whole is not None

    @property
    def schedule(self) -> Schedule:
        """The groups of the function, where ``has_graph``."""
        assert self._compiled.whole is not None, "a program from an image has no schedule"
        return self._compiled.whole.schedule

    def in_memory(self, value: Value) -> bool:
        """Return True if a value has memory of its own, where ``has_graph``."""
        assert self._compiled.whole is not None, "a program from an image has no schedule"
        return self._compiled.whole.in_memory(value)

    @property
    def overrides(self) -> str | None:
        """Fingerprint of the user's schedules during compilation; see :class:`CompiledFunction`."""
        return self._compiled.overrides

    @property
    def can_be_reweighted(self) -> bool:
        """True if :meth:`reweighted` may return a program."""
        return self._compiled.can_be_reweighted

    @property
    def needs_graph(self) -> list[str]:
        """The steps that more than native code runs, in words."""
        return describe_interpreted(self.steps, self.host)

    @property
    def objects(self) -> list[bytes]:
        """The kernels' object code as LLVM gives it; they are functions of the names of :attr:`kernel_names`."""
        assert self.has_graph, "what comes from an image is linked already"
        return self._compiled.kernels.code.parts

    @property
    def kernel_names(self) -> Mapping[str, str]:
        """The names of kernels, by their text."""
        return self._compiled.kernels.names

    @property
    def prepared(self) -> Mapping[Any, np.ndarray]:
        """What kernels read of constants."""
        return self._compiled.prepared

    @property
    def weights(self) -> list[np.ndarray]:
        """The arrays of :attr:`prepared`."""
        return list(self.prepared.values())

    def prepared_bytes(self, weight: Prepared) -> int:
        """Return the bytes of a weight in the form that kernels read."""
        return self.prepared[weight].nbytes

    @property
    def plans(self) -> dict[int, Linked]:
        """The plans of calls that were made, each with the contexts that there are for it, by the step's number."""
        return dict(self._plans)

    def known_result(self, value: Value) -> np.ndarray:
        """Return a result that depends on no input, nor on a size."""
        return np.asarray(interpreted.result(value, {}, {}))

    # Planning.

    def whole(self, told: Sequence[Value] = ()) -> Plan:
        """Return the plan of one segment that is all of the program, which is native, with the sizes of all results.

        Args:
            told: Results that are tensors of sizes.
        """
        inputs, results = self.function.inputs, self.function.results
        outside, names = {*inputs, *results}, self.symbols or frozenset()
        return pipeline.plan_segment(
            self._compiled,
            self.launches,
            self.blocks,
            lambda value: value in outside or value.op == "dims",
            (*inputs, *results),
            select_known(self._compiled.guards, names),
            names,
            told,
        )

    def plan(self, number: int, names: Collection[str] | None = None, but: str = "") -> Linked:
        """The plan of a step that is a segment.

        Args:
            number: Which.
            names: The symbols that are known by then; those of inputs without.
            but: One of them that is not: there is room for the most that it can be.
        """
        found = self._plans.get(number)
        if found is None:
            segment = self.steps[number]
            assert isinstance(segment, Segment)
            told = frozenset((self.symbols or ()) if names is None else names) - {but} - self._unsure(number)
            plan = pipeline.plan_segment(
                self._compiled,
                segment.launches,
                self.blocks,
                lambda value: self._is_outside(value, number, segment),
                self.function.inputs if number == 0 and self.symbols is not None else (),
                select_known(self._compiled.guards, told),
                told,
            )
            kernels = self._compiled.kernels
            found = Linked(plan, player(self.target), self.pool.address, kernels.addresses, self.prepared)
            self._plans[number] = found
        return found

    def _unsure(self, number: int) -> set[str]:
        """Symbols that are known after other steps in some calls alone: of bodies of loops that settle."""
        found: set[str] = set()
        for other, step in enumerate(self.steps):
            if other != number and isinstance(step, Segment) and step.stability is not None:
                told = (symbols(size) for value in step.launches[0].all_writes for size in shape_of(value))
                found |= step.stability.sizes.keys() - frozenset().union(*told)
        return found

    @functools.cached_property
    def symbols(self) -> frozenset[str] | None:
        """The symbols that inputs have as a size; None where there are sizes of inputs that these do not tell."""
        sizes = [size for value in self.function.inputs if interpreted.is_tensor(value) for size in shape_of(value)]
        atoms = [size.atom for size in sizes if isinstance(size, Dim)]
        names = frozenset(atom.name for atom in atoms if atom is not None and atom.kind == "symbol")
        return names if all(symbols(size) <= names for size in sizes) else None

    def _is_outside(self, value: Value, number: int, segment: Segment) -> bool:
        """Whether a value lies in memory that is not the segment's own, as what is read after it does."""
        if value.op in ("input", "dims") or value in self.host or self._last[value] > number:
            return True
        return all(value not in launch.all_writes for launch in segment.launches)

    # Running.

    def run(
        self, arrays: Sequence[Any], context: RunContext | None = None, around: Mapping[str, int] | None = None
    ) -> list[Any]:
        """Compute the results.

        Args:
            arrays: A value for each input: arrays that are contiguous and of the declared element types.
            context: The limits for what the interpreter computes.
            around: Numbers for symbols from outside of the function.

        Raises:
            Fault: Data have no result: ask the interpreter what is wrong.
            ShapeError: Sizes do not fit.
            ResourceError: A limit of the context is passed.
        """
        key = tuple([array.shape if isinstance(array, np.ndarray) else None for array in arrays])
        if around:
            key += tuple(around.values())
        sizes = remembered(self._sizes, key, lambda: interpreted.sizes_in(self.function.inputs, arrays, around))
        env = dict(zip(self.function.inputs, arrays, strict=True))
        return Call(self, env, sizes if self.in_one else dict(sizes), context or RunContext()).results()
