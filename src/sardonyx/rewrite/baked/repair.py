"""From new input shapes to a model in which nothing says the old ones."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.rewrite import inference
from sardonyx.rewrite.baked.operators import REPAIRS
from sardonyx.rewrite.baked.walk import Walk, forget_shapes
from sardonyx.rewrite.inference import InputShapes
from sardonyx.rewrite.pipeline import free_initializers

STAND_IN = "opened_"
"""How the names begin that stand for a size while it is a number before and after, or stays without a name."""


def repair(model: ir.Model, shapes: InputShapes) -> None:
    """Gives inputs new shapes, in place, and repairs what is baked from the old ones.

    Args:
        model: The Model.
        shapes: Input → sizes; each input exists, and has as many axes.

    Raises:
        ShapeError: something cannot be repaired; names the node.
    """
    free_initializers(model)
    inference.infer_shapes(model, strict=False)
    walk = Walk(model)
    wanted: dict[str, int | None] = {}
    opened = False
    for value in model.graph.inputs:
        sizes = shapes.get(str(value.name))
        if sizes is None:
            continue
        old = [dim if isinstance(dim, int) else dim.value for dim in value.shape] if value.shape is not None else sizes
        opened = opened or any(isinstance(was, int) and was != now for was, now in zip(old, sizes, strict=True))
        value.shape = ir.Shape([_during(str(value.name), i, old[i], now, wanted) for i, now in enumerate(sizes)])
    forget_shapes(model)
    if opened:
        walk.run(REPAIRS)
    for value in model.graph.inputs:
        if value.shape is not None and str(value.name) in shapes:
            value.shape = ir.Shape(list(shapes[str(value.name)]))
    forget_shapes(model)
    if opened:
        walk.settle()


def _during(
    name: str, axis: int, old: int | str | None, now: int | str | None, wanted: dict[str, int | None]
) -> int | str | None:
    """The size to walk with: a name where a number changes."""
    if old == now or not isinstance(old, int) or isinstance(now, str):
        return now
    stand_in = f"{STAND_IN}{len(wanted)}"
    wanted[stand_in] = now
    return stand_in
