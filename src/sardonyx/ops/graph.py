"""ONNX graphs over Core: nodes are called in order, on known values (a run) or on traced ones.

``prepare`` looks up every operator and attribute once; a prepared graph is called with values for its inputs. The
bodies of a node become functions that the operator's definition calls, and read the values of enclosing graphs.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import onnx_ir as ir

from sardonyx.base.span_recorder import record_span
from sardonyx.core import language as L
from sardonyx.core.eval.run_context import current_run
from sardonyx.core.eval.tensor import Tensor
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import FLOAT, FLOAT16
from sardonyx.core.transform.named_sizes import has_long_forms, with_named_sizes
from sardonyx.errors import (
    ExecutionError,
    InvalidModelError,
    ResourceError,
    SardonyxError,
    SizeLimitError,
    UnsupportedError,
)
from sardonyx.ops import registry
from sardonyx.ops.branches import Branch, branches_of_nodes, values_read_by
from sardonyx.ops.core_values import attribute_value, declared_type, tensor_constant
from sardonyx.ops.nodes import is_kept, kept_call
from sardonyx.ops.registry import Between, Operator, canonical
from sardonyx.ops.signatures import Signature, signature
from sardonyx.ops.wide_values import wide_values

_GRAPH, _GRAPHS = ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS


def node_label(node: ir.Node) -> str:
    """Return a node's label for messages: its name or first output, and its operator."""
    name = node.name or next((f"-> {output.name}" for output in node.outputs if output.name), "")
    domain = f"{node.domain}." if canonical(node.domain) else ""
    return f"node {name} ({domain}{node.op_type})"


def _call_label(node: ir.Node, inputs: Sequence[Value | None]) -> str:
    """Return a node's label for messages, with the types of its inputs."""
    types = [
        f"{tensor.name}: {value.type}"
        for tensor, value in zip(node.inputs, inputs, strict=False)
        if tensor is not None and value is not None
    ]
    return node_label(node) + (f", given {', '.join(types)}" if types else "")


Caller = Callable[["PreparedGraph", Sequence[Value | None], "Frame"], tuple[Value, ...]]
"""Function that calls a body: from the body, its arguments and the enclosing frame to its results."""


class Frame:
    """Values of one call of a graph, with the frame of the enclosing graph.

    ``pending`` holds the steps that run when a branch asks for their results, by result, in order. ``may_be_wide``
    holds the values that are float32 instead of float16 (see ``wide_values``), ``wide`` those that are.
    """

    __slots__ = ("attributes", "may_be_wide", "parent", "pending", "values", "wide")

    def __init__(self, parent: Frame | None, attributes: Mapping[str, Any] | None = None) -> None:
        self.parent = parent
        self.values: dict[ir.Value, Value | None] = {}
        self.pending: Mapping[ir.Value, Step] = {}
        self.may_be_wide: frozenset[ir.Value] = frozenset()
        self.wide: set[ir.Value] = set()
        self.attributes: Mapping[str, Any] | None = parent.attributes if attributes is None and parent else attributes

    def find(self, value: ir.Value) -> Value | None:
        """Return a value of this frame or of an enclosing one.

        Raises:
            InvalidModelError: No node computes the value.
        """
        frame: Frame | None = self
        while frame is not None:
            if value in frame.values:
                return frame.values[value]
            if value in frame.pending:
                _call_pending(value, frame)
                return frame.values[value]
            frame = frame.parent
        raise InvalidModelError(f"no node computes the value {value.name!r}, which is read here.")


