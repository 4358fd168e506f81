"""Decision, for every float32 input and output of every node, between 16 bits and float32.

The unit of decision is a *cell*: inputs and outputs of a common type, such as all with one type variable of one node,
the state of a loop, or one input of a function at all calls. Two different decisions for one value require a Cast, one
per value, not per user.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from sardonyx.compress.float16.clamp import normal_range
from sardonyx.compress.float16.inference import CONTROL_FLOW, TypedModel, bodies_of, ports_of
from sardonyx.compress.float16.signature import (
    DTYPE_ATTRIBUTE,
    FLOAT32,
    SEQUENCE_OPERATORS,
    Parameter,
    Signature,
    holds_float32,
    signature_of,
    type_name,
)

_VALUE_ATTRIBUTES = frozenset(("value", "value_float", "value_floats"))

_SCATTERS = frozenset(("ScatterElements", "ScatterND"))


@dataclass(eq=False)
class Cell:
    """Inputs and outputs with a common type.

    Attributes:
        low: True for 16 bits.
        fixed: True if the decision is final.
        movement: True if values are moved unchanged: both types give the same result.
        nodes: The affected nodes; none for the model's own inputs and outputs.
        reason: The reason for float32; empty if free.
        tied: Cells with a common sequence or optional, which cannot be cast: all must have the same decision.
    """

    low: bool
    fixed: bool = False
    movement: bool = False
    nodes: tuple[ir.Node, ...] = ()
    reason: str = ""
    tied: list[Cell] = field(default_factory=list)

    def keep(self, reason: str) -> None:
        """Fix the decision to float32, for this cell and all tied cells."""
        if self.low or not self.fixed:
            self.low, self.fixed, self.reason = False, True, reason
            for cell in self.tied:
                cell.keep(reason)


@dataclass(frozen=True, eq=False)
class Use:
    """A value read by input ``index`` of a node, or by output ``index`` of a graph."""

    value: ir.Value
    cell: Cell
    reader: ir.Node | ir.Graph
    index: int


@dataclass
class Plan:
    """The decisions for a whole model.

    Attributes:
        sources: The cell that computes each float32 value; constants, and inputs with default values, are absent: their
            readers determine the type.
        uses: All reads of each float32 value.
        containers: The governing cell of each sequence or optional of float32 tensors.
        cells: All cells.
    """

    sources: dict[ir.Value, Cell] = field(default_factory=dict)
    uses: dict[ir.Value, list[Use]] = field(default_factory=dict)
    containers: dict[ir.Value, Cell] = field(default_factory=dict)
    cells: list[Cell] = field(default_factory=list)


@dataclass(frozen=True)
class Request:
    """The caller's requirements.

    Attributes:
        dtype: The 16-bit type.
        keep_io: Predicate of the model's inputs and outputs that stay in float32, by name; the second argument is True
            for an input with a default value.
        keeps: Reason why a node and its bodies stay in float32, or an empty text.
    """

    dtype: ir.DataType
    keep_io: Callable[[str, bool], bool]
    keeps: Callable[[ir.Node], str]


class PlanBuilder:
    """Builder of a plan: schemas, block lists and unknown types force float32; all other cells are 16-bit."""

    def __init__(self, typed: TypedModel, request: Request) -> None:
        self.plan = Plan()
        self._typed = typed
        self._request = request
        self._low = type_name(request.dtype)
        self._results: dict[tuple[ir.Function, int], Cell] = {}

    def build(self) -> Plan:
        """Return the plan."""
        graph = self._typed.model.graph
        functions = list(dict.fromkeys(self._typed.calls.values()))
        for value in graph.inputs:
            keep = self._request.keep_io(value.name or "", value.is_initializer())
            if keep or value.is_graph_output() or not value.is_initializer():
                self._source(value, self._port(keep))
        for function in functions:
            reason = self._function_reason(function)
            for value in function.inputs:
                self._source(value, self._boundary(reason))
            for index, value in enumerate(function.outputs):
                self._results[function, index] = self._boundary(reason)
                self._use(value, self._results[function, index], function.graph, index)
        for function in functions:
            self._graph(function.graph, function.opset_imports, self._function_reason(function))
        self._graph(graph, graph.opset_imports, "")
        for index, value in enumerate(graph.outputs):
            source = self.plan.sources.get(value) if value.is_graph_input() else None
            cell = source or self._port(self._request.keep_io(value.name or "", False))
            self._use(value, cell, graph, index)
        for cell in self.plan.cells:
            if not cell.low:
                for tied in cell.tied:
                    tied.keep(cell.reason)
        return self.plan

    def _function_reason(self, function: ir.Function) -> str:
        return "the call is in a block list" if function in self._typed.kept_functions else ""

    def _port(self, keep: bool) -> Cell:
        """Return the cell of one of the model's own inputs or outputs."""
        return self._cell(low=not keep, fixed=True, reason="keep_io_types" if keep else "")

    def _cell(
        self, *, low: bool, fixed: bool = False, movement: bool = False, node: ir.Node | None = None, reason: str = ""
    ) -> Cell:
        cell = Cell(low, fixed, movement, () if node is None else (node,), reason)
        self.plan.cells.append(cell)
        return cell

    def _boundary(self, reason: str, node: ir.Node | None = None) -> Cell:
        return self._cell(low=not reason, fixed=bool(reason), movement=True, node=node, reason=reason)

    def _use(self, value: ir.Value, cell: Cell, reader: ir.Node | ir.Graph, index: int) -> None:
        if self._typed.float32(value):
            self.plan.uses.setdefault(value, []).append(Use(value, cell, reader, index))
        else:
            self._constrain_container(value, cell)

    def _source(self, value: ir.Value, cell: Cell) -> None:
        if self._typed.float32(value):
            self.plan.sources[value] = cell
        elif value.name:
            self._constrain_container(value, cell)

    def _constrain_container(self, value: ir.Value, cell: Cell) -> None:
        type_ = self._typed.types.get(value)
        if type_ is None:
            cell.keep("a type is unknown")
        elif holds_float32(type_):
            first = self.plan.containers.setdefault(value, cell)
            first.tied.append(cell)
            cell.tied.append(first)

    def _graph(self, graph: ir.Graph, opsets: Mapping[str, int], keep: str) -> None:
        for node in graph:
            reason = keep or self._request.keeps(node)
            if (function := self._typed.calls.get(node)) is not None:
                self._call(node, function)
            elif node.op_type in CONTROL_FLOW and node.domain in ("", "ai.onnx"):
                self._control_flow(node, opsets, reason)
            else:
                self._node(node, opsets, reason)

    def _call(self, node: ir.Node, function: ir.Function) -> None:
        for index, (value, formal) in enumerate(zip(node.inputs, function.inputs, strict=False)):
            cell = self.plan.sources.get(formal) or self.plan.containers.get(formal)
            if value is not None and cell is not None:
                self._use(value, cell, node, index)
        for index, output in enumerate(node.outputs):
            self._source(output, self._results[function, index])

    def _control_flow(self, node: ir.Node, opsets: Mapping[str, int], reason: str) -> None:
        """Add the cells of an If, Loop or Scan; a loop state is one cell, inside the body too."""
        results: dict[int, Cell] = {}
        signature = signature_of(node, opsets)
        border = reason or self._constraint(signature.outputs[0] if signature else None)
        for body in bodies_of(node):
            ports = ports_of(node, body, opsets)
            entered: dict[int, Cell] = {}
            for outer, inner in ports.states:
                entered[inner] = results[outer] = self._boundary(border, node)
            for outer, inner in ports.inputs:
                value = node.inputs[outer]
                cell = entered.get(inner) or self._boundary(border, node)
                if value is not None:
                    self._use(value, cell, node, outer)
                self._source(body.inputs[inner], cell)
            self._graph(body, opsets, reason)
            for outer, inner in ports.outputs:
                cell = results.get(outer) or results.setdefault(outer, self._boundary(border, node))
                self._use(body.outputs[inner], cell, body, inner)
                self._source(node.outputs[outer], cell)

    def _node(self, node: ir.Node, opsets: Mapping[str, int], reason: str) -> None:
        if not reason and is_convertible_constant(node):
            return
        signature = signature_of(node, opsets)
        reason = reason or self._refusal(node, signature)
        cells: dict[str, Cell] = {}

        def cell_of(parameter: Parameter | None) -> Cell | None:
            if parameter is not None and not any(FLOAT32 in type_ for type_ in parameter.allowed):
                return None
            variable = "" if parameter is None or node.op_type in SEQUENCE_OPERATORS else parameter.variable
            if variable not in cells:
                why = reason or self._constraint(parameter)
                movement = parameter is not None and any("tensor(string)" in type_ for type_ in parameter.allowed)
                cells[variable] = self._cell(low=not why, fixed=bool(why), movement=movement, node=node, reason=why)
            return cells[variable]

        for index, value in enumerate(node.inputs):
            cell = cell_of(signature.input(index) if signature else None)
            if value is not None and cell is not None:
                self._use(value, cell, node, index)
        for index, output in enumerate(node.outputs):
            parameter = signature.output(index) if signature else None
            if (cell := cell_of(parameter)) is not None:
                if signature and parameter and not _determined(node, parameter, signature):
                    cell.keep("an attribute fixes the output's type")
                self._source(output, cell)
        for body in bodies_of(node):
            self._opaque_body(node, body, opsets, reason)

    def _opaque_body(self, node: ir.Node, body: ir.Graph, opsets: Mapping[str, int], reason: str) -> None:
        """Add a body with unknown data flow between node and body: its inputs and outputs stay in float32."""
        boundary = self._cell(low=False, fixed=True, node=node, reason=reason)
        for value in body.inputs:
            self._source(value, boundary)
        self._graph(body, opsets, self._request.keeps(node))
        for index, value in enumerate(body.outputs):
            self._use(value, boundary, body, index)

    def _constraint(self, parameter: Parameter | None) -> str:
        if parameter is None or any(self._low in type_ for type_ in parameter.allowed):
            return ""
        return f"the operator's schema excludes {self._request.dtype.name.lower()} here"

    def _refusal(self, node: ir.Node, signature: Signature | None) -> str:
        """Return the reason why the node stays in float32 even if its schema allows 16 bits, or an empty text."""
        if signature is None:
            return "the operator has no schema"
        if bodies_of(node):
            return "the data flow into the operator's body is unknown"
        if node.op_type == "BitCast" or (node.op_type == "Optional" and "type" in node.attributes):
            return "the operator's meaning depends on the element type"
        if node.op_type in _SCATTERS and "reduction" in node.attributes:
            return "ONNX Runtime scatters with a reduction in float32 only"
        if node.op_type != "ConstantOfShape" and any(_holds_float_tensor(a) for a in node.attributes.values()):
            return "an attribute holds float32 tensors"
        if node.op_type == "QuantizeLinear":
            return "quantization scales need float32"
        if node.op_type == "DequantizeLinear" and not self._scales_fit(node):
            return "quantization scales need float32"
        return ""

    def _scales_fit(self, node: ir.Node) -> bool:
        """Return True if all scales of quantized weights are normal 16-bit numbers, as precise as any weight."""
        data, scale = node.inputs[0], node.inputs[1]
        if data is None or scale is None or not data.is_initializer() or not scale.is_initializer():
            return False
        assert scale.const_value is not None
        magnitudes = np.abs(scale.const_value.numpy())
        lowest, largest = normal_range(self._request.dtype)
        return bool(np.all((magnitudes >= lowest) & (magnitudes <= largest)))


