"""Reader of program images: restores a compiled function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sardonyx.base.cpu_count import thread_count
from sardonyx.compiler.analysis.shape_guards import Equal
from sardonyx.compiler.analysis.shape_stable_loops import ShapeStability
from sardonyx.compiler.llvm.elf_loader import loaded
from sardonyx.compiler.lower.launch import FAULT, Body, Buffer, Count, Launch, Relaid, Scratch, Stage, all_launches
from sardonyx.compiler.plan.compiled_function import CompiledFunction, KernelCode
from sardonyx.compiler.plan.segments import Segment, Step, launches_of
from sardonyx.compiler.program_image.image import Image, dtype_named
from sardonyx.compiler.schedule.groups import Group
from sardonyx.compiler.target.denormals import Denormals
from sardonyx.compiler.target.description import Target
from sardonyx.compiler.target.description import host as host_target
from sardonyx.core.dim import Size
from sardonyx.core.dim.record import from_record
from sardonyx.core.eval.host_function import HostFunction
from sardonyx.core.eval.tensor import Tensor
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function, Value
from sardonyx.core.ir.types import MapType, OptionalType, SequenceType, TensorType, TupleType, Type
from sardonyx.errors import UnsupportedError

HostLookup = Callable[[str, str, int, "tuple[bool, ...] | None", str], HostFunction]
"""Returns a host function by domain, name, version, presence of each operator input, and module."""


def no_host_functions(
    domain: str, name: str, since: int, present: tuple[bool, ...] | None, module: str
) -> HostFunction:
    """Refuse any host function: the default lookup.

    Raises:
        UnsupportedError: Always.
    """
    raise UnsupportedError(f"unknown host function {name!r}.")


def read_image(
    image: Image,
    *,
    target: Target | None = None,
    threads: int | None = None,
    denormals: Denormals = "auto",
    hosts: HostLookup = no_host_functions,
) -> CompiledFunction:
    """Return the compiled function of an image.

    Args:
        image: The image.
        target: The target of the compilation; by default the host.
        threads: The number of threads of the compilation; by default the number of available processors.
        denormals: The treatment of denormal numbers.
        hosts: Returns host functions.
    """
    return _Reader(image, target or host_target(), thread_count(threads), denormals, hosts).function()


class _Reader:
    """Deserializes values and launches; the text of a kernel is its function name in the object code."""

    def __init__(self, image: Image, target: Target, threads: int, denormals: Denormals, hosts: HostLookup) -> None:
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
        """Return the compiled function of the image."""
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
                host[control], reads[control] = step["reason"], self._values_at(step["reads"])
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
            self._size(step["most"]),
            None if settling is None else self._stability(settling),
        )

    def _function(self, written: dict[str, Any]) -> Function:
        inputs, results = self._values_at(written["inputs"]), self._values_at(written["results"])
        return Function(written["name"], inputs, results, written["level"])

    def _blocks(self, written: list[dict[str, int]]) -> dict[Value, int]:
        return {self._values[block["value"]]: block["channels"] for block in written}

    def _pair(self, written: dict[str, Any]) -> Equal:
        return self._size(written["first"]), self._size(written["second"])

    def _value(self, written: dict[str, Any]) -> Value:
        if "type" in written:
            value = self._interpreted(written)
        else:
            dtype, params = written["dtype"], written["params"]
            shape = tuple(map(self._size, written["shape"]))
            type = TensorType(dtype_named(dtype), shape) if dtype else TupleType(())
            if written["op"] == "constant":
                return self._constant(params["array"], type)
            operands = self._values_at(written["operands"])
            value = Value(written["op"], operands, self._params(written["op"], params), type)
        value.origin = written["origin"]
        return value

    def _interpreted(self, written: dict[str, Any]) -> Value:
        """Deserialize an interpreted value."""
        params = {name: self._decode(param) for name, param in written["params"].items()}
        operands, definers = self._values_at(written["operands"]), self._values_at(written["definers"])
        value = Value(written["op"], operands, params, self._decode(written["type"]), written["level"], definers)
        self._inner.add(value)
        return value

    def _decode(self, part: Any) -> Any:
        if not isinstance(part, dict):
            return part
        ((kind, content),) = part.items()
        match kind:
            case "dtype":
                return dtype_named(content)
            case "size":
                return self._size(content)
            case "tensor":
                return TensorType(dtype_named(content["dtype"]), self._decode(content["shape"]))
            case "sequence":
                return SequenceType(self._decode(content))
            case "optional":
                return OptionalType(self._decode(content))
            case "map":
                return MapType(dtype_named(content["key"]), self._decode(content["value"]))
            case "results":
                return TupleType(self._decode(content))
            case "tuple":
                return tuple(map(self._decode, content))
            case "host":
                present = None if content["present"] is None else tuple(content["present"])
                return self._hosts(content["domain"], content["name"], content["since"], present, content["module"])
            case "function":
                return self._function(content)
            case "texts":
                return np.array(content["elements"], object).reshape(content["shape"])
        return self._image.arrays[content]

    def _values_at(self, numbers: list[int]) -> tuple[Value, ...]:
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
            sizes=tuple(map(self._size, written["sizes"])),
            items=self._size(written["items"]),
            writes=writes,
            title=written["title"],
            group=Group(writes, ""),
            bodies=tuple([self._body(body) for body in written["bodies"]]),
            other_writes=self._values_at(written["also"]),
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
                return Scratch(self._size(first))
            case "relaid":
                return Relaid(self._values[first], written["block"], dtype_named(written["dtype"]))
            case "stage":
                return Stage(self._values[first], self._size(written["bytes"]))
            case "count":
                return Count(self._values[first])
            case "value":
                value: Value = self._values[first]
                return value
        return FAULT

    def _params(self, op: str, params: Any) -> dict[str, Any]:
        match op:
            case "dims":
                sizes = tuple(map(self._size, params["sizes"]))
                return {"sizes": sizes, "shape": tuple(params["shape"]), "dtype": dtype_named(params["dtype"])}
            case "loop":
                results = params["results"]
                carried = {"carried": params["carried"]}
                return carried if results is None else {**carried, "results": self._decode(results)}
            case "input" | "get":
                return dict(params)
        return {}

    def _stability(self, written: dict[str, Any]) -> ShapeStability:
        sizes = {symbol: self._size(size) for symbol, size in written["sizes"].items()}
        return ShapeStability(sizes, tuple(map(self._pair, written["same"])), frozenset(written["rows"]))

    def _size(self, size: int | list[int]) -> Size:
        return self._sizes[size[0]] if isinstance(size, list) else size
