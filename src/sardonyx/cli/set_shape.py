"""``sardonyx set-shape``: new input shapes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated

import typer

from sardonyx.cli.input_shapes import parse_shapes, require_inputs
from sardonyx.cli.output import AsJson, ModelPath, Output, names_in, progress, report_written
from sardonyx.errors import OptionError
from sardonyx.model import load, save
from sardonyx.rewrite.reshape_inputs import make_dynamic, set_batch, set_input_shapes

EXAMPLE = "sardonyx set-shape model.onnx --batch N -o any-batch.onnx"


def command(
    model: ModelPath,
    output: Output,
    entries: Annotated[
        list[str] | None,
        typer.Option(
            "--input", help="New shape of an input, NAME:N,3,224,224; ? means open (repeatable).", show_default=False
        ),
    ] = None,
    batch: Annotated[
        str | None, typer.Option(help="New first size of every input: a number or a name.", show_default=False)
    ] = None,
    dynamic: Annotated[
        list[str] | None,
        typer.Option(
            help="Make these inputs dynamic in every size that the model allows (A,B; repeatable), or in the axes "
            "NAME:0,2,3.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Set input shapes, fixed or open, and repair constants baked from the old shapes.

    The result is run at several sizes before writing. A constant that cannot be repaired is refused with the node's
    name.
    """
    shapes = parse_shapes(entries, "--input")
    if shapes is None and batch is None and dynamic is None:
        raise OptionError("expected a shape", where="set-shape", remedy="Give --input, --batch or --dynamic.")
    first = None if batch is None else _number_or_name(batch)
    with progress("reshaping", quiet=as_json):
        changed = load(model)
        require_inputs(changed, shapes or {}, "--input")
        if shapes is not None:
            set_input_shapes(changed, shapes)
        if dynamic is not None:
            axes = _axes_by_input(dynamic, {str(value.name) for value in changed.graph.inputs})
            require_inputs(changed, dict.fromkeys(axes), "--dynamic")
            make_dynamic(changed, axes)
        if first is not None:
            set_batch(changed, first)
        save(changed, output)
    report_written(output, as_json=as_json, inputs={v.name: str(v.shape) for v in changed.graph.inputs})


def _number_or_name(text: str) -> int | str:
    try:
        number = int(text)
    except ValueError:
        return text
    if number < 0:
        raise OptionError(f"expected a size of 0 or more, got {text}", where="--batch", remedy="Give a number or name.")
    return number


def _axes_by_input(texts: Sequence[str], inputs: Collection[str]) -> dict[str, list[int] | None]:
    """Parse ``["a,b", "c:0,2"]`` to ``{"a": None, "b": None, "c": [0, 2]}``; a name may contain ``:0``."""
    axes: dict[str, list[int] | None] = {}
    for text in texts:
        name, _, numbers = text.rpartition(":")
        if text not in inputs and name in inputs:
            try:
                axes[name] = [int(number) for number in numbers.split(",")]
            except ValueError as error:
                raise OptionError(f"expected NAME:0,2,3, got '{text}'", where="--dynamic") from error
        else:
            axes |= dict.fromkeys([text] if text in inputs else names_in([text]))
    return axes
