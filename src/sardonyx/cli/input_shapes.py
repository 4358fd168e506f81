"""Shapes of inputs in options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from sardonyx.errors import OptionError

Shapes = dict[str, list[int | str | None]]


def parse_shapes(texts: Iterable[str] | None, option: str) -> Shapes | None:
    """Parse ``name:1,3,H,?`` to ``{"name": [1, 3, "H", None]}``; nothing after the colon is a scalar.

    Raises:
        OptionError: A text has no colon, a size is missing or negative, or an input occurs twice.
    """
    if not texts:
        return None
    shapes: Shapes = {}
    for text in texts:
        name, colon, sizes = text.rpartition(":")
        if not colon or not name:
            raise OptionError(f"expected NAME:1,3,H,W, got '{text}'", where=option)
        if name in shapes:
            raise OptionError(f"'{name}' occurs twice", where=option)
        shapes[name] = [_size(part.strip(), option) for part in sizes.split(",")] if sizes.strip() else []
    return shapes


def _size(text: str, option: str) -> int | str | None:
    if text in ("?", "-1"):
        return None
    if not text:
        raise OptionError("a size is missing", where=option, remedy="Write NAME:1,3,H,W; ? means open.")
    try:
        number = int(text)
    except ValueError:
        return text
    if number < 0:
        raise OptionError(f"expected a size of 0 or more, got {text}", where=option, remedy="Write ? for an open size.")
    return number


def require_inputs(model: ir.Model, shapes: Mapping[str, list[int | str | None] | None], option: str) -> None:
    """Check that a model has some inputs, with as many sizes.

    Args:
        model: The Model.
        shapes: The new sizes of each input; None for those that the model has.
        option: The option, for errors.

    Raises:
        OptionError: An input is unknown, or has another number of sizes.
    """
    known = {str(value.name): value.shape for value in model.graph.inputs}
    for name, sizes in shapes.items():
        if name not in known:
            raise OptionError(f"unknown input '{name}'.", where=option, remedy=f"Inputs are: {', '.join(known)}.")
        shape = known[name]
        if shape is not None and sizes is not None and len(shape) != len(sizes):
            raise OptionError(
                f"expected {len(shape)} sizes of '{name}', got {len(sizes)}.",
                where=option,
                remedy=f"The declared shape is {shape}.",
            )
