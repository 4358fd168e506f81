"""``convert_opset``: convert a model from one operator set to another, one set at a time, up or down."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from sardonyx.errors import InvalidModelError, OpsetConversionError, OptionError, SardonyxError
from sardonyx.model import lower_ir_version
from sardonyx.model.copying import copy_model
from sardonyx.ops.evaluation import evaluate_nodes
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.inference import infer_shapes
from sardonyx.rewrite.analysis.names import Names, value_names
from sardonyx.rewrite.opset.alignment import align, find_violation
from sardonyx.rewrite.opset.expansion import expand
from sardonyx.rewrite.opset.experimental import EXPERIMENTAL, replace_experimental
from sardonyx.rewrite.opset.ir_version import at_least, set_ir_version
from sardonyx.rewrite.opset.schemas import canonical, changed_in, newest, schema_at, since_version
from sardonyx.rewrite.opset.scope import Scope, bodies_of, name_of
from sardonyx.rewrite.opset.site import Refusal, Site
from sardonyx.rewrite.opset.table import adapter_for
from sardonyx.rewrite.opset.widening import fit

_FOLD_LIMIT = 1 << 20


def convert_opset(
    model: ir.Model, opset: int | None = None, *, ir_version: int | None = None, domain: str = ""
) -> ir.Model:
    """Convert a model to another operator set, newer or older, and to another IR version.

    Bodies of ``If``, ``Loop`` and ``Scan`` and model-local functions are converted like the main graph. A function
    that cannot be converted for all its callers at once is inlined. An operator missing in the older set
    is decomposed. Outputs keep their names, order and types.

    Args:
        model: The Model; unchanged.
        opset: The operator set of ``domain`` to convert to; None leaves the set unchanged.
        ir_version: The IR version of the result; None means the lowest one sufficient for the model, or no change if
            ``opset`` is None too.
        domain: The domain whose operator set is converted.

    Returns:
        A new Model, sharing its tensors with ``model``.

    Raises:
        OpsetConversionError: A node has no equivalent in the target operator set, or the IR version
            lacks a feature of the model; names the node or tensor.
        OptionError: The operator set or IR version does not exist, or the model does not use the domain.
    """
    if opset is None:
        converted = copy_model(model)
    else:
        try:
            converted = Conversion(model, domain).convert(opset)
        except OpsetConversionError:
            if not model.functions:
                raise
            converted = Conversion(_inlined(model), domain).convert(opset)
    if ir_version is not None:
        set_ir_version(converted, ir_version)
    elif opset is not None:
        lower_ir_version(converted)
    return converted


def _inlined(model: ir.Model) -> ir.Model:
    """Return a copy without functions, renaming their values on a clash with values of bodies."""
    inlined = copy_model(model)
    names = Names(value_names(inlined))
    for function in inlined.functions.values():
        values = [*function.inputs, *(value for node in facts.nodes_of(function.graph) for value in node.outputs)]
        named = [value for value in values if value.name]
        ir.convenience.rename_values(named, [names.adopt(str(value.name)) for value in named])
    InlinePass()(inlined)
    return inlined


class Conversion:
    """A copy of a model, and the steps to convert its nodes from operator set to operator set.

    Args:
        model: The model; copied.
        domain: The domain whose operators are converted.
    """

    def __init__(self, model: ir.Model, domain: str) -> None:
        self.domain = canonical(domain)
        if self._version(model.opset_imports) is None:
            raise OptionError(
                f"the model does not import the domain {domain or 'ai.onnx'!r}",
                where="domain",
                remedy=f"Imported domains: {', '.join(d or 'ai.onnx' for d in model.opset_imports)}.",
            )
        self._require_legal(model)
        self.model = copy_model(model)
        self._scopes = self._in_scopes()
        self._annotate()

    def _version(self, imports: dict[str, int]) -> int | None:
        for name, version in imports.items():
            if canonical(name) == self.domain:
                return version
        return None

    def _in_scopes(self) -> list[tuple[Scope, int]]:
        """Return the main graph and every function, each with its operator set."""
        main = self._version(self.model.opset_imports)
        assert main is not None
        scopes = [(self._scope(self.model.graph, dict(self.model.opset_imports), in_function=False), main)]
        for function in self.model.functions.values():
            version = self._version(function.opset_imports)
            if version is not None:
                scopes.append((self._scope(function.graph, dict(function.opset_imports), in_function=True), version))
        return scopes

    def _scope(self, graph: ir.Graph, imports: dict[str, int], *, in_function: bool) -> Scope:
        return Scope(self.model, graph, in_function=in_function, imports={canonical(d): v for d, v in imports.items()})

    def _annotate(self) -> None:
        """Infer types and shapes, replacing experimental operators, which inference does not know."""
        self._faulty = infer_shapes(self.model, strict=False)
        while pending := self._experimental():
            ready = [site for site in pending if all(v is None or v.dtype is not None for v in site.inputs)]
            for site in ready or pending:
                replace_experimental(site)
            self._faulty = infer_shapes(self.model, strict=False)

    def _experimental(self) -> list[Site]:
        return [
            Site(node, scope, version, version)
            for scope, version in self._scopes
            for node in ir.traversal.RecursiveGraphIterator(scope.graph)
            if not self.domain
            and not canonical(node.domain)
            and node.op_type in EXPERIMENTAL
            and schema_at("", node.op_type, version) is None
        ]

    def convert(self, opset: int) -> ir.Model:
        """Convert every graph of the model to ``opset``; see ``convert_opset``."""
        latest = newest(self.domain)
        if not 1 <= opset <= latest:
            raise OptionError(
                f"operator set {opset} of {self.domain or 'ai.onnx'} does not exist",
                where="opset",
                remedy=f"Choose one from 1 to {latest}.",
            )
        for scope, version in self._scopes:
            rises = opset > version and not scope.in_function
            self.walk(list(scope.graph), scope, version, opset)
            scope.drop_unused_constants()
            if rises and (needed := at_least(self.domain, opset)) > self.model.ir_version:
                self.model.ir_version = needed
                scope.hide_constants()
        self._state(opset)
        return self.model

    def _state(self, opset: int) -> None:
        for imports in (self.model.opset_imports, *(f.opset_imports for f in self.model.functions.values())):
            for name in [name for name in imports if canonical(name) == self.domain]:
                imports[name] = opset

    def decompose(self, op_types: frozenset[str]) -> ir.Model:
        """Lower every node of these operators below its first definition and back; see ``decompose``."""
        for scope, version in self._scopes:
            for node in list(ir.traversal.RecursiveGraphIterator(scope.graph)):
                if canonical(node.domain) == self.domain and node.op_type in op_types:
                    self._remove(node, scope, version, op_types)
            scope.drop_unused_constants()
        return self.model

    def _remove(self, node: ir.Node, scope: Scope, version: int, op_types: frozenset[str]) -> None:
        first = version
        while (since := since_version(self.domain, node.op_type, first)) > 0:
            first = since - 1
        if first == 0:
            raise OpsetConversionError(
                "no decomposition exists: the operator is as old as ONNX itself", where=name_of(node)
            )
        for new in self._decomposed(node, scope, version, first):
            if new.op_type == node.op_type:
                # Upsample, an older name, becomes Resize again.
                raise OpsetConversionError(
                    "no decomposition exists: older operator sets have the operator under another name",
                    where=name_of(node),
                )
            if new.op_type in op_types:
                self._remove(new, scope, version, op_types)

    def _decomposed(self, node: ir.Node, scope: Scope, version: int, first: int) -> list[ir.Node]:
        """Replace a node by the function body of its schema, or by its equivalent in opset ``first``."""
        if adapter_for(self.domain, node.op_type, first + 1, upward=False) is None:
            expanded = expand(Site(node, scope, version, version))
            if expanded is not None:
                return self.walk(expanded[0], scope, expanded[1], version)
        return self.walk(self.walk([node], scope, version, first), scope, first, version)

    def _require_legal(self, model: ir.Model) -> None:
        """Refuse models with undefined values, unknown operators or missing inputs."""
        for value in model.graph.outputs:
            if value.producer() is None and not (value.is_graph_input() or value.is_initializer()):
                raise InvalidModelError("undefined graph output", where=str(value.name))
        graphs = [(model.graph, model.opset_imports)]
        graphs.extend((function.graph, function.opset_imports) for function in model.functions.values())
        for graph, imports in graphs:
            version = self._version(imports)
            for node in ir.traversal.RecursiveGraphIterator(graph):
                if version is not None and canonical(node.domain) == self.domain:
                    self._require_legal_node(node, version)

    def _require_legal_node(self, node: ir.Node, version: int) -> None:
        schema = schema_at(self.domain, node.op_type, version)
        if schema is None and not self.domain and node.op_type in EXPERIMENTAL:
            return
        if schema is None:
            raise OpsetConversionError(f"unknown operator of opset {version}", where=name_of(node))
        if reason := find_violation(node, schema):
            raise OpsetConversionError(f"not legal in opset {version}: {reason}", where=name_of(node))

    def walk(self, nodes: list[ir.Node], scope: Scope, source: int, target: int) -> list[ir.Node]:
        """Convert nodes (with their bodies) from ``source`` to ``target``, and return their replacements.

        A file may claim any version: only the versions that exist have boundaries.
        """
        step, latest = 1 if target > source else -1, newest(self.domain)
        for here in range(min(max(source, 0), latest), min(max(target, 0), latest), step):
            nodes = self._step(nodes, scope, here, here + step)
        scope.imports[self.domain] = target
        return nodes

    def _step(self, nodes: Iterable[ir.Node], scope: Scope, here: int, there: int) -> list[ir.Node]:
        changed = changed_in(self.domain, max(here, there))
        after: list[ir.Node] = []
        for node in nodes:
            if node.graph is None:
                continue
            for attribute in node.attributes.values():
                for body in bodies_of(attribute):
                    self._step(list(body), scope, here, there)
            if node.op_type in changed and canonical(node.domain) == self.domain:
                after.extend(self._cross(node, scope, here, there))
            else:
                after.append(node)
        return after

    def _cross(self, node: ir.Node, scope: Scope, here: int, there: int) -> list[ir.Node]:
        """Convert one node across a boundary at which its operator's definition changes.

        A node that cannot run (in a branch that is never taken, for example) is converted as far as its adapter can.
        """
        fault = self._faulty.get(node)
        try:
            nodes = self._adapted(node, scope, here, there)
        except (ArithmeticError, LookupError, TypeError, ValueError):
            if fault is None:
                raise
            raise OpsetConversionError(
                f"cannot be converted from opset {here} to {there}: {fault.problem}",
                where=name_of(node),
                remedy=fault.remedy,
            ) from fault
        if fault is not None:
            self._faulty.update(dict.fromkeys(nodes, fault))
        return nodes

    def _adapted(self, node: ir.Node, scope: Scope, here: int, there: int) -> list[ir.Node]:
        site = Site(node, scope, here, there)
        adapter = adapter_for(self.domain, node.op_type, max(here, there), upward=there > here)
        try:
            if adapter is not None:
                adapter(site)
            if not site.replaced:
                self._align(site)
            nodes = site.emitted if site.replaced else [*site.emitted, node]
            return [fitted for new in nodes for fitted in self._fitted(new, scope, here, there)]
        except Refusal as refusal:
            if site.replaced:
                raise
            scope.remove(site.emitted)
            return self._otherwise(Site(node, scope, here, there), refusal)

    def _align(self, site: Site) -> None:
        node = site.node
        old, new = (schema_at(self.domain, node.op_type, v) for v in (site.source, site.target))
        if new is None:
            since = max(site.source, site.target)
            site.refuse(
                f"{node.op_type} {'was removed in' if site.target > site.source else 'exists only from'} opset {since}"
            )
        assert old is not None
        if reason := align(node, old, new):
            site.refuse(reason)

    def _fitted(self, node: ir.Node, scope: Scope, here: int, there: int) -> list[ir.Node]:
        """Insert casts around a node whose types the definition does not admit."""
        if canonical(node.domain) != self.domain:
            return [node]
        schema = schema_at(self.domain, node.op_type, there)
        if schema is None:
            raise AssertionError(f"internal: an adapter emitted {node.op_type}, missing in opset {there}")
        site = Site(node, scope, here, there)
        if reason := fit(site, schema):
            site.refuse(reason)
        return site.emitted if site.replaced else [node]

    def _otherwise(self, site: Site, refusal: Refusal) -> list[ir.Node]:
        """Replace a refused node by its constant value, or by its function body."""
        if site.scope.is_foldable(site.node) and self._fold(site):
            return site.emitted
        if site.target > site.source:
            raise refusal
        expanded = expand(site)
        if expanded is None:
            raise refusal
        nodes, version = expanded
        try:
            nodes = self.walk(nodes, site.scope, version, site.source)
            return self._step(nodes, site.scope, site.source, site.target)
        except OpsetConversionError as error:
            raise OpsetConversionError(
                f"{refusal.problem}; its decomposition fails too: {error.where}: {error.problem}",
                where=refusal.where,
                remedy=refusal.remedy or error.remedy,
            ) from error

    def _fold(self, site: Site) -> bool:
        """Replace a node with constant inputs by its value."""
        node = site.node
        imports = site.scope.imports | {self.domain: site.source}
        if not all(v.name for v in node.outputs):
            return False
        try:
            answers = evaluate_nodes([node], node.outputs, site.known, imports)
        except SardonyxError:
            return False
        arrays = [answers[v] for v in node.outputs]
        if not all(a.dtype.kind in "fiub" and a.size <= _FOLD_LIMIT for a in arrays):
            return False
        site.replace(*(site.constant(array) for array in arrays))
        return True


__all__ = ["Conversion", "convert_opset", "copy_model"]
