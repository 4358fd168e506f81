"""The rewriting engine: an indexed worklist, patches with numbers and provenance, a true fixed point.

The engine tries each rule at the nodes whose operator it is rooted at, and applies what it
answers as one *patch*. Patches are numbered in order; the same model and rules always give the
same sequence, so that verification can stop at any number, name the patch that broke an output
and forbid just that one (``limit``, ``banned``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.errors import RuleError
from sardonyx.rewrite import facts, inference
from sardonyx.rewrite.facts import STANDARD
from sardonyx.rewrite.language import Expr, Patch, Refusal, Replacement, Result, Rule
from sardonyx.rewrite.names import Names, node_label, value_names
from sardonyx.rewrite.rule_index import RuleIndex
from sardonyx.rewrite.sizes import Sizes
from sardonyx.rewrite.worklist import Worklist


@dataclass(frozen=True)
class Applied:
    """One applied patch.

    Attributes:
        number: Its place in the sequence, from 1.
        rule: ``pass/rule``.
        site: The tensor at whose producer the rule fired, as the original model or an earlier patch named it.
        removed: Nodes taken out, by name.
        added: Nodes put in, by name.
        exactness: The rule's promise.
    """

    number: int
    rule: str
    site: str
    removed: tuple[str, ...]
    added: tuple[str, ...]
    exactness: str


@dataclass
class Settings:
    """What bounds a run of the engine.

    Attributes:
        target: The target whose profile chose the rules.
        limit: Stop after this many patches (for bisection).
        banned: ``(rule label, site)`` pairs that must not fire.
        off: Labels of rules that must not fire anywhere.
        growth: Bytes of new weights that one patch may add, net of those it frees. A bound for each and none
            for all, so that a second run decides as the first did.
        protected: Values that callers want to keep by name although they are no graph outputs.
        operators: Operators of the default domain that may be made; None for all.
    """

    target: str = "portable"
    limit: int | None = None
    banned: frozenset[tuple[str, str]] = frozenset()
    off: frozenset[str] = frozenset()
    growth: int = 64 << 10
    protected: frozenset[str] = frozenset()
    operators: frozenset[str] | None = None


class LimitReached(Exception):
    """Internal signal: the patch that would exceed ``Settings.limit`` was about to be applied."""


class PatchFailed(RuleError):
    """A patch could not be put in: the model at hand is half changed, and has to be made again without it.

    Attributes:
        rule: Label of its rule.
        site: Where it fired.
    """

    def __init__(self, rule: str, site: str, error: Exception) -> None:
        self.rule, self.site = rule, site
        super().__init__(f"its result cannot be put in: {_told(error)}", where=f"rule {rule} at '{site}'")


class RulesUndoEachOther(RuleError):
    """Rules fire without end.

    Attributes:
        rules: Labels of those that fired last.
    """

    def __init__(self, rules: Sequence[str], site: str) -> None:
        self.rules, self.site = tuple(rules), site
        super().__init__(
            "rules keep undoing each other",
            where=site,
            remedy=f"The last to fire were {', '.join(rules)}; skip one of them.",
        )


class Site:
    """A node at which a rule is tried, and what the rule may ask about it."""

    __slots__ = ("engine", "node")

    def __init__(self, engine: Engine, node: ir.Node) -> None:
        self.engine = engine
        self.node = node

    @property
    def opset(self) -> int:
        """Version of the default operator set in force here (a function has its own)."""
        return self.engine.opset

    @property
    def target(self) -> str:
        """Name of the target in force."""
        return self.engine.settings.target

    @property
    def graph(self) -> ir.Graph:
        """The graph (or body, or function body) that holds the node."""
        graph = self.node.graph
        assert graph is not None
        return graph

    @property
    def output(self) -> ir.Value:
        """The first output."""
        return self.node.outputs[0]

    def input(self, index: int) -> ir.Value | None:
        """Input ``index``, or None where it is absent or left out."""
        inputs = self.node.inputs
        return inputs[index] if index < len(inputs) else None

    def attr(self, name: str, default: Any = None, *, node: ir.Node | None = None) -> Any:
        """Attribute value as written, else the schema's default at this opset, else ``default``."""
        return facts.attribute(node or self.node, name, self.opset, default)

    def producer(self, index: int, *op_types: str) -> ir.Node | None:
        """The node of the same graph that produces input ``index``, if it is one of these standard operators."""
        value = self.input(index)
        node = None if value is None else value.producer()
        if node is None or node.graph is not self.node.graph or not facts.is_op(node, *op_types):
            return None
        return node

    def rank(self, index: int) -> int | None:
        """Rank of input ``index``."""
        return facts.rank(self.input(index))

    @property
    def sizes(self) -> Sizes:
        """Shapes and shape arithmetic, as expressions of the open sizes."""
        return self.engine.sizes

    def unused_outputs_from(self, first: int) -> bool:
        """Whether nothing reads the outputs from ``first`` on."""
        return all(facts.unused(v) for v in self.node.outputs[first:])

    def in_function(self) -> bool:
        """Whether the node is in a model-local function (where attributes may refer to the caller's)."""
        return self.engine.in_function


