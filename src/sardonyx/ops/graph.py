"""ONNX graphs over Core: nodes called one after another, on values that are known (a run) or not (a trace).

``prepare`` looks up every operator and attribute once; a prepared graph is called with values for its inputs. A node's
bodies become functions that the operator's definition calls, and see the values around them.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.base.span_recorder import noted
from sardonyx.core.dim import as_dim
from sardonyx.core.eval.host_function import unknown_size
from sardonyx.core.eval.run_context import current_run
from sardonyx.core.eval.tensor import constant
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import STRING, DType, MapType, OptionalType, SequenceType, TensorType, Type
from sardonyx.core.transform.named_sizes import has_long_forms, with_named_sizes
from sardonyx.errors import (
    ExecutionError,
    InvalidModelError,
    ResourceError,
    SardonyxError,
    SizeLimitError,
    UnsupportedError,
)
from sardonyx.model import types as model_types
from sardonyx.ops import registry
from sardonyx.ops.registry import Between, Operator, canonical
from sardonyx.ops.signatures import Signature, signature

_GRAPH, _GRAPHS, _INTS = ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS, ir.AttributeType.INTS


def node_label(node: ir.Node) -> str:
    """A node for messages: its name or its first output, and its operator."""
    name = node.name or next((f"-> {output.name}" for output in node.outputs if output.name), "")
    domain = f"{node.domain}." if canonical(node.domain) else ""
    return f"node {name} ({domain}{node.op_type})"


def _call_label(node: ir.Node, inputs: Sequence[Value | None]) -> str:
    """A node for messages, with the types of what it is given."""
    given = [
        f"{tensor.name}: {value.type}"
        for tensor, value in zip(node.inputs, inputs, strict=False)
        if tensor is not None and value is not None
    ]
    return node_label(node) + (f", given {', '.join(given)}" if given else "")


Caller = Callable[["PreparedGraph", Sequence[Value | None], "Frame"], tuple[Value, ...]]
"""How a body is called."""


class Frame:
    """The values of one call of a graph, within those of the graph around it."""

    __slots__ = ("around", "attributes", "values")

    def __init__(self, around: Frame | None, attributes: Mapping[str, Any] | None = None) -> None:
        self.around = around
        self.values: dict[ir.Value, Value | None] = {}
        self.attributes: Mapping[str, Any] | None = around.attributes if attributes is None and around else attributes

    def find(self, value: ir.Value) -> Value | None:
        """The value here or around.

        Raises:
            InvalidModelError: Nothing computes it.
        """
        frame: Frame | None = self
        while frame is not None:
            if value in frame.values:
                return frame.values[value]
            frame = frame.around
        raise InvalidModelError(f"the value {value.name!r} is read, and nothing computes it.")


class Body:
    """A graph attribute as a function, in the frame of its node: called with values for its inputs.

    Attributes:
        input_count: How many values it takes.
        output_count: How many it gives.
        input_types: What its inputs are declared as; None where the file does not say.
        output_types: The same of its outputs.
    """

    __slots__ = ("_call", "_frame", "_graph", "input_count", "input_types", "output_count", "output_types")

    def __init__(self, graph: PreparedGraph, frame: Frame, call: Caller | None = None) -> None:
        self._graph = graph
        self._frame = frame
        self._call = call or PreparedGraph.call
        self.input_count = len(graph.inputs)
        self.output_count = len(graph.outputs)
        self.input_types = [declared_type(value) for value in graph.inputs]
        self.output_types = [declared_type(value) for value in graph.outputs]

    def __call__(self, *arguments: Value | None) -> tuple[Value, ...]:
        """What the body gives for these inputs.

        Raises:
            InvalidModelError: It takes another number of them.
        """
        if len(arguments) != self.input_count:
            raise InvalidModelError(f"a body takes {self.input_count} inputs, and {len(arguments)} are given.")
        return self._call(self._graph, arguments, self._frame)


class Step:
    """A node with all that can be looked up before a call.

    Attributes:
        node: The node.
        opset: The version of its domain that the graph imports.
        operator: Its definition; None for a function of the model, and where there is none.
        signature: What the standard lets it take; None where the standard does not know it.
        function: The function of the model that it calls.
        attributes: Its attributes but for bodies and references.
        bodies: Its graphs.
        references: Attributes that are those of the function around it, by name.
        outputs: How many results are asked for.
        between: The graph around it, for an operator that asks for it.
    """

    __slots__ = (
        "attributes", "between", "bodies", "function", "node", "operator", "opset", "outputs", "references",
        "signature",
    )  # fmt: skip

    def __init__(self, node: ir.Node, opset: int, operator: Operator | None, signature: Signature | None) -> None:
        self.node = node
        self.opset = opset
        self.operator = operator
        self.signature = signature
        self.function: PreparedGraph | None = None
        self.between: Between | None = None
        self.attributes: Mapping[str, Any] = {}
        self.bodies: dict[str, PreparedGraph | list[PreparedGraph]] = {}
        self.references: dict[str, str] = {}
        outputs = node.outputs
        self.outputs = len(outputs)
        while self.outputs and not outputs[self.outputs - 1].name:
            self.outputs -= 1


class PreparedGraph:
    """A graph ready to be called; see :func:`prepare`."""

    def __init__(self, graph: ir.Graph | ir.Function, steps: list[Step], defaults: Mapping[str, Any]) -> None:
        self.inputs = list(graph.inputs)
        self.outputs = list(graph.outputs)
        self.initializers = list(graph.initializers.data.values()) if isinstance(graph, ir.Graph) else []
        self.steps = steps
        self.defaults = defaults
        self._constants: dict[ir.Value, Value] | None = None
        self._done_with: list[tuple[ir.Value, ...]] | None = None

    @property
    def constants(self) -> dict[ir.Value, Value]:
        """The initializers as known values, read when first asked for.

        Raises:
            InvalidModelError: An initializer has no tensor.
        """
        if self._constants is None:
            found = {}
            for value in self.initializers:
                if value.const_value is None:
                    raise InvalidModelError("an initializer has no tensor.", where=value.name or "")
                found[value] = tensor_constant(value.const_value)
                found[value].origin = value.name or ""
            self._constants = found
        return self._constants

    def giving(self, outputs: Sequence[ir.Value]) -> PreparedGraph:
        """The same graph with other values of it for outputs, and of its nodes those alone that they need."""
        needed, steps = set(outputs), []
        for step in reversed(self.steps):
            if not needed.isdisjoint(step.node.outputs):
                needed.update(_read_by(step.node))
                steps.append(step)
        made = copy.copy(self)
        made._constants, made._done_with = self.constants, None
        made.outputs, made.steps = list(outputs), steps[::-1]
        return made

    def between(self, given: Sequence[str], wanted: str) -> Callable[..., Value]:
        """The function that computes a value of the graph from others.

        Args:
            given: Names of the values that it takes.
            wanted: The name of the value that it gives.

        Raises:
            InvalidModelError: There is no value of a name, or the wanted one hangs on an input that is not given.
        """
        makers = {output: step for step in self.steps for output in step.node.outputs}
        by_name = {value.name: value for value in (*self.inputs, *self.initializers, *makers)}
        for name in (*given, wanted):
            if name not in by_name:
                raise InvalidModelError(f"the graph has no value {name!r}.")
        inputs, result = [by_name[name] for name in given], by_name[wanted]
        needed: set[Step] = set()
        waiting = [result]
        while waiting:
            value = waiting.pop()
            if value in inputs or value in self.initializers:
                continue
            if value in self.inputs:
                raise InvalidModelError(f"{wanted!r} hangs on the input {value.name!r}, which is not given.")
            if value in makers and makers[value] not in needed:  # Others are of bodies.
                needed.add(makers[value])
                waiting.extend(_read_by(makers[value].node))

        def compute(*arguments: Value) -> Value:
            frame = Frame(None)
            frame.values.update(self.constants)
            frame.values.update(zip(inputs, arguments, strict=True))
            for step in self.steps:
                if step in needed:
                    call_step(step, frame)
            found = frame.find(result)
            assert found is not None
            return found

        return compute

    def call(
        self,
        arguments: Sequence[Value | None],
        around: Frame | None = None,
        *,
        attributes: Mapping[str, Any] | None = None,
    ) -> tuple[Value, ...]:
        """Compute the outputs.

        Args:
            arguments: A value for each input; None for an optional one of a function.
            around: The frame of the graph that this is a body in.
            attributes: Of a function's caller, for those that refer to them.
        """
        frame = Frame(around, attributes)
        frame.values.update(self.constants)
        frame.values.update(zip(self.inputs, arguments, strict=True))
        if self._done_with is None:
            self._done_with = _last_reads(self)
        run = current_run()
        recorder = None if run is None else run.recorder
        for step, done_with in zip(self.steps, self._done_with, strict=True):
            with noted(recorder, step.node):
                call_step(step, frame)
            for value in done_with:
                frame.values.pop(value, None)
        return tuple(frame.find(value) for value in self.outputs)  # type: ignore[misc]


def call_step(step: Step, frame: Frame) -> None:
    """Compute a node in a frame; errors name it."""
    node = step.node
    inputs: list[Value | None] = []
    try:
        inputs = [None if value is None else frame.find(value) for value in node.inputs]
        results = _results(step, list(inputs), frame)
    except SardonyxError as error:
        if not error.where.startswith("node "):
            error.where = _call_label(node, inputs) + (f", {error.where}" if error.where else "")
            error.args = (" ".join(part for part in (f"{error.where}: {error.problem}", error.remedy) if part),)
        raise
    except MemoryError as error:
        raise ResourceError("the machine has no memory left for it.", where=_call_label(node, inputs)) from error
    except (ArithmeticError, LookupError, ValueError, TypeError, AttributeError) as error:
        raise ExecutionError(
            f"{node.op_type} has no result for these inputs and attributes.", where=_call_label(node, inputs)
        ) from error
    for output, result in zip(node.outputs, results, strict=False):
        if output.name:
            frame.values[output] = result
            if result is not None and not result.origin:
                result.origin = output.name
                # A host function is called by the name of its first result.
                if result.op == "get" and not result.operands[0].origin:
                    result.operands[0].origin = output.name


def _results(step: Step, inputs: list[Value | None], frame: Frame) -> Sequence[Value | None]:
    attributes = attributes_in(step, frame)
    if step.function is not None:
        padded = [*inputs, *[None] * (len(step.function.inputs) - len(inputs))]
        return step.function.call(padded, attributes={**step.function.defaults, **attributes})
    return apply_operator(step, inputs, attributes)


def attributes_in(step: Step, frame: Frame, call: Caller | None = None) -> Mapping[str, Any]:
    """The attributes of a node in a frame: its bodies as functions, its references to a function's attributes read."""
    if not step.bodies and not step.references:
        return step.attributes
    attributes = dict(step.attributes)
    for name, source in step.references.items():
        if frame.attributes is not None and source in frame.attributes:
            attributes[name] = frame.attributes[source]
    for name, body in step.bodies.items():
        bodies = [body] if isinstance(body, PreparedGraph) else body
        made = [Body(each, frame, call) for each in bodies]
        attributes[name] = made[0] if isinstance(body, PreparedGraph) else made
    return attributes


