"""Types and sizes of every value of a model, by tracing its operators on types.

A node is traced once for each combination of what is known of its inputs: their types, and the elements of small
integer tensors (so that shape arithmetic stays an expression). What the file claims of a value is used where tracing
cannot tell; where the two contradict each other, tracing is right and the conflict is kept.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import onnx_ir as ir

from sardonyx.core.dim import Dim, Size, as_dim, equal
from sardonyx.core.graph import DEFINED, Value, symbols_in
from sardonyx.core.run_context import tracing
from sardonyx.core.tensor import FOLDED_ELEMENTS, function_input, sizes_of
from sardonyx.core.trace import nested
from sardonyx.core.types import BOOL, DType, TensorType, Type
from sardonyx.errors import InvalidModelError, SardonyxError, ShapeError, UnsupportedError
from sardonyx.ops.graph import (
    Frame,
    PreparedGraph,
    Preparer,
    Step,
    apply_operator,
    attributes_in,
    core_type,
    node_label,
    tensor_constant,
)
from sardonyx.ops.registry import canonical

UNNAMED = ("?", "unk__")
"""How names begin that inference, here or elsewhere, gives to sizes that nothing tells."""

Known: TypeAlias = "Value | Type | None"
"""What is known of a value: itself (a small constant, sizes), its type, or nothing."""

_positions = itertools.count(1 << 16)
"""Positions of traced operands: apart from those of a body's inputs, and one for each value of a model.

