"""Export of Core functions to standard ONNX models, with the forms of control flow and calls.

The forms of all other primitives are in :mod:`sardonyx.core.export.primitive_forms`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from sardonyx.core.dim import product
from sardonyx.core.export.complex_forms import PAIRED, paired_params
from sardonyx.core.export.node_writer import LEAST_OPSET, GraphWriter, Writer, shape_of
from sardonyx.core.export.primitive_forms import ONNX_FORMS, onnx_form
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function, Value, defined_by, symbols_in
from sardonyx.core.ir.types import TensorType, TupleType


def to_model(
    function: Function,
    *,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    weights: Mapping[int, ir.TensorProtocol] | None = None,
    opset: int = LEAST_OPSET,
) -> ir.Model:
    """Return the function as a model of standard ONNX, in the lowest sufficient version from 18 on.

    Args:
        function: A closed function.
        input_names: Names of the inputs; by default the ONNX names, or ``x0``, ``x1`` ….
        output_names: Names of the results; ``y0``, ``y1`` … by default.
        weights: Tensors of the inputs at these positions, which are initializers of the model.
        opset: The lowest version of ``ai.onnx`` to write.

    Raises:
        UnsupportedError: A value has no ONNX form: names the value and the reason.
    """
    writer = Writer()
    writer.needs(opset)
    outputs = [writer.name(name) for name in output_names or [f"y{i}" for i in range(len(function.results))]]
    inputs = [
        ir.Value(
            name=writer.name((input_names[i] if input_names else value.origin) or f"x{i}"),
            type=writer.type(value.type),
            shape=shape_of(value.type),
        )
        for i, value in enumerate(function.inputs)
    ]
    w = GraphWriter(writer)
    results = [
        _with_own_node(w, x, value) for x, value in zip(write(w, function, inputs), function.results, strict=True)
    ]
    for x, name in zip(results, outputs, strict=True):
        x.name = name
    constants = [inputs[i] for i in weights or {}]
    for value, tensor in zip(constants, (weights or {}).values(), strict=True):
        value.const_value = tensor
    graph = ir.Graph(
        [value for i, value in enumerate(inputs) if i not in (weights or {})],
        results,
        nodes=w.nodes,
        initializers=[*(value for value in constants if value.uses()), *writer.initializers.values()],
        opset_imports={"": writer.opset, **writer.domains},
        name=function.name,
    )
    return ir.Model(graph, ir_version=writer.ir_version, producer_name="sardonyx")


def write(w: GraphWriter, function: Function, arguments: Sequence[ir.Value]) -> list[ir.Value]:
    """Write a function into a graph and return the ONNX values of its results."""
    written: dict[Value, Any] = dict(zip(function.inputs, arguments, strict=True))
    for declared, argument in zip(function.inputs, arguments, strict=True):
        w.binds_sizes(declared.type, argument)
    for value in function.values:
        if value not in written:
            written[value] = _write_value(w, value, [written[operand] for operand in value.operands])
    return [written[value] for value in function.results]


def _write_value(w: GraphWriter, value: Value, operands: list[ir.Value]) -> Any:
    complex_ = any(_is_complex(one) for one in (value, *value.operands))
    form, params = ONNX_FORMS[value.op], value.params
    if complex_ and value.op in PAIRED:
        form = PAIRED[value.op]
    elif complex_:
        params = paired_params(value)
    outputs = form(w, value, *operands, **params)
    if isinstance(value.type, TupleType):
        for type_, output in zip(value.type.results, outputs, strict=True):
            w.binds_sizes(type_, output)
            if not (isinstance(type_, TensorType) and t.kind(type_.dtype) == "complex"):
                _declare(w, output, type_)
    elif isinstance(outputs, ir.Value) and not _is_complex(value) and value.op != "bind":
        _declare(w, outputs, value.type)
        _name(w, outputs, value)
    return outputs


def _is_complex(value: Value) -> bool:
    return isinstance(value.type, TensorType) and t.kind(value.type.dtype) == "complex"


def _declare(w: GraphWriter, x: ir.Value, type: Any) -> None:
    if x.type is None:
        x.type, x.shape = w.writer.type(type), shape_of(type)


def _name(w: GraphWriter, x: ir.Value, value: Value) -> None:
    """Name an ONNX value after its Core value, unless another node shares the output."""
    if value.origin and x.producer() is not None and not x.name.startswith(value.origin):  # type: ignore[union-attr]
        x.name = w.writer.name(value.origin)


def _body(
    w: GraphWriter,
    inner: Function,
    arguments: Sequence[ir.Value],
    inputs: Sequence[ir.Value],
    flat: Sequence[int] = (),
) -> ir.Graph:
    """Return the graph of a body with ``inputs``; the other arguments are outer values."""
    body = GraphWriter(w.writer, w)
    results = write(body, inner, arguments)
    for i in flat:
        rows = inner.results[i].type
        assert isinstance(rows, TensorType) and rows.shape is not None
        vector = TensorType(rows.dtype, (product(rows.shape),))
        results[i] = body.node("Reshape", results[i], w.ints(-1))
        _declare(body, results[i], vector)
    outputs = [_with_own_node(body, x, value) for x, value in zip(results, inner.results, strict=True)]
    return ir.Graph(list(inputs), outputs, nodes=body.nodes, name=w.writer.name(inner.name))


def _with_own_node(body: GraphWriter, x: ir.Value, value: Value) -> ir.Value:
    """Return a result with a node of its own, distinct from all other results."""
    result = body.node("Identity", x)
    if x.type is not None:
        result.type, result.shape = x.type, x.shape
    _declare(body, result, value.type)
    return result  # type: ignore[no-any-return]


# Control.


@onnx_form("cond")
def _cond(
    w: GraphWriter,
    value: Value,
    condition: ir.Value,
    *operands: ir.Value,
    then: Function,
    otherwise: Function,
    **params: Any,
) -> list[ir.Value]:
    if not then.results:
        return []
    first, second = (_body(w, branch, operands, ()) for branch in (then, otherwise))
    outputs = w.node("If", condition, outputs=len(then.results), then_branch=first, else_branch=second)
    return outputs if isinstance(outputs, list) else [outputs]


@onnx_form("loop")
def _loop(
    w: GraphWriter,
    value: Value,
    count: ir.Value,
    go: ir.Value,
    *operands: ir.Value,
    body: Function,
    carried: int,
    **params: Any,
) -> list[ir.Value]:
    own = [ir.Value(name=w.writer.name(f"x{i}")) for i in range(2 + carried)]
    for x, declared in zip(own, body.inputs, strict=False):
        _declare(w, x, declared.type)
    flat = [i for i, type_ in enumerate(value.type.results) if i >= carried and _is_flattened(type_, value)]  # type: ignore[union-attr]
    graph = _body(w, body, [*own, *operands[carried:]], own, [1 + i for i in flat])
    outputs = len(body.results) - 1
    if not outputs:
        return []
    collected = w.node("Loop", count, go, *operands[:carried], outputs=outputs, body=graph)
    results = collected if isinstance(collected, list) else [collected]
    for i in flat:
        trips = w.node("Shape", results[i], start=0, end=1)
        rows = value.type.results[i].shape[1:]  # type: ignore[union-attr,index]
        sizes = w.node("Concat", trips, w.sizes(rows), axis=0) if rows else trips
        results[i] = w.node("Reshape", results[i], sizes, allowzero=1)
    return results


def _is_flattened(stacked: Any, value: Value) -> bool:
    """Return True if rows are collected as vectors.

    Some evaluators concatenate rows of other ranks instead of stacking them.
    """
    rows = stacked.shape[1:]
    return len(rows) != 1 and set(symbols_in(rows)).isdisjoint(defined_by(value))


@onnx_form("call")
def _call(w: GraphWriter, value: Value, *operands: ir.Value, function: Function) -> list[ir.Value]:
    """Write the node that the call equals, else the values of the function."""
    if function.node is None:
        return write(w, function, operands)
    form, arguments = function.node, iter(operands)
    inputs = [next(arguments) if there else None for there in form.present]
    options = {name: _attribute(item) for name, item in form.attributes}
    if form.domain:
        w.writer.domains[form.domain] = max(form.version, w.writer.domains.get(form.domain, 1))
    count = len(function.results)
    since = LEAST_OPSET if form.domain else max(form.version, LEAST_OPSET)
    outputs = w.node(form.name, *inputs, outputs=count, domain=form.domain, since=since, **options)
    return outputs if isinstance(outputs, list) else [outputs]


@onnx_form("host")
def _host(
    w: GraphWriter, value: Value, *operands: ir.Value, function: Any, attributes: tuple[tuple[str, Any], ...], **_: Any
) -> list[ir.Value]:
    """Write the node that the host function defines."""
    arguments = iter(operands)
    inputs = [next(arguments) if there else None for there in function.present or [True] * len(operands)]
    count = len(value.type.results)  # type: ignore[union-attr]
    options = {
        name.removesuffix("_"): _attribute(item) for name, item in attributes if name not in function.context_parameters
    }
    if function.domain:
        w.writer.domains[function.domain] = max(function.since, w.writer.domains.get(function.domain, 1))
    outputs = w.node(
        function.name, *inputs, outputs=count, domain=function.domain, since=max(18, function.since), **options
    )
    return outputs if isinstance(outputs, list) else [outputs]


def _attribute(item: Any) -> Any:
    if isinstance(item, Value):
        return ir.tensor(item.known)
    if isinstance(item, (TensorType, t.SequenceType, t.OptionalType)):
        return ir.TypeAndShape(Writer().type(item), shape_of(item))
    return list(item) if isinstance(item, tuple) else item


@onnx_form("get")
def _get(w: GraphWriter, value: Value, results: list[ir.Value], *, index: int) -> ir.Value:
    return results[index]


__all__ = ["ONNX_FORMS", "to_model", "write"]