@dataclass
class _Building:
    """Nodes being made for one patch."""

    site: Site
    nodes: list[ir.Node] = field(default_factory=list)
    made: dict[Expr, ir.Node] = field(default_factory=dict)
    constants: dict[int, ir.Value] = field(default_factory=dict)


class Engine:
    """Runs rules over one model to a fixed point, in place."""

    def __init__(self, model: ir.Model, settings: Settings | None = None) -> None:
        self.model = model
        self.settings = settings or Settings()
        self.applied: list[Applied] = []
        self.refused: dict[tuple[str, str], str] = {}
        self.failed: dict[tuple[str, str], str] = {}
        """What rules raised, by rule and place; each such match is left alone."""
        self.origin: dict[ir.Node, tuple[str, ...]] = {}
        self.names = Names(value_names(model))
        self.opset_imports: dict[str, int]
        self._imports: MutableMapping[str, int]
        self.in_function: bool
        self.opset: int
        """Version of the default operator set in force."""
        self.sizes: Sizes
        """Value propagation at that operator set."""
        self.memo: dict[Any, Any] = {}
        """For rules: facts worth computing once. A fact about a value object stays true."""
        self.refinements = 0
        """How often more became known of values than patches say."""
        self.learned: set[ir.Value] = set()
        """Values that replaced ones of which less was known: what reads them may be inferred anew."""
        self.interface_changed = False
        """Whether a pass whose purpose it is has changed the types that the file declared of inputs or outputs."""
        self._sizes: dict[int, Sizes] = {}
        self._dead_graphs: set[ir.Graph] = set()
        self._unread: list[ir.Value] = []
        self._worklists: dict[ir.Graph, Worklist] = {}
        self._worklist = self._of_root(model.graph)
        nodes = [node for root in self.roots() for node in facts.nodes_of(root)]
        self.node_names = Names([node.name for node in nodes if node.name])
        self.operators = {node.op_type for node in nodes}
        """Types of all operators that the model has, or had: what is not here is nowhere in it."""
        self._flat = not any(facts.bodies(node) for node in nodes)
        self._budget = 20_000 + 100 * len(nodes)
        self._indexed: tuple[Sequence[Rule], RuleIndex] | None = None

    # -- running -------------------------------------------------------------------------------

    def run(self, rules: Sequence[Rule], *, on_changes: bool = False) -> bool:
        """Apply node rules until none fires anywhere; returns whether anything changed.

        Args:
            rules: The rules.
            on_changes: Whether to begin only where something changed since the last run with the same rules.

        Raises:
            LimitReached: ``settings.limit`` patches have been applied.
            PatchFailed: a rule gave an impossible result.
            RulesUndoEachOther: rules fire without end.
        """
        index = self._index_of(rules)
        start = len(self.applied)
        for graph in self.roots():
            if not (on_changes and self._worklist.complete):
                self._worklist.restart(facts.nodes_of(graph))
            self._run_graph(index)
        return len(self.applied) > start

    def _index_of(self, rules: Sequence[Rule]) -> RuleIndex:
        """The index of those of the rules that are allowed; kept for the next run with the same ones."""
        if self._indexed is None or self._indexed[0] is not rules:
            off, target = self.settings.off, self.settings.target
            allowed = [r for r in rules if (not off or r.label not in off) and (not r.targets or target in r.targets)]
            self._indexed = rules, RuleIndex(allowed, self.operators)
        return self._indexed[1]

    def roots(self) -> Iterator[ir.Graph]:
        """The main graph, then each model-local function's body, with its operator sets in force."""
        yield self._enter(self.model.graph, self.model.graph.opset_imports, in_function=False)
        for function in self.model.functions.values():
            yield self._enter(function.graph, function.opset_imports, in_function=True)
        self._enter(self.model.graph, self.model.graph.opset_imports, in_function=False)

    def _enter(self, graph: ir.Graph, imports: MutableMapping[str, int], *, in_function: bool) -> ir.Graph:
        self._imports, self.opset_imports, self.in_function = imports, _normal_imports(imports), in_function
        self._worklist = self._of_root(graph)
        self.opset = self.opset_imports.get("", 1)
        if self.opset not in self._sizes:
            self._sizes[self.opset] = Sizes(self.opset)
        self.sizes = self._sizes[self.opset]
        return graph

    def _of_root(self, graph: ir.Graph) -> Worklist:
        return self._worklists.setdefault(graph, Worklist(self.alive))

    def _run_graph(self, index: RuleIndex) -> None:
        for node in self._worklist.drain():
            site = Site(self, node)
            for rule in index.rules_for(node):
                try:
                    result = rule.apply(site)
                except facts.UnknownAttribute:
                    continue
                except Exception as error:  # a rule is anybody's code: whatever it raises is told, and the others go on
                    self.blame(rule, _site_label(node), error)
                    continue
                if result is not None and self._fire(rule, site, result) and not self.alive(node):
                    break

    def graphs(self, root: ir.Graph) -> list[ir.Graph]:
        """A graph and all bodies in it, outer before inner."""
        return [root] if self._flat else list(facts.graphs_of(root))

    def _note_operators(self, nodes: Iterable[ir.Node]) -> None:
        for node in nodes:
            self.operators.add(node.op_type)
            for body in facts.bodies(node):
                self._flat = False
                self.operators.update(inner.op_type for inner in facts.nodes_of(body))

    def tell(self, values: Sequence[ir.Value]) -> None:
        """Have rules tried again around values of the main graph of which more has become known."""
        self.refinements += 1
        around = [value.producer() for value in values] + [use.node for value in values for use in value.uses()]
        self._of_root(self.model.graph).touch(dict.fromkeys(node for node in around if node is not None))

    def alive(self, node: ir.Node) -> bool:
        """Whether the node is still part of the model."""
        graph = node.graph
        return graph is not None and graph not in self._dead_graphs

    def _fire(self, rule: Rule, site: Site, result: Result) -> bool:
        """Apply what a rule answered, where the operator set allows."""
        if rule.opset > site.opset and not isinstance(result, Refusal):
            self.refused[(rule.label, _site_label(site.node))] = f"needs opset {rule.opset}"
            return False
        return self.apply(rule, site, result)

    def blame(self, rule: Rule, site: str, error: Exception) -> None:
        """Note that a rule raised instead of answering."""
        self.failed[(rule.label, site)] = str(RuleError(_told(error), where=f"rule {rule.label} at '{site}'"))

    # -- applying ------------------------------------------------------------------------------

    def apply(self, rule: Rule, site: Site, result: Result) -> bool:
        """Apply what a rule answered; returns False where it is banned, or could not take effect."""
        if result is None:
            return False
        label = _site_label(site.node)
        if isinstance(result, Refusal):
            self.refused[(rule.label, label)] = result.reason
            return False
        if (rule.label, label) in self.settings.banned:
            self.refused[(rule.label, label)] = "switched off: it changed an output of this model"
            return False
        try:
            patch = self._as_patch(site.node, result)
            reason = self._objection(site, patch)
        except Exception as error:  # an answer that is none, as a value of another type
            self.blame(rule, label, error)
            return False
        if reason is not None:
            self.refused[(rule.label, label)] = reason
            return False
        if self.settings.limit is not None and len(self.applied) >= self.settings.limit:
            raise LimitReached
        if len(self.applied) >= self._budget:
            raise RulesUndoEachOther(sorted({a.rule for a in self.applied[-20:]}), label)
        try:
            self._commit(rule, site, patch, label)
        except Exception as error:  # likewise: an unknown operand, a builder of the rule's own
            raise PatchFailed(rule.label, label, error) from error
        return True

    @staticmethod
    def _as_patch(node: ir.Node, result: Replacement | tuple[Replacement | None, ...] | Patch) -> Patch:
        if isinstance(result, Patch):
            return result
        if isinstance(result, (Expr, ir.Value)):
            result = (result,)
        return Patch({old: new for old, new in zip(node.outputs, result, strict=False) if new is not None})

    def _objection(self, site: Site, patch: Patch) -> str | None:
        """Why the patch must not be applied here, if there is a reason."""
        for old, new in patch.replace.items():
            if old is new:
                return "it would replace a value by itself"
            if old.name in self.settings.protected:
                return f"'{old.name}' was asked to be kept"
            if old.is_graph_output() and isinstance(new, ir.Value) and not _can_take_name(old, new):
                producer = old.producer()
                if producer is not None and facts.is_op(producer, "Identity"):
                    return f"'{old.name}' is an output of its graph and must keep its name"
        if self.settings.operators is not None:
            for name in _operators(patch):
                if name not in self.settings.operators:
                    return f"{self.settings.target} does not take {name}"
        added = sum(array.nbytes for array in _arrays(patch.replace.values()))
        if added > 256:
            added -= self._freed(patch)
            if added > self.settings.growth:
                return f"it would add {added} bytes of weights"
        return None

    def _freed(self, patch: Patch) -> int:
        """Bytes of constants that only nodes which the patch leaves without readers use."""
        dying: dict[ir.Node, None] = {}
        stack = [value.producer() for value in patch.replace]
        replaced = set(stack)
        while stack:
            node = stack.pop()
            if node is None or node in dying:
                continue
            if node not in replaced and not all(
                not v.is_graph_output() and all(use.node in dying for use in v.uses()) for v in node.outputs
            ):
                continue
            dying[node] = None
            stack.extend(v.producer() for v in node.inputs if v is not None)
        kept = {id(v) for e in patch.replace.values() for v in _leaves(e)}
        constants: dict[ir.Value, None] = {}
        for node in dying:
            for value in node.inputs:
                if value is not None and id(value) not in kept and all(use.node in dying for use in value.uses()):
                    constants[value] = None
        return sum(t.nbytes for v in constants if (t := facts.constant_tensor(v)) is not None)

    def _commit(self, rule: Rule, site: Site, patch: Patch, label: str) -> None:
        if patch.build is not None:
            patch = patch.build()
        building = _Building(site)
        graph = site.graph
        replacements: dict[ir.Value, ir.Value] = {}
        for old, new in patch.replace.items():
            replacements[old] = self._build(new, building) if isinstance(new, Expr) else new
        nodes = [*building.nodes, *patch.nodes]
        self._insert(graph, nodes, patch, site.node)
        told = {new: old for old, new in replacements.items() if inference.all_told(old.shape)}
        for node in building.nodes:
            if not all(v in told for v in node.outputs):
                inference.infer_node(node, self.opset_imports, self.model.ir_version)
        # A dict and no set: nodes hash by their address, and the order of visits must not hang on that.
        touched: dict[ir.Node, None] = dict.fromkeys(nodes)
        made_values = {v for n in nodes for v in n.outputs}
        for old, new in replacements.items():
            touched.update((use.node, None) for use in old.uses())
            self._replace(old, new, fresh=new in made_values, nodes=nodes, graph=graph)
        removed = [self._discard(node) for node in patch.remove if node.graph is not None]
        removed += self._remove_dead([v.producer() for v in patch.replace] + [site.node])
        if patch.edit is not None:
            touched.update(dict.fromkeys(patch.edit()))
        self._settle_names(replacements, made_values)
        origins: dict[str, None] = {}
        for node in removed:
            origins.update(dict.fromkeys(self.origin.pop(node, (node_label(node),))))
        for node in nodes:
            self.origin[node] = tuple(origins) or self.origin.get(node, (node_label(node),))
        self.applied.append(
            Applied(
                number=len(self.applied) + 1,
                rule=rule.label,
                site=label,
                removed=tuple(node_label(n) for n in removed),
                added=tuple(node_label(n) for n in nodes),
                exactness=(patch.exactness or rule.exactness).value,
            )
        )
        touched.update((p, None) for v in self._unread if (p := v.producer()) is not None)
        self._unread.clear()
        self._note_operators(touched)
        self._worklist.touch(touched)

    def _insert(self, graph: ir.Graph, nodes: Sequence[ir.Node], patch: Patch, root: ir.Node) -> None:
        if not nodes:
            return
        if patch.after is None:
            graph.insert_before(patch.before or root, nodes)
            return
        producer = patch.after.producer()
        if producer is not None and producer.graph is graph:
            graph.insert_after(producer, nodes)
        else:
            first = next(iter(graph))
            graph.insert_before(first, nodes)

    def _replace(self, old: ir.Value, new: ir.Value, *, fresh: bool, nodes: list[ir.Node], graph: ir.Graph) -> None:
        """Make every reader of ``old``, and the graph outputs, read ``new``."""
        if new.type is None or fresh:
            new.type = old.type or new.type
        if fresh or new.shape is None:
            new.shape = _better_shape(old.shape, new.shape)
        if old in self.learned or old.shape is None or new.shape != old.shape or facts.is_constant(new):
            self.learned.add(new)
        if old.is_graph_output():
            if new.is_graph_output() or (not fresh and not _can_take_name(old, new)):
                identity = ir.Node("", "Identity", [new], name=self.node_names.fresh(f"{old.name}_identity"))
                identity.outputs[0].name = self.names.fresh(f"{old.name}_copy")
                producer = old.producer()
                assert producer is not None
                graph.insert_after(producer, identity)
                nodes.append(identity)
                copied = identity.outputs[0]
                copied.type, copied.shape = old.type, old.shape
                for use in tuple(old.uses()):
                    use.node.replace_input_with(use.idx, new)
                new = copied
            outputs = old.graph.outputs  # type: ignore[union-attr]
            declared_type, declared_shape = old.type, old.shape
            for i, value in enumerate(outputs):
                if value is old:
                    outputs[i] = new
            name = old.name or ""
            old.name = self.names.fresh(f"{name}_replaced")
            new.name = name
            new.type, new.shape = declared_type or new.type, declared_shape if declared_shape is not None else new.shape
            if old.meta:
                new.meta.update(old.meta)
        for use in tuple(old.uses()):
            use.node.replace_input_with(use.idx, new)

    def _settle_names(self, replacements: Mapping[ir.Value, ir.Value], made: set[ir.Value]) -> None:
        """A value made by the patch takes the name of the dead one that it replaces."""
        for old, new in replacements.items():
            producer = old.producer()
            if new in made and not new.is_graph_output() and producer is not None and producer.graph is None:
                name, old.name = old.name, self.names.fresh(f"{old.name}_replaced")
                new.name = name

    def _build(self, expr: Expr, building: _Building) -> ir.Value:
        source = expr.source
        node = building.made.get(source)
        if node is None:
            inputs = self._operands(source, building)
            attributes = [_attribute(k, v) for k, v in source.attrs.items() if v is not None]
            base = building.site.node.name or building.site.output.name or "node"
            node = ir.Node(
                source.domain,
                source.op_types[0],
                inputs,
                attributes,
                num_outputs=source.n_outputs,
                name=self.node_names.fresh(f"{base}/{source.op_types[0]}"),
            )
            for i, output in enumerate(node.outputs):
                output.name = self.names.fresh(f"{node.name}_{i}" if i else str(node.name))
            if source.domain and source.domain not in self.opset_imports:
                self._imports[source.domain] = self.opset_imports[source.domain] = 1
            building.made[source] = node
            building.nodes.append(node)
        return node.outputs[expr.index]

    def _operands(self, expr: Expr, building: _Building) -> list[ir.Value | None]:
        inputs: list[ir.Value | None] = []
        like = next((facts.dtype(a) for a in expr.args if isinstance(a, ir.Value)), None)
        for arg in expr.args:
            if arg is None or isinstance(arg, ir.Value):
                inputs.append(arg)
            elif isinstance(arg, Expr):
                inputs.append(self._build(arg, building))
            elif isinstance(arg, (np.ndarray, np.generic)):
                inputs.append(self._constant(np.asarray(arg), building))
            elif isinstance(arg, (bool, int, float)) and like is not None:
                inputs.append(self._constant(np.array(arg).astype(like.numpy()), building))
            else:
                raise RuleError(f"operand {arg!r} cannot become an input", where="|".join(expr.op_types))
        return inputs

    def _constant(self, array: np.ndarray, building: _Building) -> ir.Value:
        known = building.constants.get(id(array))
        if known is not None:
            return known
        base = building.site.node.name or building.site.output.name or "node"
        value = self.new_constant(array, building.site.graph, f"{base}/constant", building.nodes)
        building.constants[id(array)] = value
        return value

    def new_constant(
        self, array: np.ndarray | ir.TensorProtocol, graph: ir.Graph, base: str, nodes: list[ir.Node]
    ) -> ir.Value:
        """A new constant value usable in ``graph``: an initializer; in a function a ``Constant`` in ``nodes``."""
        name = self.names.fresh(base)
        tensor = (
            ir.Tensor(np.ascontiguousarray(array).reshape(array.shape), name=name)
            if isinstance(array, np.ndarray)
            else array
        )
        if self.in_function:
            attribute = ir.AttrTensor("value", tensor)
            node = ir.Node("", "Constant", [], [attribute], name=self.node_names.fresh(name))
            node.outputs[0].name = name
            node.outputs[0].type = ir.TensorType(tensor.dtype)
            node.outputs[0].shape = ir.Shape([int(dim) for dim in tensor.shape.numpy()])
            nodes.append(node)
            return node.outputs[0]
        value = ir.Value(
            name=name,
            type=ir.TensorType(tensor.dtype),
            shape=ir.Shape([int(dim) for dim in tensor.shape.numpy()]),
            const_value=tensor,
        )
        graph.register_initializer(value)
        return value

    # -- removing ------------------------------------------------------------------------------

    def _discard(self, node: ir.Node) -> ir.Node:
        """Take a node out, with the bodies it holds, and stop it from reading anything."""
        self._unread.extend(v for v in node.inputs if v is not None)
        for body in facts.bodies(node):
            self.discard_body(body)
        graph = node.graph
        assert graph is not None
        graph.remove(node)
        for i in range(len(node.inputs)):
            node.replace_input_with(i, None)
        return node

    def discard_body(self, body: ir.Graph) -> None:
        """Forget a body: its nodes read nothing any more and are never visited again."""
        self._dead_graphs.add(body)
        for inner in body:
            for nested in facts.bodies(inner):
                self.discard_body(nested)
            for i in range(len(inner.inputs)):
                inner.replace_input_with(i, None)

    def _remove_dead(self, candidates: Iterable[ir.Node | None]) -> list[ir.Node]:
        """Remove the candidates that nothing reads, and then what only they read."""
        removed: list[ir.Node] = []
        stack = [n for n in candidates if n is not None]
        while stack:
            node = stack.pop()
            if node.graph is None or not all(facts.unused(v) for v in node.outputs):
                continue
            inputs = [v for v in node.inputs if v is not None]
            captured = [v for body in facts.bodies(node) for v in captured_values(body)]
            removed.append(self._discard(node))
            stack.extend(p for v in (*inputs, *captured) if (p := v.producer()) is not None)
        return removed


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, RuleError) else f"{type(error).__name__}: {error}"