def apply_operator(step: Step, inputs: list[Value | None], attributes: Mapping[str, Any]) -> Sequence[Value | None]:
    """Apply a node's operator, after checking the types of its inputs."""
    while inputs and inputs[-1] is None:
        inputs.pop()
    if step.signature is not None:
        step.signature.check(inputs)
    assert step.operator is not None
    if step.references:
        step.operator.bound(attributes)
    identity = step.node.name or str(step.node.outputs[0].name)
    apply = functools.partial(
        step.operator,
        attributes=attributes,
        opset=step.opset,
        outputs=step.outputs,
        identity=identity,
        between=step.between,
    )
    try:
        found = apply(inputs)
    except SizeLimitError:
        named = [None if value is None else with_named_sizes(value) for value in inputs]
        if named == inputs:
            raise
        found = apply(named)
    return [with_named_sizes(value) if value is not None and has_long_forms(value) else value for value in found]


# Preparation.


class Preparer:
    """Prepares the graphs of one model.

    Args:
        functions: The model's functions; they are prepared as they are met.

    Attributes:
        missing: Operators without a definition, and the nodes that need them.
    """

    def __init__(self, functions: Mapping[Any, ir.Function]) -> None:
        self.missing: dict[str, list[str]] = {}
        self._declared = functions
        self._functions: dict[Any, PreparedGraph] = {}
        self._preparing: set[Any] = set()
        self._definitions: dict[tuple[str, str, int], tuple[int, Operator | None, Signature | None]] = {}

    def graph(self, graph: ir.Graph | ir.Function, imports: Mapping[str, int]) -> PreparedGraph:
        """Prepare a graph, and the bodies in it."""
        steps = [self.step(node, imports) for node in graph]
        declared = graph.attributes.items() if isinstance(graph, ir.Function) else ()
        defaults = {name: _attribute(attribute) for name, attribute in declared if attribute.value is not None}
        prepared = PreparedGraph(graph, steps, defaults)
        for step in steps:
            if step.operator is not None and "between" in step.operator.given:
                step.between = prepared.between
        return prepared

    def step(self, node: ir.Node, imports: Mapping[str, int]) -> Step:
        """Look up all that a node needs; ``imports`` are versions by domain, ``ai.onnx`` as the empty text.

        Raises:
            InvalidModelError: An attribute is missing or unknown, or a function calls itself.
        """
        step = Step(node, *self._definition(node.domain, node.op_type, imports))
        attributes: dict[str, Any] = {}
        for name, attribute in node.attributes.data.items():
            kind = attribute.type
            if attribute.is_ref():
                step.references[name] = attribute.ref_attr_name or ""
            elif kind is _GRAPH:
                step.bodies[name] = self.graph(attribute.as_graph(), imports)
            elif kind is _GRAPHS:
                step.bodies[name] = [self.graph(body, imports) for body in attribute.as_graphs()]
            else:
                attributes[name] = _attribute(attribute)
        step.attributes = attributes
        if self._declared:
            function = self._declared.get(node.op_identifier())
            if function is not None:
                step.function = self._function(node, function)
                return step
        if step.operator is None:
            domain = canonical(node.domain)
            name = f"{domain + '.' if domain else ''}{node.op_type} (version {step.opset} of {domain or 'ai.onnx'})"
            self.missing.setdefault(name, []).append(node_label(node))
        elif not step.references:
            try:
                step.attributes = step.operator.bound(attributes, step.bodies)
            except SardonyxError as error:
                raise type(error)(error.problem, where=node_label(node), remedy=error.remedy) from error
        return step

    def _definition(
        self, domain: str, name: str, imports: Mapping[str, int]
    ) -> tuple[int, Operator | None, Signature | None]:
        """The version of the domain, the operator there, and what it may be given."""
        domain = canonical(domain)
        opset = imports.get(domain, 1)
        found = self._definitions.get((domain, name, opset))
        if found is None:
            operator = registry.find(domain, name, opset)
            standard = operator is not None and not operator.user
            found = (opset, operator, signature(domain, name, opset) if standard else None)
            self._definitions[domain, name, opset] = found
        return found

    def _function(self, node: ir.Node, function: ir.Function) -> PreparedGraph:
        key = function.identifier()
        if key not in self._functions:
            if key in self._preparing:
                raise InvalidModelError(f"the function {function.name} calls itself.", where=node_label(node))
            self._preparing.add(key)
            imports = {canonical(domain): version for domain, version in function.opset_imports.items()}
            self._functions[key] = self.graph(function, imports)
            self._preparing.discard(key)
        return self._functions[key]


