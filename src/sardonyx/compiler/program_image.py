"""Images: a program as data, so that another process neither schedules, lowers, compiles nor packs.

An image has a head, which is text (what is computed from what, launches, sizes), object code, and arrays (what kernels
read of constants). Values are in it as far as running needs them: those in memory, with their types, and not what they
were computed by; whole only those that the interpreter computes. Host functions are in it by name.
"""

from __future__ import annotations

import functools
import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sardonyx.compiler.analysis.control_flow import CONTROL
from sardonyx.compiler.analysis.shape_stable_loops import Settling
from sardonyx.compiler.llvm.elf_loader import Code
from sardonyx.compiler.lower.launch import FAULT, Body, Buffer, Count, Launch, Prepared, Relaid, Scratch, Stage
from sardonyx.compiler.plan.segments import Outline, Segment, Step
from sardonyx.compiler.schedule.groups import Group
from sardonyx.compiler.target.alignment import ALIGNMENT
from sardonyx.core.dim import Dim, Size
from sardonyx.core.dim.record import from_record, record
from sardonyx.core.eval.host_function import HostFunction
from sardonyx.core.eval.tensor import Tensor
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function, Value, dependencies
from sardonyx.core.ir.types import MapType, OptionalType, SequenceType, TensorType, TupleType, Type

_LENGTH = struct.Struct("<Q")


class NoImage(Exception):
    """The program cannot be written down; the text says why."""


