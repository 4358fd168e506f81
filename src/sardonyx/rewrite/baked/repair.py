"""Repair of a model for new input shapes."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.rewrite.analysis import inference
from sardonyx.rewrite.analysis.inference import InputShapes
from sardonyx.rewrite.baked.operators import REPAIRS
from sardonyx.rewrite.baked.walk import Walk, forget_shapes
from sardonyx.rewrite.pipeline import free_initializers

TEMPORARY = "opened_"
"""Prefix of temporary names of sizes that are a number before and after, or stay without a name."""


def repair_baked_sizes(model: ir.Model, shapes: InputShapes) -> None:
    """Give inputs new shapes, in place, and repair everything baked from the old ones.

    Args:
        model: The Model.
        shapes: Input → sizes; each input exists and has as many axes.

    Raises:
        ShapeError: something cannot be repaired; names the node.
    """
    free_initializers(model)
    inference.infer_shapes(model, strict=False)
    walk = Walk(model)
    renamed: dict[str, int | None] = {}
    opened = False
    for value in model.graph.inputs:
        sizes = shapes.get(str(value.name))
        if sizes is None:
            continue
        old = [dim if isinstance(dim, int) else dim.value for dim in value.shape] if value.shape is not None else sizes
        opened = opened or any(isinstance(was, int) and was != now for was, now in zip(old, sizes, strict=True))
        value.shape = ir.Shape(
            [_temporary_size(str(value.name), i, old[i], now, renamed) for i, now in enumerate(sizes)]
        )
    forget_shapes(model)
    if opened:
        walk.run(REPAIRS)
    for value in model.graph.inputs:
        if value.shape is not None and str(value.name) in shapes:
            value.shape = ir.Shape(list(shapes[str(value.name)]))
    forget_shapes(model)
    if opened:
        walk.fold_sizes()


def _temporary_size(
    name: str, axis: int, old: int | str | None, now: int | str | None, renamed: dict[str, int | None]
) -> int | str | None:
    """Return the size during the walk: a name instead of a changed number."""
    if old == now or not isinstance(old, int) or isinstance(now, str):
        return now
    temporary = f"{TEMPORARY}{len(renamed)}"
    renamed[temporary] = now
    return temporary