class Body:
    """A graph attribute as a function, called with values for its inputs in the frame of its node.

    Attributes:
        input_count: Number of inputs.
        output_count: Number of outputs.
        input_types: Declared types of the inputs; None where the file declares none.
        output_types: Declared types of the outputs; None where the file declares none.
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
        """Return the results of the body for these inputs.

        Raises:
            InvalidModelError: The number of arguments differs from the number of inputs.
        """
        if len(arguments) != self.input_count:
            raise InvalidModelError(f"a body expects {self.input_count} inputs, got {len(arguments)}.")
        return self._call(self._graph, arguments, self._frame)


class Step:
    """A node with the results of all look-ups that precede a call.

    Attributes:
        node: The node.
        opset: The imported version of the node's domain.
        operator: The definition; None for a function of the model and for an undefined operator.
        signature: The allowed input types; None for operators unknown to the standard.
        function: The called function of the model; None for an operator.
        attributes: The attributes except bodies and references.
        bodies: The graph attributes.
        moved: Steps of the enclosing graph that were moved into the bodies.
        references: References to attributes of the enclosing function, by name.
        outputs: Number of requested results.
        between: Subgraphs of the enclosing graph as functions, for operators with this parameter.
    """

    __slots__ = (
        "attributes", "between", "bodies", "function", "moved", "node", "operator", "opset", "outputs", "references",
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
        self.moved: list[Step] = []
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
        self._orders: dict[bool, _CallOrder] = {}

    @property
    def constants(self) -> dict[ir.Value, Value]:
        """The initializers as known values, read at first use.

        Raises:
            InvalidModelError: An initializer has no tensor.
        """
        if self._constants is None:
            constants = {}
            for value in self.initializers:
                if value.const_value is None:
                    raise InvalidModelError("an initializer has no tensor.", where=value.name or "")
                constants[value] = tensor_constant(value.const_value)
                constants[value].origin = value.name or ""
            self._constants = constants
        return self._constants

    def restricted_to(self, outputs: Sequence[ir.Value]) -> PreparedGraph:
        """Return the graph with other outputs, reduced to the nodes that these outputs depend on."""
        narrowed = copy.copy(self)
        narrowed._constants, narrowed._orders = self.constants, {}
        narrowed.outputs = list(outputs)
        narrowed.steps = _needed_steps(self.steps, narrowed.outputs)
        return narrowed

    def between(self, sources: Sequence[str], target: str) -> Callable[..., Value]:
        """Return a function from some values of the graph to another.

        Args:
            sources: Names of the arguments.
            target: Name of the result.

        Raises:
            InvalidModelError: A name is unknown, or the target depends on a graph input that is not among the sources.
        """
        producers = {output: step for step in self.steps for output in step.node.outputs}
        by_name = {value.name: value for value in (*self.inputs, *self.initializers, *producers)}
        for name in (*sources, target):
            if name not in by_name:
                raise InvalidModelError(f"the graph has no value {name!r}.")
        inputs, result = [by_name[name] for name in sources], by_name[target]
        needed: set[Step] = set()
        waiting = [result]
        while waiting:
            value = waiting.pop()
            if value in inputs or value in self.initializers:
                continue
            if value in self.inputs:
                raise InvalidModelError(f"{target!r} depends on the input {value.name!r}, which is not an argument.")
            if (
                value in producers and producers[value] not in needed
            ):  # Values without a producer here belong to bodies.
                needed.add(producers[value])
                waiting.extend(values_read_by(producers[value].node))

        def compute(*arguments: Value) -> Value:
            frame = Frame(None)
            frame.values.update(self.constants)
            frame.values.update(zip(inputs, arguments, strict=True))
            for step in self.steps:
                if step in needed:
                    call_step(step, frame)
            computed = frame.find(result)
            assert computed is not None
            return computed

        return compute

    def call(
        self,
        arguments: Sequence[Value | None],
        parent: Frame | None = None,
        *,
        attributes: Mapping[str, Any] | None = None,
    ) -> tuple[Value, ...]:
        """Compute the outputs.

        Args:
            arguments: A value for each input; None for an omitted input of a function.
            parent: The frame of the enclosing graph, if this graph is a body.
            attributes: The attributes of the calling node, for references to them in a function.
        """
        frame = Frame(parent, attributes)
        frame.values.update(self.constants)
        frame.values.update(zip(self.inputs, arguments, strict=True))
        run = current_run()
        order = self._orders.get(run is None)
        if order is None:
            order = self._orders[run is None] = _call_order(self, traces=run is None)
        frame.may_be_wide, frame.pending = order.wide, order.pending
        recorder = None if run is None else run.recorder
        for step, last_read in zip(order.steps, order.last_reads, strict=True):
            with record_span(recorder, step.node):
                call_step(step, frame)
            for value in last_read:
                frame.values.pop(value, None)
        return tuple(frame.find(value) for value in self.outputs)  # type: ignore[misc]


class _CallOrder(NamedTuple):
    """The steps of a call of a graph.

    Attributes:
        steps: The steps, without those of branches.
        pending: The steps of several branches, by result, in order; none while tracing.
        last_reads: For each step the values of the graph that no later step reads.
        wide: See ``wide_values``.
    """

    steps: list[Step]
    pending: dict[ir.Value, Step]
    last_reads: list[tuple[ir.Value, ...]]
    wide: frozenset[ir.Value]


def _call_pending(value: ir.Value, frame: Frame) -> None:
    """Compute a pending value, after the pending values that it depends on."""
    needed = {frame.pending[value]}
    waiting = [*needed]
    while waiting:
        reader = waiting.pop()
        # The branches of an If ask for their own values.
        reads = reader.node.inputs if _is_if(reader) else values_read_by(reader.node)
        for read in reads:
            step = None if read is None or read in frame.values else frame.pending.get(read)
            if step is not None and step not in needed:
                needed.add(step)
                waiting.append(step)
    for step in dict.fromkeys(frame.pending.values()):
        if step in needed:
            call_step(step, frame)


def call_step(step: Step, frame: Frame) -> None:
    """Compute a node in a frame; errors name the node."""
    node = step.node
    inputs: list[Value | None] = []
    try:
        inputs = [None if value is None else frame.find(value) for value in node.inputs]
        results = _wide_results(step, list(inputs), frame) if frame.may_be_wide else _results(step, inputs[:], frame)
    except SardonyxError as error:
        if not error.where.startswith("node "):
            error.where = _call_label(node, inputs) + (f", {error.where}" if error.where else "")
            error.args = (" ".join(part for part in (f"{error.where}: {error.problem}", error.remedy) if part),)
        raise
    except MemoryError as error:
        raise ResourceError("the machine has no memory left.", where=_call_label(node, inputs)) from error
    except (ArithmeticError, LookupError, ValueError, TypeError, AttributeError) as error:
        raise ExecutionError(
            f"{node.op_type} has no result for these inputs and attributes.", where=_call_label(node, inputs)
        ) from error
    for output, result in zip(node.outputs, results, strict=False):
        if output.name:
            frame.values[output] = result
            if result is not None and not result.origin:
                result.origin = output.name
                # A host function is labelled by its first result.
                if result.op == "get" and not result.operands[0].origin:
                    result.operands[0].origin = output.name


def _wide_results(step: Step, inputs: list[Value | None], frame: Frame) -> Sequence[Value | None]:
    """Compute a node that reads or makes a wide value in float32; round any other result."""
    node, wide = step.node, frame.wide
    makes_wide = not frame.may_be_wide.isdisjoint(node.outputs) and any(map(_is_half, inputs))
    if not makes_wide and not any(value in wide for value in node.inputs):
        return _results(step, inputs, frame)
    widened = [L.cast(value, FLOAT) if _is_half(value) else value for value in inputs]
    (result, *_) = _results(step, widened, frame)
    assert isinstance(result, Tensor)
    if not frame.may_be_wide.isdisjoint(node.outputs):
        wide.add(node.outputs[0])
        return [result]
    return [L.cast(result, FLOAT16)]


def _is_half(value: Value | None) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and value.dtype == FLOAT16


def _results(step: Step, inputs: list[Value | None], frame: Frame) -> Sequence[Value | None]:
    attributes = attributes_in(step, frame)
    if step.function is not None:
        padded = [*inputs, *[None] * (len(step.function.inputs) - len(inputs))]
        return step.function.call(padded, attributes={**step.function.defaults, **attributes})
    return apply_operator(step, inputs, attributes)


def attributes_in(step: Step, frame: Frame, call: Caller | None = None) -> Mapping[str, Any]:
    """Return a node's attributes in a frame: bodies as functions, references resolved."""
    if not step.bodies and not step.references:
        return step.attributes
    attributes = dict(step.attributes)
    for name, source in step.references.items():
        if frame.attributes is not None and source in frame.attributes:
            attributes[name] = frame.attributes[source]
    for name, body in step.bodies.items():
        bodies = [body] if isinstance(body, PreparedGraph) else body
        functions = [Body(graph, frame, call) for graph in bodies]
        attributes[name] = functions[0] if isinstance(body, PreparedGraph) else functions
    return attributes


