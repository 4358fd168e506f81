"""Compare two models node by node: nodes added, removed, changed, and replaced by others."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.model import Loadable
from sardonyx.report.node_matching import Located, Matching, changed_attributes, chunks, graphs, same_contents
from sardonyx.rewrite.analysis.names import node_label


@dataclass(frozen=True)
class NodeChange:
    """A node of both models with differences in attributes, inputs read, or name."""

    node: str
    operator: str
    changes: tuple[str, ...]


@dataclass(frozen=True)
class Replacement:
    """Nodes of the first model only, and the nodes of the second model in place of them.

    Either side may be empty: nodes may be only removed, or only added. A node is written ``Operator name``, or by its
    name alone if the name begins with the operator.
    """

    removed: tuple[str, ...]
    added: tuple[str, ...]


@dataclass(frozen=True)
class Diff:
    """Differences between two models.

    Attributes:
        same: Number of nodes that are equal in both.
        changed: Nodes of both models with differences.
        replaced: Nodes in one of the models only, grouped by replacement.
        weights: Differences of weights, bodies included, a line each.
        interface: Differences of inputs, outputs, and producers of the outputs, a line each.
        model: Differences of opsets, IR version, names, functions and metadata, a line each.
    """

    same: int
    changed: tuple[NodeChange, ...]
    replaced: tuple[Replacement, ...]
    weights: tuple[str, ...]
    interface: tuple[str, ...]
    model: tuple[str, ...]

    def __bool__(self) -> bool:
        """Return True if there is any difference."""
        return bool(self.changed or self.replaced or self.weights or self.interface or self.model)

    def as_dict(self) -> dict[str, Any]:
        """Return the difference as plain data."""
        return asdict(self)


def diff(a: Loadable, b: Loadable, *, names: Mapping[str, Sequence[str]] | None = None) -> Diff:
    """Compare two models.

    Nodes are matched by their output tensors, by name, then by structure. Unmatched nodes with common inputs or outputs
    form a replacement. Doc strings, training information, and metadata and types of inner values are ignored.

    Args:
        a: The first model: anything that ``sardonyx.load`` accepts.
        b: The second model.
        names: Node of the first → resulting nodes of the second, as in ``Optimized.report.names``.

    Raises:
        ModelFileError: A model cannot be read.
    """
    first, second = model_io.load(a), model_io.load(b)
    matching = Matching(first, second)
    changed = []
    for one, other in matching.pairs.items():
        changes = tuple(_changes(matching, one, other))
        if changes:
            changed.append(NodeChange(one.label, one.operator, changes))
    return Diff(
        same=len(matching.pairs) - len(changed),
        changed=tuple(changed),
        replaced=tuple(_replacements(matching, names or {})),
        weights=tuple(_weights(first, second)),
        interface=(*_interface(first.graph, second.graph), *_outputs(matching, first, second)),
        model=tuple(_model(first, second)),
    )


def _changes(matching: Matching, one: Located, other: Located) -> Iterator[str]:
    a, b = one.node, other.node
    if a.name != b.name:
        yield f"name: {a.name or 'none'} → {b.name or 'none'}"
    yield from changed_attributes(a, b)
    length = max(len(a.inputs), len(b.inputs))
    padded = ([*n.inputs, *[None] * (length - len(n.inputs))] for n in (a, b))
    for index, (x, y) in enumerate(zip(*padded, strict=True)):
        # The same tensor from another node is that node's difference, not this one's.
        alike = x is not None and y is not None and x.name == y.name
        if not alike and not matching.corresponds(x, y):
            yield f"input {index}: {_name(x)} → {_name(y)}"
    if len(a.outputs) != len(b.outputs):
        yield f"outputs: {len(a.outputs)} → {len(b.outputs)}"


def _name(value: ir.Value | None) -> str:
    return "none" if value is None else f"'{value.name}'"


# -- replacements ----------------------------------------------------------------------------------


def _replacements(matching: Matching, names: Mapping[str, Sequence[str]]) -> Iterator[Replacement]:
    groups = _Groups()
    lone = {located.node for located in (*matching.only_a, *matching.only_b)}
    producers = {(at.path, v.name): at.node for at in matching.only_b for v in at.node.outputs if v.name}
    for at in matching.only_a:
        for value in at.node.outputs:
            groups.join(at.node, producers.get((at.path, value.name or "")))
    for at in (*matching.only_a, *matching.only_b):
        groups.add(at.node)
        for entry in at.node.inputs:
            producer = None if entry is None else entry.producer()
            groups.join(at.node, producer if producer in lone else None)
    for one, other in matching.pairs.items():
        for x, y in zip(one.node.inputs, other.node.inputs, strict=False):
            if x is not None and y is not None and not matching.corresponds(x, y):
                left, right = x.producer(), y.producer()
                if left is not None and left in lone:
                    groups.join(left, right if right in lone else None)
    added = {located.label: located.node for located in matching.only_b}
    for at in matching.only_a:
        for new in names.get(at.label, ()):
            groups.join(at.node, added.get(new))
    yield from groups.replacements(matching.only_a, matching.only_b)


class _Groups:
    """Disjoint sets of nodes that belong to one replacement (union-find)."""

    def __init__(self) -> None:
        self._parent: dict[ir.Node, ir.Node] = {}

    def add(self, node: ir.Node) -> ir.Node:
        self._parent.setdefault(node, node)
        while self._parent[node] is not node:
            self._parent[node] = self._parent[self._parent[node]]
            node = self._parent[node]
        return node

    def join(self, node: ir.Node, other: ir.Node | None) -> None:
        if other is not None:
            self._parent[self.add(other)] = self.add(node)

    def replacements(self, removed: Iterable[Located], added: Iterable[Located]) -> Iterator[Replacement]:
        sides: dict[ir.Node, tuple[list[str], list[str]]] = {}
        for side, listed in enumerate((removed, added)):
            for at in listed:
                sides.setdefault(self.add(at.node), ([], []))[side].append(at.description)
        for before, after in sides.values():
            yield Replacement(tuple(before), tuple(after))


# -- weights, interface, the rest ------------------------------------------------------------------


def _weights(a: ir.Model, b: ir.Model) -> Iterator[str]:
    left, right = _weights_of(a), _weights_of(b)
    gone = [name for name in left if name not in right]
    renamed = dict(_renamed({name: left[name] for name in gone}, {n: t for n, t in right.items() if n not in left}))
    for name in left:
        if name in right and (difference := _changed_weight(left[name], right[name])):
            yield f"'{name}': {difference}"
    yield from (f"'{old}' is named '{new}'" for old, new in renamed.items())
    yield from (f"'{name}' is gone ({_format_weight(left[name])})" for name in gone if name not in renamed)
    known = {*left, *renamed.values()}
    yield from (f"'{name}' is new ({_format_weight(right[name])})" for name in right if name not in known)


def _weights_of(model: ir.Model) -> dict[str, ir.TensorProtocol]:
    """Return the weights by name; the name of a body's weight starts with the body's path."""
    return {
        f"{path}/{name}" if path else name: value.const_value
        for path, graph in graphs(model)
        for name, value in graph.initializers.items()
        if value.const_value is not None
    }


def _renamed(old: Mapping[str, ir.TensorProtocol], new: Mapping[str, ir.TensorProtocol]) -> Iterator[tuple[str, str]]:
    """Yield weights that have other names in the two models: equal type, shape and contents, in order."""
    kinds = {(t.dtype, tuple(t.shape)) for t in old.values()} & {(t.dtype, tuple(t.shape)) for t in new.values()}
    candidates: dict[tuple[Any, ...], list[str]] = {}
    for name, tensor in new.items():
        if (tensor.dtype, tuple(tensor.shape)) in kinds:
            candidates.setdefault((tensor.dtype, tuple(tensor.shape), _digest(tensor)), []).append(name)
    for name, tensor in old.items():
        if (tensor.dtype, tuple(tensor.shape)) in kinds:
            matches = candidates.get((tensor.dtype, tuple(tensor.shape), _digest(tensor)))
            if matches:
                yield name, matches.pop(0)


def _digest(tensor: ir.TensorProtocol) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for (piece,) in chunks(tensor):
        digest.update(repr(piece.tolist()).encode() if piece.dtype == object else piece.tobytes())
    return digest.digest()


def _format_weight(tensor: ir.TensorProtocol) -> str:
    return f"{tensor.dtype.name.lower()} {list(tensor.shape)}"


def _changed_weight(left: ir.TensorProtocol, right: ir.TensorProtocol) -> str:
    if left.dtype != right.dtype or tuple(left.shape) != tuple(right.shape):
        return f"{_format_weight(left)} → {_format_weight(right)}"
    if same_contents(left, right):
        return ""
    if left.dtype == ir.DataType.STRING:
        return "other contents"
    unlike, largest = 0, 0.0
    for pair in chunks(left, right):
        x, y = (piece.astype(np.complex128 if piece.dtype.kind == "c" else np.float64) for piece in pair)
        differs = (x != y) & ~(np.isnan(x) & np.isnan(y))
        with np.errstate(invalid="ignore"):
            distance = np.abs(x - y)[differs]
        unlike += int(np.count_nonzero(differs))
        largest = max(largest, float(np.max(distance[~np.isnan(distance)], initial=0)))
    if not unlike:
        return "other bits for equal numbers"
    by = f", by {largest:.3g} at most" if largest else ", one of the two is NaN"
    return f"other contents, {unlike} of {left.size} elements{by}"


def _interface(a: ir.Graph, b: ir.Graph) -> Iterator[str]:
    for kind, left, right in (("input", a.inputs, b.inputs), ("output", a.outputs, b.outputs)):
        mine, theirs = ({str(v.name): v for v in values} for values in (left, right))
        for name in dict.fromkeys([*mine, *theirs]):
            if name not in theirs:
                yield f"{kind} '{name}' is gone"
            elif name not in mine:
                yield f"{kind} '{name}' is new: {_format_type(theirs[name])}"
            elif _format_type(mine[name]) != _format_type(theirs[name]):
                yield f"{kind} '{name}': {_format_type(mine[name])} → {_format_type(theirs[name])}"
        common = [name for name in mine if name in theirs]
        if common != [name for name in theirs if name in mine]:
            yield f"{kind}s are in another order: {', '.join(theirs)}"


def _outputs(matching: Matching, a: ir.Model, b: ir.Model) -> Iterator[str]:
    """Yield outputs, bodies and functions included, whose producers in the two models do not correspond."""
    others = dict(graphs(b))
    for path, graph in graphs(a):
        if path not in others:
            continue
        for name, left, right in _paired_outputs(graph, others[path], by_name=not path):
            producers = [value.producer() for value in (left, right)]
            is_reported = any(producer is not None and matching.is_lone(producer) for producer in producers)
            if not is_reported and not matching.corresponds(left, right):
                prefix = f"{path}: " if path else ""
                yield f"{prefix}output {name}: made by {_format_producer(left)} → {_format_producer(right)}"


def _paired_outputs(a: ir.Graph, b: ir.Graph, *, by_name: bool) -> Iterator[tuple[str, ir.Value, ir.Value]]:
    if by_name:
        theirs = {value.name: value for value in b.outputs}
        yield from ((f"'{v.name}'", v, theirs[v.name]) for v in a.outputs if v.name in theirs)
    else:
        yield from ((str(number), x, y) for number, (x, y) in enumerate(zip(a.outputs, b.outputs, strict=False)))


def _format_producer(value: ir.Value) -> str:
    node = value.producer()
    if node is None:
        return f"'{value.name}' itself"
    return node_label(node) if len(node.outputs) == 1 else f"{node_label(node)}, its output {value.index()}"


def _format_type(value: ir.Value) -> str:
    kind = "?" if value.type is None else str(value.type)
    return kind if value.shape is None else f"{kind} {value.shape}"


def _model(a: ir.Model, b: ir.Model) -> Iterator[str]:
    if a.ir_version != b.ir_version:
        lowest = a.ir_version > b.ir_version >= model_io.lowest_ir_version(b)
        reason = ", the lowest with all features of the second model" if lowest else ""
        yield f"IR version: {a.ir_version} → {b.ir_version}{reason}"
    for label, left, right in (
        ("graph name", a.graph.name, b.graph.name),
        ("model version", a.model_version, b.model_version),
        ("model domain", a.domain, b.domain),
        ("producer", _producer(a), _producer(b)),
    ):
        if (left or None) != (right or None):
            yield f"{label}: {left or 'none'} → {right or 'none'}"
    yield from _pairs("opset of", _opsets(a.opset_imports), _opsets(b.opset_imports))
    yield from _pairs("metadata", a.metadata_props, b.metadata_props)
    theirs = {_title(function): function for function in b.functions.values()}
    mine = {_title(function): function for function in a.functions.values()}
    yield from _pairs("function", *(dict.fromkeys(side, "defined") for side in (mine, theirs)))
    for title in mine:
        if title in theirs:
            yield from _function(title, mine[title], theirs[title])


def _producer(model: ir.Model) -> str:
    return f"{model.producer_name or ''} {model.producer_version or ''}".strip()


def _title(function: ir.Function) -> str:
    return f"{function.domain}.{function.name}" + (f":{function.overload}" if function.overload else "")


def _function(title: str, a: ir.Function, b: ir.Function) -> Iterator[str]:
    yield from _pairs(f"function {title}: opset of", _opsets(a.opset_imports), _opsets(b.opset_imports))
    sides = ({f"'{name}'": _default(attribute) for name, attribute in f.attributes.items()} for f in (a, b))
    yield from _pairs(f"function {title}: attribute", *sides)
    for kind in ("inputs", "outputs"):
        counts = [len(getattr(f, kind)) for f in (a, b)]
        if counts[0] != counts[1]:
            yield f"function {title}: {kind}: {counts[0]} → {counts[1]}"


def _default(attribute: ir.Attr) -> str:
    return "without a default" if attribute.value is None else str(attribute.value)


def _opsets(imports: Mapping[str, int]) -> dict[str, int]:
    return {domain or "ai.onnx": version for domain, version in imports.items()}


def _pairs(kind: str, a: Mapping[str, object], b: Mapping[str, object]) -> Iterator[str]:
    for name in dict.fromkeys([*a, *b]):
        if a.get(name) != b.get(name):
            yield f"{kind} {name}: {a.get(name, 'none')} → {b.get(name, 'none')}"
