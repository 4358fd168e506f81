"""Control flow: conditions, loops and calls of subgraphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.convert.tflite.translation import Call, Scope, tflite


def _stored(c: Call, start: int = 0) -> list[ir.Value]:
    return [c.stored(number) for number in range(start, len(c.record.inputs))]


def _define(c: Call, values: list[ir.Value]) -> None:
    if len(values) < len(c.record.outputs):
        raise c.invalid(f"{len(values)} results, expected {len(c.record.outputs)}")
    for index, value in zip(c.record.outputs, values, strict=False):
        c.scope.define_stored(index, value)


@tflite("IF")
def if_(c: Call) -> None:
    """Translate a choice between two subgraphs of the same inputs."""
    translation = c.scope.translation
    operands = _stored(c, 1)
    branches: dict[str, Any] = {}
    for name, option in (("then_branch", "then_subgraph_index"), ("else_branch", "else_subgraph_index")):
        scope = Scope(translation, translation.file.subgraphs[0], {})
        values = translation.inline(int(c.option(option)), operands, scope, c.where)
        outputs = [scope.node("Identity", value) for value in values]
        branches[name] = scope.graph([], outputs, name)
    condition = c.stored(0)
    if c.rank(0):
        condition = c.node("Squeeze", condition)
    _define(c, c.nodes("If", len(c.record.outputs), condition, **branches))


@tflite("WHILE", "STABLEHLO_WHILE")
def while_(c: Call) -> None:
    """Translate a loop while a subgraph holds; the condition is computed ahead of it and after the body."""
    translation, operands = c.scope.translation, _stored(c)
    condition, body = int(c.option("cond_subgraph_index")), int(c.option("body_subgraph_index"))
    (first,) = translation.inline(condition, operands, c.scope, c.where)[:1]
    scope = Scope(translation, translation.file.subgraphs[0], {})
    names = translation.names
    iteration = ir.Value(name=names.fresh("iteration"), shape=ir.Shape([]), type=ir.TensorType(ir.DataType.INT64))
    going = ir.Value(name=names.fresh("going"), shape=ir.Shape([]), type=ir.TensorType(ir.DataType.BOOL))
    states = []
    for number in range(len(operands)):
        tensor = c.tensor(number)
        state = ir.Value(name=names.fresh(tensor.name or "state"), type=ir.TensorType(c.scope.type(tensor)))
        states.append(state)
    results = translation.inline(body, states, scope, c.where)
    if len(results) != len(states):
        raise c.invalid(f"the body has {len(results)} results, expected {len(states)}")
    (again,) = translation.inline(condition, results, scope, c.where)[:1]
    outputs = [
        scope.node("Identity", value)
        for value in [scope.node("Reshape", again, scope.constant([], np.int64)), *results]
    ]
    graph = scope.graph([iteration, going, *states], outputs, "body")
    first = c.node("Reshape", first, c.constant([], np.int64))
    _define(c, c.nodes("Loop", len(operands), None, first, *operands, body=graph))


@tflite("CALL")
def call(c: Call) -> None:
    """Translate a call of a subgraph by its operators."""
    _define(c, c.scope.translation.inline(int(c.option("subgraph")), list(_stored(c)), c.scope, c.where))


@tflite("STABLEHLO_COMPOSITE")
def composite(c: Call) -> None:
    """Translate a named composition by its operators."""
    number = int(c.option("decomposition_subgraph_index"))
    _define(c, c.scope.translation.inline(number, list(_stored(c)), c.scope, c.where))