@dataclass
class Image:
    """A program as data.

    Attributes:
        head: What JSON can hold: values, launches, and whatever the owner of the program adds under a name of its own.
        code: Object code; every kernel is a function in it.
        arrays: What kernels read of constants.
    """

    head: dict[str, Any]
    code: Code
    arrays: list[np.ndarray]

    def texts(self) -> bytes:
        """The head and the object code as bytes."""
        lengths = [len(each) for each in self.code.parts]
        code = {"lengths": lengths, "functions": self.code.functions, "imports": self.code.imports}
        head = json.dumps({**self.head, "code": code}).encode()
        return b"".join([_LENGTH.pack(len(head)), head, *self.code.parts])

    def weights(self) -> bytes:
        """The arrays as bytes, each on a cache line, in the order of the head's table."""
        parts: list[bytes | memoryview] = []
        for array in self.arrays:
            parts += [array.reshape(-1).view(np.uint8).data, bytes(-array.nbytes % ALIGNMENT)]
        return b"".join(parts)

    @staticmethod
    def read(texts: bytes, weights: np.ndarray) -> Image:
        """An image from what :meth:`texts` and :meth:`weights` gave.

        Args:
            texts: The head and the object code.
            weights: The arrays, as bytes that begin on a cache line; the image's are views of it.
        """
        if weights.size and weights.ctypes.data % ALIGNMENT:
            raise ValueError("weights begin in the middle of a cache line")
        (length,) = _LENGTH.unpack_from(texts)
        at = _LENGTH.size + length
        head = json.loads(texts[_LENGTH.size : at])
        code = head.pop("code")
        parts = []
        for size in code["lengths"]:
            parts.append(texts[at : at + size])
            at += size
        arrays, at = [], 0
        for name, shape in head["arrays"]:
            dtype = t.numpy_dtype(_dtype(name))
            count = math.prod(shape) * dtype.itemsize
            arrays.append(weights[at : at + count].view(dtype).reshape(shape))
            at += -(-count // ALIGNMENT) * ALIGNMENT
        return Image(head, Code(parts, code["functions"], code["imports"]), arrays)


class Writer:
    """Writes a program's values and launches down.

    Args:
        prepared: What kernels read of constants.
        names: The functions of kernels, by their text.

    Attributes:
        arrays: What of ``prepared`` was met, in the order of the numbers that stand for it.
    """

    def __init__(self, prepared: Mapping[Any, np.ndarray], names: Mapping[str, str]) -> None:
        self._prepared = prepared
        self._names = names
        self._inner: set[Value] = set()
        self._settled: set[Value] = set()
        self._nesting = 0
        self._values: dict[Value, int] = {}
        self._table: list[list[Any]] = []
        self._numbers: dict[Any, int] = {}
        self._sizes: dict[Dim, int] = {}
        self.arrays: list[np.ndarray] = []

    def head(self, program: Outline) -> dict[str, Any]:
        """The head of the image.

        Args:
            program: What is written.

        Raises:
            NoImage: There is no text for a value.
        """
        written = self._outline(program)
        arrays = [[t.dtype_of(array).name, list(array.shape)] for array in self.arrays]
        return {"program": written, "values": self._table, "arrays": arrays, "sizes": [*map(record, self._sizes)]}

    def _outline(self, program: Outline) -> list[Any]:
        function = program.function
        self._inner |= program.inner
        segments = [step for step in program.steps if isinstance(step, Segment)]
        self._settled |= {each.launches[0].writes for each in segments if each.settling is not None}
        inputs = [*map(self._value, function.inputs)]
        steps = [self._step(step, program) for step in program.steps]
        return [
            function.name, function.level, sorted(program.around), inputs, [*map(self._value, function.results)],
            steps, [[self._value(value), block] for value, block in program.blocks.items()],
            [[self._size(a), self._size(b)] for a, b in program.equal],
        ]  # fmt: skip

    def _step(self, step: Step, program: Outline) -> list[Any]:
        if isinstance(step, Segment):
            counted = None if step.counted is None else self._value(step.counted)
            launches = [*map(self._launch, step.launches)]
            settling = None if step.settling is None else self._settling(step.settling)
            repeated = () if settling is None else program.bodies[step.launches[0].writes]
            bodies = [*map(self._outline, repeated)]
            return ["kernels", launches, counted, step.symbol, self._size(step.most), settling, bodies]
        bodies = [*map(self._outline, program.bodies.get(step, ()))]
        return ["value", self._value(step), program.host[step], [*map(self._value, program.reads[step])], bodies]

    def _body(self, body: Body) -> list[Any]:
        function = body.function
        return [
            function.name, function.level, [*map(self._value, function.inputs)], [*map(self._value, function.results)],
            [*map(self._launch, body.launches)], [[self._value(value), block] for value, block in body.blocks.items()],
            [[self._size(a), self._size(b)] for a, b in body.equal],
        ]  # fmt: skip

    def _launch(self, launch: Launch) -> list[Any]:
        name = "" if launch.bodies else self._names[launch.text]
        buffers, sizes = [*map(self._buffer, launch.buffers)], [*map(self._size, launch.sizes)]
        root, bodies = self._value(launch.writes), [*map(self._body, launch.bodies)]
        also = [*map(self._value, launch.also)]
        return [
            name, buffers, sizes, self._size(launch.items), root, launch.title, bodies, also, launch.work,
            launch.beside,
        ]  # fmt: skip

    def _buffer(self, buffer: Buffer) -> list[Any]:
        match buffer:
            case Prepared():
                return ["array", self._array(buffer, self._prepared[buffer])]
            case Scratch():
                return ["scratch", self._size(buffer.bytes)]
            case Relaid():
                return ["relaid", self._value(buffer.source), buffer.block, buffer.dtype.name]
            case Stage():
                return ["stage", self._value(buffer.source), self._size(buffer.bytes)]
            case Count():
                return ["count", self._value(buffer.source)]
            case Value():
                return ["value", self._value(buffer)]
        return ["fault"]

    def _array(self, key: Any, array: np.ndarray) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self.arrays)
            self.arrays.append(array)
        return self._numbers[key]

    def _value(self, value: Value) -> int:
        if value not in self._values:
            written = self._whole(value) if self._is_whole(value) else self._outside(value)
            self._values[value] = len(self._table)
            self._table.append(written)
        return self._values[value]

    def _is_whole(self, value: Value) -> bool:
        if value.op in ("constant", "dims"):
            return not _is_plain(value.type)
        return value in self._inner or self._nesting > 0 or (value.op == "input" and not _is_plain(value.type))

    def _outside(self, value: Value) -> list[Any]:
        """A value that is in memory, or control flow that kernels compute."""
        operands = [*map(self._value, value.operands)] if value.op in CONTROL else []
        several = isinstance(value.type, TupleType)
        type = [None, []] if several else [value.type.dtype.name, [*map(self._size, value.type.shape)]]  # type: ignore
        return [value.op, *type, self._params(value), operands, value.origin]

    def _whole(self, value: Value) -> list[Any]:
        """A value that the interpreter computes."""
        needed = dependencies(value, self._nesting) if self._nesting else value.operands
        operands = [*map(self._value, value.operands)]
        definers = [self._value(each) for each in needed if each not in value.operands]
        params = {name: self._encoded(param) for name, param in value.params.items()}
        return [value.op, "", [self._encoded(value.type), definers, value.level], params, operands, value.origin]

    def _encoded(self, part: Any) -> Any:
        """A parameter as JSON has it.

        Raises:
            NoImage: There is no text for it.
        """
        match part:
            case t.DType():
                return {"dtype": part.name}
            case None | bool() | int() | float() | str():
                return part
            case Dim():
                return {"size": self._size(part)}
            case TensorType(dtype, shape):
                return {"tensor": [dtype.name, self._encoded(shape)]}
            case SequenceType(element):
                return {"sequence": self._encoded(element)}
            case OptionalType(element):
                return {"optional": self._encoded(element)}
            case MapType(key, value):
                return {"map": [key.name, self._encoded(value)]}
            case TupleType(results):
                return {"results": self._encoded(results)}
            case tuple():
                return {"tuple": [*map(self._encoded, part)]}
            case HostFunction():
                present = part.present and list(part.present)
                return {"host": [part.domain, part.name, part.since, present, part.module]}
            case Function():
                return {"function": self._function(part)}
            case np.ndarray() if part.dtype == object and all(isinstance(each, str) for each in part.flat):
                return {"texts": [part.ravel().tolist(), list(part.shape)]}
            case np.ndarray() if part.dtype != object:
                return {"array": self._array(id(part), np.asarray(part, order="C"))}
        raise NoImage(f"there is no text for {type(part).__name__}")

    def _function(self, function: Function) -> list[Any]:
        before, self._nesting = self._nesting, function.level
        inputs, results = ([*map(self._value, values)] for values in (function.inputs, function.results))
        self._nesting = before
        return [function.name, inputs, results, function.level]

    def _params(self, value: Value) -> Any:
        match value.op:
            case "constant":
                known = self._prepared.get(value)
                return self._array(value, np.array(value.known, order="C") if known is None else known)
            case "dims":
                sizes = [*map(self._size, value.params["sizes"])]
                return [sizes, list(value.params["shape"]), value.params["dtype"].name]
            case "input":
                return value.params["position"]
            case "loop":
                # The interpreter repeats the body of one whose state may change its sizes.
                results = self._encoded(value.params["results"]) if value in self._settled else None
                return [value.params["carried"], results]
            case "get":
                return value.params["index"]
        return None

    def _settling(self, settling: Settling) -> list[Any]:
        sizes = [[symbol, self._size(size)] for symbol, size in settling.sizes.items()]
        return [sizes, [[self._size(a), self._size(b)] for a, b in settling.same], sorted(settling.rows)]

    def _size(self, size: Size) -> int | list[int]:
        """A size: its number, or its place in the table of sizes."""
        return [self._sizes.setdefault(size, len(self._sizes))] if isinstance(size, Dim) else int(size)


