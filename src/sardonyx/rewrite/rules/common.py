"""Housekeeping over whole graphs: dead nodes, unused and duplicate weights, equal computations."""

from __future__ import annotations

import functools
from collections import ChainMap
from collections.abc import Hashable, Iterable, Iterator, MutableMapping, Sequence
from typing import cast

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.engine.engine import Engine
from sardonyx.rewrite.language import COMMUTATIVE, EXACT, Patch, Result, rule
from sardonyx.rewrite.site import Site
from sardonyx.rewrite.sweep import sweep
from sardonyx.rewrite.weight_digest import Contents, contents_in


@rule("extract_constant_to_initializer", on="Constant", exactness=EXACT)
def constant_to_initializer(s: Site) -> Result:
    """Turn a Constant node into an initializer (in a function, which has no initializers, it stays)."""
    tensor = facts.constant_tensor(s.output)
    if tensor is None or s.in_function():
        return None
    return Patch({s.output: s.workspace.new_constant(tensor, s.graph, s.output.name or "constant", [])})


LISTS_WEIGHTS = frozenset({"pytorch", "onnxmltools"})
"""Exporters that list all weights as inputs or none; for others, an input with a default is intended."""


@sweep("eliminate_initializer_from_inputs", exactness=EXACT, early=True)
def listed_initializers(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Remove weights from the inputs if the exporter (PyTorch, OnnxMLTools) lists all weights by habit."""
    if lists_weights_by_habit(engine.model):
        yield from _unlisted(graph)


@sweep("freeze_initializers", exactness=EXACT, default=False, early=True)
def inputs_with_defaults(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Turn graph inputs with a default value into constants: callers can no longer override them."""
    yield from _unlisted(graph)


def _unlisted(graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    first = next(iter(graph), None)
    if first is not None and any(value.is_initializer() for value in graph.inputs):
        yield first, Patch(edit=lambda: [use.node for value in unlist_weights(graph) for use in value.uses()])


def lists_weights_by_habit(model: ir.Model) -> bool:
    """Return True if every weight is a graph input and the exporter lists all weights or none."""
    weights = model.graph.initializers.data.values()
    habit = (model.producer_name or "").lower() in LISTS_WEIGHTS
    return habit and bool(weights) and all(value.is_graph_input() for value in weights)


def unlist_weights(graph: ir.Graph) -> list[ir.Value]:
    """Remove all weights from the inputs; return the removed ones."""
    listed = [value for value in graph.initializers.data.values() if value.is_graph_input()]
    for value in listed:
        graph.inputs.remove(value)
    return listed


@sweep("extract_constant_to_initializer", exactness=EXACT, on=("Constant",), early=True)
def constants_to_initializers(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Turn all Constant nodes into initializers at once."""
    if engine.in_function:
        return
    for inner in engine.graphs(graph):
        constants = [n for n in inner if facts.is_op(n, "Constant") and facts.constant_tensor(n.outputs[0]) is not None]
        plain = [n for n in constants if not n.outputs[0].is_graph_output()]
        if plain:
            yield plain[0], Patch(build=functools.partial(_extract_constants, engine, inner, plain))


def _extract_constants(engine: Engine, graph: ir.Graph, constants: list[ir.Node]) -> Patch:
    for node in constants:
        old = node.outputs[0]
        tensor = facts.constant_tensor(old)
        assert tensor is not None
        # Without the tensor, which models share and which a value renames with itself.
        old.const_value = None
        name, old.name = old.name, engine.names.fresh(f"{old.name}_node")
        value = ir.Value(
            name=name,
            type=old.type or ir.TensorType(tensor.dtype),
            shape=ir.Shape(cast("Sequence[int]", tensor.shape)),
            const_value=tensor,
        )
        graph.register_initializer(value)
        for use in tuple(old.uses()):
            use.node.replace_input_with(use.idx, value)
    return Patch(remove=constants)


@sweep("eliminate_deadend", exactness=EXACT)
def dead_nodes(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Remove nodes whose outputs nothing reads."""
    for inner in reversed(engine.graphs(graph)):
        for node in reversed(inner):
            if all(map(facts.unused, node.outputs)):
                yield node, Patch(remove=[node])


@sweep("eliminate_unused_initializer", exactness=EXACT)
def unused_initializers(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Remove weights that nothing reads."""
    for inner in engine.graphs(graph):
        dead = [v for v in inner.initializers.data.values() if facts.unused(v) and not v.is_graph_input()]
        for value in dead:
            del inner.initializers[value.name]  # type: ignore[arg-type]
    yield from ()


Form = tuple[ir.DataType, tuple[object, ...]]
"""Element type and shape of a weight."""

_Met = tuple[ir.Value, ir.TensorProtocol]


@sweep("eliminate_duplicate_initializer", exactness=EXACT)
def duplicate_initializers(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Store equal weights once, with one patch per graph."""
    yield from _duplicates(engine, graph, _Seen(contents_in(engine)))


def _duplicates(engine: Engine, graph: ir.Graph, seen: _Seen) -> Iterator[tuple[ir.Node, Result]]:
    replacements: dict[ir.Value, ir.Value] = {}
    for value in graph.initializers.data.values():
        tensor = facts.constant_tensor(value)
        if tensor is None or value.is_graph_output() or facts.unused(value):
            continue
        first = seen.find_or_add(value, tensor)
        if first is not None and value.name not in engine.settings.protected:
            replacements[value] = first
    if replacements:
        yield (
            next(iter(next(iter(replacements)).uses())).node,
            Patch(replacements, edit=functools.partial(_drop_weights, graph, replacements)),
        )
    if engine.flat:
        return
    for node in graph:
        for body in facts.bodies(node):
            yield from _duplicates(engine, body, _Seen(seen.contents, seen))


def _drop_weights(graph: ir.Graph, weights: Iterable[ir.Value]) -> Iterable[ir.Node]:
    """Remove weights without readers from their graph."""
    for value in weights:
        del graph.initializers[str(value.name)]
    return ()


class _Seen:
    """Weights visited so far in a graph and around it, by form, then by a glimpse of their contents.

    Most weights differ in shape from all others; their contents are not read.
    """

    def __init__(self, contents: Contents, outer: _Seen | None = None) -> None:
        self.contents = contents
        self._outer = outer
        self._alone: dict[Form, _Met] = {}
        self._alike: dict[Form, dict[bytes, list[_Met]]] = {}

    def find_or_add(self, value: ir.Value, tensor: ir.TensorProtocol) -> ir.Value | None:
        """Return an equal weight visited before; if there is none, add this weight."""
        form = tensor.dtype, tuple(tensor.shape)
        equal = self._find(tensor, form)
        if equal is None:
            self._add((value, tensor), form)
        return equal

    def _find(self, tensor: ir.TensorProtocol, form: Form) -> ir.Value | None:
        # From the outermost graph inwards, in the order of visits.
        outer_match = self._outer._find(tensor, form) if self._outer is not None else None
        if outer_match is not None:
            return outer_match
        alone = self._alone.get(form)
        alike: Sequence[_Met] = [alone] if alone is not None else ()
        if form in self._alike:
            alike = self._alike[form].get(self.contents.glimpse(tensor), ())
        return next((value for value, other in alike if self.contents.equal(other, tensor)), None)

    def _add(self, met: _Met, form: Form) -> None:
        alone = self._alone.pop(form, None)
        alike = self._alike.get(form)
        if alone is None and alike is None:
            self._alone[form] = met
            return
        if alike is None:
            alike = self._alike[form] = {}
        for entry in (alone, met):
            if entry is not None:
                alike.setdefault(self.contents.glimpse(entry[1]), []).append(entry)


@sweep("eliminate_common_subexpression", exactness=EXACT)
def common_subexpressions(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Compute equal nodes with equal inputs once; bodies reuse values of the outer graphs."""
    yield from _equal_nodes(engine, graph, {})


def _equal_nodes(
    engine: Engine, graph: ir.Graph, outer: MutableMapping[Hashable, ir.Node]
) -> Iterator[tuple[ir.Node, Result]]:
    seen = ChainMap({}, outer) if outer else outer
    for node in graph:
        key = _expression_key(node)
        if key is not None:
            first = seen.setdefault(key, node)
            if first is not node:
                pairs = zip(node.outputs, first.outputs, strict=True)
                yield node, Patch({old: new for old, new in pairs if not facts.unused(old)})
                continue
        if not engine.flat:
            for body in facts.bodies(node):
                yield from _equal_nodes(engine, body, ChainMap({}, seen))


def _expression_key(node: ir.Node) -> Hashable | None:
    """Return the key that decides a node's outputs; None if more than inputs and attributes decides."""
    if any(v is not None and len(v.uses()) < 2 for v in node.inputs):
        # An equal node would read the same values.
        return None
    if node.op_type == "Constant" or not facts.is_pure(node) or facts.bodies(node):
        return None
    inputs: list[int] = [0 if v is None else id(v) for v in node.inputs]
    if node.op_type in COMMUTATIVE:
        inputs.sort()
    attributes: list[Hashable] = []
    for attr in sorted(node.attributes.data.values(), key=lambda a: a.name):
        if attr.is_ref():
            attributes.append((attr.name, "ref", attr.ref_attr_name))
        elif attr.type in (ir.AttributeType.TENSOR, ir.AttributeType.TENSORS):
            tensors = [attr.value] if attr.type == ir.AttributeType.TENSOR else attr.value
            attributes.append((attr.name, tuple((t.dtype, tuple(t.shape), t.tobytes()) for t in tensors)))
        elif isinstance(attr.value, (int, float, str, bytes)):
            attributes.append((attr.name, repr(attr.value)))
        elif isinstance(attr.value, (list, tuple)):
            attributes.append((attr.name, repr(tuple(attr.value))))
        else:
            return None
    present = tuple(bool(v.name) for v in node.outputs)
    return (node.op_type, node.domain, node.overload, tuple(inputs), tuple(attributes), present)
