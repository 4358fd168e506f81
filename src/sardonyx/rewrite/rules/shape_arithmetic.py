"""Shape arithmetic: what the known sizes decide becomes constant, and what stays open is computed once."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Hashable, Iterator, MutableMapping, Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.core.dim import Size
from sardonyx.rewrite import facts
from sardonyx.rewrite.engine import Engine
from sardonyx.rewrite.facts import STANDARD
from sardonyx.rewrite.language import EXACT, Patch, Refusal, Result, rule
from sardonyx.rewrite.notation import Reshape, Shape
from sardonyx.rewrite.site import Site
from sardonyx.rewrite.sizes import INTEGRAL, RULES, Elements, Sizes, at_least, equal
from sardonyx.rewrite.sweep import sweep

FOLLOWED = frozenset(RULES) - {"Constant", "Identity"}


def _as_constant(s: Site) -> Result:
    """The node's value as a constant, when its inputs' sizes decide it."""
    output = s.node.outputs[0]
    kind = facts.dtype(output)
    if kind not in INTEGRAL:
        return None
    if len(output.shape or ()) > 1 or len(s.node.outputs) > 1 or facts.unused(output):
        return None
    found = s.sizes.elements(output)
    if found is None:
        return None
    rank, elements = found
    if not all(isinstance(e, int) for e in elements):
        return None
    array = np.array(elements, np.int64).astype(kind.numpy())
    nodes: list[ir.Node] = []
    constant = s.workspace.new_constant(array if rank else array.reshape(()), s.graph, f"{output.name}_size", nodes)
    return Patch({output: constant}, nodes=nodes)


@rule("eliminate_shape_op", on=("Shape", "Size"), exactness=EXACT)
def shape_of_static(s: Site) -> Result:
    """Shape or Size of a tensor whose size is known is a constant."""
    return _as_constant(s)


@rule("eliminate_shape_gather", on="Gather", exactness=EXACT)
def gather_of_shape(s: Site) -> Result:
    """Gather of a known size out of a shape is a constant."""
    return _as_constant(s)


@rule("eliminate_slice_after_shape", on="Slice", exactness=EXACT)
def slice_of_shape(s: Site) -> Result:
    """Slice of known sizes out of a shape is a constant."""
    return _as_constant(s)


@rule("fold_shape_arithmetic", on=FOLLOWED - {"Shape", "Size", "Gather", "Slice"}, exactness=EXACT)
def known_sizes(s: Site) -> Result:
    """Arithmetic on sizes that are known, or cancel, is a constant."""
    return _as_constant(s)


@rule("fuse_concat_into_reshape", on="Reshape", exactness=EXACT, opset=5)
def reshape_target(s: Site) -> Result:
    """A computed Reshape target becomes a constant with at most one −1, and 0 for what is copied."""
    target = s.input(1)
    if target is None or facts.is_constant(target):
        return None
    found, dims = s.sizes.elements(target), s.sizes.dims(s.input(0))
    if found is None or dims is None:
        return None
    copies = not facts.attribute(s.node, "allowzero", s.opset, 0)
    wanted = [dims[i] if copies and e == 0 and i < len(dims) else e for i, e in enumerate(found[1])]
    constant = constant_target(wanted, dims)
    if constant is None:
        return Refusal("more than one size of the target is open")
    return Reshape(s.input(0), np.array(constant, np.int64))


def constant_target(target: Sequence[Size], dims: Sequence[Size]) -> list[int] | None:
    """A Reshape target of numbers that gives ``target`` for input shape ``dims``, or None."""
    out: list[int] = []
    open_at: list[int] = []
    for axis, size in enumerate(target):
        if isinstance(size, int):
            # Zero means "copy" there; where a zero is meant, only a copied one says it.
            if size == 0 and (axis >= len(dims) or equal(dims[axis], 0) is not True):
                return None
            out.append(size)
        elif axis < len(dims) and equal(dims[axis], size) is True:
            out.append(0)
        else:
            open_at.append(axis)
            out.append(-1)
    if -1 in [size for size in target if isinstance(size, int)]:
        return out if not open_at else None
    if len(open_at) > 1:
        return None
    if open_at and (
        0 in [size for size in target if isinstance(size, int)] or at_least(target[open_at[0]], 1) is False
    ):
        return None
    return out


@rule("eliminate_nop_reshape", on="Reshape", exactness=EXACT, opset=5)
def reshape_to_same(s: Site) -> Result:
    """Reshape to the shape that the tensor has, open sizes included."""
    dims = s.sizes.dims(s.input(0))
    if dims is None:
        return None
    target = _reshaped(s, dims)
    if target is None or len(target) != len(dims):
        return None
    return s.input(0) if all(equal(a, b) is True for a, b in zip(target, dims, strict=True)) else None


def _reshaped(s: Site, dims: Sequence[Size]) -> list[Size] | None:
    """The output shape that the target says, with −1 and 0 resolved."""
    found = s.sizes.elements(s.input(1))
    if found is None:
        return None
    copies = not facts.attribute(s.node, "allowzero", s.opset, 0)
    target: list[Size] = []
    for axis, size in enumerate(found[1]):
        if size == 0 and copies:
            if axis >= len(dims):
                return None
            size = dims[axis]
        target.append(size)
    open_at = [i for i, size in enumerate(target) if size == -1]
    if len(open_at) == 1 and len(target) == len(dims):
        # With one size left open and all the others equal, the open one is what is left.
        others = [i for i in range(len(dims)) if i != open_at[0]]
        if all(equal(target[i], dims[i]) is True and at_least(dims[i], 1) is True for i in others):
            target[open_at[0]] = dims[open_at[0]]
    if any(isinstance(size, int) and size < 0 for size in target):
        return None
    return target


@rule("eliminate_nop_expand", on="Expand", exactness=EXACT)
def expand_to_same(s: Site) -> Result:
    """Expand to a shape that broadcasting the tensor does not change, open sizes included."""
    found, dims = s.sizes.elements(s.input(1)), s.sizes.dims(s.input(0))
    if found is None or dims is None or len(found[1]) > len(dims):
        return None
    tail = dims[len(dims) - len(found[1]) :]
    if all(want == 1 or equal(want, have) is True for want, have in zip(found[1], tail, strict=True)):
        return s.input(0)
    return None


@sweep("share_equal_sizes", exactness=EXACT)
def equal_sizes(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Sizes computed twice, whatever way, are computed once; a whole shape is read off the tensor that has it."""
    yield from _shared(engine, graph, {})