Hosts = Callable[[str, str, int, "tuple[bool, ...] | None", str], HostFunction]
"""Finds a host function by its domain, name, version, which inputs of the operator it is given, and its module."""


class Reader:
    """Makes values and launches of an image.

    Args:
        image: The image.
        hosts: Finds host functions.

    Attributes:
        program: The program; the text of its kernels is the name of a function in the object code.
        prepared: What kernels read of constants.
    """

    def __init__(self, image: Image, hosts: Hosts) -> None:
        self._arrays = image.arrays
        self._sizes = [*map(from_record, image.head["sizes"])]
        self._hosts = hosts
        self._inner: set[Value] = set()
        self.prepared: dict[Any, np.ndarray] = {}
        self._constants: dict[int, Value] = {}
        self._values: list[Value] = []
        for each in image.head["values"]:
            self._values.append(self._value(*each))
        self.program = self._outline(*image.head["program"])

    def _outline(
        self,
        name: str,
        level: int,
        around: list[str],
        inputs: list[int],
        results: list[int],
        steps: list[list[Any]],
        blocks: list[Any],
        equal: list[Any],
    ) -> Outline:
        made: list[Step] = []
        host: dict[Value, str] = {}
        reads: dict[Value, Sequence[Value]] = {}
        compiled: dict[Value, Sequence[Outline]] = {}
        for kind, *step in steps:
            if kind == "kernels":
                written, counted, symbol, most, settling, bodies = step
                value = None if counted is None else self._values[counted]
                launches = [self._launch(*each) for each in written]
                settles = None if settling is None else self._settling(*settling)
                made.append(Segment(launches, value, symbol, self._read(most), settles))
                if bodies:
                    compiled[launches[0].writes] = [self._outline(*body) for body in bodies]
            else:
                number, reason, read, bodies = step
                value = self._values[number]
                host[value], reads[value] = reason, self._chosen(read)
                made.append(value)
                if bodies:
                    compiled[value] = [self._outline(*body) for body in bodies]
        function = Function(name, self._chosen(inputs), self._chosen(results), level)
        blocked = {self._values[number]: block for number, block in blocks}
        pairs = [(self._read(a), self._read(b)) for a, b in equal]
        return Outline(function, frozenset(around), made, blocked, host, reads, frozenset(self._inner), compiled, pairs)

    def _value(self, op: str, dtype: str | None, shape: Any, params: Any, operands: list[int], origin: str) -> Value:
        if dtype == "":
            made = self._whole(op, shape, params, operands)
        else:
            type = TensorType(_dtype(dtype), tuple(map(self._read, shape))) if dtype else TupleType(())
            if op == "constant":
                return self._constant(params, type)
            made = Value(op, self._chosen(operands), self._params(op, params), type)
        made.origin = origin
        return made

    def _whole(self, op: str, type: Any, params: dict[str, Any], operands: list[int]) -> Value:
        """A value that the interpreter computes."""
        read, definers, level = type
        known = {name: self._decoded(param) for name, param in params.items()}
        made = Value(op, self._chosen(operands), known, self._decoded(read), level, self._chosen(definers))
        self._inner.add(made)
        return made

    def _decoded(self, part: Any) -> Any:
        if not isinstance(part, dict):
            return part
        ((kind, what),) = part.items()
        match kind:
            case "dtype":
                return _dtype(what)
            case "size":
                return self._read(what)
            case "tensor":
                return TensorType(_dtype(what[0]), self._decoded(what[1]))
            case "sequence":
                return SequenceType(self._decoded(what))
            case "optional":
                return OptionalType(self._decoded(what))
            case "map":
                return MapType(_dtype(what[0]), self._decoded(what[1]))
            case "results":
                return TupleType(self._decoded(what))
            case "tuple":
                return tuple(map(self._decoded, what))
            case "host":
                domain, name, since, present, module = what
                return self._hosts(domain, name, since, None if present is None else tuple(present), module)
            case "function":
                name, inputs, results, level = what
                return Function(name, self._chosen(inputs), self._chosen(results), level)
            case "texts":
                return np.array(what[0], object).reshape(what[1])
        return self._arrays[what]

    def _chosen(self, numbers: list[int]) -> tuple[Value, ...]:
        return tuple([self._values[number] for number in numbers])

    def _constant(self, number: int, type: Type) -> Value:
        found = self._constants.get(number)
        if found is None:
            array = self._arrays[number]
            found = self._constants[number] = Tensor("constant", (), {"value": array}, type)
            self.prepared[found] = array
        return found

    def _body(
        self,
        name: str,
        level: int,
        inputs: list[int],
        results: list[int],
        launches: list[Any],
        blocks: list[Any],
        equal: list[Any],
    ) -> Body:
        function = Function(name, self._chosen(inputs), self._chosen(results), level)
        blocked = {self._values[number]: block for number, block in blocks}
        pairs = [(self._read(a), self._read(b)) for a, b in equal]
        return Body(function, tuple([self._launch(*each) for each in launches]), blocked, pairs)

    def _launch(
        self,
        name: str,
        buffers: list[list[Any]],
        sizes: list[Any],
        items: Any,
        root: int,
        title: str,
        bodies: list[Any],
        also: list[int],
        work: int,
        beside: int,
    ) -> Launch:
        writes = self._values[root]
        return Launch(
            name, (), tuple([self._buffer(*buffer) for buffer in buffers]), tuple(map(self._read, sizes)),
            self._read(items), writes, title, Group(writes, ""), tuple([self._body(*body) for body in bodies]),
            self._chosen(also), work, beside,
        )  # fmt: skip

    def _buffer(self, kind: str, *rest: Any) -> Buffer:
        match kind:
            case "array":
                array = self._arrays[rest[0]]
                return self._constant(rest[0], TensorType(t.dtype_of(array), array.shape))
            case "scratch":
                return Scratch(self._read(rest[0]))
            case "relaid":
                return Relaid(self._values[rest[0]], rest[1], getattr(t.DType, rest[2]))
            case "stage":
                return Stage(self._values[rest[0]], self._read(rest[1]))
            case "count":
                return Count(self._values[rest[0]])
            case "value":
                value: Value = self._values[rest[0]]
                return value
        return FAULT

    def _params(self, op: str, params: Any) -> dict[str, Any]:
        match op:
            case "dims":
                sizes, shape, dtype = params
                return {"sizes": tuple(map(self._read, sizes)), "shape": tuple(shape), "dtype": _dtype(dtype)}
            case "input":
                return {"position": params}
            case "loop":
                carried, results = params
                return {"carried": carried} if results is None else {
                    "carried": carried, "results": self._decoded(results),
                }  # fmt: skip
            case "get":
                return {"index": params}
        return {}

    def _settling(self, sizes: list[Any], same: list[Any], rows: list[str]) -> Settling:
        known = {symbol: self._read(size) for symbol, size in sizes}
        return Settling(known, tuple([(self._read(a), self._read(b)) for a, b in same]), frozenset(rows))

    def _read(self, size: int | list[int]) -> Size:
        return self._sizes[size[0]] if isinstance(size, list) else size


@functools.cache
def _dtype(name: str) -> t.DType:
    return t.element_type(name)


def _is_plain(type: Type) -> bool:
    """Whether values are arrays of numbers."""
    return isinstance(type, TensorType) and type.shape is not None and type.dtype != t.STRING
