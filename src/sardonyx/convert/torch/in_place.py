"""Functional forms of programs with in-place operators, e.g. ``ReLU(inplace=True)`` or ``x[:, :2] = y``.

torch makes a program functional by tracing it twice more, which takes longer than the first capture. Here the calls are
copied in order. A write makes the written tensor anew, and the tensor that owns the memory from that by the inverses of
its views; a later call reads this one, by views made anew. The memory of a result is known from the example results.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from sardonyx.convert.torch.operators.activations import DROPOUTS
from sardonyx.convert.torch.operators.registry import translation_of

_aten = torch.ops.aten

_OWN_TYPE = frozenset({
    "copy_", "fill_", "index_copy_", "index_fill_", "index_put_", "masked_fill_", "masked_scatter_", "scatter_",
    "zero_",
})  # fmt: skip
"""In-place operators whose functional forms have the type of the first operand, whatever the others are."""

_SAME_TYPE = frozenset({
    "add_", "clamp_", "clamp_max_", "clamp_min_", "cumsum_", "index_add_", "mul_", "neg_", "remainder_", "scatter_add_",
    "sub_", "tril_", "triu_",
})  # fmt: skip
"""In-place operators whose functional forms have the operands' type if that is one type of integers."""

_INACTIVE = frozenset(f"{name}_" for name in DROPOUTS)
"""In-place operators that write nothing outside of training."""


class _Unsupported(Exception):
    """A write that has no functional form here."""


@dataclass
class _Memory:
    """The memory of a result, and of its views.

    Attributes:
        owner: The call of the program that returned the memory.
        version: Number of writes so far.
    """

    owner: Any
    version: int = 0


def functional(exported: Any) -> Any:
    """Return a program without writes; the program itself if it has none, or one without functional form."""
    if any(isinstance(part, torch.fx.GraphModule) for part in list(exported.graph_module.modules())[1:]):
        return exported
    if not any(_is_write(node) for node in exported.graph_module.graph.nodes):
        return exported
    try:
        graph = _Functional(exported.graph_module.graph).graph
    except _Unsupported:
        return exported
    result = copy.copy(exported)
    result._graph_module = torch.fx.GraphModule(exported.graph_module, graph)
    result._graph_module.meta.update(exported.graph_module.meta)
    return result


