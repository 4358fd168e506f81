"""Programs: a Core function compiled, and run with one native call.

What a run does is written down as a *tape*, an array of machine words: for each kernel its address, its arguments, and
its work items. A tape is made once for each set of input sizes, and only the addresses of inputs and results change
from call to call. Nothing of the model is in the code that plays it.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sardonyx.compiler import storage
from sardonyx.compiler.build import objects
from sardonyx.compiler.cache import store
from sardonyx.compiler.canonical import canonical
from sardonyx.compiler.emitter import Emitter
from sardonyx.compiler.launch import FAULT, NAME, Launch, Prepared, Relaid, Scratch, Stage
from sardonyx.compiler.layouts import blocked_images
from sardonyx.compiler.lowering import Lowering
from sardonyx.compiler.machine_code import LoadedCode, compiled, module_text
from sardonyx.compiler.memory_plan import ALIGNMENT, Lifetime, offsets
from sardonyx.compiler.schedule import Schedule
from sardonyx.compiler.target import Target
from sardonyx.compiler.target import host as host_target
from sardonyx.compiler.threads import Pool, pool
from sardonyx.compiler.views import shape_of
from sardonyx.compiler.worker_loop import call_parallel
from sardonyx.core import types as t
from sardonyx.core.dim import evaluate
from sardonyx.core.graph import Function, Value
from sardonyx.core.interpreter import Sizes, compute, match_type
from sardonyx.core.run_context import RunContext, running
from sardonyx.core.tensor import constant, known
from sardonyx.core.types import TensorType

WORDS = 4
"""Words of the tape for a kernel: address, arguments, work items, items a chunk."""

_REMEMBERED = 256
"""Input sizes whose plans are kept."""


class Fault(Exception):
    """A kernel met data that have no result; the interpreter says what is wrong."""


@functools.cache
def _player(target: Target) -> Any:
    """The native function that plays a tape: ``void (ptr tape, i64 kernels, ptr pool)``."""
    e = Emitter()
    with e.loop(0, "%count") as i:
        entry = e.address("%tape", "i64", e.mul(i, WORDS))
        kernel, arguments = (e.load("ptr", e.address(entry, "i64", word), 8) for word in (0, 1))
        items, grain = (e.load("i64", e.address(entry, "i64", word), 8) for word in (2, 3))
        call_parallel(e, "%pool", kernel, arguments, items, grain)
    e.line("ret void")
    body = f"define void @play(ptr %tape, i64 %count, ptr %pool) {{\n{e.text()}\n}}"
    code = LoadedCode([compiled(module_text(target, [body], e.declarations), target)], target)
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)(code.address("play"))
    function.code = code  # type: ignore[attr-defined]
    return function


@dataclass
class Segment:
    """Kernels that run in one native call."""

    launches: list[Launch] = field(default_factory=list)


Step = Segment | Value
"""Kernels, or a value that the interpreter computes."""


@dataclass
class Plan:
    """A segment for one set of sizes.

    Attributes:
        tape: The words, with 0 for what changes.
        kernels: How many kernels.
        arena: Bytes of memory.
        inside: Words that are places in the arena, and those places.
        outside: Words that are addresses of what lies elsewhere, and which.
    """

    tape: np.ndarray
    kernels: int
    arena: int
    inside: tuple[np.ndarray, np.ndarray]
    outside: tuple[np.ndarray, list[Value]]
    places: dict[Value, int]
    free: list[Context] = field(default_factory=list)


class Context:
    """What one running call needs of a plan: its own tape and arena."""

    def __init__(self, plan: Plan) -> None:
        self.memory = np.empty(plan.arena + 2 * ALIGNMENT, np.uint8)
        self.base = -(-self.memory.ctypes.data // ALIGNMENT) * ALIGNMENT
        self.tape = plan.tape.copy()
        self.address = self.tape.ctypes.data
        self.fault = ctypes.c_int32.from_address(self.base + plan.arena)
        self.fault.value = 0
        words, at = plan.inside
        self.tape[words] = at + self.base
        for i in range(plan.kernels):
            self.tape[i * WORDS + 1] = self.address + 8 * self.tape[i * WORDS + 1]


class Program:
    """A compiled function.

    Args:
        function: What to compile.
        target: What for.
        threads: How many threads share the work; by default what the process may use.

    Attributes:
        schedule: What became of the function's values.
        launches: The kernels, in order.
    """

    def __init__(self, function: Function, *, target: Target | None = None, threads: int | None = None) -> None:
        function = self.function = canonical(function)
        self.target = target or host_target()
        self.pool: Pool = pool(threads)
        self._lower()
        self._compile()
        self._prepare()
        self.steps = self._steps()
        self._last = self._last_readers()
        self._plans: dict[tuple[Any, ...], Plan] = {}
        self._sizes: dict[tuple[Any, ...], Sizes] = {}

    # Making.

    def _lower(self) -> None:
        kept: dict[Value, str] = {}
        refused: dict[Value, str] = {}
        while True:
            self.schedule = Schedule(self.function, kept, refused)
            self.blocks = blocked_images(self.schedule, self.target)
            lowering = Lowering(self.schedule, self.target, self.blocks, self.pool.threads)
            if not lowering.unfusable and not lowering.refused:
                break
            refused |= lowering.refused
            refused |= {value: reason for value, reason in lowering.unfusable.items() if value in kept}
            kept |= lowering.unfusable
        self.lowering = lowering
        self.launches = lowering.launches

    def _compile(self) -> None:
        names: dict[str, str] = {}
        texts: list[str] = []
        for launch in self.launches:
            if launch.text not in names:
                name = names[launch.text] = f"k{hashlib.blake2b(launch.text.encode(), digest_size=10).hexdigest()}"
                texts.append(module_text(self.target, [launch.text.replace(NAME, name)], launch.declarations))
        self._code = LoadedCode(objects(texts, self.target, store()), self.target)
        self._addresses = {text: self._code.address(name) for text, name in names.items()}

    def _prepare(self) -> None:
        """Compute what kernels read of constants."""
        self._prepared: dict[Any, np.ndarray] = {}
        for launch in self.launches:
            for buffer in launch.buffers:
                if isinstance(buffer, Prepared) and buffer not in self._prepared:
                    self._prepared[buffer] = aligned(buffer.make())
                elif isinstance(buffer, Value) and buffer.is_constant and buffer not in self._prepared:
                    self._prepared[buffer] = aligned(np.asarray(buffer.known))

    def _steps(self) -> list[Step]:
        by_root: dict[Value, list[Launch]] = {}
        for launch in self.launches:
            by_root.setdefault(launch.writes, []).append(launch)
        steps: list[Step] = []
        for value in self.function.values:
            if value in by_root:
                if not steps or not isinstance(steps[-1], Segment):
                    steps.append(Segment())
                steps[-1].launches += by_root[value]  # type: ignore[union-attr]
            elif value in self.schedule.host:
                steps.append(value)
        return steps

    def _last_readers(self) -> dict[Value, int]:
        """The step after which a value in memory is not read any more."""
        last: dict[Value, int] = {}
        for number, step in enumerate(self.steps):
            if isinstance(step, Segment):
                for launch in step.launches:
                    last.update((buffer, number) for buffer in launch.buffers if isinstance(buffer, Value))
            else:
                last.update((value, number) for operand in step.operands for value in self._beneath(operand))
        last.update(dict.fromkeys(self.function.results, len(self.steps)))
        return last

    def _beneath(self, value: Value) -> list[Value]:
        """The values in memory that the interpreter needs to have a value."""
        if value.is_constant:
            return []
        if self.lowering.in_memory(value):
            return [value]
        return [each for operand in value.operands for each in self._beneath(operand)]

    # Planning.

    def _plan(self, number: int, segment: Segment, sizes: Sizes) -> Plan:
        lifetimes: dict[Value | Relaid | Stage | tuple[int, Scratch], Lifetime] = {}
        for at, launch in enumerate(segment.launches):
            for buffer in launch.buffers:
                if isinstance(buffer, Scratch):
                    bytes_ = int(evaluate(buffer.bytes, sizes)) + ALIGNMENT
                    lifetimes[at, buffer] = Lifetime(bytes_ // ALIGNMENT * ALIGNMENT * self.pool.threads, at, at)
                elif isinstance(buffer, (Relaid, Stage)):
                    first = lifetimes[buffer].first if buffer in lifetimes else at
                    lifetimes[buffer] = Lifetime(int(evaluate(buffer.bytes, sizes)), first, at)
                elif isinstance(buffer, Value) and not buffer.is_constant and not self._is_outside(buffer, segment):
                    first = lifetimes[buffer].first if buffer in lifetimes else at
                    last = at if self._last[buffer] == number else len(segment.launches)
                    lifetimes[buffer] = Lifetime(self._bytes(buffer, sizes), first, last)
        placed, arena = offsets(list(lifetimes.values()))
        where = dict(zip(lifetimes, placed, strict=True))
        words: list[int] = [0] * (WORDS * len(segment.launches))
        inside: list[tuple[int, int]] = []
        outside: list[tuple[int, Value]] = []
        for at, launch in enumerate(segment.launches):
            arguments = len(words)
            for buffer in launch.buffers:
                key = (at, buffer) if isinstance(buffer, Scratch) else buffer
                if key in where:
                    inside.append((len(words), where[key]))
                    words.append(0)
                elif buffer in self._prepared:
                    words.append(self._prepared[buffer].ctypes.data)
                elif buffer == FAULT:
                    inside.append((len(words), arena))
                    words.append(0)
                else:
                    outside.append((len(words), buffer))  # type: ignore[arg-type]
                    words.append(0)
            words += [int(evaluate(size, sizes)) for size in launch.sizes]
            items = int(evaluate(launch.items, sizes))
            words[at * WORDS : at * WORDS + WORDS] = [
                self._addresses[launch.text],
                arguments,
                items,
                self._grain(items),
            ]
        return Plan(
            np.array(words, np.int64),
            len(segment.launches),
            arena,
            _columns(inside),
            (np.array([word for word, _ in outside], np.int64), [value for _, value in outside]),
            {value: at for value, at in where.items() if isinstance(value, Value)},
        )

    def _grain(self, items: int) -> int:
        return max(1, items // (4 * self.pool.threads))

    def _is_outside(self, value: Value, segment: Segment) -> bool:
        """Whether a value lies in memory that is not the segment's own."""
        if value in self.function.results or value.op in ("input", "dims") or value in self.schedule.host:
            return True
        return all(launch.writes is not value for launch in segment.launches)

    def _bytes(self, value: Value, sizes: Sizes) -> int:
        return math.prod(self._stored_shape(value, sizes)) * t.numpy_dtype(value.type.dtype).itemsize  # type: ignore[union-attr]

    def _stored_shape(self, value: Value, sizes: Sizes) -> list[int]:
        shape = [int(evaluate(size, sizes)) for size in shape_of(value)]
        block = self.blocks.get(value, 0)
        if block:
            shape[1] = -(-shape[1] // block) * block
        return shape

    # Running.

    def run(self, arrays: Sequence[Any], context: RunContext | None = None) -> list[Any]:
        """Compute the results.

        Args:
            arrays: A value for each input: arrays that are contiguous and of the declared element types.
            context: The limits for what the interpreter computes.

        Raises:
            Fault: Data have no result: ask the interpreter what is wrong.
            ShapeError: Sizes do not fit.
        """
        env: dict[Value, Any] = dict(zip(self.function.inputs, arrays, strict=True))
        key = tuple([array.shape if isinstance(array, np.ndarray) else None for array in arrays])
        sizes = self._sizes.get(key)
        if sizes is None:
            sizes = self._matched(arrays)
            if len(self._sizes) >= _REMEMBERED:
                self._sizes.clear()
                self._plans.clear()
            self._sizes[key] = sizes
        if len(self.steps) > 1:
            sizes = dict(sizes)
        held: list[tuple[Plan, Context]] = []
        try:
            for number, step in enumerate(self.steps):
                if isinstance(step, Segment):
                    held.append(self._play(number, step, sizes, env))
                else:
                    with running(context or RunContext()):
                        self._interpret(step, env, sizes)
            return [self._result(value, env, sizes) for value in self.function.results]
        finally:
            for plan, used in held:
                plan.free.append(used)

    def _matched(self, arrays: Sequence[Any]) -> Sizes:
        sizes: Sizes = {}
        for declared, array in zip(self.function.inputs, arrays, strict=True):
            if isinstance(declared.type, TensorType):
                given = TensorType(declared.type.dtype, tuple(array.shape))
                match_type(declared.type, given, sizes, declared.origin or f"input {declared.params['position']}")
        return sizes

    def _play(self, number: int, segment: Segment, sizes: Sizes, env: dict[Value, Any]) -> tuple[Plan, Context]:
        key = (number, *sizes.values()) if len(self.steps) > 1 else (id(sizes),)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._plan(number, segment, sizes)
        try:
            context = plan.free.pop()
        except IndexError:
            context = Context(plan)
        words, values = plan.outside
        if values:
            context.tape[words] = [self._address(value, env, sizes) for value in values]
        _player(self.target)(context.address, plan.kernels, self.pool.address)
        if context.fault.value:
            context.fault.value = 0
            plan.free.append(context)
            raise Fault
        for value, at in plan.places.items():
            env[value] = (context.base + at, context)
        return plan, context

    def _address(self, value: Value, env: dict[Value, Any], sizes: Sizes) -> int:
        found = env.get(value)
        if found is None:
            if value.op == "dims":
                with running(RunContext()):
                    found = compute(value, [], sizes).known
            else:
                found = np.empty(self._stored_shape(value, sizes), t.numpy_dtype(value.type.dtype))  # type: ignore[union-attr]
            env[value] = found
        return found[0] if isinstance(found, tuple) else int(found.ctypes.data)

    def _interpret(self, value: Value, env: dict[Value, Any], sizes: Sizes) -> None:
        operands = [self._known(operand, env, sizes) for operand in value.operands]
        found = compute(value, operands, sizes)
        if _is_tensor(value):
            array = found.known
            found = array if array.flags.c_contiguous else np.array(array, order="C")
        env[value] = found

    def _known(self, value: Value, env: dict[Value, Any], sizes: Sizes) -> Any:
        """A value as the interpreter has it."""
        if value.is_constant:
            return value
        found = env.get(value)
        if value.op == "input" and not isinstance(value.type, TensorType):
            return known(found, value.type)
        if found is None:
            operands = [self._known(operand, env, sizes) for operand in value.operands]
            with running(RunContext()):
                found = compute(value, operands, sizes)
        elif isinstance(value.type, TensorType) and not isinstance(found, Value):
            found = constant(self._array(value, found, sizes), value.type.dtype)
        return found

    def _array(self, value: Value, found: Any, sizes: Sizes) -> np.ndarray:
        if isinstance(found, np.ndarray):
            return found
        address, _ = found
        dtype = t.numpy_dtype(value.type.dtype)  # type: ignore[union-attr]
        shape = self._stored_shape(value, sizes)
        raw = (ctypes.c_uint8 * (math.prod(shape) * dtype.itemsize)).from_address(address)
        return np.asarray(raw).view(dtype).reshape(shape)

    def _result(self, value: Value, env: dict[Value, Any], sizes: Sizes) -> Any:
        if value.is_constant:
            return np.array(value.known)
        found = env.get(value)
        if found is None:
            found = self._known(value, env, sizes).known
        if isinstance(found, Value):
            return found.known
        return np.array(found) if value.op == "input" and isinstance(found, np.ndarray) else found


def _is_tensor(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype in storage.DTYPES


def _columns(pairs: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(pairs, np.int64).reshape(-1, 2)
    return table[:, 0].copy(), table[:, 1].copy()


def aligned(array: np.ndarray) -> np.ndarray:
    """The array, contiguous and on a cache line."""
    if array.flags.c_contiguous and array.ctypes.data % ALIGNMENT == 0:
        return array
    memory = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    found = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found