What a definition reads off an operand at run time (a size) is thereby told apart from what it reads off another.
"""
_REMEMBERED = 1 << 15

_traced: dict[tuple[Any, ...], tuple[Known, ...]] = {}
"""Results of nodes by operator, attributes and what was known of their inputs; shared by all models."""


class Conflict(NamedTuple):
    """A value whose type the file claims otherwise than its node gives it."""

    value: ir.Value
    inferred: Type
    claimed: Type

    def error(self) -> ShapeError:
        """The conflict as an error that names both places."""
        producer = self.value.producer()
        place = node_label(producer) if producer is not None else "the graph's inputs"
        return ShapeError(
            f"{place} gives {self.inferred}, and the file declares {self.claimed}.",
            where=f"value {self.value.name}",
            remedy="Correct the declaration, or leave it out.",
        )


class Inference:
    """What is known of values: made by :func:`infer`.

    Attributes:
        known: What is known of each value, by the value.
        conflicts: Claims of the file that are wrong.
        refusals: Nodes that could not be traced, with the reason.
    """

    def __init__(self, known: dict[ir.Value, Known]) -> None:
        self.known = known
        self.conflicts: list[Conflict] = []
        self.refusals: dict[ir.Node, SardonyxError] = {}
        self._operands: dict[ir.Value | None, int] = {}

    def type(self, value: ir.Value) -> Type | None:
        """The type of a value; None where it is not known."""
        found = self.known.get(value)
        return found.type if isinstance(found, Value) else found

    def sizes(self, value: ir.Value) -> tuple[Size, ...] | None:
        """The elements of a small integer tensor, where they are numbers or expressions; else None."""
        found = self.known.get(value)
        return sizes_of(found) if isinstance(found, Value) else None

    def graph(self, graph: PreparedGraph, frame: Frame, level: int) -> None:
        """Infer all values of a graph whose inputs are known, while tracing at ``level``."""
        for value in graph.initializers:
            if value not in self.known:
                self.known[value] = initial(value)
        for step in graph.steps:
            results = self.step(step, frame, level)
            for position, output in enumerate(step.node.outputs):
                if output.name:
                    found = results[position] if position < len(results) else None
                    self.known[output] = self._merged(output, found)

    def step(self, step: Step, frame: Frame, level: int) -> Sequence[Known]:
        """What is known of a node's outputs; nothing where it cannot be traced."""
        inputs = [None if value is None else self.known.get(value) for value in step.node.inputs]
        if step.node.op_type == "If" and inputs[0] is None:
            inputs = [TensorType(BOOL, ())]  # Its branches tell as much whatever the condition is.
        unknown = any(
            value is not None and found is None for value, found in zip(step.node.inputs, inputs, strict=True)
        )
        if unknown or (step.operator is None and step.function is None):
            return self._element_types(step, inputs)
        try:
            if step.function is not None:
                return self._call(step, step.function, inputs, frame)
            if step.bodies or step.references:
                return self._apply(step, inputs, frame, level)
            return self._remembered(step, inputs, frame, level)
        except SardonyxError as error:
            self.refusals[step.node] = error
        except (ArithmeticError, LookupError, ValueError, TypeError, AttributeError) as error:
            # What a definition trips over in a model that is wrong is told of the node, as in a run.
            self.refusals[step.node] = InvalidModelError(
                f"{error.__class__.__name__}: {error}", where=node_label(step.node)
            )
        return self._element_types(step, inputs)

    def _element_types(self, step: Step, inputs: Sequence[Known]) -> Sequence[Known]:
        """What is known without shapes: of branches of different rank, of an operator of one element type."""
        if step.node.op_type == "If" and step.bodies:
            branches = [body for body in step.bodies.values() if isinstance(body, PreparedGraph)]
            return [self._either(outputs) for outputs in zip(*(branch.outputs for branch in branches), strict=False)]
        if step.signature is None:
            return ()
        return step.signature.element_types([_type_of(known) for known in inputs])

    def _either(self, outputs: Sequence[ir.Value]) -> Known:
        """The type of a value that is one of these."""
        types = [self.type(output) for output in outputs]
        first = types[0]
        if not all(isinstance(each, TensorType) for each in types) or not isinstance(first, TensorType):
            return None
        same = all(isinstance(each, TensorType) and each.dtype == first.dtype for each in types)
        return TensorType(first.dtype, None) if same else None

    def _remembered(self, step: Step, inputs: Sequence[Known], frame: Frame, level: int) -> Sequence[Known]:
        attributes = tuple(step.attributes.items())
        key = (step.operator, step.opset, step.outputs, attributes, *inputs)
        try:
            found = _traced.get(key)
        except TypeError:  # An attribute that has no hash, such as a list of tensors.
            return self._apply(step, inputs, frame, level)
        if found is None:
            found = tuple(self._apply(step, inputs, frame, level))
            given = set(symbols_in(tuple(_type_of(one) for one in inputs)))
            if all(s in given or not s.startswith(DEFINED) for s in symbols_in(tuple(_type_of(one) for one in found))):
                if len(_traced) >= _REMEMBERED:
                    _traced.clear()
                _traced[key] = found
        return found

    def _apply(self, step: Step, inputs: Sequence[Known], frame: Frame, level: int) -> Sequence[Known]:
        operands = [
            known if known is None or isinstance(known, Value) else self._operand(value, known, level)
            for value, known in zip(step.node.inputs, inputs, strict=True)
        ]
        attributes = attributes_in(step, frame, self._body)
        return [_abstract(result) for result in apply_operator(step, operands, attributes)]

    def _operand(self, value: ir.Value | None, known: Type, level: int) -> Value:
        """The value as a traced operand: of its type, and like no other."""
        if value not in self._operands:
            self._operands[value] = next(_positions)
        return function_input(level, self._operands[value], known)

    def _body(self, graph: PreparedGraph, arguments: Sequence[Value | None], around: Frame) -> tuple[Value, ...]:
        """Call a body: what it gives, as traced values of the function that is being traced."""
        with nested() as deeper:
            level = deeper - 1
        for value, argument in zip(graph.inputs, arguments, strict=True):
            self.known[value] = _abstract(argument)
        self.graph(graph, Frame(around), level)
        results = []
        for value in graph.outputs:
            known = self.known.get(value)
            if known is None:
                raise UnsupportedError("the type of a body's output is not known.", where=value.name or "")
            results.append(known if isinstance(known, Value) else self._operand(value, known, level))
        return tuple(results)

    def _call(self, step: Step, function: PreparedGraph, inputs: Sequence[Known], frame: Frame) -> Sequence[Known]:
        """Call a function of the model. Its values are told apart by call; what stays is what the last one gave."""
        attributes = {**function.defaults, **attributes_in(step, frame, self._body)}
        before = {output: self.known.get(output) for each in function.steps for output in each.node.outputs}
        for value in (*function.inputs, *before):
            self._operands.pop(value, None)  # In every call they are other values.
        self.known.update(zip(function.inputs, [*inputs, *[None] * len(function.inputs)], strict=False))
        with nested() as deeper:
            level = deeper - 1
        self.graph(function, Frame(None, attributes), level)
        results = [self.known.get(output) for output in function.outputs]
        for output, earlier in before.items():
            if earlier is not None and _type_of(earlier) != _type_of(self.known.get(output)):
                self.known[output] = None
        return results

    def _merged(self, value: ir.Value, found: Known) -> Known:
        """What tracing found, completed by what the file claims."""
        claimed = claimed_type(value) if value.type is not None else None
        if found is None or claimed is None:
            return found if found is not None else claimed
        inferred = _type_of(found)
        assert inferred is not None
        if not isinstance(claimed, TensorType) or not isinstance(inferred, TensorType):
            return found
        if inferred.shape is None:
            return claimed if claimed.dtype == inferred.dtype else found
        if claimed.dtype != inferred.dtype or (claimed.shape is not None and _contradict(inferred, claimed)):
            self.conflicts.append(Conflict(value, inferred, claimed))
            return found
        if claimed.shape is None or isinstance(found, Value):
            return found
        sizes = tuple(map(_more_telling, inferred.shape, claimed.shape))
        return found if sizes == inferred.shape else TensorType(inferred.dtype, sizes)