def prepare(model: ir.Model) -> PreparedGraph:
    """Make a model's graph ready to be called.

    Raises:
        UnsupportedError: There are operators without a definition: all of them, and where.
        InvalidModelError: An attribute is missing or unknown, an initializer empty, a function recursive, or a value is
            read that nothing computes before.
    """
    _require_values(model.graph, set())
    for function in model.functions.values():
        _require_values(function, set())
    preparer = Preparer(model.functions)
    imports = {canonical(domain): version for domain, version in model.graph.opset_imports.items()}
    prepared = preparer.graph(model.graph, imports)
    if preparer.missing:
        listed = "; ".join(
            f"{name} at {', '.join(where[:3])}{f' and {len(where) - 3} more' if len(where) > 3 else ''}"
            for name, where in preparer.missing.items()
        )
        raise UnsupportedError(
            f"{len(preparer.missing)} operators have no definition: {listed}.",
            where=model.graph.name or "the model",
            remedy="Define them with `@sardonyx.operator`.",
        )
    return prepared


def _require_values(graph: ir.Graph | ir.Function, known: set[ir.Value]) -> None:
    """Refuse a graph in which something is read that was not computed before; all that is known joins ``known``."""
    known.update(graph.inputs)
    if isinstance(graph, ir.Graph):
        known.update(graph.initializers.values())
    for node in graph:
        for value in node.inputs:
            if value is not None and value not in known:
                problem = f"the value {value.name!r} is read, and nothing computes it before."
                raise InvalidModelError(problem, where=node_label(node))
        for attribute in node.attributes.values():
            if attribute.is_ref():
                continue
            if attribute.type == ir.AttributeType.GRAPH:
                _require_values(attribute.as_graph(), known)
            elif attribute.type == ir.AttributeType.GRAPHS:
                for body in attribute.as_graphs():
                    _require_values(body, known)
        known.update(node.outputs)
    if undefined := next((value for value in graph.outputs if value not in known), None):
        raise InvalidModelError("nothing computes this output.", where=str(undefined.name))


