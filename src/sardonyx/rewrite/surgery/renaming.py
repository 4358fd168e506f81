"""Renames tensors, nodes and dimensions."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.core import dim as algebra
from sardonyx.core.dim import Dim, Size
from sardonyx.errors import OptionError, ShapeError
from sardonyx.model import Loadable
from sardonyx.model.copying import copy_model
from sardonyx.rewrite.names import node_names, value_names
from sardonyx.rewrite.surgery.interface import all_values, graphs_of, rename_values, shown, substituted, symbols_in

Names = Mapping[str, str]


def rename(
    model: Loadable, values: Names | None = None, *, nodes: Names | None = None, dims: Names | None = None
) -> ir.Model:
    """Gives tensors, nodes or dimensions new names; names may be swapped.

    Args:
        model: A Model, which is not changed, or anything that ``sardonyx.load`` takes.
        values: Old name → new name of graph inputs, outputs, weights and other tensors, wherever they are defined.
        nodes: Old name → new name of nodes, in bodies and functions too.
        dims: Old name → new name of dimensions, also within expressions (``batch*2``).

    Returns:
        A new Model that shares its tensors with ``model``.

    Raises:
        OptionError: An old name does not exist, or a new one is taken or empty.
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
        raise OptionError(f"no {kind} is named so", where=shown(missing), remedy=f"A {kind} keeps its exact spelling.")
    if empty := [old for old, new in names.items() if not new]:
        raise OptionError(f"the {kind} gets no new name", where=shown(empty), remedy="Give one letter at least.")
    news = list(names.values())
    if twice := [new for new in dict.fromkeys(news) if news.count(new) > 1]:
        raise OptionError(f"two {kind}s get the same new name", where=shown(twice), remedy="Choose one for each.")
    if taken := [new for new in news if new in known and new not in names]:
        raise OptionError(f"another {kind} has that name", where=shown(taken), remedy="Choose one that is free.")


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
            raise OptionError(f"'{new}' is no name", where="dims", remedy="`sardonyx set-shape` gives sizes.")
    meaning: dict[str, Size] = {old: Dim.symbol(new) for old, new in names.items()}
    for value in shaped:
        assert value.shape is not None
        value.shape = ir.Shape([substituted(dim, meaning) for dim in value.shape])
