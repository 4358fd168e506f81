"""Merging of models end to end: outputs of each become inputs of the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.core.dim import Dim, Size
from sardonyx.errors import OptionError, ShapeError
from sardonyx.model import Loadable
from sardonyx.model.copying import copy_model
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.names import Names, node_names, value_names
from sardonyx.rewrite.analysis.sizes import parsed
from sardonyx.rewrite.opset.convert import convert_opset
from sardonyx.rewrite.opset.schemas import newest as newest_known
from sardonyx.rewrite.surgery.interface import all_values, graphs_of, rename_values, shown, substituted, symbols_in


def merge(models: Sequence[Loadable], links: Mapping[str, str] | None = None) -> ir.Model:
    """Merge models in order, the outputs of each feeding inputs of the next.

    The result's inputs are the inputs of the first model and the unlinked ones of the others; its outputs are the
    unlinked ones of all but the last model, and the outputs of the last. Interface names are preserved; other tensors,
    nodes and functions get new names on a clash; a function defined identically by two models is included once. Models
    of different operator sets are raised to the newest among these. A size left open by one model and fixed by the next
    is fixed.

    Args:
        models: Two or more Models, which are not changed, or anything accepted by ``sardonyx.load``.
        links: Output of one model → input of the next. None links equal names; without equal names, the outputs are
            linked to the inputs in order if their numbers agree.

    Returns:
        A new Model that shares its tensors with ``models``.

    Raises:
        OptionError: A link names an unknown output or input, nothing can be linked, unlinked inputs or outputs of two
            models have the same name, or models import different versions of a domain without a converter.
        ShapeError: A linked output and input differ in type, rank or a fixed size.
        OpsetConversionError: A model cannot be raised to the newest operator set among the models.
    """
    if len(models) < 2:
        raise OptionError(f"expected two models or more, got {len(models)}", where="merge")
    loaded = [model_io.load(model) for model in models]
    if links:
        _require_ends(loaded, links)
    copies = _aligned([copy_model(model) for model in loaded])
    unused = dict(links) if links is not None else None
    result = copies[0]
    for following in copies[1:]:
        result = _join(result, following, _links(result, following, unused))
    for model in copies[1:]:  # The mark of an encrypted file stays with its weights.
        for entry, value in model.meta.items():
            result.meta.setdefault(entry, value)
    if unused:
        raise OptionError(
            f"expected links from a model to the next one, got {shown(f'{a}={b}' for a, b in unused.items())}",
            where="links",
            remedy=f"Outputs of the result: {shown(v.name for v in result.graph.outputs)}.",
        )
    return result


def _require_ends(models: Sequence[ir.Model], links: Mapping[str, str]) -> None:
    """Refuse links from unknown outputs or to unknown inputs."""
    for kind, names, values in (
        ("output", links, [v for model in models[:-1] for v in model.graph.outputs]),
        ("input", links.values(), [v for model in models[1:] for v in model.graph.inputs]),
    ):
        known = [str(value.name) for value in values]
        if missing := [name for name in names if name not in known]:
            raise OptionError(
                f"unknown {kind} {shown(repr(name) for name in missing)}",
                where="links",
                remedy=f"Choose among {shown(known)}.",
            )


def _aligned(models: list[ir.Model]) -> list[ir.Model]:
    """Return the models at the newest imported operator set of every domain."""
    newest: dict[str, int] = {}
    for model in models:
        for domain, version in model.graph.opset_imports.items():
            newest[domain] = max(version, newest.get(domain, 0))
    aligned = []
    for model in models:
        for domain, version in list(model.graph.opset_imports.items()):
            if version < newest[domain]:
                if newest_known(domain):
                    model = convert_opset(model, newest[domain], domain=domain)
                else:
                    _label(model, domain, newest[domain])
        aligned.append(model)
    return aligned


def _label(model: ir.Model, domain: str, version: int) -> None:
    """Import another version of a domain in which the model uses only its own functions."""
    imports = [model.graph.opset_imports, *(function.opset_imports for function in model.functions.values())]
    foreign = [
        node
        for graph in graphs_of(model)
        for node in graph
        if node.domain == domain and node.op_identifier() not in model.functions
    ]
    if foreign:
        raise OptionError(
            f"the models import versions {imports[0][domain]} and {version} of the domain {domain}, and no converter "
            f"exists for {shown(dict.fromkeys(node.op_type for node in foreign))}",
            where="merge",
            remedy="Write the same version into both models if the operators are the same.",
        )
    for versions in imports:
        if domain in versions:
            versions[domain] = version


def _required(model: ir.Model) -> list[ir.Value]:
    return [value for value in model.graph.inputs if not value.is_initializer()]


def _links(first: ir.Model, second: ir.Model, unused: dict[str, str] | None) -> dict[str, str]:
    """Return output of ``first`` → input of ``second``; used links are removed from ``unused``."""
    outputs = [str(value.name) for value in first.graph.outputs]
    inputs = [str(value.name) for value in second.graph.inputs]
    if unused is not None:
        chosen = {out: name for out, name in unused.items() if out in outputs and name in inputs}
        for out in chosen:
            del unused[out]
    else:
        chosen = {name: name for name in outputs if name in inputs}
        required = [str(value.name) for value in _required(second)]
        if not chosen and len(outputs) == len(required):
            chosen = dict(zip(outputs, required, strict=True))
    if not chosen:
        raise OptionError(
            f"no name in common between the outputs {shown(outputs)} and the inputs {shown(inputs)}",
            where="links",
            remedy="Link each pair by OUTPUT=INPUT.",
        )
    fed = list(chosen.values())
    if repeated := sorted({name for name in fed if fed.count(name) > 1}):
        raise OptionError(f"inputs linked twice: {shown(repeated)}", where="links", remedy="Link each input once.")
    return chosen


def _join(first: ir.Model, second: ir.Model, links: Mapping[str, str]) -> ir.Model:
    ends = {str(value.name): value for value in first.graph.outputs}
    starts = {str(value.name): value for value in second.graph.inputs}
    pairs = [(starts[name], ends[out]) for out, name in links.items()]
    for entry, source in pairs:
        _check_fit(source, entry)
    outputs = [value for value in first.graph.outputs if value.name not in links]
    _check_interfaces(first, second, outputs, links)
    share_functions(first, second)
    _rename_clashes(first, second, set(links.values()))
    take_functions(first, second)
    _fix_sizes(first, pairs)
    separate_sizes(first, second, pairs)
    feed(second, pairs)
    take_graph(first.graph, second.graph, outputs)
    for domain, version in second.graph.opset_imports.items():
        first.graph.opset_imports.setdefault(domain, version)
    for key, text in second.metadata_props.items():
        first.metadata_props.setdefault(key, text)
    first.ir_version = max(first.ir_version, second.ir_version)
    first.ir_version = model_io.lowest_ir_version(first)
    return first


def _check_fit(output: ir.Value, entry: ir.Value) -> None:
    where = f"{output.name}={entry.name}"
    if output.type is not None and entry.type is not None and output.type != entry.type:
        raise ShapeError(f"expected {entry.type}, got output {output.type}", where=where, remedy="Insert a Cast.")
    if output.shape is None or entry.shape is None:
        return
    unlike = len(output.shape) != len(entry.shape) or any(
        isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(output.shape, entry.shape, strict=True)
    )
    if unlike:
        raise ShapeError(
            f"expected shape {entry.shape}, got output shape {output.shape}",
            where=where,
            remedy="Run `sardonyx set-shape` to give the input another shape.",
        )


def _check_interfaces(first: ir.Model, second: ir.Model, outputs: Sequence[ir.Value], links: Mapping[str, str]) -> None:
    names = {value.name for value in (*first.graph.inputs, *outputs)}
    added = [value for value in second.graph.inputs if value.name not in links.values()]
    clashing = [value.name for value in (*added, *second.graph.outputs) if value.name in names]
    if clashing:
        raise OptionError(
            f"inputs or outputs of two models have the same name: {shown(clashing)}",
            where="merge",
            remedy="Link these, or rename one first with `sardonyx rename`.",
        )


def _rename_clashes(first: ir.Model, second: ir.Model, fed: set[str]) -> None:
    """Rename internal values and nodes of one model that clash with names of the other."""
    ours, theirs = set(value_names(first)), set(value_names(second))
    names = Names(iter(ours | theirs))
    public = {str(v.name) for v in (*second.graph.inputs, *second.graph.outputs)} - fed
    rename_values(first, {name: names.fresh(name) for name in sorted(ours & public)})
    rename_values(second, {name: names.fresh(name) for name in sorted(ours & (theirs - public))})
    node_names_ = Names(node_names(first))
    for graph in graphs_of(second):
        for node in graph:
            if node.name:
                node.name = node_names_.fresh(node.name)


def share_functions(first: ir.Model, second: ir.Model) -> None:
    """Remove the functions of ``second`` defined identically in ``first``, including their callees."""
    shared = {
        identifier
        for identifier, function in second.functions.items()
        if identifier in first.functions and _definition(function) == _definition(first.functions[identifier])
    }
    clashing = first.functions.keys() & second.functions.keys()
    while different := {
        identifier
        for identifier in shared
        if any(node.op_identifier() in clashing - shared for node in facts.nodes_of(second.functions[identifier].graph))
    }:
        shared -= different
    for identifier in shared:
        del second.functions[identifier]


def _definition(function: ir.Function) -> bytes:
    """Return the serialized function without inferred types, documentation and metadata."""
    proto = ir.to_proto(function)
    for field in ("value_info", "doc_string", "metadata_props"):
        proto.ClearField(field)
    return proto.SerializeToString(deterministic=True)


def take_functions(first: ir.Model, second: ir.Model) -> None:
    """Move the functions of ``second`` into ``first``, renaming on a clash."""
    renamed: dict[ir.OperatorIdentifier, str] = {}
    for identifier in [known for known in second.functions if known in first.functions]:
        domain, name, overload = identifier
        number = 1
        while (domain, f"{name}_{number}", overload) in {*first.functions, *second.functions}:
            number += 1
        renamed[identifier] = f"{name}_{number}"
    for graph in graphs_of(second):
        for node in graph:
            node.op_type = renamed.get(node.op_identifier(), node.op_type)
    for identifier, function in list(second.functions.items()):
        function.name = renamed.get(identifier, function.name)
        first.functions[function.identifier()] = function


_IDENTITY = 13
"""The operator set of added Identity nodes if a model does not import ONNX's own."""


