"""Programs: a Core function compiled, and run with one native call.

What a run does is written down as a *tape*, an array of machine words: for each kernel its address, its arguments, and
its work items. What in it depends on sizes is written anew where a call has other sizes than the one before, by native
code; the addresses of inputs and results change from call to call. Nothing of the model is in the code that plays it.
"""

from __future__ import annotations

import copy
import ctypes
import functools
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.compiler import image as image_module
from sardonyx.compiler import interpreted
from sardonyx.compiler.bodies import Bodies
from sardonyx.compiler.build import objects
from sardonyx.compiler.cache import store
from sardonyx.compiler.canonical import canonical
from sardonyx.compiler.context import Context, Fault, Linked
from sardonyx.compiler.control import is_of_tensors
from sardonyx.compiler.denormals import Denormals, flushes, holds_denormals
from sardonyx.compiler.entry import Entry, Input, Output, Word, again_entry, call_entry
from sardonyx.compiler.image import Image
from sardonyx.compiler.launch import NAME, Prepared, every
from sardonyx.compiler.linking import Code, linked, loaded
from sardonyx.compiler.machine_code import module_text
from sardonyx.compiler.plan import UNLIMITED, Plan, Planner, stored_shape
from sardonyx.compiler.player import Ended, player
from sardonyx.compiler.reader import dtype_of
from sardonyx.compiler.required import known, required
from sardonyx.compiler.reweighting import Meaning, matched, remade
from sardonyx.compiler.settled import Settling
from sardonyx.compiler.sharing import aligned, prepared
from sardonyx.compiler.steps import Outline, Segment, Step, beneath, is_of_constants, last_readers, not_native, steps_of
from sardonyx.compiler.tail import Tailed, tail_of
from sardonyx.compiler.target import Target
from sardonyx.compiler.target import host as host_target
from sardonyx.compiler.threads import Pool, pool
from sardonyx.compiler.views import shape_of
from sardonyx.core.dim import Dim, evaluate, symbols
from sardonyx.core.graph import Function, Value
from sardonyx.core.host import HostFunction
from sardonyx.core.interpreter import Sizes
from sardonyx.core.interrupts import INTERRUPTS
from sardonyx.core.recording import noted
from sardonyx.core.run_context import RunContext, current_run, running
from sardonyx.core.tensor import constant
from sardonyx.errors import UnsupportedError

_REMEMBERED = 256
"""Shapes of inputs whose sizes are remembered."""