def _shared(
    engine: Engine, graph: ir.Graph, outer: MutableMapping[Hashable, ir.Value]
) -> Iterator[tuple[ir.Node, Result]]:
    seen: MutableMapping[Hashable, ir.Value] = ChainMap({}, outer)
    sizes = engine.sizes
    for node in graph:
        if not engine.flat:
            for body in facts.bodies(node):
                yield from _shared(engine, body, seen)
        if node.op_type not in RULES or node.domain not in STANDARD or len(node.outputs) != 1:
            continue
        value = node.outputs[0]
        if facts.dtype(value) != ir.DataType.INT64:
            continue
        found = sizes.elements(value)
        if found is None or all(isinstance(e, int) for e in found[1]) or facts.unused(value):
            continue
        first = seen.get(found)
        if first is None or not _alive(engine, first):
            # What was seen may be gone by now, with the last of its readers.
            seen[found] = value
            result = _read_off(sizes, node, found)
            if result is not None:
                del seen[found]
                yield node, result
        elif not value.is_graph_output():
            yield node, Patch({value: first})


def _alive(engine: Engine, value: ir.Value) -> bool:
    producer = value.producer()
    return producer is not None and engine.alive(producer)


def _read_off(sizes: Sizes, node: ir.Node, found: Elements) -> Result:
    """A shape put together of its parts, when a single tensor behind them has just these sizes in a row."""
    if node.op_type != "Concat" or len(found[1]) < 2:
        return None
    for tensor in _measured(node):
        dims = sizes.dims(tensor)
        if dims is None or len(dims) < len(found[1]):
            continue
        for start in range(len(dims) - len(found[1]) + 1):
            if all(equal(a, b) is True for a, b in zip(dims[start:], found[1], strict=False)):
                whole = len(dims) == len(found[1])
                if whole:
                    return Shape(tensor)
                if sizes.opset >= 15:
                    return Shape(tensor, start=start or None, end=start + len(found[1]))
    return None


def _measured(node: ir.Node) -> list[ir.Value]:
    """The tensors whose shapes a piece of shape arithmetic reads."""
    tensors: dict[ir.Value, None] = {}
    stack, seen = [node], {node}
    while stack and len(seen) < 64:
        for value in stack.pop().inputs:
            producer = None if value is None else value.producer()
            if producer is None or producer in seen or producer.graph is not node.graph:
                continue
            seen.add(producer)
            if facts.is_op(producer, "Shape"):
                source = producer.inputs[0]
                if source is not None:
                    tensors[source] = None
            elif producer.op_type in RULES:
                stack.append(producer)
    return list(tensors)