def apply_operator(step: Step, inputs: list[Value | None], attributes: Mapping[str, Any]) -> Sequence[Value | None]:
    """Apply a node's operator, after checking the types of its inputs."""
    while inputs and inputs[-1] is None:
        inputs.pop()
    if step.signature is not None:
        step.signature.check(inputs)
    assert step.operator is not None
    if step.references:
        step.operator.check_attributes(attributes)
    if not step.bodies and is_kept(step.operator, inputs):
        return kept_call(step.operator, inputs, attributes, step.opset, step.outputs)
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
        results = apply(inputs)
    except SizeLimitError:
        named = [None if value is None else with_named_sizes(value) for value in inputs]
        if named == inputs:
            raise
        results = apply(named)
    return [with_named_sizes(value) if value is not None and has_long_forms(value) else value for value in results]


# Preparation.


class Preparer:
    """Preparation of the graphs of one model.

    Args:
        functions: The model's functions; each is prepared at its first call.

    Attributes:
        missing: Operators without a definition, and labels of the nodes that use them.
    """

    def __init__(self, functions: Mapping[Any, ir.Function]) -> None:
        self.missing: dict[str, list[str]] = {}
        self._declared = functions
        self._functions: dict[Any, PreparedGraph] = {}
        self._preparing: set[Any] = set()
        self._definitions: dict[tuple[str, str, int], tuple[int, Operator | None, Signature | None]] = {}

    def graph(self, graph: ir.Graph | ir.Function, imports: Mapping[str, int]) -> PreparedGraph:
        """Prepare a graph and its bodies."""
        steps = [self.step(node, imports) for node in graph]
        declared = graph.attributes.items() if isinstance(graph, ir.Function) else ()
        defaults = {name: attribute_value(attribute) for name, attribute in declared if attribute.value is not None}
        prepared = PreparedGraph(graph, steps, defaults)
        for step in steps:
            if step.operator is not None and "between" in step.operator.context_parameters:
                step.between = prepared.between
        return prepared

    def step(self, node: ir.Node, imports: Mapping[str, int]) -> Step:
        """Look up everything that a node needs.

        Args:
            node: The node.
            imports: Versions of operator sets by domain, ``ai.onnx`` as the empty string.

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
                attributes[name] = attribute_value(attribute)
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
                step.attributes = step.operator.check_attributes(attributes, step.bodies)
            except SardonyxError as error:
                raise type(error)(error.problem, where=node_label(node), remedy=error.remedy) from error
        return step

    def _definition(
        self, domain: str, name: str, imports: Mapping[str, int]
    ) -> tuple[int, Operator | None, Signature | None]:
        """Return the imported version of the domain, the operator and its signature."""
        domain = canonical(domain)
        opset = imports.get(domain, 1)
        definition = self._definitions.get((domain, name, opset))
        if definition is None:
            operator = registry.find(domain, name, opset)
            standard = operator is not None and not operator.is_user_defined
            definition = (opset, operator, signature(domain, name, opset) if standard else None)
            self._definitions[domain, name, opset] = definition
        return definition

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
    """Prepare a model's graph for calls.

    Raises:
        UnsupportedError: Operators without a definition; the message lists all of them and their nodes.
        InvalidModelError: An attribute is missing or unknown, an initializer empty, a function recursive, or a value is
            read before it is computed.
    """
    _require_values(model.graph, set())
    for function in model.functions.values():
        _require_values(function, set())
    preparer = Preparer(model.functions)
    imports = {canonical(domain): version for domain, version in model.graph.opset_imports.items()}
    prepared = preparer.graph(model.graph, imports)
    _drop_unread_steps(prepared, set())
    if preparer.missing:
        listed = "; ".join(
            f"{name} at {', '.join(where[:3])}{f' and {len(where) - 3} more' if len(where) > 3 else ''}"
            for name, where in preparer.missing.items()
        )
        count = len(preparer.missing)
        raise UnsupportedError(
            f"{'one operator has' if count == 1 else f'{count} operators have'} no definition: {listed}.",
            where=model.graph.name or "the model",
            remedy="Define them with `@sardonyx.operator`.",
        )
    return prepared


def _require_values(graph: ir.Graph | ir.Function, known: set[ir.Value]) -> None:
    """Refuse a graph that reads a value before its computation; add the graph's values to ``known``."""
    known.update(graph.inputs)
    if isinstance(graph, ir.Graph):
        known.update(graph.initializers.values())
    for node in graph:
        for value in node.inputs:
            if value is not None and value not in known:
                problem = f"the value {value.name!r} is read before any node computes it."
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
        raise InvalidModelError("no node computes this output.", where=str(undefined.name))


