"""Writer of program images: serializes a compiled function."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from sardonyx.compiler.analysis.control_flow import CONTROL
from sardonyx.compiler.analysis.shape_guards import Equal
from sardonyx.compiler.analysis.shape_stable_loops import ShapeStability
from sardonyx.compiler.llvm.elf_loader import linked
from sardonyx.compiler.lower.launch import Body, Buffer, Count, Launch, Prepared, Relaid, Scratch, Stage
from sardonyx.compiler.plan.compiled_function import CompiledFunction
from sardonyx.compiler.plan.segments import Segment, Step
from sardonyx.compiler.program_image.image import Image, UnserializableError
from sardonyx.core.dim import Dim, Size
from sardonyx.core.dim.record import record
from sardonyx.core.eval.host_function import HostFunction
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function, Value, dependencies
from sardonyx.core.ir.types import MapType, OptionalType, SequenceType, TensorType, TupleType, Type


def write_image(compiled: CompiledFunction) -> Image:
    """Return the image of a compiled function and its compiled bodies.

    Raises:
        UnserializableError: An interpreted value cannot be serialized.
    """
    functions = [*_nested(compiled)]
    prepared = {key: array for function in functions for key, array in function.prepared.items()}
    names = {text: name for function in functions for text, name in function.kernels.names.items()}
    writer = _Writer(prepared, names)
    head = {**writer.head(compiled), "denormals": any(function.has_denormals for function in functions)}
    parts = dict.fromkeys(part for function in functions for part in function.kernels.code.parts)
    code = compiled.kernels.code
    return Image(head, code if code.functions else linked([*parts]), writer.arrays)


def _nested(compiled: CompiledFunction) -> Iterator[CompiledFunction]:
    """Yield a compiled function and, recursively, its compiled bodies."""
    yield compiled
    for body in itertools.chain(*compiled.bodies.values()):
        yield from _nested(body)


class _Writer:
    """Serializes the values and launches of a program.

    Args:
        prepared: Prepared constants.
        names: Function names of kernels, by text.

    Attributes:
        arrays: The arrays of the image, in the order of their indices in the head.
    """

    def __init__(self, prepared: Mapping[Any, np.ndarray], names: Mapping[str, str]) -> None:
        self._prepared = prepared
        self._names = names
        self._inner: set[Value] = set()
        self._shape_stable: set[Value] = set()
        self._nesting = 0
        self._values: dict[Value, int] = {}
        self._table: list[dict[str, Any]] = []
        self._numbers: dict[Any, int] = {}
        self._sizes: dict[Dim, int] = {}
        self.arrays: list[np.ndarray] = []

    def head(self, compiled: CompiledFunction) -> dict[str, Any]:
        """Return the head of the image.

        Args:
            compiled: The function to serialize.

        Raises:
            UnserializableError: A value cannot be serialized.
        """
        written = self._compiled(compiled)
        arrays = [{"dtype": t.dtype_of(array).name, "shape": list(array.shape)} for array in self.arrays]
        return {"program": written, "values": self._table, "arrays": arrays, "sizes": [*map(record, self._sizes)]}

    def _compiled(self, compiled: CompiledFunction) -> dict[str, Any]:
        self._inner |= compiled.inner
        segments = [step for step in compiled.steps if isinstance(step, Segment)]
        self._shape_stable |= {segment.launches[0].writes for segment in segments if segment.stability is not None}
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
            settling = None if step.stability is None else self._stability(step.stability)
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
            written = self._interpreted(value) if self._is_interpreted(value) else self._stored(value)
            self._values[value] = len(self._table)
            self._table.append(written)
        return self._values[value]

    def _is_interpreted(self, value: Value) -> bool:
        if value.op in ("constant", "dims"):
            return not _is_plain(value.type)
        return value in self._inner or self._nesting > 0 or (value.op == "input" and not _is_plain(value.type))

    def _stored(self, value: Value) -> dict[str, Any]:
        """Serialize a value in memory, or native control flow."""
        operands = [*map(self._value, value.operands)] if value.op in CONTROL else []
        several = isinstance(value.type, TupleType)
        dtype, shape = (None, []) if several else (value.type.dtype.name, [*map(self._size, value.type.shape)])  # type: ignore
        return {
            "op": value.op, "dtype": dtype, "shape": shape, "params": self._params(value), "operands": operands,
            "origin": value.origin,
        }  # fmt: skip

    def _interpreted(self, value: Value) -> dict[str, Any]:
        """Serialize an interpreted value."""
        needed = dependencies(value, self._nesting) if self._nesting else value.operands
        operands = [*map(self._value, value.operands)]
        definers = [self._value(definer) for definer in needed if definer not in value.operands]
        params = {name: self._encode(param) for name, param in value.params.items()}
        return {
            "op": value.op, "type": self._encode(value.type), "definers": definers, "level": value.level,
            "params": params, "operands": operands, "origin": value.origin,
        }  # fmt: skip

    def _encode(self, part: Any) -> Any:
        """Return a parameter as JSON data.

        Raises:
            UnserializableError: The parameter has no JSON form.
        """
        match part:
            case t.DType():
                return {"dtype": part.name}
            case None | bool() | int() | float() | str():
                return part
            case Dim():
                return {"size": self._size(part)}
            case TensorType(dtype, shape):
                return {"tensor": {"dtype": dtype.name, "shape": self._encode(shape)}}
            case SequenceType(element):
                return {"sequence": self._encode(element)}
            case OptionalType(element):
                return {"optional": self._encode(element)}
            case MapType(key, value):
                return {"map": {"key": key.name, "value": self._encode(value)}}
            case TupleType(results):
                return {"results": self._encode(results)}
            case tuple():
                return {"tuple": [*map(self._encode, part)]}
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
            case np.ndarray() if part.dtype == object and all(isinstance(element, str) for element in part.flat):
                return {"texts": {"elements": part.ravel().tolist(), "shape": list(part.shape)}}
            case np.ndarray() if part.dtype != object:
                return {"array": self._array(id(part), np.asarray(part, order="C"))}
        raise UnserializableError(f"a parameter of type {type(part).__name__} cannot be serialized")

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
                # The interpreter executes a loop whose state changes its sizes, and needs the result types.
                results = self._encode(value.params["results"]) if value in self._shape_stable else None
                return {"carried": value.params["carried"], "results": results}
            case "get":
                return {"index": value.params["index"]}
        return None

    def _stability(self, settling: ShapeStability) -> dict[str, Any]:
        return {
            "sizes": {symbol: self._size(size) for symbol, size in settling.sizes.items()},
            "same": [*map(self._pair, settling.same)],
            "rows": sorted(settling.rows),
        }

    def _size(self, size: Size) -> int | list[int]:
        """Return a size: a number, or a list of the index in the table of sizes."""
        return [self._sizes.setdefault(size, len(self._sizes))] if isinstance(size, Dim) else int(size)


def _is_plain(type: Type) -> bool:
    """Return True if values of a type are arrays of numbers."""
    return isinstance(type, TensorType) and type.shape is not None and type.dtype != t.STRING
