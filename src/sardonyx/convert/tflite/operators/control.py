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
    """Translate a choice between two subgraphs of the same inputs; variables that a branch assigns are results."""
    translation = c.scope.translation
    operands = _stored(c, 1)
    before = dict(translation.variables)
    branches: dict[str, Scope] = {}
    results: dict[str, list[ir.Value]] = {}
    states: dict[str, dict[str, ir.Value]] = {}
    for name, option in (("then_branch", "then_subgraph_index"), ("else_branch", "else_subgraph_index")):
        translation.variables = dict(before)
        scope = branches[name] = Scope(translation, translation.file.subgraphs[0], {})
        results[name] = translation.inline(int(c.option(option)), operands, scope, c.where)
        states[name] = translation.variables
    assigned = _assigned(c, before, *states.values())
    graphs: dict[str, Any] = {}
    for name, scope in branches.items():
        values = [*results[name], *(states[name][key] for key in assigned)]
        graphs[name] = scope.graph([], [scope.node("Identity", value) for value in values], name)
    condition = c.stored(0)
    if c.rank(0):
        condition = c.node("Squeeze", condition)
    outputs = c.nodes("If", len(c.record.outputs) + len(assigned), condition, **graphs)
    translation.variables = before | dict(zip(assigned, outputs[len(c.record.outputs) :], strict=True))
    _define(c, outputs)


def _assigned(c: Call, before: dict[str, ir.Value], *after: dict[str, ir.Value]) -> list[str]:
    """Return keys of variables of which a body leaves another value."""
    keys = dict.fromkeys(key for states in after for key, value in states.items() if value is not before.get(key))
    for key in keys:
        if key not in before:
            raise c.unsupported(f"variable '{key}' has no value before the branch or loop that assigns it")
    return list(keys)


@tflite("WHILE", "STABLEHLO_WHILE")
def while_(c: Call) -> None:
    """Translate a loop while a subgraph holds; the condition is computed ahead of it and after the body.

    Handles remain what they are, and variables that the loop assigns are further states of it.
    """
    translation, operands = c.scope.translation, _stored(c)
    assigned = _assigned_by_loop(c, operands) if translation.variables else []
    (first,) = translation.inline(int(c.option("cond_subgraph_index")), operands, c.scope, c.where)[:1]
    before = dict(translation.variables)
    scope = Scope(translation, translation.file.subgraphs[0], {})
    names = translation.names
    iteration = ir.Value(name=names.fresh("iteration"), shape=ir.Shape([]), type=ir.TensorType(ir.DataType.INT64))
    going = ir.Value(name=names.fresh("going"), shape=ir.Shape([]), type=ir.TensorType(ir.DataType.BOOL))
    states = [_state(c, number, operand) for number, operand in enumerate(operands)]
    translation.variables |= {key: ir.Value(name=names.fresh(key)) for key in assigned}
    inner = [translation.variables[key] for key in assigned]
    results, again = _iteration(c, states, scope)
    for operand, result in zip(operands, results, strict=True):
        if operand in translation.handles and result is not operand:
            raise c.unsupported("a loop that exchanges handles of variables")
    numbers = [number for number, operand in enumerate(operands) if operand not in translation.handles]
    values = [*(results[number] for number in numbers), *(translation.variables[key] for key in assigned)]
    outputs = [
        scope.node("Identity", value) for value in [scope.node("Reshape", again, scope.constant([], np.int64)), *values]
    ]
    graph = scope.graph([iteration, going, *(states[number] for number in numbers), *inner], outputs, "body")
    first = c.node("Reshape", first, c.constant([], np.int64))
    initial = [*(operands[number] for number in numbers), *(before[key] for key in assigned)]
    last = c.nodes("Loop", len(initial), None, first, *initial, body=graph)
    translation.variables = before | dict(zip(assigned, last[len(numbers) :], strict=True))
    final = list(operands)
    for number, value in zip(numbers, last, strict=False):
        final[number] = value
        value.type = states[number].type
    _define(c, final)


def _state(c: Call, number: int, operand: ir.Value) -> ir.Value:
    """Return the value of a state within a loop."""
    translation, tensor = c.scope.translation, c.tensor(number)
    if operand in translation.handles:
        return operand
    # The type of a list is that of its elements, which the file does not state.
    kind = operand.type if tensor.type == "VARIANT" else ir.TensorType(c.scope.type(tensor))
    return ir.Value(name=translation.names.fresh(tensor.name or "state"), type=kind)


def _iteration(c: Call, states: list[ir.Value], scope: Scope) -> tuple[list[ir.Value], ir.Value]:
    """Return the states after one iteration, and the condition of the next one."""
    translation = c.scope.translation
    results = translation.inline(int(c.option("body_subgraph_index")), states, scope, c.where)
    if len(results) != len(states):
        raise c.invalid(f"the body has {len(results)} results, expected {len(states)}")
    (again,) = translation.inline(int(c.option("cond_subgraph_index")), results, scope, c.where)[:1]
    return results, again


def _assigned_by_loop(c: Call, operands: list[ir.Value]) -> list[str]:
    """Return keys of variables that a loop assigns, by a translation of one iteration that is dropped."""
    translation = c.scope.translation
    before, count = dict(translation.variables), len(translation.results)
    scope = Scope(translation, translation.file.subgraphs[0], {})
    states = [_state(c, number, operand) for number, operand in enumerate(operands)]
    _iteration(c, states, scope)
    assigned = _assigned(c, before, translation.variables)
    translation.variables = before
    del translation.results[count:]
    return assigned


@tflite("CALL")
def call(c: Call) -> None:
    """Translate a call of a subgraph by its operators."""
    _define(c, c.scope.translation.inline(int(c.option("subgraph")), list(_stored(c)), c.scope, c.where))


@tflite("STABLEHLO_COMPOSITE")
def composite(c: Call) -> None:
    """Translate a named composition by its operators."""
    number = int(c.option("decomposition_subgraph_index"))
    _define(c, c.scope.translation.inline(number, list(_stored(c)), c.scope, c.where))