def captured_values(body: ir.Graph) -> list[ir.Value]:
    """Values of outer graphs that a body (or a body in it) reads."""
    inside: set[ir.Value] = set(body.inputs) | set(body.initializers.values())
    nodes = list(facts.nodes_of(body))
    for node in nodes:
        inside.update(node.outputs)
        for nested in facts.bodies(node):
            inside.update(nested.inputs)
            inside.update(nested.initializers.values())
    found: dict[ir.Value, None] = {}
    for node in nodes:
        found.update((v, None) for v in node.inputs if v is not None and v not in inside)
    return list(found)


def _normal_imports(imports: Mapping[str, int]) -> dict[str, int]:
    return {("" if domain == "ai.onnx" else domain): version for domain, version in imports.items()}


def _can_take_name(old: ir.Value, new: ir.Value) -> bool:
    """Whether graph output ``old`` can be served by ``new`` under the old name: a plain value of the same graph."""
    producer, old_producer = new.producer(), old.producer()
    if producer is None or old_producer is None or producer.graph is not old_producer.graph:
        return False
    return not new.is_graph_output()


def _better_shape(old: ir.Shape | None, new: ir.Shape | None) -> ir.Shape | None:
    """The more telling of two shapes of one value."""
    if old is None or new is None or len(old) != len(new):
        return old if old is not None else new
    return ir.Shape(
        [
            a if isinstance(a, int) else b if isinstance(b, int) else (a.value if a.value is not None else b.value)
            for a, b in zip(old, new, strict=True)
        ]
    )


