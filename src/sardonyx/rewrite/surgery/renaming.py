"""Renaming of tensors, nodes and dimensions."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.core import dim as algebra
from sardonyx.core.dim import Dim, Size
from sardonyx.errors import OptionError, ShapeError
from sardonyx.model import Loadable
from sardonyx.model.copying import copy_model
from sardonyx.rewrite.analysis.names import node_names, value_names
from sardonyx.rewrite.surgery.interface import all_values, graphs_of, rename_values, shown, substituted, symbols_in

Names = Mapping[str, str]


def rename(
    model: Loadable, values: Names | None = None, *, nodes: Names | None = None, dims: Names | None = None
) -> ir.Model:
    """Rename tensors, nodes or dimensions; names may be swapped.

    Args:
        model: A Model, which is not changed, or anything accepted by ``sardonyx.load``.
        values: Old name → new name of graph inputs, outputs, weights and other tensors, in any graph.
        nodes: Old name → new name of nodes, in bodies and functions too.
        dims: Old name → new name of dimensions, also within expressions (``batch*2``).

    Returns:
        A new Model that shares its tensors with ``model``.

    Raises:
        OptionError: An old name does not exist, or a new one is in use or empty.
    """
    renamed = copy_model(model_io.load(model))
    if values:
        _check(values, set(value_names(renamed)), "tensor")
        rename_values(renamed, values)
    if nodes:
        _check(nodes, set(node_names(renamed)), "node")
        for graph in graphs_of(renamed):
            for node in graph:
                node.name = nodes.get(node.name or "", node.name)
    if dims:
        _rename_dims(renamed, dims)
    return renamed


def _check(names: Names, known: set[str], kind: str) -> None:
    missing = [old for old in names if old not in known]
    if missing:
        raise OptionError(f"unknown {kind}", where=shown(missing), remedy=f"Spell the name of the {kind} exactly.")
    if empty := [old for old, new in names.items() if not new]:
        raise OptionError(f"the new name of the {kind} is empty", where=shown(empty), remedy="Give a new name.")
    news = list(names.values())
    if repeated := [new for new in dict.fromkeys(news) if news.count(new) > 1]:
        raise OptionError(f"same new name for two {kind}s", where=shown(repeated), remedy="Give each its own name.")
    if used := [new for new in news if new in known and new not in names]:
        raise OptionError(f"another {kind} has this name", where=shown(used), remedy="Choose an unused name.")


def _rename_dims(model: ir.Model, names: Names) -> None:
    shaped = [value for value in all_values(model) if value.shape is not None]
    known = {symbol for value in shaped for dim in value.shape or () for symbol in symbols_in(dim)}
    _check(names, known, "dimension")
    for new in names.values():
        try:
            legal = isinstance(Dim.parse(new), Dim) and algebra.symbols(Dim.parse(new)) == {new}
        except ShapeError:
            legal = False
        if not legal:
            raise OptionError(
                f"expected a name, got '{new}'", where="dims", remedy="Run `sardonyx set-shape` to set sizes."
            )
    meaning: dict[str, Size] = {old: Dim.symbol(new) for old, new in names.items()}
    for value in shaped:
        assert value.shape is not None
        value.shape = ir.Shape([substituted(dim, meaning) for dim in value.shape])
