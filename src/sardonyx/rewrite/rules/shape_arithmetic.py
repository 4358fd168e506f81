"""Shape arithmetic: fold known sizes to constants, compute each open size once."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Hashable, Iterator, MutableMapping, Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.core.dim import Size
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.facts import STANDARD
from sardonyx.rewrite.analysis.sizes import INTEGRAL, RULES, Elements, Sizes, at_least, equal
from sardonyx.rewrite.engine.engine import Engine
from sardonyx.rewrite.language import EXACT, Match, Patch, Refusal, Result, Rewrite, V, guard, rule, where
from sardonyx.rewrite.notation import Expand, Reshape, Shape
from sardonyx.rewrite.rules.signatures import may_reject_sizes
from sardonyx.rewrite.site import Site
from sardonyx.rewrite.sweep import sweep

FOLLOWED = frozenset(RULES) - {"Constant", "Identity"}


def _fold_sizes(s: Site) -> Result:
    """Replace the node by a constant, if the sizes of its inputs decide the value."""
    output = s.node.outputs[0]
    kind = facts.dtype(output)
    if kind not in INTEGRAL:
        return None
    if len(output.shape or ()) > 1 or len(s.node.outputs) > 1 or facts.unused(output):
        return None
    value = s.sizes.elements(output)
    if value is None:
        return None
    rank, elements = value
    if not all(isinstance(e, int) for e in elements):
        return None
    if s.node.op_type in ("Shape", "Size") and kind != ir.DataType.INT64:
        return Refusal(f"'{output.name}' is declared as {kind}")
    array = np.array(elements, np.int64).astype(kind.numpy())
    nodes: list[ir.Node] = []
    constant = s.workspace.new_constant(array if rank else array.reshape(()), s.graph, f"{output.name}_size", nodes)
    return Patch({output: constant}, nodes=nodes)


@rule("eliminate_shape_op", on=("Shape", "Size"), exactness=EXACT)
def shape_of_static(s: Site) -> Result:
    """Replace Shape or Size of a tensor of known size by a constant."""
    return _fold_sizes(s)


@rule("eliminate_shape_gather", on="Gather", exactness=EXACT)
def gather_of_shape(s: Site) -> Result:
    """Replace a Gather of a known size from a shape by a constant."""
    return _fold_sizes(s)


@rule("eliminate_slice_after_shape", on="Slice", exactness=EXACT)
def slice_of_shape(s: Site) -> Result:
    """Replace a Slice of known sizes from a shape by a constant."""
    return _fold_sizes(s)


@rule("fold_shape_arithmetic", on=FOLLOWED - {"Shape", "Size", "Gather", "Slice"}, exactness=EXACT)
def known_sizes(s: Site) -> Result:
    """Replace arithmetic on sizes that are known, or cancel, by a constant."""
    return _fold_sizes(s)


@rule("fuse_concat_into_reshape", exactness=EXACT, opset=5)
def reshape_target(x: V, shape: V) -> Rewrite:
    """Replace a computed Reshape target by a constant with at most one −1, and 0 for copied sizes."""

    def reshape(m: Match) -> Result:
        s = m.site
        if facts.is_constant(m.shape):
            return None
        entries, dims = s.sizes.elements(m.shape), s.sizes.dims(m.x)
        if entries is None or dims is None:
            return None
        copies = not s.attr("allowzero", 0)
        sizes = [dims[i] if copies and e == 0 and i < len(dims) else e for i, e in enumerate(entries[1])]
        constant = constant_target(sizes, dims)
        if constant is None:
            return Refusal("more than one size of the target is open, or one beside a copied size")
        if may_reject_sizes(s, m.nodes[0]):
            # Compiled code computes the sizes, and refuses those that do not fit and a 0 that copies another size.
            return Refusal("the computed sizes are not known to fit, and may be 0, which copies a size")
        return Reshape(m.x, np.array(constant, np.int64))

    return Reshape(x, shape) >> reshape


def constant_target(target: Sequence[Size], dims: Sequence[Size]) -> list[int] | None:
    """Return a constant Reshape target that gives ``target`` for input shape ``dims``, or None."""
    out: list[int] = []
    open_at: list[int] = []
    for axis, size in enumerate(target):
        if isinstance(size, int):
            # In a target, 0 means "copy": a size of 0 can only be copied.
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
    if len(open_at) > 1 or (open_at and not _infers_beside_copies(out, dims)):
        return None
    if open_at and (
        0 in [size for size in target if isinstance(size, int)] or at_least(target[open_at[0]], 1) is False
    ):
        return None
    return out


def _infers_beside_copies(target: Sequence[int], dims: Sequence[Size]) -> bool:
    """Return True if no copied size may be 0, beside which engines infer no size for −1."""
    return all(at_least(dims[axis], 1) is True for axis, size in enumerate(target) if size == 0)


def _is_own_shape(m: Match) -> bool:
    dims = m.site.sizes.dims(m.x)
    target = None if dims is None else _resolve_target(m.site, dims)
    if dims is None or target is None or len(target) != len(dims):
        return False
    return all(equal(a, b) is True for a, b in zip(target, dims, strict=True))


@rule("eliminate_nop_reshape", exactness=EXACT, opset=5)
def reshape_to_same(x: V, shape: V) -> Rewrite:
    """Remove a Reshape to the shape of the tensor, including open sizes."""
    return Reshape(x, shape) >> x | where(guard(_is_own_shape, ""))


def _resolve_target(s: Site, dims: Sequence[Size]) -> list[Size] | None:
    """Return the output shape of a Reshape, with −1 and 0 resolved."""
    entries = s.sizes.elements(s.input(1))
    if entries is None:
        return None
    copies = not facts.attribute(s.node, "allowzero", s.opset, 0)
    target: list[Size] = []
    for axis, size in enumerate(entries[1]):
        if size == 0 and copies:
            if axis >= len(dims):
                return None
            size = dims[axis]
        target.append(size)
    open_at = [i for i, size in enumerate(target) if size == -1]
    if len(open_at) == 1 and len(target) == len(dims):
        # If all other sizes are equal, the open size equals the remaining one.
        others = [i for i in range(len(dims)) if i != open_at[0]]
        if all(equal(target[i], dims[i]) is True and at_least(dims[i], 1) is True for i in others):
            target[open_at[0]] = dims[open_at[0]]
    if any(isinstance(size, int) and size < 0 for size in target):
        return None
    return target


def _broadcasts_nothing(m: Match) -> bool:
    entries, dims = m.site.sizes.elements(m.shape), m.site.sizes.dims(m.x)
    if entries is None or dims is None or len(entries[1]) > len(dims):
        return False
    tail = dims[len(dims) - len(entries[1]) :]
    return all(size == 1 or equal(size, old) is True for size, old in zip(entries[1], tail, strict=True))


@rule("eliminate_nop_expand", exactness=EXACT)
def expand_to_same(x: V, shape: V) -> Rewrite:
    """Remove an Expand to a shape that does not change the tensor, including open sizes."""
    return Expand(x, shape) >> x | where(guard(_broadcasts_nothing, ""))


@sweep("share_equal_sizes", exactness=EXACT)
def equal_sizes(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Compute equal sizes once, and read a whole shape from the tensor with this shape."""
    yield from _share_sizes(engine, graph, {})