def feed(second: ir.Model, pairs: Sequence[tuple[ir.Value, ir.Value]]) -> None:
    """Replace inputs by the values linked to them; ``pairs`` are (input, source)."""
    graph = second.graph
    for entry, source in pairs:
        if entry.is_initializer():
            del graph.initializers[str(entry.name)]
        graph.inputs.remove(entry)
        if entry.is_graph_output():
            _pass_on(graph, entry)
        for use in list(entry.uses()):
            use.node.replace_input_with(use.idx, source)


def _pass_on(graph: ir.Graph, entry: ir.Value) -> None:
    """Replace an output that is an input by the output of an Identity of the same name."""
    node = ir.Node("", "Identity", [entry])
    output = node.outputs[0]
    output.name, output.type, output.shape = entry.name, entry.type, entry.shape
    entry.name = None
    for index, value in enumerate(graph.outputs):
        if value is entry:
            graph.outputs[index] = output
    graph.append(node)
    graph.opset_imports.setdefault("", _IDENTITY)


def _fix_sizes(first: ir.Model, pairs: Sequence[tuple[ir.Value, ir.Value]]) -> None:
    """Replace size names of the sources by the numbers required by the linked inputs."""
    fixed: dict[str, Size] = {}
    for entry, source in pairs:
        for mine, theirs in zip(entry.shape or (), source.shape or (), strict=False):
            if isinstance(mine, int) and isinstance(theirs, ir.SymbolicDim) and symbols_in(theirs) == {theirs.value}:
                fixed.setdefault(str(theirs.value), mine)
    _write_sizes(first, fixed)