class _Functional:
    """A copy of a graph without writes.

    Raises:
        _Unsupported: A write has no functional form.
    """

    def __init__(self, original: Any) -> None:
        self.graph = torch.fx.Graph()
        self.graph.set_codegen(copy.copy(original._codegen))
        self._values: dict[Any, tuple[Any, int]] = {}
        self._sources: dict[Any, Any] = {}
        self._memories: dict[int, _Memory] = {}
        for node in original.nodes:
            # Names of new calls differ from all names of the program.
            self.graph._graph_namespace.create_name(node.name, None)
        for node in original.nodes:
            self._copy(node)

    def _copy(self, node: Any) -> None:
        if not _is_write(node):
            source = next((arg for arg in node.all_input_nodes if _shares(arg, node)), None)
            if source is None and _is_inactive_dropout(node):
                # Returns its operand, although the example result of torch has other memory.
                source = node.args[0]
                key, memory = _storage(node), self._memory(source)
                if key is not None and memory is not None:
                    self._memories[key] = memory
            if source is not None:
                self._sources[node] = source
            elif (key := _storage(node)) is not None:
                self._memories[key] = _Memory(node)
            self._set(node, self._node(node))
            # A copy renumbers names, by which the program's signature has inputs and outputs.
            self._values[node][0].name = node.name
            return
        target = node.args[0] if node.args else None
        if not isinstance(target, torch.fx.Node):
            raise _Unsupported
        is_inactive = _name(node) in _INACTIVE and node.args[2:] == (False,)
        if not is_inactive and _name(node) != "detach_":
            self._write(node, target)
        # The result of a write is the written tensor.
        self._sources[node] = self._sources[target] if _is_write(target) else target

    def _node(self, node: Any) -> Any:
        """Return a copy of a call that reads what its operands are now."""
        result = self.graph.node_copy(node, self._current)
        result.meta = dict(node.meta)
        return result

    def _set(self, node: Any, value: Any) -> None:
        memory = self._memory(node)
        self._values[node] = value, memory.version if memory is not None else 0

    def _memory(self, node: Any) -> _Memory | None:
        key = _storage(node)
        return None if key is None else self._memories.get(key)

    def _current(self, node: Any) -> Any:
        """Return the copy of a call's result with everything that was written since."""
        if _is_write(node):
            return self._current(self._sources[node])
        value, version = self._values[node]
        memory = self._memory(node)
        if memory is None or memory.version == version:
            return value
        self._set(node, self._node(node))  # The owner of the memory is current after every write.
        return self._values[node][0]

    def _write(self, node: Any, target: Any) -> None:
        """Let the owner of a target's memory, and the views from the owner to the target, be those after a write."""
        memory = self._memory(target)
        if memory is None or memory.owner.op != "call_function":
            raise _Unsupported
        chain = [target]
        while _is_write(chain[-1]) or chain[-1] is not memory.owner:
            source = self._sources.get(chain[-1])
            if source is None:
                raise _Unsupported
            chain.append(source)
        chain = [one for one in chain if not _is_write(one) and not _is_list(one)]
        value = self.graph.call_function(*_functional_call(node, self._current))
        value.name, value.meta = node.name, dict(node.meta)
        values = [value]
        for view, source in pairwise(chain):
            values.append(self._scattered(view, self._current(source), values[-1]))
        memory.version += 1
        for one, value in zip(chain, values, strict=True):
            self._set(one, value)

    def _scattered(self, view: Any, source: Any, value: Any) -> Any:
        """Return the source of a view with another value where the view shows it."""
        if _is_whole(view.args[0], view):
            return value
        if view.target is operator.getitem:
            parts, index = view.args
            rule = _PARTS.get(parts.target)
            position: tuple[Any, ...] = (index, *parts.args[1:])
        else:
            rule, position = _INVERSES.get(view.target), view.args[1:]
        if rule is None or view.kwargs:
            raise _Unsupported
        target, args = rule(self, source, value, *torch.fx.node.map_arg(position, self._current))
        if translation_of(_full_name(target)) is None:
            raise _Unsupported
        result = self.graph.call_function(target, args)
        result.meta = {**view.meta, "val": source.meta["val"]}
        return result

    def sizes(self, node: Any) -> list[Any]:
        """Return the sizes of a result as arguments of a call."""
        sizes: list[Any] = []
        for axis, size in enumerate(node.meta["val"].shape):
            if not isinstance(size, int):
                known = self.graph.call_function(_aten.sym_size.int, (node, axis))
                known.meta["val"], size = size, known
            sizes.append(size)
        return sizes


Inverse = Callable[..., tuple[Any, tuple[Any, ...]]]


def _slice(_: _Functional, source: Any, value: Any, *position: Any) -> tuple[Any, tuple[Any, ...]]:
    return _aten.slice_scatter.default, (source, value, *position)


def _select(_: _Functional, source: Any, value: Any, *position: Any) -> tuple[Any, tuple[Any, ...]]:
    return _aten.select_scatter.default, (source, value, *position)


def _transpose(_: _Functional, source: Any, value: Any, first: int, second: int) -> tuple[Any, tuple[Any, ...]]:
    return _aten.transpose.int, (value, first, second)


def _permute(_: _Functional, source: Any, value: Any, order: Any) -> tuple[Any, tuple[Any, ...]]:
    rank = len(order)
    positions = [axis % rank for axis in order]
    return _aten.permute.default, (value, [positions.index(axis) for axis in range(rank)])


def _reverse(_: _Functional, source: Any, value: Any) -> tuple[Any, tuple[Any, ...]]:
    return _aten.t.default, (value,)


def _diagonal(_: _Functional, source: Any, value: Any, *position: Any) -> tuple[Any, tuple[Any, ...]]:
    return _aten.diagonal_scatter.default, (source, value, *position)


def _reshape(graph: _Functional, source: Any, value: Any, *_: Any) -> tuple[Any, tuple[Any, ...]]:
    return _aten.reshape.default, (value, graph.sizes(source))


_INVERSES: dict[Any, Inverse] = {
    _aten.slice.Tensor: _slice,
    _aten.select.int: _select,
    _aten.transpose.int: _transpose,
    _aten.permute.default: _permute,
    _aten.t.default: _reverse,
    _aten.diagonal.default: _diagonal,
    _aten.view.default: _reshape,
    _aten.reshape.default: _reshape,
    _aten.flatten.using_ints: _reshape,
    _aten.unsqueeze.default: _reshape,
    _aten.squeeze.dim: _reshape,
}
"""The call that makes the source of a view from a new value of the view, by the view's operator."""