def _last_reads(graph: PreparedGraph) -> list[tuple[ir.Value, ...]]:
    """The values of the graph that are read for the last time at each step."""
    last: dict[ir.Value, int] = {}
    for i, step in enumerate(graph.steps):
        last.update(dict.fromkeys(_read_by(step.node), i))
        last.update((output, i) for output in step.node.outputs if output not in last)
    own = {*graph.inputs, *(output for step in graph.steps for output in step.node.outputs)}
    own -= set(graph.outputs)
    done: list[list[ir.Value]] = [[] for _ in graph.steps]
    for value, i in last.items():
        if value in own:
            done[i].append(value)
    return [tuple(values) for values in done]


def _read_by(node: ir.Node) -> Iterator[ir.Value]:
    """The values that a node reads, those of its bodies among them."""
    waiting = [node]
    while waiting:
        each = waiting.pop()
        yield from (value for value in each.inputs if value is not None)
        for attribute in each.attributes.values():
            if attribute.is_ref():
                continue
            graphs = (
                [attribute.as_graph()] if attribute.type == ir.AttributeType.GRAPH
                else attribute.as_graphs() if attribute.type == ir.AttributeType.GRAPHS else ()
            )  # fmt: skip
            for graph in graphs:
                waiting.extend(graph)
                yield from graph.outputs


