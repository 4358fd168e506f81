"""Lint of graphs: legal but wasteful or risky parts; ``lint_weights`` covers the contents of weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx
from onnx import TensorProto

from sardonyx.model.check.codes import finding
from sardonyx.model.check.commands import Commands
from sardonyx.model.check.findings import Finding, Location
from sardonyx.model.check.functions import called_function
from sardonyx.model.check.lint_opset import lint_opset
from sardonyx.model.check.lint_weights import lint_weights
from sardonyx.model.check.scopes import Scope, function_key, qualified, scopes
from sardonyx.model.check.source import Source
from sardonyx.model.check.structure import names_read, names_used, output_names, weight_names

_SHOWN = 4


def lint_model(source: Source, commands: Commands, broken: frozenset[Location]) -> Iterator[Finding]:
    """Report waste and risks in a legal model.

    Args:
        source: The model.
        commands: Builds the command lines of the remedies.
        broken: Locations of tensors whose contents cannot be read.

    Yields:
        The findings.
    """
    model = source.proto
    true = _true_values(model)
    for scope in scopes(model):
        yield from _lint_uses(scope, model, commands)
        yield from _lint_nodes(scope, true, commands)
        yield from lint_opset(scope, commands)
    yield from _lint_functions(model, commands)
    yield from _lint_interface(model, commands)
    yield from lint_weights(source, commands, broken)


def _lint_uses(scope: Scope, model: onnx.ModelProto, commands: Commands) -> Iterator[Finding]:
    graph = scope.graph
    outputs = output_names(graph)
    reads = [names_read(node) for node in graph.node]
    used = names_used(graph)
    input_names = {value.name for value in model.graph.input} if scope.is_main else set()
    for name in weight_names(graph):
        if name not in used:
            command = commands.optimize(*["freeze_initializers"][: name in input_names], "eliminate_unused_initializer")
            yield finding("unused-weight", "nothing reads the weight.", scope.at(tensor=name), command=command)
    if scope.is_main:
        weights = set(weight_names(graph))
        inputs = [value.name for value in model.graph.input if value.name not in weights]
        for name in inputs:
            if name not in used:
                command = commands.extract([other for other in inputs if other in used], outputs)
                yield finding("unused-input", "nothing reads the input.", scope.at(tensor=name), command=command)
    live = set(outputs)
    for node, read in zip(reversed(graph.node), reversed(reads), strict=True):
        if live.isdisjoint(node.output):
            command = commands.optimize("eliminate_deadend")
            yield finding("unused-node", "no output depends on the node.", scope.at(node), command=command)
        else:
            live |= read


def _true_values(model: onnx.ModelProto) -> set[str]:
    """Return the names of weights and constants that are a single true."""
    true: set[str] = set()
    for scope in scopes(model):
        named = [(tensor.name, tensor) for tensor in getattr(scope.graph, "initializer", ())]
        for node in scope.graph.node:
            if node.op_type == "Constant":
                named += [(node.output[0], item.t) for item in node.attribute if item.name == "value"]
        for name, tensor in named:
            if tensor.data_type == TensorProto.BOOL and (tensor.raw_data == b"\1" or list(tensor.int32_data) == [1]):
                true.add(name)
    return true


def _lint_nodes(scope: Scope, true: set[str], commands: Commands) -> Iterator[Finding]:
    for node in scope.graph.node:
        if node.domain not in ("", "ai.onnx"):
            continue
        by_attribute = any(item.name == "training_mode" and item.i for item in node.attribute)
        by_input = node.op_type == "Dropout" and len(node.input) > 2 and node.input[2] in true
        if by_attribute or by_input:
            yield finding("training-mode", "the node runs in training mode.", scope.at(node))
    for value in getattr(scope.graph, "input", ()):
        if isinstance(value, onnx.ValueInfoProto) and value.type.tensor_type.elem_type == TensorProto.DOUBLE:
            command = commands.optimize("rewrite_float64_to_float32")
            yield finding("float64", "the input is float64.", scope.at(tensor=value.name), command=command)


def _lint_functions(model: onnx.ModelProto, commands: Commands) -> Iterator[Finding]:
    index = {function_key(function): position for position, function in enumerate(model.functions)}
    if not index:
        return
    calls: dict[int | None, set[int]] = {}
    for scope in scopes(model):
        caller = None if scope.function is None else index[function_key(scope.function)]
        called = {called_function(node, index) for node in scope.graph.node}
        calls.setdefault(caller, set()).update(position for position in called if position is not None)
    reached = set(calls.get(None, ()))
    pending = list(reached)
    while pending:
        new = calls.get(pending.pop(), set()) - reached
        reached |= new
        pending.extend(new)
    for position, function in enumerate(model.functions):
        if position not in reached:
            name = qualified(function.domain, function.name)
            where = Location(item=f"function {name}")
            yield finding("unused-function", "nothing calls the function.", where, command=commands.simplify())


def _lint_interface(model: onnx.ModelProto, commands: Commands) -> Iterator[Finding]:
    weights = set(weight_names(model.graph))
    inputs = [value for value in model.graph.input if value.name not in weights]
    listed = [value.name for value in model.graph.input if value.name in weights]
    freeze = commands.freeze_defaults()
    if listed and model.ir_version >= 4:
        shown = ", ".join(repr(name) for name in listed[:_SHOWN])
        more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
        reason = f"callers may override {shown}{more}: `optimize` folds no node that reads them."
        yield finding("weight-is-input", reason, Location(tensor=listed[0]), command=freeze)
    elif listed:
        reason = f"all {len(listed)} weights are graph inputs, as IR version {model.ir_version} requires."
        yield finding("weight-is-input", reason, Location(item="ir_version"), command=freeze)
    shapes = [value.type.tensor_type.shape.dim for value in inputs if value.type.tensor_type.HasField("shape")]
    batched = [shape for shape in shapes if len(shape) > 1]
    firsts = {shape[0].dim_value if shape[0].HasField("dim_value") else None for shape in batched}
    if len(firsts) == 1 and None not in firsts:
        new_shapes = {value.name: shape for value, shape in _batched(inputs)}
        command = commands.set_shape(new_shapes)
        for name in new_shapes:
            reason = f"the batch size {next(iter(firsts))} is baked into the input's shape."
            yield finding("batch-baked", reason, Location(tensor=name), command=command)


def _batched(inputs: Iterable[onnx.ValueInfoProto]) -> Iterator[tuple[onnx.ValueInfoProto, str]]:
    """Yield the inputs with a batch dimension, and their shapes with a shared symbolic batch."""
    for value in inputs:
        dims = value.type.tensor_type.shape.dim
        if len(dims) > 1:
            rest = [
                str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or f"d{axis}"
                for axis, dim in enumerate(dims)
            ]
            yield value, ",".join(["batch", *rest[1:]])
