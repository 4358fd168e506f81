"""The rewriting engine: an indexed worklist, patches with numbers and provenance, a true fixed point.

The engine tries each rule at the nodes of its root operators, and applies each result as one *patch*. Patches are
numbered in order; the same model and rules always give the same sequence, so that verification can stop at any number,
name the patch that broke an output and forbid this patch alone (``limit``, ``banned``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import onnx_ir as ir

from sardonyx.base.cancellation import raise_if_cancelled
from sardonyx.errors import RuleError, SardonyxError
from sardonyx.rewrite.analysis import facts, inference
from sardonyx.rewrite.analysis.discontinuities import computes_before_discontinuity
from sardonyx.rewrite.analysis.names import node_label
from sardonyx.rewrite.engine.building import Building, leaves, operators_of, weights_of
from sardonyx.rewrite.engine.rule_index import RuleIndex, index_by_root
from sardonyx.rewrite.engine.worklist import Worklist
from sardonyx.rewrite.language import EXACT, Exactness, Expr, Patch, Refusal, Replacement, Result, Rule
from sardonyx.rewrite.rewrite_context import Settings, Workspace
from sardonyx.rewrite.site import Site


@dataclass(frozen=True)
class Applied:
    """One applied patch.

    Attributes:
        number: Index in the sequence, from 1.
        rule: ``pass/rule``.
        site: The tensor at whose producer the rule fired, as named by the original model or an earlier patch.
        removed: Names of the removed nodes.
        added: Names of the inserted nodes.
        exactness: The rule's promise.
    """

    number: int
    rule: str
    site: str
    removed: tuple[str, ...]
    added: tuple[str, ...]
    exactness: str


class LimitReached(Exception):
    """Internal signal: the patch that would exceed ``Settings.limit`` was about to be applied."""


class PatchFailed(RuleError):
    """A patch that failed half-way: the inconsistent model must be rewritten anew without the patch.

    Attributes:
        rule: Label of its rule.
        site: The output of the node at which the rule fired.
    """

    def __init__(self, rule: str, site: str, error: Exception) -> None:
        self.rule, self.site = rule, site
        super().__init__(f"its result cannot be put in: {_message(error)}", where=f"rule {rule} at '{site}'")


class RulesUndoEachOther(RuleError):
    """Rules that fire without end.

    Attributes:
        rules: Labels of the rules that fired last.
    """

    def __init__(self, rules: Sequence[str], site: str) -> None:
        self.rules, self.site = tuple(rules), site
        super().__init__(
            "rules keep undoing each other",
            where=site,
            remedy=f"The last to fire were {', '.join(rules)}; skip one of them.",
        )


class Engine(Workspace):
    """Runs rules over one model to a fixed point, in place.

    Args:
        model: The model.
        settings: Target and bounds.
        invalid: Nodes that cannot run on their inputs. No rule begins at or removes such a node: a rule could drop the
            operand that is wrong, and an engine would answer a model that the standard forbids.
    """

    def __init__(
        self,
        model: ir.Model,
        settings: Settings | None = None,
        invalid: Mapping[ir.Node, SardonyxError] = MappingProxyType({}),
    ) -> None:
        super().__init__(model, settings)
        self._invalid = invalid
        self.applied: list[Applied] = []
        self.refused: dict[tuple[str, str], str] = {}
        self.failed: dict[tuple[str, str], str] = {}
        """The errors that rules raised, by rule and site; these matches are skipped."""
        self.origin: dict[ir.Node, tuple[str, ...]] = {}
        self._worklists: dict[ir.Graph, Worklist] = {}
        self._budget = 20_000 + 100 * self.nodes_given
        self._indexed: tuple[Sequence[Rule], RuleIndex] | None = None

    # -- running -------------------------------------------------------------------------------

    def run(self, rules: Sequence[Rule], *, on_changes: bool = False) -> bool:
        """Apply node rules until none fires anywhere; return True if the model changed.

        Args:
            rules: The rules.
            on_changes: True to begin only at nodes that changed since the last run with the same rules.

        Raises:
            LimitReached: ``settings.limit`` patches have been applied.
            PatchFailed: a rule gave an impossible result.
            RulesUndoEachOther: rules fire without end.
        """
        index = self._index_of(rules)
        start = len(self.applied)
        for graph in self.roots():
            if not (on_changes and self._worklist_of(graph).complete):
                self._worklist_of(graph).restart(facts.nodes_of(graph))
            self._run_graph(graph, index)
        return len(self.applied) > start

    def _index_of(self, rules: Sequence[Rule]) -> RuleIndex:
        """Return the index of the permitted rules, cached for the next run with the same rules."""
        if self._indexed is None or self._indexed[0] is not rules:
            by_root = index_by_root(tuple(rules), self.settings.target, self.settings.off)
            self._indexed = rules, RuleIndex(by_root, self.operators)
        return self._indexed[1]

    def _worklist_of(self, graph: ir.Graph) -> Worklist:
        return self._worklists.setdefault(graph, Worklist(self.alive))

    def _run_graph(self, graph: ir.Graph, index: RuleIndex) -> None:
        for node in self._worklist_of(graph).drain():
            raise_if_cancelled()
            rules = index.rules_for(node)
            if not rules or node in self._invalid:
                continue
            site = Site(self, node)
            for rule in rules:
                try:
                    result = rule.apply(site)
                except facts.UnknownAttribute:
                    continue
                except Exception as error:  # a rule may be a user's: its error is recorded, and the other rules run
                    self.blame(rule, _site_label(node), error)
                    continue
                if result is not None and self._fire(rule, site, result) and not self.alive(node):
                    break

    def tell(self, values: Sequence[ir.Value]) -> None:
        """Try rules again around values of the main graph whose type or shape was refined."""
        self.refinements += 1
        around = [value.producer() for value in values] + [use.node for value in values for use in value.uses()]
        self._worklist_of(self.model.graph).touch(dict.fromkeys(node for node in around if node is not None))

    def _fire(self, rule: Rule, site: Site, result: Result) -> bool:
        """Apply the result of a rule, if the operator set permits."""
        if rule.opset > site.opset and not isinstance(result, Refusal):
            self.refused[(rule.label, _site_label(site.node))] = f"needs opset {rule.opset}"
            return False
        return self.apply(rule, site, result)

    def blame(self, rule: Rule, site: str, error: Exception) -> None:
        """Record that a rule raised an error instead of returning a result."""
        self.failed[(rule.label, site)] = str(RuleError(_message(error), where=f"rule {rule.label} at '{site}'"))

    # -- applying ------------------------------------------------------------------------------

    def apply(self, rule: Rule, site: Site, result: Result) -> bool:
        """Apply the result of a rule; return False if the patch is banned or has no effect."""
        if result is None:
            return False
        label = _site_label(site.node)
        if isinstance(result, Refusal):
            self.refused[(rule.label, label)] = result.reason
            return False
        if (rule.label, label) in self.settings.banned:
            self.refused[(rule.label, label)] = "disabled: it changed an output of this model"
            return False
        try:
            patch = self._as_patch(site.node, result)
            reason = self._objection(site, patch, patch.exactness or rule.exactness)
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

    def _objection(self, site: Site, patch: Patch, exactness: Exactness) -> str | None:
        """Return the reason why the patch must not be applied here, or None."""
        for old, new in patch.replace.items():
            if old is new:
                return "it would replace a value by itself"
            if old.name in self.settings.protected:
                return f"'{old.name}' is protected"
            if old.is_graph_output() and isinstance(new, ir.Value) and not _can_take_name(old, new):
                producer = old.producer()
                if producer is not None and facts.is_op(producer, "Identity"):
                    return f"'{old.name}' is an output of its graph and must keep its name"
        if self._invalid:
            for node in (*patch.remove, *self._dying(patch), *([] if patch.edit is None else [site.node])):
                if node in self._invalid:
                    return f"{node_label(node)} does not accept its inputs: {self._invalid[node].problem}"
        if self.settings.operators is not None:
            for name in operators_of(patch):
                if name not in self.settings.operators:
                    return f"{self.settings.target} does not support {name}"
        if (
            exactness is not EXACT
            and patch.replace
            and computes_before_discontinuity(patch.replace, self._dying(patch))
        ):
            return "a rounding would decide an integer"
        weights = weights_of(patch.replace.values())
        added = sum([weight.nbytes for weight in weights]) if weights else 0
        growth = max(self.settings.growth, patch.growth)
        if added > max(256, growth):
            added -= self._freed(patch)
            if added > growth:
                return f"it would add {added} bytes of weights"
        return None

    @staticmethod
    def _dying(patch: Patch) -> dict[ir.Node, None]:
        """Return the nodes that the patch leaves without readers."""
        dying: dict[ir.Node, None] = {}
        stack = [value.producer() for value in patch.replace]
        replaced = set(stack)
        operands = [x for new in patch.replace.values() for x in leaves(new) if isinstance(x, ir.Value)]
        read = {value.producer() for value in operands}
        while stack:
            node = stack.pop()
            if node is None or node in dying or node in read:
                continue
            if node not in replaced and not all(
                not v.is_graph_output() and all(use.node in dying for use in v.uses()) for v in node.outputs
            ):
                continue
            dying[node] = None
            stack.extend(v.producer() for v in node.inputs if v is not None)
        return dying

    def _freed(self, patch: Patch) -> int:
        """Bytes of constants that only nodes which the patch leaves without readers use."""
        dying = self._dying(patch)
        retained = {id(v) for e in patch.replace.values() for v in leaves(e)}
        constants: dict[ir.Value, None] = {}
        for node in dying:
            for value in node.inputs:
                if value is not None and id(value) not in retained and all(use.node in dying for use in value.uses()):
                    constants[value] = None
        return sum(t.nbytes for v in constants if (t := facts.constant_tensor(v)) is not None)

    def _commit(self, rule: Rule, site: Site, patch: Patch, label: str) -> None:
        if patch.build is not None:
            patch = patch.build()
        building = Building(site)
        graph = site.graph
        replacements: dict[ir.Value, ir.Value] = {}
        for old, new in patch.replace.items():
            replacements[old] = building.value(new) if isinstance(new, Expr) else new
        nodes = _in_order(building.nodes, patch.nodes)
        self._insert(graph, nodes, patch, site.node)
        if building.nodes:
            complete = {new for old, new in replacements.items() if inference.is_fully_known(old.shape)}
            for node in building.nodes:
                if not complete.issuperset(node.outputs):
                    inference.infer_node(node, self.opset_imports, self.model.ir_version)
        # A dict and no set: nodes hash by their address, and the order of visits must not hang on that.
        touched: dict[ir.Node, None] = dict.fromkeys(nodes)
        made_values = {v for n in nodes for v in n.outputs}
        for old, new in replacements.items():
            touched.update((use.node, None) for use in old.uses())
            self._replace(old, new, fresh=new in made_values, nodes=nodes, graph=graph)
        removed = [self.discard(node) for node in patch.remove if node.graph is not None]
        removed += self.remove_dead([v.producer() for v in patch.replace] + [site.node])
        edited = [] if patch.edit is None else list(patch.edit())
        touched.update(dict.fromkeys(edited))
        self._settle_names(replacements, made_values)
        removed_labels = tuple([node_label(node) for node in removed])
        added_labels = tuple([node_label(node) for node in nodes])
        origins: dict[str, None] = {}
        for node, name in zip(removed, removed_labels, strict=True):
            origins.update(dict.fromkeys(self.origin.pop(node, (name,))))
        for node, name in zip(nodes, added_labels, strict=True):
            self.origin[node] = tuple(origins) or self.origin.get(node, (name,))
        self.applied.append(
            Applied(
                number=len(self.applied) + 1,
                rule=rule.label,
                site=label,
                removed=removed_labels,
                added=added_labels,
                exactness=(patch.exactness or rule.exactness).value,
            )
        )
        touched.update(dict.fromkeys(self.unread()))
        # What a patch put in may be new to the model, and what it changed in the bodies of what it touched.
        self.note_operators([*nodes, *edited] if self.flat else touched)
        self._worklist_of(self.root).touch(touched)

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

    def _settle_names(self, replacements: Mapping[ir.Value, ir.Value], new_values: set[ir.Value]) -> None:
        """Give each new value the name of the dead value that it replaces."""
        for old, new in replacements.items():
            producer = old.producer()
            if new in new_values and not new.is_graph_output() and producer is not None and producer.graph is None:
                name, old.name = old.name, self.names.fresh(f"{old.name}_replaced")
                new.name = name


def _message(error: Exception) -> str:
    return str(error) if isinstance(error, RuleError) else f"{type(error).__name__}: {error}"


def _in_order(new_nodes: Iterable[ir.Node], finished: Sequence[ir.Node]) -> list[ir.Node]:
    """Return nodes made of expressions, the finished nodes, then the nodes that read the finished ones."""
    read = {value for node in finished for value in node.outputs}
    before: list[ir.Node] = []
    after: list[ir.Node] = []
    for node in new_nodes:
        if read.isdisjoint(node.inputs):
            before.append(node)
        else:
            after.append(node)
            read.update(node.outputs)
    return [*before, *finished, *after]


def _can_take_name(old: ir.Value, new: ir.Value) -> bool:
    """Return True if ``new`` can replace graph output ``old`` under the old name: a value of one graph."""
    producer, old_producer = new.producer(), old.producer()
    if producer is None or old_producer is None or producer.graph is not old_producer.graph:
        return False
    return not new.is_graph_output()


def _better_shape(old: ir.Shape | None, new: ir.Shape | None) -> ir.Shape | None:
    """Merge two shapes of one value; numbers win over names, names over unknown dimensions."""
    if old is None or new is None or len(old) != len(new):
        return old if old is not None else new
    return ir.Shape(
        [
            a if isinstance(a, int) else b if isinstance(b, int) else (a.value if a.value is not None else b.value)
            for a, b in zip(old, new, strict=True)
        ]
    )


def _site_label(node: ir.Node) -> str:
    for value in node.outputs:
        if value.name:
            return value.name
    return node_label(node)
