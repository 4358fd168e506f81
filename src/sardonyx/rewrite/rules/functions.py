"""Model-local functions: inline calls, merge equal definitions, remove unused ones and unused imports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator

import onnx
import onnx_ir as ir

from sardonyx.model.schemas import get_schema
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.facts import STANDARD
from sardonyx.rewrite.engine.engine import Engine
from sardonyx.rewrite.language import EXACT, Patch, Refusal, Result
from sardonyx.rewrite.rules.bodies import Numbers, release_outputs, rename_copy, splice
from sardonyx.rewrite.sweep import sweep

Predicate = Callable[[ir.Function], bool]


@sweep("inline_functions", exactness=EXACT, default=False)
def inline_all(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Replace every call of a model-local function by the function's nodes."""
    yield from _inline(engine, graph, lambda function: True)


@sweep("inline_small_functions", exactness=EXACT)
def inline_small(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Inline functions of one node, and functions with a single call."""
    if engine.model.functions:
        calls = _calls(engine.model)
        yield from _inline(engine, graph, lambda f: len(f) <= 1 or calls[f.identifier()] == 1)


def _calls(model: ir.Model) -> Counter[ir.OperatorIdentifier]:
    graphs = [model.graph, *(function.graph for function in model.functions.values())]
    return Counter(node.op_identifier() for graph in graphs for node in facts.nodes_of(graph))


def _inline(engine: Engine, graph: ir.Graph, is_selected: Predicate) -> Iterator[tuple[ir.Node, Result]]:
    functions = engine.model.functions
    if not functions:
        return
    for node in list(facts.nodes_of(graph)):
        function = functions.get(node.op_identifier())
        if function is not None and engine.alive(node) and is_selected(function):
            yield node, _inline_call(engine, graph, node, function)


def _inline_call(engine: Engine, root: ir.Graph, node: ir.Node, function: ir.Function) -> Result:
    if facts.bodies(node):
        return Refusal("the call has a graph attribute")
    if (domain := _mismatched_domain(engine, function)) is not None:
        return Refusal(f"the function imports another version of '{domain or 'ai.onnx'}'")

    def inline() -> Patch:
        for domain, version in function.opset_imports.items():
            if ("" if domain == "ai.onnx" else domain) not in engine.opset_imports:
                root.opset_imports[domain] = engine.opset_imports[domain] = version
        body = function.graph.clone()
        _bind_attributes(body, node, function)
        rename_copy(engine, body)
        into = node.graph
        assert into is not None
        arguments = {p: node.inputs[i] if i < len(node.inputs) else None for i, p in enumerate(body.inputs)}
        outputs = [arguments.get(value, value) for value in release_outputs(body)]
        nodes = splice(engine, body, arguments, into)
        pairs = zip(node.outputs, outputs, strict=False)
        return Patch({old: new for old, new in pairs if new is not None}, nodes=nodes)

    return Patch(build=inline)


def _mismatched_domain(engine: Engine, function: ir.Function) -> str | None:
    """Return the domain of an operator in the function that differs at the version imported by the caller."""
    for node in facts.nodes_of(function.graph):
        domain = "" if node.domain in STANDARD else node.domain
        its = function.opset_imports.get(domain, function.opset_imports.get("ai.onnx") if not domain else None)
        mine = engine.opset_imports.get(domain)
        if mine is None or mine == its or its is None or node.op_identifier() in engine.model.functions:
            continue
        try:
            same = len({get_schema(node.op_type, v, domain).since_version for v in (its, mine)}) == 1
        except onnx.defs.SchemaError:
            same = False
        if not same:
            return domain
    return None


def _bind_attributes(body: ir.Graph, call: ir.Node, function: ir.Function) -> None:
    """Replace references to function attributes by the values of the call, else the function's defaults."""
    for node in facts.nodes_of(body):
        for name, attribute in list(node.attributes.items()):
            if not attribute.is_ref():
                continue
            parameter = str(attribute.ref_attr_name)
            argument = call.attributes.get(parameter) or function.attributes.get(parameter)
            if argument is None or (not argument.is_ref() and argument.value is None):
                del node.attributes[name]
            elif argument.is_ref():
                node.attributes[name] = ir.RefAttr(name, str(argument.ref_attr_name), argument.type)
            else:
                node.attributes[name] = ir.Attr(name, argument.type, argument.value)


@sweep("eliminate_duplicate_function", exactness=EXACT)
def equal_functions(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Redirect calls of a function to the first function with an equal definition."""
    functions = engine.model.functions
    if len(functions) < 2:
        return
    numbers = Numbers()
    seen: dict[Hashable, ir.Function] = {}
    instead: dict[ir.OperatorIdentifier, ir.Function] = {}
    for identifier, function in functions.items():
        key = _definition(numbers, function)
        instead[identifier] = seen.setdefault(key, function)
    for node in list(facts.nodes_of(graph)):
        first = instead.get(node.op_identifier())
        if first is not None and first.identifier() != node.op_identifier():
            yield node, Patch(edit=lambda node=node, first=first: _redirect_call(engine, graph, node, first))  # type: ignore[misc]


def _definition(numbers: Numbers, function: ir.Function) -> Hashable:
    numbers.enter(function.graph, parameters="function")
    attributes = tuple(sorted((a.name, a.type, repr(a.value)) for a in function.attributes.values()))
    imports = tuple(sorted(function.opset_imports.items()))
    outputs = tuple(numbers.of(value) for value in function.outputs)
    return imports, attributes, len(function.inputs), outputs


def _redirect_call(engine: Engine, root: ir.Graph, node: ir.Node, function: ir.Function) -> list[ir.Node]:
    if function.domain not in engine.opset_imports:
        root.opset_imports[function.domain] = engine.opset_imports[function.domain] = 1
    node.domain, node.op_type, node.overload = function.identifier()
    return [node]


@sweep("eliminate_unused_function", exactness=EXACT)
def unused_functions(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Remove model-local functions without calls."""
    functions = engine.model.functions
    if engine.in_function or not functions:
        return
    reached: set[ir.OperatorIdentifier] = set()
    stack = [engine.model.graph]
    while stack:
        for node in facts.nodes_of(stack.pop()):
            identifier = node.op_identifier()
            if identifier in functions and identifier not in reached:
                reached.add(identifier)
                stack.append(functions[identifier].graph)
    for identifier in [i for i in functions if i not in reached]:
        del functions[identifier]
    yield from ()


@sweep("eliminate_unused_opset_import", exactness=EXACT)
def unused_imports(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Remove imports of operator sets without nodes, except the default one."""
    if all(domain in STANDARD for domain in graph.opset_imports):
        return
    used = {node.domain for node in facts.nodes_of(graph)}
    if not engine.in_function:
        used |= {domain for function in engine.model.functions.values() for domain in function.opset_imports}
        used |= {domain for domain, _, _ in engine.model.functions}
    for domain in [d for d in graph.opset_imports if d not in used and d not in STANDARD]:
        del graph.opset_imports[domain]
    yield from ()