def _unbound(_: _Functional, source: Any, value: Any, index: int, axis: int = 0) -> tuple[Any, tuple[Any, ...]]:
    return _aten.select_scatter.default, (source, value, axis, index)


def _split(
    _: _Functional, source: Any, value: Any, index: int, sizes: Any, axis: int = 0
) -> tuple[Any, tuple[Any, ...]]:
    if not all(isinstance(size, int) for size in (sizes if isinstance(sizes, (list, tuple)) else [sizes])):
        raise _Unsupported
    start, end = (
        (index * sizes, index * sizes + sizes)
        if isinstance(sizes, int)
        else (sum(sizes[:index]), sum(sizes[: index + 1]))
    )
    return _aten.slice_scatter.default, (source, value, axis, start, end)


_PARTS: dict[Any, Inverse] = {
    _aten.unbind.int: _unbound,
    _aten.split.Tensor: _split,
    _aten.split_with_sizes.default: _split,
}
"""The call that makes the source of one of several views, by the operator that returns these."""


def _functional_call(node: Any, current: Callable[[Any], Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return the functional form of an in-place call: operator and arguments.

    Raises:
        _Unsupported: There is none, or its result may have another type than the written tensor.
    """
    name = _name(node)
    args = torch.fx.node.map_arg(node.args, current)
    kwargs = torch.fx.node.map_arg(node.kwargs, current)
    if not _keeps_type(node, name):
        raise _Unsupported
    if name == "zero_":
        return _aten.zeros_like.default, (args[0],), {}
    packet = getattr(_aten, name.removesuffix("_"), None)
    overload = getattr(packet, node.target._overloadname, None)
    if overload is None or overload._schema.is_mutable or translation_of(_full_name(overload)) is None:
        raise _Unsupported
    if any(result.alias_info is not None for result in overload._schema.returns):
        raise _Unsupported  # A call such as ``t_`` changes the layout of its operand, not the memory.
    return overload, args, kwargs


def _keeps_type(node: Any, name: str) -> bool:
    """Return True if the functional form of an in-place call has the type of the first operand."""
    if name in _OWN_TYPE:
        return True
    values = [argument.meta.get("val") for argument in (node.args[0], *node.all_input_nodes)]
    types = {value.dtype for value in values if isinstance(value, torch.Tensor)}
    own = values[0].dtype
    if own.is_floating_point or own.is_complex:
        return not any((one.is_floating_point or one.is_complex) and one != own for one in types)
    return types == {own} and name in _SAME_TYPE


def _is_write(node: Any) -> bool:
    """Return True if a call writes to its first operand."""
    target = node.target
    return node.op == "call_function" and isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


def _is_inactive_dropout(node: Any) -> bool:
    """Return True if a call is a dropout outside of training."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    return node.target._schema.name.partition("::")[2] in DROPOUTS and node.args[2:] == (False,)


def _is_list(node: Any) -> bool:
    """Return True if a call returns several tensors."""
    return isinstance(node.meta.get("val"), (list, tuple))


def _name(node: Any) -> str:
    """Return the name of an operator of ``aten`` that writes to its first operand alone, else an empty text."""
    schema = node.target._schema
    if node.target.namespace != "aten" or not schema.name.endswith("_") or schema.name.endswith("__"):
        return ""
    writes = [argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments]
    return schema.name.partition("::")[2] if writes[0] and not any(writes[1:]) else ""


def _full_name(target: Any) -> str:
    return f"{target.namespace}.{target._schema.name.partition('::')[2]}.{target._overloadname}"


def _example(node: Any) -> Any:
    value = node.meta.get("val") if node.target is not operator.getitem or "val" in node.meta else None
    return value[0] if isinstance(value, (list, tuple)) and value else value


def _storage(node: Any) -> int | None:
    """Return the memory of a call's result, of the first one if there are several."""
    value = _example(node)
    return int(value.untyped_storage()._cdata) if isinstance(value, torch.Tensor) else None


def _shares(source: Any, node: Any) -> bool:
    key = _storage(node)
    return key is not None and key == _storage(source)


def _is_whole(source: Any, view: Any) -> bool:
    """Return True if a view shows its source as it is."""
    first, second = _example(source), _example(view)
    return bool(
        first.dtype == second.dtype
        and _layout(first) == _layout(second)
        and not isinstance(source.meta.get("val"), (list, tuple))
    )


def _layout(value: Any) -> list[str]:
    """Return sizes, strides and offset as texts, which are compared without conditions on the program."""
    return [str(number) for number in (*value.shape, *value.stride(), value.storage_offset())]