def _leaves(expr: Replacement | Any) -> Iterator[Any]:
    stack = [expr]
    while stack:
        item = stack.pop()
        if isinstance(item, Expr):
            stack.extend(item.source.args)
        else:
            yield item


def _operators(patch: Patch) -> Iterator[str]:
    """The operators of the default domain that a patch makes."""
    stack: list[Any] = list(patch.replace.values())
    while stack:
        item = stack.pop()
        if isinstance(item, Expr):
            if item.domain in STANDARD:
                yield item.op_types[0]
            stack.extend(item.source.args)
    yield from (node.op_type for node in patch.nodes if node.domain in STANDARD)


def _arrays(exprs: Iterable[Replacement]) -> list[np.ndarray]:
    found = {id(leaf): leaf for expr in exprs for leaf in _leaves(expr) if isinstance(leaf, np.ndarray)}
    return list(found.values())


_ATTRIBUTES: Mapping[type, Callable[[str, Any], ir.Attr]] = {
    int: ir.AttrInt64,
    float: ir.AttrFloat32,
    str: ir.AttrString,
}
_LISTS: Mapping[frozenset[type], Callable[[str, Any], ir.Attr]] = {
    frozenset(): ir.AttrInt64s,
    frozenset({int}): ir.AttrInt64s,
    frozenset({float}): ir.AttrFloat32s,
    frozenset({str}): ir.AttrStrings,
}


def _attribute(name: str, value: Any) -> ir.Attr:
    if type(value) is ir.Attr:
        return value
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (list, tuple)):
        value = list(value)
        make = _LISTS.get(frozenset(map(type, value)))
    else:
        make = _ATTRIBUTES.get(type(value))
    # What is none of these is told apart by protocols, member by member.
    return ir.convenience.convert_attribute(name, value) if make is None else make(name, value)


def _site_label(node: ir.Node) -> str:
    return next((v.name for v in node.outputs if v.name), None) or node_label(node)
