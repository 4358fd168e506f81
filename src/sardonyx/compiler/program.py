"""Programs: compiled Core functions, ready for calls.

The work of a call is a *tape*, an array of machine words: for each kernel its address, arguments and work items. Native
code writes the words that depend on sizes if a call has other sizes than the call before; the addresses of inputs and
results change from call to call. The code that executes tapes is the same for all models.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.compiler.analysis.shape_guards import Equal, select_known
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.call import interpreted
from sardonyx.compiler.call.call_context import Linked
from sardonyx.compiler.call.fault import Fault
from sardonyx.compiler.call.stepwise import Call, remembered
from sardonyx.compiler.executor.tape_player import player
from sardonyx.compiler.executor.thread_pool import Pool, pool
from sardonyx.compiler.lower.launch import Launch, Prepared
from sardonyx.compiler.plan.array_copies import copy_arrays
from sardonyx.compiler.plan.compiled_function import CompiledFunction
from sardonyx.compiler.plan.overwriting import overwritable
from sardonyx.compiler.plan.segments import Segment, describe_interpreted, find_last_readers
from sardonyx.compiler.plan.tape import Plan
from sardonyx.compiler.plan.weight_plan import WeightPlan
from sardonyx.compiler.program_image.image import Image
from sardonyx.compiler.program_image.reader import HostLookup, no_host_functions, read_image
from sardonyx.compiler.program_image.writer import write_image
from sardonyx.compiler.segment_planning import plan_segment
from sardonyx.compiler.target.denormals import Denormals, flushes
from sardonyx.compiler.target.description import Target
from sardonyx.core.dim import Dim, symbols
from sardonyx.core.eval.interpreter import Sizes, evaluate
from sardonyx.core.eval.run_context import RunContext, running
from sardonyx.core.eval.tensor import constant
from sardonyx.core.ir.graph import Function, Value

if TYPE_CHECKING:
    from sardonyx.compiler.schedule.fusion import Grouping


class Program:
    """A compiled function that can be called.

    Args:
        compiled: The record of the program, from the pipeline, an image, or another program.
        like: A program of the same steps over other weights, whose table of last readers is used; None for none.

    Attributes:
        function: Inputs and results of the function, and all its values if ``has_graph``.
        target: The processor of the code.
        pool: The threads that share the work.
        launches: The kernels, in order.
        steps: The steps of a call, in order.
        blocks: Channels per block, of values in blocked layout.
        host: Interpreted values, with reasons.
        around: Size symbols of the enclosing function.
        flushes: True if kernels treat denormal numbers as zero.
        bodies: Compiled bodies of control flow that the interpreter executes in some or all calls.
        in_one: True if a call is exactly one native call.
        repeating: Indices of steps with control flow, whose time has no bound.
        row_bytes: Bytes collected by one iteration of a loop, by step and sizes.
        stable_sizes: Resolved sizes of shape-stable loops, by step and sizes.
    """

    def __init__(self, compiled: CompiledFunction, like: Program | None = None) -> None:
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
        self.stable_sizes: dict[tuple[int, ...], Sizes | None] = {}
        self._last: Mapping[Value, float] = (
            like._last if like else find_last_readers(self.steps, self.function.results, compiled.reads)
        )
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
        in_place: Sequence[tuple[int, int]] = (),
        stores_kernels: bool = False,
    ) -> Program:
        """Compile a function to a program; see :func:`sardonyx.compiler.pipeline.compile_function`."""
        from sardonyx.compiler import pipeline

        return cls(
            pipeline.compile_function(
                function,
                target=target,
                threads=threads,
                denormals=denormals,
                in_place=in_place,
                stores_kernels=stores_kernels,
            )
        )

    @classmethod
    def from_image(
        cls,
        image: Image,
        *,
        target: Target | None = None,
        threads: int | None = None,
        denormals: Denormals = "auto",
        hosts: HostLookup = no_host_functions,
    ) -> Program:
        """Return the program of an image; results are the same to the bit as of the original program.

        Args:
            image: See :meth:`image`.
            target: The target of the compilation.
            threads: The number of threads of the compilation.
            denormals: The treatment of denormal numbers.
            hosts: Returns the host functions of the program.
        """
        return cls(read_image(image, target=target, threads=threads, denormals=denormals, hosts=hosts))

    def reweighted(self, function: Function) -> Program | None:
        """Return the program with other weights, without compilation; None if code depends on the weights."""
        from sardonyx.compiler import pipeline

        compiled = pipeline.reweight(self._compiled, function)
        return None if compiled is None else self._over(compiled)

    def weight_plan(self, before: Program, weights: Sequence[np.ndarray]) -> WeightPlan | None:
        """Return how the constants of this program depend on weights.

        The result is None unless each constant that differs is a view of a weight.

        Args:
            before: The program whose code this program reuses with other weights.
            weights: The weights of this program that differ, contiguous.
        """
        return WeightPlan.of(self._compiled, before._compiled, weights)

    def with_weights(self, plan: WeightPlan, weights: Mapping[int, np.ndarray]) -> Program | None:
        """Return the program over other weights, without tracing; None if code depends on these.

        Args:
            plan: The result of :meth:`weight_plan`.
            weights: The weights that change, contiguous, by their index in :meth:`weight_plan`.
        """
        compiled = plan.apply(self._compiled, weights, self.pool)
        return None if compiled is None else self._over(compiled)

    def copy_arrays(self, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
        """Copy the second array of each pair to the first, by the threads of the program.

        Args:
            pairs: Arrays of equal types and shapes; the first ones are contiguous.
        """
        copy_arrays(pairs, self.pool, self.target)

    def _over(self, compiled: CompiledFunction) -> Program:
        """Return the program of a record with other constants alone; plans are shared."""
        program = Program(compiled, self)
        for number, linked in self._plans.copy().items():
            program._plans[number] = program._linked(linked.plan)
        program._sizes = self._sizes
        return program

    def _linked(self, plan: Plan) -> Linked:
        kernels = self._compiled.kernels
        return Linked(plan, player(self.target), self.pool.address, kernels.addresses, self.prepared)

    def image(self) -> Image:
        """Return the program as data.

        Raises:
            UnserializableError: An interpreted value cannot be serialized.
        """
        self._compile_bodies()
        return write_image(self._record())

    def _compile_bodies(self) -> None:
        """Compile the bodies of loops whose state may change its sizes: a restored program cannot compile."""
        for step in self.steps:
            if isinstance(step, Segment) and step.stability is not None:
                self.compiled(step.launches[0].writes)
        for body in itertools.chain(*self.bodies.values()):
            body._compile_bodies()

    def _record(self) -> CompiledFunction:
        """Return the current record of the program, including bodies that calls have compiled."""
        bodies = {control: [body._record() for body in bodies] for control, bodies in self.bodies.items()}
        return replace(self._compiled, bodies=bodies)

    def compiled(self, control: Value) -> Sequence[Program] | None:
        """Return the compiled bodies of control flow; None if the interpreter also computes the bodies."""
        if control not in self.bodies and control not in self.host:
            from sardonyx.compiler import pipeline

            self.bodies[control] = [*map(Program, pipeline.compile_bodies(self._compiled, control))]
        return self.bodies.get(control)

    # Contents.

    @property
    def has_graph(self) -> bool:
        """True if the function has all its values; a restored program has only values needed for execution."""
        return self._compiled.whole is not None

    @property
    def grouping(self) -> Grouping:
        """The groups of the function; requires ``has_graph``."""
        assert self._compiled.whole is not None, "a program from an image has no groups"
        return self._compiled.whole.grouping

    def in_memory(self, value: Value) -> bool:
        """Return True if a value is stored in memory; requires ``has_graph``."""
        assert self._compiled.whole is not None, "a program from an image has no groups"
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
        """Descriptions of the steps that are not purely native."""
        return describe_interpreted(self.steps, self.host)

    @property
    def objects(self) -> list[bytes]:
        """Object code of the kernels before linking, with the function names of :attr:`kernel_names`."""
        assert self.has_graph, "the code of a restored program is linked"
        return self._compiled.kernels.code.parts

    @property
    def kernel_names(self) -> Mapping[str, str]:
        """Function names of kernels, by text."""
        return self._compiled.kernels.names

    @property
    def prepared(self) -> Mapping[Any, np.ndarray]:
        """Constants in the form that kernels read."""
        return self._compiled.prepared

    @property
    def weights(self) -> list[np.ndarray]:
        """The arrays of :attr:`prepared`."""
        return list(self.prepared.values())

    def prepared_bytes(self, weight: Prepared) -> int:
        """Return the bytes of a prepared weight."""
        return self.prepared[weight].nbytes

    @property
    def plans(self) -> dict[int, Linked]:
        """Plans of executed steps, with their contexts, by index of the step."""
        return dict(self._plans)

    def known_result(self, value: Value) -> np.ndarray:
        """Return a result that depends on neither inputs nor sizes."""
        return np.asarray(interpreted.result(value, {}, {}))

    def overwritable(self, pairs: Sequence[tuple[int, int]]) -> list[bool]:
        """Return for each input and result, by position, whether a call may write the result over the input.

        All are False in a program from an image, and for pairs for which the program was not compiled (``in_place``).
        """
        inputs, results = self.function.inputs, self.function.results
        if not self.in_one or self._compiled.whole is None:
            return [False] * len(pairs)
        in_place = self._compiled.whole.in_place
        return overwritable(self.launches, [(inputs[i], results[j]) for i, j in pairs], in_place)

    # Planning.

    @property
    def unplanned_guards(self) -> Sequence[Equal]:
        """The pairs of sizes that no plan checks: those of a program without kernels."""
        return () if any(isinstance(step, Segment) for step in self.steps) else self._compiled.guards

    def plan_whole(self, size_tensors: Sequence[Value] = ()) -> Plan:
        """Return the plan of a fully native program as one segment, with the sizes of all results.

        Args:
            size_tensors: Results that are tensors of sizes.
        """
        inputs, results = self.function.inputs, self.function.results
        outside, names = {*inputs, *results}, self.symbols or frozenset()
        return plan_segment(
            self._compiled,
            self.launches,
            self.blocks,
            lambda value: value in outside or value.op == "dims",
            (*inputs, *results),
            select_known(self._compiled.guards, names),
            names,
            size_tensors,
        )

    def plan(self, number: int, names: Collection[str] | None = None, unknown: str = "") -> Linked:
        """Return the plan of a segment, linked to loaded code.

        Args:
            number: Index of the step.
            names: The symbols whose values are known before the step; by default the symbols of the inputs.
            unknown: A symbol of ``names`` that the step itself determines; its value in a call is the maximum.
        """
        linked = self._plans.get(number)
        if linked is None:
            segment = self.steps[number]
            assert isinstance(segment, Segment)
            known_names = frozenset((self.symbols or ()) if names is None else names)
            known_names -= {unknown, *self._unsure_symbols(number)}
            measured = self.function.inputs if number == 0 and self.symbols is not None else ()
            plan = plan_segment(
                self._compiled,
                segment.launches,
                self.blocks,
                lambda value: self._is_outside(value, number, segment),
                [value for value in measured if interpreted.is_tensor(value)],
                select_known(self._compiled.guards, known_names),
                known_names,
            )
            linked = self._plans[number] = self._linked(plan)
        return linked

    def _unsure_symbols(self, number: int) -> set[str]:
        """Return the symbols of shape-stable loops of other steps, which are known only in some calls."""
        unsure: set[str] = set()
        for other, step in enumerate(self.steps):
            if other != number and isinstance(step, Segment) and step.stability is not None:
                of_results = (symbols(size) for value in step.launches[0].all_writes for size in shape_of(value))
                unsure |= step.stability.sizes.keys() - frozenset().union(*of_results)
        return unsure

    @functools.cached_property
    def symbols(self) -> frozenset[str] | None:
        """The symbols that are sizes of inputs; None if another input size is not a function of these."""
        sizes = [size for value in self.function.inputs if interpreted.is_tensor(value) for size in shape_of(value)]
        atoms = [size.atom for size in sizes if isinstance(size, Dim)]
        names = frozenset(atom.name for atom in atoms if atom is not None and atom.kind == "symbol")
        return names if all(symbols(size) <= names for size in sizes) else None

    def _is_outside(self, value: Value, number: int, segment: Segment) -> bool:
        """Return True if a value is stored outside of the segment's arena, e.g. a value with later readers."""
        if value.op in ("input", "dims") or value in self.host or self._last[value] > number:
            return True
        return all(value not in launch.all_writes for launch in segment.launches)

    # Calls.

    def run(
        self, arrays: Sequence[Any], context: RunContext | None = None, around: Mapping[str, int] | None = None
    ) -> list[Any]:
        """Compute the results.

        Args:
            arrays: A value for each input; arrays are contiguous and of the declared element type.
            context: The limits of the call.
            around: Values of the size symbols of the enclosing function.

        Raises:
            Fault: Data have no result; the interpreter can report the error.
            ShapeError: Sizes contradict the declared ones.
            ResourceError: A limit of the context is exceeded.
        """
        key = tuple([array.shape if isinstance(array, np.ndarray) else None for array in arrays])
        if around:
            key += tuple(around.values())
        sizes = remembered(self._sizes, key, lambda: interpreted.sizes_in(self.function.inputs, arrays, around))
        env = dict(zip(self.function.inputs, arrays, strict=True))
        return Call(self, env, sizes if self.in_one else dict(sizes), context or RunContext()).results()

    def answer(self, arrays: Sequence[np.ndarray]) -> list[Any]:
        """Compute the results without limits; the interpreter names data that have no result.

        Requires ``has_graph``.

        Raises:
            SardonyxError: The data have no result.
        """
        try:
            return self.run(arrays)
        except Fault:
            with running(RunContext()):
                values = evaluate(self.function, [constant(array) for array in arrays])
            return [np.array(value.known) for value in values]