def _needed_steps(steps: Sequence[Step], outputs: Iterable[ir.Value]) -> list[Step]:
    """Return the steps on which the outputs depend, in order."""
    needed, reversed_steps = set(outputs), []
    for step in reversed(steps):
        if not needed.isdisjoint(step.node.outputs):
            needed.update(values_read_by(step.node))
            reversed_steps.append(step)
    return reversed_steps[::-1]


def _drop_unread_steps(graph: PreparedGraph, done: set[PreparedGraph]) -> None:
    """Remove from bodies and functions the steps that nothing reads: compiled code does not compute them either."""
    for step in graph.steps:
        bodies = [body for part in step.bodies.values() for body in (part if isinstance(part, list) else [part])]
        for nested in (*bodies, *([] if step.function is None else [step.function])):
            if nested not in done:
                done.add(nested)
                nested.steps = _needed_steps(nested.steps, nested.outputs)
                _drop_unread_steps(nested, done)


def _call_order(graph: PreparedGraph, *, traces: bool) -> _CallOrder:
    nodes = [step.node for step in graph.steps]
    conditionals = {step.node for step in graph.steps if _is_if(step)}
    branches = branches_of_nodes(nodes, graph.outputs, conditionals)
    moved: dict[Branch, list[Step]] = {}
    unmoved: list[Step] = []
    shared: list[Step] = []
    for step in graph.steps:
        branch = branches.get(step.node)
        if isinstance(branch, tuple):
            moved.setdefault(branch, []).append(step)
        elif branch is not None and not traces:
            shared.append(step)
        else:
            unmoved.append(step)
    steps = [_with_moved(step, moved) for step in unmoved]
    reads = [[value for part in (step, *step.moved) for value in values_read_by(part.node)] for step in steps]
    if shared and reads:
        # What pending steps read stays in memory to the end.
        reads[-1] += [value for step in shared for value in values_read_by(step.node)]
    pending = {output: step for step in shared for output in step.node.outputs if output.name}
    return _CallOrder(steps, pending, _last_reads(graph, steps, reads), wide_values(nodes, graph.outputs))