def _share_sizes(
    engine: Engine, graph: ir.Graph, outer: MutableMapping[Hashable, ir.Value]
) -> Iterator[tuple[ir.Node, Result]]:
    seen: MutableMapping[Hashable, ir.Value] = ChainMap({}, outer)
    sizes = engine.sizes
    for node in graph:
        if not engine.flat:
            for body in facts.bodies(node):
                yield from _share_sizes(engine, body, seen)
        if node.op_type not in RULES or node.domain not in STANDARD or len(node.outputs) != 1:
            continue
        value = node.outputs[0]
        if facts.dtype(value) != ir.DataType.INT64:
            continue
        entries = sizes.elements(value)
        if entries is None or all(isinstance(e, int) for e in entries[1]) or facts.unused(value):
            continue
        first = seen.get(entries)
        if first is None or not _is_alive(engine, first):
            # The value seen first may have been removed with its last reader.
            seen[entries] = value
            result = _read_from_shape(sizes, node, entries)
            if result is not None:
                del seen[entries]
                yield node, result
        elif not value.is_graph_output():
            yield node, Patch({value: first})


def _is_alive(engine: Engine, value: ir.Value) -> bool:
    producer = value.producer()
    return producer is not None and engine.alive(producer)


def _read_from_shape(sizes: Sizes, node: ir.Node, entries: Elements) -> Result:
    """Replace a Concat of sizes by the Shape of a tensor that has these sizes in a row."""
    if node.op_type != "Concat" or len(entries[1]) < 2:
        return None
    for tensor in _shape_sources(node):
        dims = sizes.dims(tensor)
        if dims is None or len(dims) < len(entries[1]):
            continue
        for start in range(len(dims) - len(entries[1]) + 1):
            if all(equal(a, b) is True for a, b in zip(dims[start:], entries[1], strict=False)):
                is_whole_shape = len(dims) == len(entries[1])
                if is_whole_shape:
                    return Shape(tensor)
                if sizes.opset >= 15:
                    return Shape(tensor, start=start or None, end=start + len(entries[1]))
    return None


def _shape_sources(node: ir.Node) -> list[ir.Value]:
    """Return the tensors whose shapes the node's shape arithmetic reads."""
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
