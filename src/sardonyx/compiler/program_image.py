"""Images: a program as data, so that another process neither schedules, lowers, compiles nor packs.

An image has a head, which is text (what is computed from what, launches, sizes), object code, and arrays (what kernels
read of constants). Values are in it as far as running needs them: those in memory, with their types, and not what they
were computed by; whole only those that the interpreter computes. Host functions are in it by name.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sardonyx.base.cpu_count import thread_count
from sardonyx.compiler.analysis.control_flow import CONTROL
from sardonyx.compiler.analysis.shape_guards import Equal
from sardonyx.compiler.analysis.shape_stable_loops import ShapeStability
from sardonyx.compiler.llvm.elf_loader import Code, linked, loaded
from sardonyx.compiler.lower.launch import (
    FAULT,
    Body,
    Buffer,
    Count,
    Launch,
    Prepared,
    Relaid,
    Scratch,
    Stage,
    all_launches,
)
from sardonyx.compiler.plan.compiled_function import CompiledFunction, KernelCode
from sardonyx.compiler.plan.segments import Segment, Step, launches_of
from sardonyx.compiler.schedule.groups import Group
from sardonyx.compiler.target.alignment import ALIGNMENT
from sardonyx.compiler.target.denormals import Denormals
from sardonyx.compiler.target.description import Target
from sardonyx.compiler.target.description import host as host_target
from sardonyx.core.dim import Dim, Size
from sardonyx.core.dim.record import from_record, record
from sardonyx.core.eval.host_function import HostFunction
from sardonyx.core.eval.tensor import Tensor
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function, Value, dependencies
from sardonyx.core.ir.types import MapType, OptionalType, SequenceType, TensorType, TupleType, Type
from sardonyx.errors import UnsupportedError

FORMAT = 3
"""The version of images, in the cache and in compiled files: what they hold, and how kernels are called.