def _is_if(step: Step) -> bool:
    return step.node.op_type == "If" and not canonical(step.node.domain) and step.function is None


def _with_moved(step: Step, moved: Mapping[Branch, list[Step]]) -> Step:
    """Return an ``If`` whose branches begin with the steps that were moved there."""
    names = [name for name in step.bodies if (step.node, name) in moved]
    if not names:
        return step
    changed = copy.copy(step)
    changed.bodies = dict(step.bodies)
    for name in names:
        body = step.bodies[name]
        assert isinstance(body, PreparedGraph)
        steps = moved[step.node, name]
        changed.bodies[name] = longer = copy.copy(body)
        longer.steps, longer._orders = [*steps, *body.steps], {}
        changed.moved = [*changed.moved, *steps]
    return changed


def _last_reads(
    graph: PreparedGraph, steps: Sequence[Step], reads: Sequence[Sequence[ir.Value]]
) -> list[tuple[ir.Value, ...]]:
    """Return for each step of a call the values of the graph that no later step reads."""
    last: dict[ir.Value, int] = {}
    for i, (step, values) in enumerate(zip(steps, reads, strict=True)):
        last.update(dict.fromkeys(values, i))
        last.update((output, i) for output in step.node.outputs if output not in last)
    own = {*graph.inputs, *(output for step in steps for output in step.node.outputs)}
    own -= set(graph.outputs)
    dead: list[list[ir.Value]] = [[] for _ in steps]
    for value, i in last.items():
        if value in own:
            dead[i].append(value)
    return [tuple(values) for values in dead]