def is_convertible_constant(node: ir.Node) -> bool:
    """Return True for a Constant that holds a dense tensor, whose element type is free."""
    return (
        node.op_type == "Constant"
        and node.domain in ("", "ai.onnx")
        and any(name in _VALUE_ATTRIBUTES and not a.is_ref() for name, a in node.attributes.items())
    )


def _determined(node: ir.Node, parameter: Parameter, signature: Signature) -> bool:
    """Return True if the output's type follows from the inputs, or from a writable attribute."""
    if any(parameter.variable == other.variable for other in signature.inputs):
        return True
    if node.op_type in SEQUENCE_OPERATORS and node.op_type != "SequenceEmpty":
        return True
    if node.op_type == "ConstantOfShape":
        return "value" not in node.attributes or not node.attributes["value"].is_ref()
    attribute = DTYPE_ATTRIBUTE.get(node.op_type)
    return attribute is not None and (attribute not in node.attributes or not node.attributes[attribute].is_ref())


def _holds_float_tensor(attribute: ir.Attr) -> bool:
    if attribute.is_ref():
        return False
    if attribute.type == ir.AttributeType.TENSOR:
        return attribute.as_tensor().dtype == ir.DataType.FLOAT
    if attribute.type == ir.AttributeType.TENSORS:
        return any(tensor.dtype == ir.DataType.FLOAT for tensor in attribute.as_tensors())
    return attribute.type in (ir.AttributeType.SPARSE_TENSOR, ir.AttributeType.SPARSE_TENSORS)