It grows with every change of a field below, of the arguments of kernels or of what prepared weights mean; an image of
another version is refused.
"""

_MAGIC = b"sdxi"
_HEADER = struct.Struct("<4sIQ")


class NoImage(Exception):
    """The program cannot be written down; the text says why."""


class OtherFormatError(Exception):
    """The bytes are an image of another format version, or no image."""


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
        return b"".join([_HEADER.pack(_MAGIC, FORMAT, len(head)), head, *self.code.parts])

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

        Raises:
            OtherFormatError: The texts are of another format version.
            ValueError: The weights do not begin on a cache line.
        """
        magic, version, length = _HEADER.unpack_from(texts) if len(texts) >= _HEADER.size else (b"", 0, 0)
        if (magic, version) != (_MAGIC, FORMAT):
            raise OtherFormatError(f"expected format {FORMAT}, got {version if magic == _MAGIC else 'no image'}")
        if weights.size and weights.ctypes.data % ALIGNMENT:
            raise ValueError("weights begin in the middle of a cache line")
        at = _HEADER.size + length
        head = json.loads(texts[_HEADER.size : at])
        code = head.pop("code")
        parts = []
        for size in code["lengths"]:
            parts.append(texts[at : at + size])
            at += size
        arrays, at = [], 0
        for table in head["arrays"]:
            dtype = t.numpy_dtype(_dtype(table["dtype"]))
            count = math.prod(table["shape"]) * dtype.itemsize
            arrays.append(weights[at : at + count].view(dtype).reshape(table["shape"]))
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
        self._table: list[dict[str, Any]] = []
        self._numbers: dict[Any, int] = {}
        self._sizes: dict[Dim, int] = {}
        self.arrays: list[np.ndarray] = []

    def head(self, compiled: CompiledFunction) -> dict[str, Any]:
        """The head of the image.

        Args:
            compiled: The function to write.

        Raises:
            NoImage: There is no text for a value.
        """
        written = self._compiled(compiled)
        arrays = [{"dtype": t.dtype_of(array).name, "shape": list(array.shape)} for array in self.arrays]
        return {"program": written, "values": self._table, "arrays": arrays, "sizes": [*map(record, self._sizes)]}

    def _compiled(self, compiled: CompiledFunction) -> dict[str, Any]:
        self._inner |= compiled.inner
        segments = [step for step in compiled.steps if isinstance(step, Segment)]
        self._settled |= {segment.launches[0].writes for segment in segments if segment.stability is not None}
        return {
            **self._signature(compiled.function),
            "around": sorted(compiled.around),
            "steps": [self._step(step, compiled) for step in compiled.steps],
            "blocks": self._blocks(compiled.blocks),
            "guards": [*map(self._pair, compiled.guards)],
        }

    def _signature(self, function: Function) -> dict[str, Any]:
        inputs, results = [*map(self._value, function.inputs)], [*map(self._value, function.results)]
        return {"name": function.name, "level": function.level, "inputs": inputs, "results": results}

    def _blocks(self, blocks: Mapping[Value, int]) -> list[dict[str, int]]:
        return [{"value": self._value(value), "channels": block} for value, block in blocks.items()]

    def _pair(self, pair: Equal) -> dict[str, Any]:
        return {"first": self._size(pair[0]), "second": self._size(pair[1])}

    def _step(self, step: Step, compiled: CompiledFunction) -> dict[str, Any]:
        if isinstance(step, Segment):
            launches = [*map(self._launch, step.launches)]
            settling = None if step.stability is None else self._settling(step.stability)
            repeated = () if settling is None else compiled.bodies[step.launches[0].writes]
            return {
                "launches": launches,
                "counted": None if step.counted is None else self._value(step.counted),
                "symbol": step.symbol,
                "most": self._size(step.max_results),
                "settling": settling,
                "bodies": [*map(self._compiled, repeated)],
            }
        return {
            "value": self._value(step),
            "reason": compiled.host[step],
            "reads": [*map(self._value, compiled.reads[step])],
            "bodies": [*map(self._compiled, compiled.bodies.get(step, ()))],
        }

    def _body(self, body: Body) -> dict[str, Any]:
        return {
            **self._signature(body.function),
            "launches": [*map(self._launch, body.launches)],
            "blocks": self._blocks(body.blocks),
            "guards": [*map(self._pair, body.equal)],
        }

    def _launch(self, launch: Launch) -> dict[str, Any]:
        return {
            "kernel": "" if launch.bodies else self._names[launch.text],
            "buffers": [*map(self._buffer, launch.buffers)],
            "sizes": [*map(self._size, launch.sizes)],
            "items": self._size(launch.items),
            "writes": self._value(launch.writes),
            "title": launch.title,
            "bodies": [*map(self._body, launch.bodies)],
            "also": [*map(self._value, launch.other_writes)],
            "work": launch.work,
            "concurrent": launch.concurrent_loops,
        }

    def _buffer(self, buffer: Buffer) -> dict[str, Any]:
        match buffer:
            case Prepared():
                return {"array": self._array(buffer, self._prepared[buffer])}
            case Scratch():
                return {"scratch": self._size(buffer.bytes)}
            case Relaid():
                return {"relaid": self._value(buffer.source), "block": buffer.block, "dtype": buffer.dtype.name}
            case Stage():
                return {"stage": self._value(buffer.source), "bytes": self._size(buffer.bytes)}
            case Count():
                return {"count": self._value(buffer.source)}
            case Value():
                return {"value": self._value(buffer)}
        return {"fault": True}

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

    def _outside(self, value: Value) -> dict[str, Any]:
        """A value that is in memory, or control flow that kernels compute."""
        operands = [*map(self._value, value.operands)] if value.op in CONTROL else []
        several = isinstance(value.type, TupleType)
        dtype, shape = (None, []) if several else (value.type.dtype.name, [*map(self._size, value.type.shape)])  # type: ignore
        return {
            "op": value.op, "dtype": dtype, "shape": shape, "params": self._params(value), "operands": operands,
            "origin": value.origin,
        }  # fmt: skip

    def _whole(self, value: Value) -> dict[str, Any]:
        """A value that the interpreter computes."""
        needed = dependencies(value, self._nesting) if self._nesting else value.operands
        operands = [*map(self._value, value.operands)]
        definers = [self._value(each) for each in needed if each not in value.operands]
        params = {name: self._encoded(param) for name, param in value.params.items()}
        return {
            "op": value.op, "type": self._encoded(value.type), "definers": definers, "level": value.level,
            "params": params, "operands": operands, "origin": value.origin,
        }  # fmt: skip

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
                return {"tensor": {"dtype": dtype.name, "shape": self._encoded(shape)}}
            case SequenceType(element):
                return {"sequence": self._encoded(element)}
            case OptionalType(element):
                return {"optional": self._encoded(element)}
            case MapType(key, value):
                return {"map": {"key": key.name, "value": self._encoded(value)}}
            case TupleType(results):
                return {"results": self._encoded(results)}
            case tuple():
                return {"tuple": [*map(self._encoded, part)]}
            case HostFunction():
                present = part.present and list(part.present)
                return {
                    "host": {
                        "domain": part.domain, "name": part.name, "since": part.since, "present": present,
                        "module": part.module,
                    }
                }  # fmt: skip
            case Function():
                return {"function": self._function(part)}
            case np.ndarray() if part.dtype == object and all(isinstance(each, str) for each in part.flat):
                return {"texts": {"elements": part.ravel().tolist(), "shape": list(part.shape)}}
            case np.ndarray() if part.dtype != object:
                return {"array": self._array(id(part), np.asarray(part, order="C"))}
        raise NoImage(f"there is no text for {type(part).__name__}")

    def _function(self, function: Function) -> dict[str, Any]:
        before, self._nesting = self._nesting, function.level
        signature = self._signature(function)
        self._nesting = before
        return signature

    def _params(self, value: Value) -> dict[str, Any] | None:
        match value.op:
            case "constant":
                known = self._prepared.get(value)
                array = np.array(value.known, order="C") if known is None else known
                return {"array": self._array(value, array)}
            case "dims":
                sizes = [*map(self._size, value.params["sizes"])]
                return {"sizes": sizes, "shape": list(value.params["shape"]), "dtype": value.params["dtype"].name}
            case "input":
                return {"position": value.params["position"]}
            case "loop":
                # The interpreter repeats the body of one whose state may change its sizes.
                results = self._encoded(value.params["results"]) if value in self._settled else None
                return {"carried": value.params["carried"], "results": results}
            case "get":
                return {"index": value.params["index"]}
        return None

    def _settling(self, settling: ShapeStability) -> dict[str, Any]:
        return {
            "sizes": {symbol: self._size(size) for symbol, size in settling.sizes.items()},
            "same": [*map(self._pair, settling.same)],
            "rows": sorted(settling.rows),
        }

    def _size(self, size: Size) -> int | list[int]:
        """A size: its number, or its place in the table of sizes."""
        return [self._sizes.setdefault(size, len(self._sizes))] if isinstance(size, Dim) else int(size)