def separate_sizes(first: ir.Model, second: ir.Model, pairs: Sequence[tuple[ir.Value, ir.Value]]) -> None:
    """Write sizes of ``second`` in terms of its sources; rename other size names used by both models."""
    used = {name for value in all_values(first) for dim in value.shape or () for name in symbols_in(dim)}
    meaning: dict[str, Size] = {}
    for entry, source in pairs:
        for mine, theirs in zip(entry.shape or (), source.shape or (), strict=False):
            if isinstance(mine, ir.SymbolicDim) and mine.value is not None:
                size = theirs if isinstance(theirs, int) else None if theirs.value is None else parsed(theirs.value)
                if size is not None:
                    meaning.setdefault(mine.value, size)
    own = {name for value in all_values(second) for dim in value.shape or () for name in symbols_in(dim)}
    names = Names(iter(used | own))
    for name in sorted((own & used) - meaning.keys()):
        meaning[name] = Dim.symbol(names.fresh(name))
    _write_sizes(second, meaning)


def _write_sizes(model: ir.Model, meaning: Mapping[str, Size]) -> None:
    for value in all_values(model):
        if meaning and value.shape is not None:
            value.shape = ir.Shape([substituted(dim, meaning) for dim in value.shape])


def take_graph(target: ir.Graph, source: ir.Graph, outputs: Sequence[ir.Value]) -> None:
    """Move inputs, weights, nodes and outputs to ``target``, which retains ``outputs``."""
    inputs, weights = list(source.inputs), list(source.initializers.values())
    nodes, ends = list(source), list(source.outputs)
    source.inputs.clear()
    source.outputs.clear()
    source.initializers.clear()
    source.remove(nodes)
    target.inputs.extend(inputs)
    for weight in weights:
        target.initializers.add(weight)
    target.extend(nodes)
    target.outputs.clear()
    target.outputs.extend([*outputs, *ends])
