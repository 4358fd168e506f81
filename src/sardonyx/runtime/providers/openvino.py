"""OpenVINO as a provider, on any of its devices: ``openvino``, ``openvino:GPU``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.core.eval.run_context import RunContext
from sardonyx.core.ir.types import TensorType, Type, numpy_dtype
from sardonyx.errors import ExecutionError, MissingDependencyError, OptionError, ResourceError, UnsupportedError
from sardonyx.ops.core_values import declared_type
from sardonyx.ops.registry import canonical
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.surgery.subgraph import boundary, is_constant_node, part_of
from sardonyx.runtime.providers.estimates import node_seconds
from sardonyx.runtime.providers.openvino_request import Expected, Request
from sardonyx.runtime.providers.protocol import Answer, Claim, Refusal, Settings

_EXACT_TYPES = frozenset({"FLOAT", "INT8", "UINT8", "INT32", "INT64", "BOOL"})
"""Element types that OpenVINO computes without conversion: float64 becomes float32."""

_UNCONVERTED = re.compile(r"No conversion rule found for operations: ([^\n]*)")
_MOST_IDLE = 16


class OpenVinoRunner:
    """A partition, compiled by OpenVINO.

    Args:
        part: The partition.
        provider: The provider.
    """

    def __init__(self, part: ir.Model, provider: OpenVinoProvider) -> None:
        try:
            read = provider.core.read_model(model_io.to_proto(part).SerializeToString())
            self._compiled = provider.core.compile_model(read, provider.device, provider.config)
        except Exception as error:  # The binding raises RuntimeError for every failure.
            raise UnsupportedError(f"OpenVINO does not load it: {error}") from error
        if len(self._compiled.inputs) != len(part.graph.inputs):
            raise UnsupportedError("OpenVINO removes an unused input.")
        self._tensor = provider.tensor
        self._indices = [_input_index(self._compiled.inputs, str(value.name)) for value in part.graph.inputs]
        types = [declared_type(value) for value in part.graph.outputs]
        self._outputs = [_expected(*pair) for pair in zip(self._compiled.outputs, types, strict=True)]
        # `pop` and `append` are atomic, so that threads need no lock.
        self._idle: list[Request] = []

    def run(self, values: Sequence[Any], context: RunContext) -> Sequence[Any]:
        """Run once; see :class:`~sardonyx.runtime.providers.protocol.Runner`."""
        try:
            own = self._idle.pop()
        except IndexError:
            request = self._compiled.create_infer_request()
            own = Request(request, self._indices, self._outputs, self._tensor)
        try:
            own.prepare(values)
            if context.limited:
                own.request.start_async()
                with context.on_end(own.request.cancel):
                    own.request.wait()
            else:
                own.infer()
            results = own.results()
        except Exception as error:  # As above.
            context.check_time()
            if "was canceled" in str(error):
                raise ResourceError("the run was ended.") from error
            raise ExecutionError(f"OpenVINO: {error}") from error
        if len(self._idle) < _MOST_IDLE:
            self._idle.append(own)
        return results

    def shrink(self) -> None:
        """Free the requests that no call uses, with their memory."""
        self._idle.clear()


def _expected(port: Any, type: Type | None) -> Expected:
    """Return the type and shape of an output, as far as known before a run."""
    dtype = numpy_dtype(type.dtype) if isinstance(type, TensorType) else None
    return Expected(tuple(port.shape) if port.partial_shape.is_static else None, dtype)


def _input_index(ports: Sequence[Any], name: str) -> int:
    for i, port in enumerate(ports):
        if name in port.get_names():
            return i
    raise UnsupportedError(f"OpenVINO gives the input {name!r} another name.")


class OpenVinoProvider:
    """One device of OpenVINO.

    Args:
        settings: The device is a device of OpenVINO, by default the CPU; the options are its properties.

    Raises:
        MissingDependencyError: The package is not installed.
        OptionError: Unknown device.
    """

    def __init__(self, settings: Settings) -> None:
        try:
            import openvino
        except ModuleNotFoundError as error:
            raise MissingDependencyError(
                "the provider is not installed", where="openvino", remedy="Install it: pip install openvino"
            ) from error
        self.core = openvino.Core()
        self.tensor = openvino.Tensor
        self.device = settings.device or "CPU"
        self.name = f"openvino:{settings.device}" if settings.device else "openvino"
        available = self.core.available_devices
        if self.device.split(":")[0] not in {*(name.split(".")[0] for name in available), "AUTO", "HETERO", "MULTI"}:
            raise OptionError(
                f"OpenVINO has no device {self.device}.", where="providers", remedy=f"It has: {', '.join(available)}."
            )
        self.config: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
        if settings.threads is not None:
            self.config["INFERENCE_NUM_THREADS"] = settings.threads
        self.config |= settings.options
        self._unconverted: dict[tuple[str, str, int], str] = {}

    def capability(self, model: ir.Model) -> Mapping[ir.Node, Answer]:
        """Claim the nodes with exactly supported types and convertible operators."""
        return {node: self._answer(node, model, seconds) for node, seconds in node_seconds(model).items()}

    def _answer(self, node: ir.Node, model: ir.Model, seconds: float) -> Answer:
        nodes = [node, *(current for body in facts.bodies(node) for current in facts.nodes_of(body))]
        for current in nodes:
            for value in (*current.inputs, *current.outputs):
                declared = declared_type(value) if value is not None and (value.name or value.uses()) else None
                if declared is None:
                    continue
                if not isinstance(declared, TensorType):
                    return Refusal(f"{declared} is not a tensor type")
                if declared.dtype.name not in _EXACT_TYPES:
                    return Refusal(f"OpenVINO converts {declared.dtype.name.lower()}")
            if different := _difference(current):
                return Refusal(different)
        missing = self._not_converted(node, model)
        return Refusal(missing) if missing else Claim(seconds, "OpenVINO supports the operator")

    def _not_converted(self, node: ir.Node, model: ir.Model) -> str:
        """Return the operator without conversion in a node; cached for each operator and version."""
        version = model.graph.opset_imports.get(node.domain, 1)
        key = (node.domain, node.op_type, version)
        if key not in self._unconverted or facts.bodies(node):
            constants = {constant for constant in model.graph if is_constant_node(constant)} - {node}
            inputs, outputs, repeated = boundary([node], constants, node.outputs)
            part = part_of(model, [*repeated, node], inputs, [value for value in outputs if value.name])
            self._unconverted[key] = ""
            try:
                self.core.read_model(model_io.to_proto(part).SerializeToString())
            except Exception as error:  # As above; anything else than a missing conversion shows when it is compiled.
                if match := _UNCONVERTED.search(str(error)):
                    self._unconverted[key] = f"{match[1].strip()} has no conversion"
        return self._unconverted[key]

    def compile(self, part: ir.Model) -> OpenVinoRunner:
        """Compile the partition.

        Raises:
            UnsupportedError: OpenVINO refuses the partition.
        """
        return OpenVinoRunner(part, self)


_DIFFERENT: Mapping[str, str] = {
    "Attention": "its scores are given before the mask, and rows that are masked whole are not numbers",
    "BitShift": "it saturates, and fills with zeros from the left",
    "DFT": "its sizes are others where one axis is left",
    **dict.fromkeys(
        (
            "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
        ),
        "it draws other numbers in every run",
    ),
}  # fmt: skip
"""Operators whose results differ from the standard, with the difference."""


def _number(node: ir.Node, name: str) -> int:
    return int(node.attributes[name].value) if name in node.attributes else 0


def _difference(node: ir.Node) -> str:
    """Return the difference of a node's results from the standard; empty if there is none."""
    if canonical(node.domain):
        return ""
    if node.op_type in ("GRU", "LSTM", "RNN") and _number(node, "layout"):
        return "it takes the batch for the second axis"
    if node.op_type in ("AveragePool", "LpPool", "MaxPool") and _number(node, "ceil_mode"):
        return "it counts a last window that begins in the padding"
    if node.op_type in ("Max", "Min") and len(node.inputs) == 1:
        return "it leaves the memory of a single input to be written over"
    if node.op_type == "Dropout" and len(node.inputs) > 2:
        return "it leaves out nothing"
    return _DIFFERENT.get(node.op_type, "")