Hosts = Callable[[str, str, int, "tuple[bool, ...] | None", str], HostFunction]
"""Finds a host function by its domain, name, version, which inputs of the operator it is given, and its module."""


def no_host_functions(
    domain: str, name: str, since: int, present: tuple[bool, ...] | None, module: str
) -> HostFunction:
    """Find no host function.

    Raises:
        UnsupportedError: Always.
    """
    raise UnsupportedError(f"the host function {name} is not known.")


def write_image(compiled: CompiledFunction) -> Image:
    """Return a compiled function, with its compiled bodies, as data.

    Raises:
        NoImage: There is no text for what the interpreter computes.
    """
    functions = [*_nested(compiled)]
    prepared = {key: array for each in functions for key, array in each.prepared.items()}
    writer = Writer(prepared, {text: name for each in functions for text, name in each.kernels.names.items()})
    head = {**writer.head(compiled), "denormals": any(each.has_denormals for each in functions)}
    parts = dict.fromkeys(part for each in functions for part in each.kernels.code.parts)
    code = compiled.kernels.code
    return Image(head, code if code.functions else linked([*parts]), writer.arrays)


def _nested(compiled: CompiledFunction) -> Iterator[CompiledFunction]:
    """A compiled function, and those of its bodies."""
    yield compiled
    for body in itertools.chain(*compiled.bodies.values()):
        yield from _nested(body)