def _attribute(attribute: ir.Attr) -> Any:
    kinds = ir.AttributeType
    value, kind = attribute.value, attribute.type
    if isinstance(value, (int, float, str)):
        return value
    if kind is _INTS:  # By far the most of the rest.
        return tuple(value)
    match kind:
        case kinds.TENSOR:
            return tensor_constant(value)
        case kinds.TENSORS:
            return [tensor_constant(tensor) for tensor in value]
        case kinds.STRING if isinstance(value, bytes):
            raise InvalidModelError(f"the attribute {attribute.name!r} is a text that is not UTF-8.")
        case kinds.STRINGS if bytes in set(map(type, value)):
            raise InvalidModelError(f"the attribute {attribute.name!r} holds a text that is not UTF-8.")
        case kinds.FLOATS | kinds.STRINGS:
            return tuple(value)
        case kinds.TYPE_PROTO:
            return core_type(value.type, value.shape)
        case kinds.SPARSE_TENSOR:
            return tensor_constant(value)
    return value


def tensor_constant(tensor: ir.TensorProtocol) -> Value:
    """A tensor of the model as a known value.

    Raises:
        InvalidModelError: A string in it is not UTF-8.
    """
    return array_constant(tensor.numpy(), tensor.dtype, tensor.name or "")


def array_constant(array: np.ndarray, dtype: DType, where: str) -> Value:
    """An array as a known value; strings may come as bytes.

    Raises:
        InvalidModelError: A string in it is not UTF-8.
    """
    if dtype == STRING:
        try:
            words = [word.decode() if isinstance(word, bytes) else str(word) for word in array.ravel().tolist()]
        except UnicodeDecodeError as error:
            raise InvalidModelError("a string is not UTF-8.", where=where) from error
        array = np.array(words, object).reshape(array.shape)
    return constant(array, dtype)


def is_unnamed(size: ir.SymbolicDim) -> bool:
    """Whether an open size has no name: some exporters write ``?`` for each that they do not know."""
    return size.value in (None, "", "?")


def declared_type(value: ir.Value) -> Type | None:
    """The type that the file declares for a value; None without one."""
    return None if value.type is None else core_type(value.type, value.shape)


def core_type(type: ir.TypeProtocol, shape: ir.Shape | None = None) -> Type:
    """A type of the model as a Core type; an open size is left to the shape as None is (rank unknown).

    Raises:
        UnsupportedError: Core has no such type.
    """
    if isinstance(type, ir.SequenceType):
        return SequenceType(core_type(type.elem_type))
    if isinstance(type, ir.OptionalType):
        return OptionalType(core_type(type.elem_type, shape))
    if isinstance(type, ir.TensorType):
        if shape is None:
            return TensorType(type.dtype, None)
        sizes = [
            size if isinstance(size, int) else -1 if is_unnamed(size) else as_dim(str(size.value)) for size in shape
        ]
        # Some exporters write -1 for a size that is open.
        open_sizes = [unknown_size() if isinstance(size, int) and size < 0 else size for size in sizes]
        return TensorType(type.dtype, tuple(open_sizes))
    if isinstance(type, model_types.MapType):
        return MapType(type.key_type, core_type(type.value_type, ir.Shape(())))
    raise UnsupportedError(f"values of type {type} cannot be computed with.")
