"""Conditions and loops: bodies are subgraphs, and values of the graph around are inputs of these."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.export.tflite.emission import Call, Scope, emits
from sardonyx.export.tflite.file_builder import DTYPES, Size, Tensor
from sardonyx.rewrite.analysis import facts


def _body(c: Call, name: str) -> Scope:
    emission = c.scope.emission
    return Scope(emission, emission.file.subgraph(f"{name}_{len(emission.file.subgraphs)}"), c.scope)


def _own(scope: Scope, tensor: Tensor, inputs: Sequence[Tensor] = ()) -> Tensor:
    """Return a result that an operator of the subgraph computes."""
    is_input = any(tensor is other for other in (*inputs, *scope.captures.values()))
    return scope.copy(tensor) if tensor.array is not None or is_input else tensor


@emits("If")
def if_(c: Call) -> list[Tensor]:
    """Write a choice between two subgraphs of the same inputs."""
    s = c.scope
    condition = s.reshape(c.input(), [])
    if condition.array is not None:
        condition = s.copy(condition)
    scopes: list[Scope] = []
    results: list[list[Tensor]] = []
    for name in ("then_branch", "else_branch"):
        graph: ir.Graph = c.node.attributes[name].as_graph()
        scope = _body(c, name)
        scope.emit(list(graph))
        results.append([scope.tensor(value) for value in graph.outputs])
        scopes.append(scope)
    keys = list(dict.fromkeys(key for scope in scopes for key in scope.captures))
    outer = [s.lookup(key) for key in keys]
    for scope, tensors in zip(scopes, results, strict=True):
        owned = [_own(scope, tensor) for tensor in tensors]
        scope.builder.inputs = [scope.builder.index_of(scope.captured(key)) for key in keys]
        scope.builder.outputs = [scope.builder.index_of(tensor) for tensor in owned]
    outputs = [s.computed(t.type, c.shape(i)) for i, t in enumerate(results[0])]
    options = {
        "then_subgraph_index": scopes[0].builder.number,
        "else_subgraph_index": scopes[1].builder.number,
    }
    s.builder.operator("IF", [condition, *outer], outputs, ("IfOptions", options))
    return outputs


@emits("Loop")
def loop(c: Call) -> list[Tensor]:
    """Write a loop as WHILE over the iteration, the condition, carried values, collected rows and captured values."""
    s, graph = c.scope, c.node.attributes["body"].as_graph()
    carried = [s.tensor(v) for v in c.call.inputs[2:] if v is not None]
    most = s.reshape(s.cast(c.input(0), "INT64"), []) if c.has(0) else s.constant(np.int64(2**62))
    going = s.reshape(c.input(1), []) if c.has(1) else s.constant(np.bool_(True))
    rows = list(graph.outputs[1 + len(carried) :])
    shapes = [c.shape(i) for i in range(len(c.call.outputs))]

    body = _body(c, "body")
    states = _states(body, graph, carried)
    for value, tensor in zip(graph.inputs, states, strict=True):
        body.values[value] = tensor
    body.emit(list(graph))
    ends = [body.tensor(value) for value in graph.outputs]
    limit = body.computed("INT64", (), name="iterations")
    in_place = c.has(0) and _runs_to_the_end(graph)
    stored, joined = [], []
    for v, row in zip(rows, ends[1 + len(carried) :], strict=True):
        known = in_place and all(s.knows(n) for n in body.sizes(v))
        collected = body.computed(body.type(v), (body.fresh_size(), *body.sizes(v)), name="rows")
        wide = body.reshape(row, [1, *row.shape])
        wide = body.copy(wide) if wide.array is not None else wide
        stored.append(collected)
        joined.append(_placed(body, collected, wide, states[0]) if known else _joined(body, collected, wide))
    step = body.binary("ADD", states[0], body.constant(np.int64(1)))
    again = body.reshape(ends[0], [])
    finals = [step, again, *ends[1 : 1 + len(carried)]]
    owned = [_own(body, tensor, states) for tensor in finals]
    keys = list(body.captures)
    inner = [body.captures[key] for key in keys]
    body.builder.inputs = [body.builder.index_of(t) for t in (*states, *stored, limit, *inner)]
    body.builder.outputs = [body.builder.index_of(t) for t in (*owned, *joined, limit, *inner)]

    condition = _condition(c, [*states, *stored, limit, *inner], len(states) + len(stored))
    starts = [_start(c, body, v, shapes[len(carried) + i], most if in_place else None) for i, v in enumerate(rows)]
    operands = [s.constant(np.int64(0)), going, *carried, *starts, most, *(s.lookup(key) for key in keys)]
    operands = [s.copy(t) if t.array is not None and t.array.size else t for t in operands]
    results = [
        s.computed("INT64", ()),
        s.computed("BOOL", ()),
        *(s.computed(t.type, shape) for t, shape in zip(carried, shapes, strict=False)),
        *(s.computed(t.type, shape) for t, shape in zip(stored, shapes[len(carried) :], strict=True)),
        *(s.computed(t.type, t.shape) for t in operands[len(states) + len(stored) :]),
    ]
    options = {"cond_subgraph_index": condition, "body_subgraph_index": body.builder.number}
    s.builder.operator("WHILE", operands, results, ("WhileOptions", options))
    return results[2 : 2 + len(carried) + len(stored)]


def _states(body: Scope, graph: ir.Graph, carried: Sequence[Tensor]) -> list[Tensor]:
    """Return the inputs of a body: iteration, condition and carried values, whose sizes may change."""
    states = [body.computed("INT64", (), name="iteration"), body.computed("BOOL", (), name="going")]
    for value, tensor in zip(graph.inputs[2:], carried, strict=True):
        sizes: Sequence[Size] = (
            body.sizes(value) if value.shape is not None else [body.fresh_size() for _ in tensor.shape]
        )
        states.append(body.computed(tensor.type, sizes, name=str(value.name)))
    return states


def _joined(body: Scope, collected: Tensor, row: Tensor) -> Tensor:
    parts = [body.checked("CONCATENATION", part) for part in (collected, row)]
    return body.op(
        "CONCATENATION", parts, (body.fresh_size(), *collected.shape[1:]), options=("ConcatenationOptions", {"axis": 0})
    )


def _condition(c: Call, inputs: Sequence[Tensor], limit: int) -> int:
    """Write the subgraph that decides about another iteration; return its number."""
    scope = _body(c, "condition")
    tensors = [scope.computed(t.type, t.shape, name=f"input_{i}") for i, t in enumerate(inputs)]
    below = scope.binary("LESS", tensors[0], tensors[limit], type="BOOL")
    going = scope.broadcast("LOGICAL_AND", [below, tensors[1]], "BOOL")
    scope.builder.inputs = [scope.builder.index_of(t) for t in tensors]
    scope.builder.outputs = [scope.builder.index_of(going)]
    return scope.builder.number


def _runs_to_the_end(graph: ir.Graph) -> bool:
    """Return True if the condition of a body holds after every iteration."""
    again: ir.Value | None = graph.outputs[0]
    while again is not None and (node := again.producer()) is not None and facts.is_op(node, "Identity"):
        again = node.inputs[0]
    return again is graph.inputs[1] or bool(facts.scalar(again))


def _placed(body: Scope, collected: Tensor, row: Tensor, iteration: Tensor) -> Tensor:
    """Return the collected rows with one row replaced."""
    first = body.reshape(body.cast(iteration, "INT32"), [1])
    begin = body.concatenation([first, body.constant([0] * (collected.rank - 1), np.int32)], 0)
    return body.op("DYNAMIC_UPDATE_SLICE", [collected, row, begin], collected.shape)


def _start(c: Call, body: Scope, row: ir.Value, shape: Sequence[Size], most: Tensor | None) -> Tensor:
    """Return zeros for as many rows as a loop collects, or no rows if their number or sizes are not known."""
    s, kind, sizes = c.scope, body.type(row), body.sizes(row)
    known = all(s.knows(n) for n in sizes)
    zero = s.constant(np.zeros((), DTYPES[kind]))
    if most is not None and known:
        count = s.reshape(s.cast(most, "INT32"), [1])
        whole = s.concatenation([count, s.shape_tensor(sizes)], 0) if sizes else count
        first: Size = int(most.array) if most.array is not None else shape[0]
        return s.op("FILL", [whole, zero], (first, *sizes), kind)
    if not known:
        raise c.refuse("rows of a loop whose sizes are not known before the loop")
    none = s.shape_tensor([0, *sizes])
    return s.op("FILL", [none, zero], (s.fresh_size(), *shape[1:]), kind)