def read_image(
    image: Image,
    *,
    target: Target | None = None,
    threads: int | None = None,
    denormals: Denormals = "auto",
    hosts: Hosts = no_host_functions,
) -> CompiledFunction:
    """Return the compiled function of an image.

    Args:
        image: The image.
        target: The processor that the function was compiled for; by default the one at hand.
        threads: The number of threads that the function was compiled for; by default all that the process may use.
        denormals: The treatment of denormal numbers.
        hosts: Finds host functions.
    """
    return _Reader(image, target or host_target(), thread_count(threads), denormals, hosts).function()


class _Reader:
    """Values and launches of an image; the text of a kernel is the name of its function in the object code."""

    def __init__(self, image: Image, target: Target, threads: int, denormals: Denormals, hosts: Hosts) -> None:
        self._image = image
        self._target = target
        self._threads = threads
        self._denormals = denormals
        self._loaded = loaded(image.code, target)
        self._sizes = [*map(from_record, image.head["sizes"])]
        self._hosts = hosts
        self._inner: set[Value] = set()
        self._prepared: dict[Any, np.ndarray] = {}
        self._constants: dict[int, Value] = {}
        self._values: list[Value] = []
        for value in image.head["values"]:
            self._values.append(self._value(value))

    def function(self) -> CompiledFunction:
        """The compiled function of the image."""
        return self._compiled(self._image.head["program"])

    def _compiled(self, written: dict[str, Any]) -> CompiledFunction:
        steps: list[Step] = []
        host: dict[Value, str] = {}
        reads: dict[Value, Sequence[Value]] = {}
        compiled: dict[Value, Sequence[CompiledFunction]] = {}
        for step in written["steps"]:
            if "launches" in step:
                segment = self._segment(step)
                steps.append(segment)
                control = segment.launches[0].writes if step["bodies"] else None
            else:
                control = self._values[step["value"]]
                host[control], reads[control] = step["reason"], self._chosen(step["reads"])
                steps.append(control)
            if control is not None and step["bodies"]:
                compiled[control] = [*map(self._compiled, step["bodies"])]
        names = {launch.text: launch.text for launch in all_launches(launches_of(steps)) if not launch.bodies}
        return CompiledFunction(
            function=self._function(written),
            around=frozenset(written["around"]),
            steps=steps,
            blocks=self._blocks(written["blocks"]),
            host=host,
            reads=reads,
            inner=frozenset(self._inner),
            guards=[*map(self._pair, written["guards"])],
            bodies=compiled,
            kernels=KernelCode.of(self._image.code, names, self._loaded),
            prepared=self._prepared,
            target=self._target,
            threads=self._threads,
            denormals=self._denormals,
            has_denormals=self._image.head["denormals"],
        )

    def _segment(self, step: dict[str, Any]) -> Segment:
        counted, settling = step["counted"], step["settling"]
        return Segment(
            [*map(self._launch, step["launches"])],
            None if counted is None else self._values[counted],
            step["symbol"],
            self._read(step["most"]),
            None if settling is None else self._settling(settling),
        )

    def _function(self, written: dict[str, Any]) -> Function:
        inputs, results = self._chosen(written["inputs"]), self._chosen(written["results"])
        return Function(written["name"], inputs, results, written["level"])

    def _blocks(self, written: list[dict[str, int]]) -> dict[Value, int]:
        return {self._values[block["value"]]: block["channels"] for block in written}

    def _pair(self, written: dict[str, Any]) -> Equal:
        return self._read(written["first"]), self._read(written["second"])

    def _value(self, written: dict[str, Any]) -> Value:
        if "type" in written:
            value = self._whole(written)
        else:
            dtype, params = written["dtype"], written["params"]
            shape = tuple(map(self._read, written["shape"]))
            type = TensorType(_dtype(dtype), shape) if dtype else TupleType(())
            if written["op"] == "constant":
                return self._constant(params["array"], type)
            operands = self._chosen(written["operands"])
            value = Value(written["op"], operands, self._params(written["op"], params), type)
        value.origin = written["origin"]
        return value

    def _whole(self, written: dict[str, Any]) -> Value:
        """A value that the interpreter computes."""
        params = {name: self._decoded(param) for name, param in written["params"].items()}
        operands, definers = self._chosen(written["operands"]), self._chosen(written["definers"])
        value = Value(written["op"], operands, params, self._decoded(written["type"]), written["level"], definers)
        self._inner.add(value)
        return value

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
                return TensorType(_dtype(what["dtype"]), self._decoded(what["shape"]))
            case "sequence":
                return SequenceType(self._decoded(what))
            case "optional":
                return OptionalType(self._decoded(what))
            case "map":
                return MapType(_dtype(what["key"]), self._decoded(what["value"]))
            case "results":
                return TupleType(self._decoded(what))
            case "tuple":
                return tuple(map(self._decoded, what))
            case "host":
                present = None if what["present"] is None else tuple(what["present"])
                return self._hosts(what["domain"], what["name"], what["since"], present, what["module"])
            case "function":
                return self._function(what)
            case "texts":
                return np.array(what["elements"], object).reshape(what["shape"])
        return self._image.arrays[what]

    def _chosen(self, numbers: list[int]) -> tuple[Value, ...]:
        return tuple([self._values[number] for number in numbers])

    def _constant(self, number: int, type: Type) -> Value:
        constant = self._constants.get(number)
        if constant is None:
            array = self._image.arrays[number]
            constant = self._constants[number] = Tensor("constant", (), {"value": array}, type)
            self._prepared[constant] = array
        return constant

    def _body(self, written: dict[str, Any]) -> Body:
        launches = tuple([self._launch(launch) for launch in written["launches"]])
        blocks, guards = self._blocks(written["blocks"]), [*map(self._pair, written["guards"])]
        return Body(self._function(written), launches, blocks, guards)

    def _launch(self, written: dict[str, Any]) -> Launch:
        writes = self._values[written["writes"]]
        return Launch(
            text=written["kernel"],
            declarations=(),
            buffers=tuple([self._buffer(buffer) for buffer in written["buffers"]]),
            sizes=tuple(map(self._read, written["sizes"])),
            items=self._read(written["items"]),
            writes=writes,
            title=written["title"],
            group=Group(writes, ""),
            bodies=tuple([self._body(body) for body in written["bodies"]]),
            other_writes=self._chosen(written["also"]),
            work=written["work"],
            concurrent_loops=written["concurrent"],
        )

    def _buffer(self, written: dict[str, Any]) -> Buffer:
        kind, first = next(iter(written.items()))
        match kind:
            case "array":
                array = self._image.arrays[first]
                return self._constant(first, TensorType(t.dtype_of(array), array.shape))
            case "scratch":
                return Scratch(self._read(first))
            case "relaid":
                return Relaid(self._values[first], written["block"], _dtype(written["dtype"]))
            case "stage":
                return Stage(self._values[first], self._read(written["bytes"]))
            case "count":
                return Count(self._values[first])
            case "value":
                value: Value = self._values[first]
                return value
        return FAULT

    def _params(self, op: str, params: Any) -> dict[str, Any]:
        match op:
            case "dims":
                sizes = tuple(map(self._read, params["sizes"]))
                return {"sizes": sizes, "shape": tuple(params["shape"]), "dtype": _dtype(params["dtype"])}
            case "loop":
                results = params["results"]
                carried = {"carried": params["carried"]}
                return carried if results is None else {**carried, "results": self._decoded(results)}
            case "input" | "get":
                return dict(params)
        return {}

    def _settling(self, written: dict[str, Any]) -> ShapeStability:
        sizes = {symbol: self._read(size) for symbol, size in written["sizes"].items()}
        return ShapeStability(sizes, tuple(map(self._pair, written["same"])), frozenset(written["rows"]))

    def _read(self, size: int | list[int]) -> Size:
        return self._sizes[size[0]] if isinstance(size, list) else size


@functools.cache
def _dtype(name: str) -> t.DType:
    return t.element_type(name)


def _is_plain(type: Type) -> bool:
    """Whether values are arrays of numbers."""
    return isinstance(type, TensorType) and type.shape is not None and type.dtype != t.STRING
