"""Programs: a Core function compiled, and run with one native call.

What a run does is written down as a *tape*, an array of machine words: for each kernel its address, its arguments, and
its work items. What in it depends on sizes is written anew where a call has other sizes than the one before, by native
code; the addresses of inputs and results change from call to call. Nothing of the model is in the code that plays it.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.base.artifact_store import store
from sardonyx.base.cancellation import raise_if_cancelled
from sardonyx.compiler import program_image as image_module
from sardonyx.compiler.analysis.control_flow import CONTROL, is_of_tensors
from sardonyx.compiler.analysis.shape_guards import known, required
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.call import interpreted
from sardonyx.compiler.call.call_context import Linked
from sardonyx.compiler.call.stepwise import Call, remembered
from sardonyx.compiler.executor.tape_player import player
from sardonyx.compiler.executor.thread_pool import Pool, pool
from sardonyx.compiler.llvm.elf_loader import Code, linked, loaded
from sardonyx.compiler.llvm.object_code import module_text
from sardonyx.compiler.llvm.parallel_build import Build
from sardonyx.compiler.lower.functions import Bodies
from sardonyx.compiler.lower.launch import NAME, Launch, Prepared, every
from sardonyx.compiler.passes.canonicalize import canonicalize
from sardonyx.compiler.plan.reweight import Meaning, matched, remade
from sardonyx.compiler.plan.segments import (
    Outline,
    Segment,
    Step,
    beneath,
    is_of_constants,
    last_readers,
    launches_of,
    not_native,
    steps_of,
)
from sardonyx.compiler.plan.shared_weights import prepared
from sardonyx.compiler.plan.tape import Plan, Planner
from sardonyx.compiler.program_image import Image
from sardonyx.compiler.target.alignment import aligned
from sardonyx.compiler.target.denormals import Denormals, flushes, holds_denormals
from sardonyx.compiler.target.description import Target
from sardonyx.compiler.target.description import host as host_target
from sardonyx.compiler.tiling import overrides
from sardonyx.core.dim import Dim, symbols
from sardonyx.core.eval.host_function import HostFunction
from sardonyx.core.eval.interpreter import Sizes
from sardonyx.core.eval.run_context import RunContext
from sardonyx.core.ir.graph import Function, Value, bodies_of
from sardonyx.errors import UnsupportedError


def _no_host(domain: str, name: str, since: int, present: tuple[bool, ...] | None, module: str) -> HostFunction:
    raise UnsupportedError(f"the host function {name} is not known.")


class Program:
    """A compiled function.

    Args:
        function: What to compile.
        target: What for.
        threads: How many threads share the work; by default what the process may use.
        denormals: What becomes of denormal numbers.

    Attributes:
        schedule: What became of the function's values; not there in a program from an image.
        in_memory: Whether a value has memory of its own; as schedule.
        has_graph: Whether it was made of the function; one from an image knows only the values in memory.
        host: Values that the interpreter computes, and why.
        launches: The kernels, in order.
        flushes: Whether kernels take denormal numbers for zero.
        bodies: The compiled bodies of control flow that is left to the interpreter, or may be by a call.
        steps: What a call does, one after the other.
        in_one: Whether that is one native call, and nothing that waits for it.
        repeating: The numbers of the steps that may take as long as they like.
        row_bytes: Bytes of what an iteration of a loop collects, by its step's number and sizes.
        settlings: The sizes of loops that settle, by their step's number and the sizes before.
        overrides: Fingerprint of the user's schedules that were active during compilation; None if they changed
            meanwhile, or for a program from an image.
    """

    overrides: str | None = None

    def __init__(
        self,
        function: Function,
        *,
        target: Target | None = None,
        threads: int | None = None,
        denormals: Denormals = "auto",
    ) -> None:
        self.target = target or host_target()
        schedules = overrides.fingerprint()
        function = self.function = canonicalize(function, self.target)
        self.pool: Pool = pool(threads)
        self.has_graph = True
        self._make()
        self.overrides = schedules if schedules == overrides.fingerprint() else None
        self._has_denormals = holds_denormals(self._prepared.values())
        self.flushes = flushes(denormals, self._has_denormals)
        self._denormals = denormals
        self._reads, self._inner = beneath(self.host, self.function.results, self.in_memory)
        self.around = self.function.free_symbols
        self._equal = required(self.function)
        self._begin(steps_of(self.schedule.computed, self.launches, self.host, self.target, self.pool.threads))
        self.launches: list[Launch] = launches_of(self.steps)
        left = [value for value in self.host if value.op in CONTROL and is_of_tensors(value)]
        self.bodies = {value: self._of_bodies(value) for value in left}

    def _of_bodies(self, control: Value) -> list[Program]:
        """The bodies of control flow that is left to the interpreter."""
        return [
            Program(body, target=self.target, threads=self.pool.threads, denormals=self._denormals)
            for body in bodies_of(control)
        ]

    @classmethod
    def restored(
        cls,
        image: Image,
        *,
        target: Target | None = None,
        threads: int | None = None,
        denormals: Denormals = "auto",
        hosts: image_module.Hosts = _no_host,
    ) -> Program:
        """A program from its image; it computes what the one did that gave the image.

        Args:
            image: See :meth:`image`.
            target: What it was compiled for.
            threads: How many threads it was compiled for.
            denormals: What becomes of denormal numbers.
            hosts: Finds the host functions that are called in it.
        """
        reader = image_module.Reader(image, hosts)
        code = loaded(image.code, target or host_target())
        has_denormals = image.head["denormals"]

        def made(outline: Outline) -> Program:
            program = cls.__new__(cls)
            program.function, program.blocks, program.host = outline.function, outline.blocks, outline.host
            program.target = target or host_target()
            program.pool = pool(threads)
            program.has_graph = False
            program._has_denormals, program.flushes = has_denormals, flushes(denormals, has_denormals)
            program._prepared = reader.prepared
            program.launches = launches_of(outline.steps)
            program._names = {each.text: each.text for each in every(program.launches) if not each.bodies}
            program._code, program._loaded = image.code, code
            program._addresses = {name: code.address(name) for name in program._names}
            program.bodies = {value: [*map(made, bodies)] for value, bodies in outline.bodies.items()}
            program._reads, program._inner, program.around = outline.reads, outline.inner, outline.around
            program._equal = list(outline.equal)
            program._begin(list(outline.steps))
            return program

        return made(reader.program)

    def image(self) -> Image:
        """The program as data.

        Raises:
            NoImage: There is no text for what the interpreter computes.
        """
        self._compile_bodies()
        programs = [*self._programs()]
        prepared = {key: array for each in programs for key, array in each._prepared.items()}
        writer = image_module.Writer(prepared, {text: name for each in programs for text, name in each._names.items()})
        head = {**writer.head(self._outline()), "denormals": any(each._has_denormals for each in programs)}
        parts = dict.fromkeys(part for each in programs for part in each._code.parts)
        return Image(head, self._code if self._code.functions else linked([*parts]), writer.arrays)

    def _compile_bodies(self) -> None:
        """Compile the bodies of loops whose state may change its sizes: another process cannot when it does."""
        for step in self.steps:
            if isinstance(step, Segment) and step.settling is not None:
                loop = step.launches[0].writes
                if loop not in self.bodies:
                    self.bodies[loop] = self._of_bodies(loop)
        for body in itertools.chain(*self.bodies.values()):
            body._compile_bodies()

    def _programs(self) -> Iterator[Program]:
        """This one, and those of bodies."""
        yield self
        for body in itertools.chain(*self.bodies.values()):
            yield from body._programs()

    def _outline(self) -> Outline:
        compiled = {value: [body._outline() for body in bodies] for value, bodies in self.bodies.items()}
        return Outline(
            self.function, self.around, self.steps, self.blocks, self.host, self._reads, self._inner, compiled,
            self._equal,
        )  # fmt: skip

    @property
    def needs_graph(self) -> list[str]:
        """The steps that more than native code runs, in words."""
        return not_native(self.steps, self.host)

    @property
    def objects(self) -> list[bytes]:
        """The kernels' object code as LLVM gives it; they are functions of the names of :attr:`kernel_names`."""
        assert self.has_graph, "what comes from an image is linked already"
        return self._code.parts

    @property
    def kernel_names(self) -> Mapping[str, str]:
        """The names of kernels, by their text."""
        return self._names

    @property
    def prepared(self) -> Mapping[Any, np.ndarray]:
        """What kernels read of constants."""
        return self._prepared

    def whole(self, told: Sequence[Value] = ()) -> Plan:
        """The plan of one segment that is all of the program, which is native; it knows the sizes of all results.

        Args:
            told: Results that are tensors of sizes.
        """
        inputs, results = self.function.inputs, self.function.results
        outside, names = {*inputs, *results}, self.symbols or frozenset()
        return Planner(self.pool.threads, self._prepared).plan(
            self.launches,
            self.blocks,
            lambda value: value in outside or value.op == "dims",
            (*inputs, *results),
            known(self._equal, names),
            names,
            told,
        )

    def known_result(self, value: Value) -> np.ndarray:
        """A result that depends on no input, nor on a size."""
        return np.asarray(interpreted.result(value, {}, {}))

    def _begin(self, steps: list[Step]) -> None:
        self.steps = steps
        self.in_one = len(steps) == 1 and isinstance(steps[0], Segment) and not steps[0].is_alone
        self._last = last_readers(steps, self.function.results, self._reads)
        self.repeating = frozenset(i for i, step in enumerate(steps) if isinstance(step, Segment) and step.repeats)
        self._plans: dict[int, Linked] = {}
        self._sizes: dict[tuple[Any, ...], Sizes] = {}
        self.row_bytes: dict[tuple[int, ...], int] = {}
        self.settlings: dict[tuple[int, ...], Sizes | None] = {}

    # Making.

    def _make(self) -> None:
        """Lower, prepare and compile: processors that have nothing else to do compile what is written already."""
        with Build(self.target, store()) as build:
            self._lower(build)
            self._prepare()
            self._compile(build)

    def _lower(self, build: Build) -> None:
        def written(launch: Launch) -> None:
            if not launch.bodies:
                build.add(self._module(launch)[1])

        # What lowers knows this program and the build, and is let go of: no cycle waits for its collector.
        lowering = Bodies(self.target, self.pool.threads, written).lowered(self.function)
        self.in_memory, self.launches = lowering.whole.in_memory, lowering.launches
        self.schedule, self.blocks = lowering.schedule, lowering.blocks
        self.host: Mapping[Value, str] = self.schedule.host

    def _module(self, launch: Launch) -> tuple[str, str]:
        """The name of a kernel, and the module that it is."""
        name = f"k{hashlib.blake2b(launch.text.encode(), digest_size=10).hexdigest()}"
        return name, module_text(self.target, [launch.text.replace(NAME, name)], launch.declarations)

    def _compile(self, build: Build) -> None:
        names: dict[str, str] = {}
        texts: list[str] = []
        for launch in every(self.launches):
            if not launch.bodies and launch.text not in names:
                names[launch.text], text = self._module(launch)
                texts.append(text)
        self._load(Code(build.objects(texts)), names)

    def _load(self, code: Code, names: dict[str, str]) -> None:
        self._names = names
        self._code = code
        self._loaded = loaded(code, self.target)
        self._addresses = {text: self._loaded.address(name) for text, name in names.items()}

    def _prepare(self) -> None:
        """Compute what kernels read of constants."""
        self._prepared: dict[Any, np.ndarray] = {}
        self._meaning: Meaning = {}
        for launch in every(self.launches):
            raise_if_cancelled()
            results = [result for body in launch.bodies for result in body.function.results]
            for buffer in (*launch.buffers, *results):
                if isinstance(buffer, Prepared) and buffer not in self._prepared:
                    self._prepared[buffer] = prepared(buffer)
                elif isinstance(buffer, Value) and buffer.is_constant and buffer not in self._prepared:
                    self._prepared[buffer] = aligned(np.asarray(buffer.known))

    @property
    def takes_weights(self) -> bool:
        """Whether it can be had over other elements of constants, as long as these are not looked at."""
        return self.has_graph and not (self.host or self.bodies or any(map(is_of_constants, self.steps)))

    def reweighted(self, function: Function) -> Program | None:
        """The same over a function with other elements of constants, not compiled; None where code would differ."""
        if not self.takes_weights:
            return None
        meaning = matched(self.function, canonicalize(function, self.target))
        arrays = None if meaning is None else remade(self._prepared, meaning, self._meaning, self.function.results)
        if meaning is None or arrays is None:
            return None
        made = copy.copy(self)
        made._meaning, made._prepared = meaning, {key: aligned(array) for key, array in arrays.items()}
        made._has_denormals = holds_denormals(made._prepared.values())
        made.flushes = flushes(self._denormals, made._has_denormals)
        made._begin(self.steps)
        return made

    # Planning.

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
            plan = Planner(self.pool.threads, self._prepared).plan(
                segment.launches,
                self.blocks,
                lambda value: self._is_outside(value, number, segment),
                self.function.inputs if number == 0 and self.symbols is not None else (),
                known(self._equal, told),
                told,
            )
            found = Linked(plan, player(self.target), self.pool.address, self._addresses, self._prepared)
            self._plans[number] = found
        return found

    def _unsure(self, number: int) -> set[str]:
        """Symbols that are known after other steps in some calls alone: of bodies of loops that settle."""
        found: set[str] = set()
        for other, step in enumerate(self.steps):
            if other != number and isinstance(step, Segment) and step.settling is not None:
                told = (symbols(size) for value in step.launches[0].makes for size in shape_of(value))
                found |= step.settling.sizes.keys() - frozenset().union(*told)
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
        return all(value not in launch.makes for launch in segment.launches)

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

    def compiled(self, control: Value) -> Sequence[Program] | None:
        """The compiled bodies of control flow that the interpreter has; None where it computes them too."""
        bodies = self.bodies.get(control)
        if bodies is None and control not in self.host:
            bodies = self.bodies[control] = self._of_bodies(control)
        return bodies

    @property
    def weights(self) -> list[np.ndarray]:
        """What kernels read of constants."""
        return list(self._prepared.values())

    @property
    def plans(self) -> dict[int, Linked]:
        """The plans of calls that were made, each with the contexts that there are for it, by the step's number."""
        return dict(self._plans)

    def prepared_bytes(self, weight: Prepared) -> int:
        """Bytes of a weight in the form that kernels read."""
        return self._prepared[weight].nbytes
