"""Regions that are better left in float32 though every operator in them could be 16-bit."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import onnx_ir as ir

from sardonyx.compress.float16.inference import TypedModel
from sardonyx.compress.float16.plan import Cell, Plan, Use
from sardonyx.compress.float16.signature import STATING_ATTRIBUTE

_QUANTIZATION = frozenset(("QuantizeLinear", "DequantizeLinear"))
_INTEGERS = frozenset(f"tensor({sign}int{bits})" for sign in ("", "u") for bits in (8, 16, 32, 64))
_FILLERS = frozenset((*STATING_ATTRIBUTE, "ConstantOfShape")) - {"Cast"}

Neighbours = dict[Cell, set[Cell]]


def keep_sizes(plan: Plan, typed: TypedModel) -> None:
    """Keeps the arithmetic by which a size is computed in float on its way from a Shape to an integer.

    A float16 cannot count beyond 2048, so a rounded size would change the shape of a result.
    """
    sized = _sized(typed)
    readers: dict[ir.Node, list[Use]] = {}
    for uses in plan.uses.values():
        for use in uses:
            if isinstance(use.reader, ir.Node):
                readers.setdefault(use.reader, []).append(use)
    waiting: list[ir.Value] = []
    for node, uses in readers.items():
        to_integer = node.op_type == "Cast" and typed.types.get(node.outputs[0]) in _INTEGERS
        for use in uses:
            if use.value in sized and (to_integer or (use.cell.fixed and not use.cell.low)):
                use.cell.keep(use.cell.reason or "computes a size")
                waiting.append(use.value)
    seen: set[ir.Value] = set()
    while waiting:
        value = waiting.pop()
        producer = value.producer()
        if value in seen or producer is None or value not in plan.sources:
            continue
        seen.add(value)
        for cell in (plan.sources[value], *(use.cell for use in readers.get(producer, ()))):
            cell.keep(cell.reason or "computes a size")
        waiting.extend(use.value for use in readers.get(producer, ()) if use.value in sized)


def _sized(typed: TypedModel) -> set[ir.Value]:
    """The values computed from sizes and constants alone."""
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
    """Keeps what lies between DequantizeLinear and QuantizeLinear: engines run such nodes in integers as they are."""
    neighbours = _neighbours(plan)
    for cells in _by_node(plan):
        for cell in cells:
            neighbours.setdefault(cell, set()).update(cells)
    keep_islands(neighbours, lambda cell: not cell.fixed, _quantizes, "between quantized values")


def keep_movement_between_kept(plan: Plan) -> None:
    """Keeps nodes that only move values where all they touch is float32: two Casts would round for nothing."""
    keep_islands(
        _neighbours(plan),
        lambda cell: cell.movement and not cell.fixed,
        lambda cell: not cell.low,
        "moves float32 values",
    )


def keep_batch_rotations(plan: Plan) -> None:
    """Keeps a Transpose that only moves the first axis behind the other batch axes, in front of a MatMul.

    ONNX Runtime (1.31, CPU) fuses the two across the Casts it inserts for float16, and crashes when it loads that.
    """
    for uses in plan.uses.values():
        for use in uses:
            source = plan.sources.get(use.value)
            producer = use.value.producer()
            if source is None or producer is None or not isinstance(use.reader, ir.Node):
                continue
            if use.reader.op_type == "MatMul" and producer.op_type == "Transpose" and _rotates_batch(producer):
                source.keep("ONNX Runtime cannot load it in float16 before a MatMul")


def _rotates_batch(transpose: ir.Node) -> bool:
    if "perm" not in transpose.attributes or transpose.attributes["perm"].is_ref():
        return False
    perm = list(transpose.attributes["perm"].as_ints())
    return len(perm) > 2 and perm == [*range(1, len(perm) - 1), 0, len(perm) - 1]


def keep_islands(
    neighbours: Neighbours, inside: Callable[[Cell], bool], kept: Callable[[Cell], bool], reason: str
) -> None:
    """Keeps each connected set of cells that are ``inside`` and have only ``kept`` cells, at least one, around it."""
    seen: set[Cell] = set()
    for start in neighbours:
        if start in seen or not inside(start):
            continue
        island, around, waiting = {start}, set[Cell](), [start]
        while waiting:
            for cell in neighbours[waiting.pop()]:
                if not inside(cell):
                    around.add(cell)
                elif cell not in island:
                    island.add(cell)
                    waiting.append(cell)
        seen |= island
        if around and all(map(kept, around)):
            for cell in island:
                cell.keep(reason)


def _quantizes(cell: Cell) -> bool:
    return not cell.low and any(node.op_type in _QUANTIZATION for node in cell.nodes)


def _neighbours(plan: Plan) -> Neighbours:
    """The cells that touch a common value, constants left out."""
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