_FIRST_ROOM = 1 << 20
"""Bytes that a loop may collect before it is begun again with more room, where its length is not known before."""


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
        has_graph: Whether it was made of the function; one from an image knows only the values in memory.
        host: Values that the interpreter computes, and why.
        launches: The kernels, in order.
        flushes: Whether kernels take denormal numbers for zero.
        loops: The compiled bodies of loops that are left to the interpreter, or may be by a call.
    """

    def __init__(
        self,
        function: Function,
        *,
        target: Target | None = None,
        threads: int | None = None,
        denormals: Denormals = "auto",
    ) -> None:
        self.target = target or host_target()
        function = self.function = canonical(function, self.target)
        self.pool: Pool = pool(threads)
        self.has_graph = True
        self._lower()
        self._compile()
        self._prepare()
        self._has_denormals = holds_denormals(self._prepared.values())
        self.flushes = flushes(denormals, self._has_denormals)
        self._denormals = denormals
        self._reads, self._inner = beneath(self.host, self.function.results, self.lowering.whole.in_memory)
        self.around = self.function.free_symbols
        self._equal = required(self.function)
        self._begin(steps_of(self.schedule.computed, self.launches, self.host))
        self.loops = {value: self._of_body(value) for value in self.host if value.op == "loop" and is_of_tensors(value)}

    def _of_body(self, loop: Value) -> Program:
        """The body of a loop that is left to the interpreter."""
        body = loop.params["body"]
        return Program(body, target=self.target, threads=self.pool.threads, denormals=self._denormals)

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
            program.launches = [each for step in outline.steps if isinstance(step, Segment) for each in step.launches]
            program._names = {each.text: each.text for each in every(program.launches) if not each.bodies}
            program._code, program._loaded = image.code, code
            program._addresses = {name: code.address(name) for name in program._names}
            program.loops = {value: made(body) for value, body in outline.loops.items()}
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
                if loop not in self.loops:
                    self.loops[loop] = self._of_body(loop)
        for body in self.loops.values():
            body._compile_bodies()

    def _programs(self) -> Iterator[Program]:
        """This one, and those of loops' bodies."""
        yield self
        for body in self.loops.values():
            yield from body._programs()

    def _outline(self) -> Outline:
        loops = {value: body._outline() for value, body in self.loops.items()}
        return Outline(
            self.function, self.around, self.steps, self.blocks, self.host, self._reads, self._inner, loops,
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
        outside, names = {*inputs, *results}, self._symbols or frozenset()
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
        self._in_one = len(steps) == 1 and isinstance(steps[0], Segment) and not steps[0].is_alone
        self._last = last_readers(steps, self.function.results, self._reads)
        self._repeating = frozenset(i for i, step in enumerate(steps) if isinstance(step, Segment) and step.repeats)
        self._plans: dict[int, Linked] = {}
        self._sizes: dict[tuple[Any, ...], Sizes] = {}
        self._rows: dict[tuple[int, ...], int] = {}
        self._settlings: dict[tuple[int, ...], Sizes | None] = {}

    # Making.

    def _lower(self) -> None:
        self.lowering = Bodies(self.target, self.pool.threads).lowered(self.function)
        self.schedule, self.launches = self.lowering.schedule, self.lowering.launches
        self.blocks = self.lowering.blocks
        self.host: Mapping[Value, str] = self.schedule.host

    def _compile(self) -> None:
        names: dict[str, str] = {}
        texts: list[str] = []
        for launch in every(self.launches):
            if not launch.bodies and launch.text not in names:
                name = names[launch.text] = f"k{hashlib.blake2b(launch.text.encode(), digest_size=10).hexdigest()}"
                texts.append(module_text(self.target, [launch.text.replace(NAME, name)], launch.declarations))
        self._load(Code(objects(texts, self.target, store())), names)

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
            results = [result for body in launch.bodies for result in body.function.results]
            for buffer in (*launch.buffers, *results):
                if isinstance(buffer, Prepared) and buffer not in self._prepared:
                    self._prepared[buffer] = prepared(buffer)
                elif isinstance(buffer, Value) and buffer.is_constant and buffer not in self._prepared:
                    self._prepared[buffer] = aligned(np.asarray(buffer.known))

    def reweighted(self, function: Function) -> Program | None:
        """The same over a function with other elements of constants, not compiled; None where code would differ."""
        if not self.has_graph or self.host or self.loops or any(map(is_of_constants, self.steps)):
            return None
        meaning = matched(self.function, canonical(function, self.target))
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

    def _plan(self, number: int, names: Iterable[str] | None = None) -> Linked:
        """The plan of a step that is a segment.

        Args:
            number: Which.
            names: The symbols that are known by then; those of inputs without.
        """
        found = self._plans.get(number)
        if found is None:
            segment = self.steps[number]
            assert isinstance(segment, Segment)
            told = frozenset((self._symbols or ()) if names is None else names) - self._unsure(number)
            plan = Planner(self.pool.threads, self._prepared).plan(
                segment.launches,
                self.blocks,
                lambda value: self._is_outside(value, number, segment),
                self.function.inputs if number == 0 and self._symbols is not None else (),
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
    def _symbols(self) -> frozenset[str] | None:
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
        env: dict[Value, Any] = dict(zip(self.function.inputs, arrays, strict=True))
        key = tuple([array.shape if isinstance(array, np.ndarray) else None for array in arrays])
        if around:
            key += tuple(around.values())
        sizes = self._sizes.get(key)
        if sizes is None:
            sizes = interpreted.sizes_in(self.function.inputs, arrays, around)
            if len(self._sizes) >= _REMEMBERED:
                self._sizes.clear()
            self._sizes[key] = sizes
        if not self._in_one:
            sizes = dict(sizes)
        limit = None if context is None else context.max_loop_iterations
        recorder = None if context is None else context.recorder
        with running(context or RunContext()):
            for number, step in enumerate(self.steps):
                if not isinstance(step, Segment):
                    with noted(recorder, step):
                        self.interpret(step, env, sizes)
                elif step.settling is not None:
                    with noted(recorder, step.launches[0]):
                        self._play_settled(number, step, step.settling, sizes, env, limit)
                else:
                    self._play_segment(number, step, sizes, env, limit)
            if recorder is not None:
                recorder.sizes[id(self)] = sizes
            return [interpreted.result(value, env, sizes) for value in self.function.results]

    def entry(self, names: Sequence[str], arrays: Sequence[np.ndarray]) -> Entry | Tailed | None:
        """A function of a dict of arrays; None where calls need more than native code and host functions behind it.

        Args:
            names: What the inputs are called.
            arrays: Those of a call.
        """
        made = self.function.results
        if not self._in_one and self._starts_native:
            made = tuple(self._plan(0).plan.makes)
        tail = tail_of(self.steps, self.function.results, (*self.function.inputs, *made))
        context = None if tail is None else self._alone(arrays, made)
        if tail is None or context is None:
            return None
        plan = context.plan
        places: dict[Value, list[int]] = {}
        for word, value in zip(*plan.outside, strict=True):
            places.setdefault(value, []).append(context.address + 8 * int(word))
        inputs = [
            Input(name, dtype_of(value).numpy(), plan.shapes[value], array.shape, places.get(value, []))
            for name, value, array in zip(names, self.function.inputs, arrays, strict=True)
        ]
        outputs = [Output(dtype_of(value).numpy(), plan.shapes[value], places[value]) for value in made]
        entry = self._heard(
            call_entry(self.target, self._entry_words(context), inputs, outputs, context, [self]), context
        )
        given = dict(zip(names, self.function.inputs, strict=True))
        return Tailed(entry, made, given, tail, self.function.results, self.interpret) if tail else entry

    def binding(self, arrays: Sequence[np.ndarray], results: Sequence[np.ndarray | None]) -> tuple[Entry, list[Any]]:
        """A function that computes from and into arrays that stay where they are, and the results.

        Args:
            arrays: A value for each input.
            results: Where results go; None makes an array.

        Raises:
            UnsupportedError: Calls need more than native code.
        """
        first = self.run(arrays)
        context = self._alone(arrays, self.function.results) if self._in_one else None
        if context is None:
            raise UnsupportedError("what the interpreter computes a part of cannot be bound.")
        given = [array if kept is None else kept for array, kept in zip(first, results, strict=True)]
        env = dict(zip((*self.function.inputs, *self.function.results), (*arrays, *given), strict=True))
        words, values = context.plan.outside
        context.tape[words] = [env[value].ctypes.data for value in values]
        return self._heard(again_entry(self.target, self._entry_words(context), context, [self, env]), context), given

    def _heard(self, entry: Entry, context: Context) -> Entry:
        """An entry of which the loops end with a signal: the call then gives None."""
        if self._repeating:
            play = entry.call

            def call(*feeds: Any) -> Any:
                with INTERRUPTS.listening(context.stop):
                    return play(*feeds)

            entry.call = call
        return entry

    @property
    def _starts_native(self) -> bool:
        return bool(self.steps) and isinstance(self.steps[0], Segment) and not self.steps[0].is_alone

    def _alone(self, arrays: Sequence[np.ndarray], results: Sequence[Value]) -> Context | None:
        """A context that nobody else has, for arrays like these, where one native call computes some values."""
        known = {*self.function.inputs, *results}
        if (
            not self._starts_native
            or not all(interpreted.is_tensor(value) for value in known)
            or len(set(results)) != len(results)
        ):
            return None
        plan = self._plan(0).plan
        outside = plan.outside[1]
        computed = all(value in outside and value.op != "input" for value in results)
        if not computed or not known.issuperset(outside) or self._symbols is None:
            return None
        if not plan.symbols.keys() <= self._symbols:
            return None
        context = self._plan(0).prepared(interpreted.sizes_in(self.function.inputs, arrays))
        # Each call takes the arena anew.
        context.leave()
        return context

    def _entry_words(self, context: Context) -> dict[Word, int]:
        return {
            Word.PLAY: player(self.target).code.address("play_flushing" if self.flushes else "play"),
            Word.TAPE: context.address,
            Word.KERNELS: context.plan.kernels,
            Word.POOL: self.pool.address,
            Word.FAULT: ctypes.addressof(context.fault),
        }

    def _play_segment(
        self, number: int, segment: Segment, sizes: Sizes, env: dict[Value, Any], limit: int | None
    ) -> None:
        if segment.counted is not None:
            self._play_counted(number, segment, sizes, env, limit)
        else:
            self._play(number, segment, sizes, env, limit)

    def _play(self, number: int, segment: Segment, sizes: Sizes, env: dict[Value, Any], limit: int | None) -> None:
        # Of what is counted there is room for the most at first.
        linked = self._plan(number, sizes.keys() - {segment.symbol})
        context = linked.prepared(sizes)
        run = current_run()
        try:
            for value, dtype in linked.makes:
                self._made(value, np.empty(context.shape(value), dtype), env)
            if linked.sources:
                addresses = np.array([self._address(value, env, sizes) for value in linked.sources])
                context.tape[linked.plan.outside[0]] = addresses[linked.whose]
            context.limit.value = UNLIMITED if limit is None else limit
            recorder = None if run is None else run.recorder
            play = functools.partial(context.play, segment.launches, self.pool, recorder, flush=self.flushes)
            if number in self._repeating and run is not None:
                self._play_until_ended(context, play, run)
            else:
                play()
            if segment.counted is not None and linked.plan.count is not None:
                env[segment.counted] = ctypes.c_int64.from_address(context.place(linked.plan.count)).value
        finally:
            context.leave()
            ended, context.fault.value = context.fault.value, 0
            linked.free.append(context)
        if ended:
            raise Fault

    def _play_until_ended(self, context: Context, play: Callable[[], None], run: RunContext) -> None:
        """Play loops, which who ends the run and signals for the main thread end."""
        with run.on_end(context.stop), INTERRUPTS.listening(context.stop):
            play()
            while context.fault.value == Ended.STOPPED:
                run.check_time()
                # It was a signal, and whoever handles it lets the run go on.
                context.fault.value = 0
                play()

    def _made(self, value: Value, array: np.ndarray, env: dict[Value, Any]) -> None:
        """Note an array outside of the arena; of several native calls, the others' count as in use."""
        env[value] = array
        run = current_run()
        if not self._in_one and run is not None:
            run.track(array, array.nbytes)

    def _play_counted(
        self, number: int, segment: Segment, sizes: Sizes, env: dict[Value, Any], limit: int | None
    ) -> None:
        """Play what counts a size: with room for the most that there can be; a loop with some, then with more."""
        loop = segment.counted
        assert loop is not None
        if loop.op == "host":
            self._play_picked(number, segment, loop, sizes, env)
            return
        symbol = segment.symbol
        collected = [value for value in segment.launches[0].makes if value.params["index"] >= loop.params["carried"]]
        most = max(int(interpreted.as_value(loop.operands[0], env, sizes).known), 0)
        allowed = most if limit is None else min(most, limit)
        key = id(segment), *sizes.values()
        one = self._rows.get(key)
        if one is None:
            if len(self._rows) >= _REMEMBERED:
                self._rows.clear()
            shapes = [(stored_shape(value, self.blocks, {**sizes, symbol: 1}), dtype_of(value)) for value in collected]
            one = self._rows[key] = sum(math.prod(shape) * dtype.numpy().itemsize for shape, dtype in shapes)
        room = 1 << min(max(_FIRST_ROOM // max(int(one), 1), 16).bit_length(), max(most - 1, 0).bit_length())
        run = current_run()
        while True:
            if run is not None:
                run.reserve(int(one) * room, "what a loop collects")
            try:
                self._play(number, segment, {**sizes, symbol: room}, env, min(room, allowed))
                break
            except Fault:
                if env[loop] < room or room >= allowed:
                    raise
                room *= 2
        sizes[symbol] = env.pop(loop)
        for value in collected:
            found = env[value][: sizes[symbol]]
            # A few rows do not keep the memory of many.
            env[value] = found if 2 * len(found) > room else found.copy()

    def _play_picked(self, number: int, segment: Segment, picking: Value, sizes: Sizes, env: dict[Value, Any]) -> None:
        """Play a host function that has kernels: its results are one behind the other."""
        (result,) = segment.launches[-1].makes
        self._play(number, segment, {**sizes, segment.symbol: evaluate(segment.most, sizes)}, env, None)
        sizes[segment.symbol] = env.pop(picking)
        room = env[result].reshape(-1)
        shape = stored_shape(result, self.blocks, sizes)
        found = room[: math.prod(shape)].reshape(shape)
        # A few results do not keep the memory of many.
        env[result] = found if 2 * found.size > room.size else found.copy()

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

    def _address(self, value: Value, env: dict[Value, Any], sizes: Sizes) -> int:
        found = env.get(value)
        if found is None:
            found = env[value] = interpreted.as_value(value, env, sizes).known
        address: int = found.__array_interface__["data"][0]
        return address

    def interpret(self, value: Value, env: dict[Value, Any], sizes: Sizes) -> None:
        """Compute a value that has no kernel, and the sizes that it tells, from the values that there are."""
        interpreted.interpret(value, env, sizes, self._body(value, sizes))
        found = env[value]
        if isinstance(found, np.ndarray) and value.op != "bind":
            self._made(value, found, env)

    def _play_settled(
        self, number: int, segment: Segment, settling: Settling, sizes: Sizes, env: dict[Value, Any], limit: int | None
    ) -> None:
        """Play a loop where its state keeps its sizes; else the interpreter repeats its body."""
        (launch,) = segment.launches
        loop = launch.writes
        key = id(settling), *sizes.values()
        if key not in self._settlings:
            if len(self._settlings) >= _REMEMBERED:
                self._settlings.clear()
            self._settlings[key] = settling.settled(sizes)
        settled = self._settlings[key]
        if settled is not None:
            before = dict(sizes)
            sizes |= settled
            self._play_segment(number, segment, sizes, env, limit)
            collected = [value for value in launch.makes if value.params["index"] >= loop.params["carried"]]
            if not settling.rows or all(len(env[value]) for value in collected if value in env):
                return
            sizes.clear()
            sizes |= before
        self.interpret(loop, env, sizes)
        found = env.pop(loop)
        for value in launch.makes:
            env[value] = np.asarray(found[value.params["index"]].known, order="C")

    def _body(self, value: Value, sizes: Sizes) -> Callable[[Sequence[Value]], Sequence[Value]] | None:
        """The compiled body of a loop that is left to the interpreter."""
        program = self.loops.get(value)
        if program is None and value.op == "loop" and value not in self.host:
            program = self.loops[value] = self._of_body(value)
        if program is None:
            return None
        around = {symbol: sizes[symbol] for symbol in sorted(program.around & sizes.keys())}
        dtypes = [dtype_of(result) for result in program.function.results]

        def body(arguments: Sequence[Value]) -> Sequence[Value]:
            arrays = [argument.known for argument in arguments]
            ordered = [array if array.flags.c_contiguous else np.array(array, order="C") for array in arrays]
            found = program.run(ordered, current_run(), around)
            return [constant(array, dtype) for array, dtype in zip(found, dtypes, strict=True)]

        return body
