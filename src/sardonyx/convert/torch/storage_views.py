"""``as_strided`` of a view, as that of the tensor whose memory the view shows.

``as_strided`` counts elements in memory, not in its operand: rows of a transposed tensor are columns there, and a slice
shows part of the memory that its result may read. A call on a view becomes one on the tensor that owns the memory, with
the axes in the order of memory; a write makes that tensor anew and shows it by the same views.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import torch

_READ = (torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_copy.default)
_WRITE = torch.ops.aten.as_strided_scatter.default

_MOST_AXES = 6
"""Maximum number of axes that are brought into the order of memory."""


def over_storage(exported: Any) -> Any:
    """Return a functional program whose calls of ``as_strided`` have operands in the order of memory."""
    for part in exported.graph_module.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in [node for node in part.graph.nodes if node.target in (*_READ, _WRITE)]:
                _over_base(part.graph, node)
    return exported


def _over_base(graph: Any, node: Any) -> None:
    """Let a call of ``as_strided`` read or write the memory of the tensor that its operand is a view of."""
    operand = node.args[0]
    chain = _views(operand)
    base = chain[0].args[0] if chain else operand
    order = _order_of_memory(base.meta["val"])
    is_plain = order == list(range(len(order or ())))
    if order is None or (not chain and is_plain):
        return
    count = 3 if node.target is _WRITE else 2
    arguments = node.args[1 : 1 + count]
    offset = node.args[1 + count] if len(node.args) > 1 + count else node.kwargs.get("storage_offset")
    if offset is None:
        offset = operand.meta["val"].storage_offset()
        if not isinstance(offset, int):
            return
    with graph.inserting_before(node):
        memory = base if is_plain else _call(graph, torch.ops.aten.permute.default, (base, order))
        result = _call(graph, node.target, (memory, *arguments, offset), node.meta)
        if node.target is _WRITE:
            result.meta["val"] = memory.meta["val"]
            if not is_plain:
                back = [order.index(axis) for axis in range(len(order))]
                result = _call(graph, torch.ops.aten.permute.default, (result, back))
            for view in chain:
                copied = graph.node_copy(view, lambda old, new=result, first=view.args[0]: new if old is first else old)
                copied.meta = dict(view.meta)
                result = copied
    node.replace_all_uses_with(result)
    graph.erase_node(node)


def _call(graph: Any, target: Any, args: tuple[Any, ...], meta: Any = None) -> Any:
    """Insert a call with its example result."""
    node = graph.call_function(target, args)
    node.meta = dict(meta or {})
    if target is torch.ops.aten.permute.default:
        node.meta["val"] = args[0].meta["val"].permute(args[1])
    return node


def _views(node: Any) -> list[Any]:
    """Return the calls from the tensor that owns the memory of a node's result to that result."""
    chain: list[Any] = []
    while node.op == "call_function" and node.args and isinstance(node.args[0], torch.fx.Node):
        source = node.args[0]
        if not _shares(source.meta.get("val"), node.meta.get("val")):
            break
        chain.insert(0, node)
        node = source
    return chain


def _shares(source: Any, result: Any) -> bool:
    """Return True if two example results have one memory and one element type; a list of views has that of each."""
    first, second = (value[0] if isinstance(value, (list, tuple)) and value else value for value in (source, result))
    if not (isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)) or first.dtype != second.dtype:
        return False
    return bool(first.untyped_storage()._cdata == second.untyped_storage()._cdata)


def _order_of_memory(value: Any) -> list[int] | None:
    """Return the order in which the axes of a dense tensor lie in memory; None if its elements do not fill it."""
    sizes, strides = [_plain(size) for size in value.shape], [_plain(step) for step in value.stride()]
    axes = range(len(sizes))
    if len(sizes) > _MOST_AXES or _plain(value.storage_offset()) != 0:
        return None
    return next((list(order) for order in permutations(axes) if _is_dense(sizes, strides, order)), None)


def _is_dense(sizes: Sequence[Any], strides: Sequence[Any], order: Sequence[int]) -> bool:
    step: Any = 1
    for axis in reversed(order):
        if strides[axis] != step and sizes[axis] != 1:
            return False
        step = step * sizes[axis]
    return True


def _plain(size: Any) -> Any:
    """Return a size as a number or an expression, which are compared without conditions on the program."""
    return size.node.expr if isinstance(size, torch.SymInt) else size
