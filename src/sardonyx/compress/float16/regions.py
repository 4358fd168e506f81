"""Regions that stay in float32 although every operator in them has a 16-bit form."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import onnx_ir as ir

from sardonyx.compress.float16.inference import TypedModel
from sardonyx.compress.float16.plan import Cell, Plan, Use
from sardonyx.compress.float16.signature import DTYPE_ATTRIBUTE

_QUANTIZATION = frozenset(("QuantizeLinear", "DequantizeLinear"))
_INTEGERS = frozenset(f"tensor({sign}int{bits})" for sign in ("", "u") for bits in (8, 16, 32, 64))
_FILLERS = frozenset((*DTYPE_ATTRIBUTE, "ConstantOfShape")) - {"Cast"}

Neighbours = dict[Cell, set[Cell]]


def keep_sizes(plan: Plan, typed: TypedModel) -> None:
    """Keep float32 arithmetic on sizes, from a Shape to an integer.

    Float16 represents integers exactly only up to 2048, so a rounded size would change the shape of a result.
    """
    sized = _size_values(typed)
    readers: dict[ir.Node, list[Use]] = {}
    for uses in plan.uses.values():
        for use in uses:
            if isinstance(use.reader, ir.Node):
                readers.setdefault(use.reader, []).append(use)
    pending: list[ir.Value] = []
    for node, uses in readers.items():
        to_integer = node.op_type == "Cast" and typed.types.get(node.outputs[0]) in _INTEGERS
        for use in uses:
            if use.value in sized and (to_integer or (use.cell.fixed and not use.cell.low)):
                use.cell.keep(use.cell.reason or "computes a size")
                pending.append(use.value)
    seen: set[ir.Value] = set()
    while pending:
        value = pending.pop()
        producer = value.producer()
        if value in seen or producer is None or value not in plan.sources:
            continue
        seen.add(value)
        for cell in (plan.sources[value], *(use.cell for use in readers.get(producer, ()))):
            cell.keep(cell.reason or "computes a size")
        pending.extend(use.value for use in readers.get(producer, ()) if use.value in sized)


def _size_values(typed: TypedModel) -> set[ir.Value]:
    """Return the values computed from sizes and constants alone."""
    sized: set[ir.Value] = set()
    for graph in (typed.model.graph, *(function.graph for function in dict.fromkeys(typed.calls.values()))):
        for node in graph.all_nodes():
            variables = [v for v in node.inputs if v is not None and not _is_constant(v)]
            if node.op_type in ("Shape", "Size") or (
                variables and all(v in sized for v in variables) and node.op_type not in _FILLERS
            ):
                sized.update(node.outputs)
    return sized


def _is_constant(value: ir.Value) -> bool:
    producer = value.producer()
    if producer is not None:
        return producer.op_type == "Constant"
    return value.is_initializer() and not value.is_graph_input()


def keep_quantized_regions(plan: Plan) -> None:
    """Keep nodes between DequantizeLinear and QuantizeLinear, which engines execute in integers."""
    neighbours = _neighbours(plan)
    for cells in _by_node(plan):
        for cell in cells:
            neighbours.setdefault(cell, set()).update(cells)
    keep_islands(neighbours, lambda cell: not cell.fixed, _quantizes, "between quantized values")


def keep_float32_movement(plan: Plan) -> None:
    """Keep nodes that only move values between float32 neighbours: two Casts would round for nothing."""
    keep_islands(
        _neighbours(plan),
        lambda cell: cell.movement and not cell.fixed,
        lambda cell: not cell.low,
        "moves float32 values",
    )


def keep_batch_rotations(plan: Plan) -> None:
    """Keep a Transpose before a MatMul that only moves the first axis after the other batch axes.

    ONNX Runtime (1.31, CPU) fuses the two across the Casts around float16, and crashes while loading.
    """
    for uses in plan.uses.values():
        for use in uses:
            source = plan.sources.get(use.value)
            producer = use.value.producer()
            if source is None or producer is None or not isinstance(use.reader, ir.Node):
                continue
            if use.reader.op_type == "MatMul" and producer.op_type == "Transpose" and _rotates_batch(producer):
                source.keep("ONNX Runtime cannot load this Transpose in float16 before a MatMul")


def _rotates_batch(transpose: ir.Node) -> bool:
    if "perm" not in transpose.attributes or transpose.attributes["perm"].is_ref():
        return False
    perm = list(transpose.attributes["perm"].as_ints())
    return len(perm) > 2 and perm == [*range(1, len(perm) - 1), 0, len(perm) - 1]


def keep_islands(
    neighbours: Neighbours, inside: Callable[[Cell], bool], border: Callable[[Cell], bool], reason: str
) -> None:
    """Keep each connected set of ``inside`` cells with only ``border`` cells, at least one, around it."""
    seen: set[Cell] = set()
    for start in neighbours:
        if start in seen or not inside(start):
            continue
        island, around, pending = {start}, set[Cell](), [start]
        while pending:
            for cell in neighbours[pending.pop()]:
                if not inside(cell):
                    around.add(cell)
                elif cell not in island:
                    island.add(cell)
                    pending.append(cell)
        seen |= island
        if around and all(map(border, around)):
            for cell in island:
                cell.keep(reason)


def _quantizes(cell: Cell) -> bool:
    return not cell.low and any(node.op_type in _QUANTIZATION for node in cell.nodes)


def _neighbours(plan: Plan) -> Neighbours:
    """Return the cells with a common value, except constants."""
    neighbours: Neighbours = {}
    for value, source in plan.sources.items():
        for use in plan.uses.get(value, ()):
            neighbours.setdefault(source, set()).add(use.cell)
            neighbours.setdefault(use.cell, set()).add(source)
    for cell in plan.cells:
        neighbours.setdefault(cell, set()).update(cell.tied)
    return neighbours


def _by_node(plan: Plan) -> Iterable[set[Cell]]:
    cells: dict[ir.Node, set[Cell]] = {}
    for cell in plan.cells:
        for node in cell.nodes:
            if not cell.fixed:
                cells.setdefault(node, set()).add(cell)
    return cells.values()