def infer(model: ir.Model, input_types: Mapping[str, Type] | None = None) -> Inference:
    """Infer all values of a model, which is not changed.

    Args:
        model: The model.
        input_types: Types to take for graph inputs in place of those declared, by name.
    """
    given = dict(input_types or {})
    imports = {canonical(domain): version for domain, version in model.graph.opset_imports.items()}
    prepared = Preparer(model.functions).graph(model.graph, imports)
    initializers = set(prepared.initializers)
    inputs = [value for value in prepared.inputs if value not in initializers]
    found = Inference({value: given.get(value.name or "") or claimed_type(value) for value in inputs})
    with tracing(), nested() as level:
        found.graph(prepared, Frame(None), level)
    return found


def _contradict(inferred: TensorType, claimed: TensorType) -> bool:
    a, b = inferred.shape or (), claimed.shape or ()
    return len(a) != len(b) or any(
        isinstance(x, int) and isinstance(y, int) and x != y for x, y in zip(a, b, strict=True)
    )


def _more_telling(inferred: Size, claimed: Size) -> Size:
    """A claim is taken for a size that only the run tells."""
    if not isinstance(inferred, Dim) or not any(name.startswith(DEFINED) for name in inferred.symbols()):
        return inferred
    if isinstance(claimed, Dim) and any(name.startswith((DEFINED, *UNNAMED)) for name in claimed.symbols()):
        return inferred
    return inferred if equal(inferred, claimed) is False else claimed


def _type_of(known: Known) -> Type | None:
    return known.type if isinstance(known, Value) else known


def _abstract(result: Value | None) -> Known:
    """What to keep of a traced result: a small constant or sizes as they are, and of the rest the type."""
    if result is None:
        return None
    if result.op == "dims":
        return result
    if result.op == "constant" and isinstance(result.type, TensorType) and result.known.size <= FOLDED_ELEMENTS:
        return result
    return result.type


def initial(value: ir.Value) -> Known:
    """What is known of an initializer: a small one itself, of a large one the type; weights are not read."""
    tensor = value.const_value
    if tensor is None:
        return claimed_type(value)
    shape = tuple(int(size) for size in tensor.shape)  # type: ignore[arg-type]
    if math.prod(shape) <= FOLDED_ELEMENTS:
        return tensor_constant(tensor)
    return TensorType(DType(tensor.dtype), shape)


def claimed_type(value: ir.Value) -> Type | None:
    """The type that the file declares, with a name of its own for every size that is left open."""
    if value.type is None:
        return None
    if not isinstance(value.type, ir.TensorType):
        return core_type(value.type)
    if value.shape is None:
        return None
    sizes: list[Size] = []
    for axis, size in enumerate(value.shape):
        known = size if isinstance(size, int) else as_dim(size.value) if size.value else -1
        # Some exporters write -1 for a size that is open.
        sizes.append(Dim.symbol(f"?{value.name}.{axis}") if isinstance(known, int) and known < 0 else known)
    return TensorType(DType(value.type.dtype), tuple(sizes))


def infer_node(node: ir.Node, imports: Mapping[str, int], known: Callable[[ir.Value], Known]) -> Sequence[Type | None]:
    """The types of one node's outputs; None for those that cannot be told.

    Args:
        node: The node; its bodies may not read values from around them.
        imports: Versions of operator sets by domain, ``ai.onnx`` as the empty text.
        known: What is known of each of its inputs.
    """
    found = Inference({value: known(value) for value in node.inputs if value is not None})
    step = Preparer({}).step(node, imports)
    with tracing(), nested() as level:
        return [_type_of(each) for each in found.step(step, Frame(None), level)]
