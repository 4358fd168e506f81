"""``sardonyx merge``: models end to end, and adapters into their model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import onnx_ir as ir
import typer

from sardonyx.cli.output import AsJson, Output, parse_pairs, progress, report_written
from sardonyx.errors import OptionError
from sardonyx.model import load, save
from sardonyx.rewrite.surgery import merge

EXAMPLE = "sardonyx merge backbone.onnx head.onnx --link features=x -o whole.onnx"

OPTIONS_OF_PARAMETERS = {"links": "--link", "adapters": "--adapter"}


def command(
    models: Annotated[
        list[Path],
        typer.Argument(help="Two models or more, in order; or the model of the adapters.", show_default=False),
    ],
    output: Output,
    link: Annotated[
        list[str] | None,
        typer.Option(
            help="An output and the input to feed, OUT=IN (repeatable); by default by name, else by order.",
            show_default=False,
        ),
    ] = None,
    adapter: Annotated[
        list[Path] | None,
        typer.Option(
            help="A low-rank adapter to add to the weights: a file of `finetune --adapter`, or a folder of PEFT"
            " (repeatable).",
            show_default=False,
        ),
    ] = None,
    share: Annotated[float, typer.Option(help="Factor of the changes by adapters.")] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Join models end to end, outputs of each to inputs of the next; or merge adapters into the weights of a model."""
    links = parse_pairs(link, "--link") if link else None
    with progress("merging", quiet=as_json):
        merged = _with_adapters(models, adapter, share) if adapter else merge([load(path) for path in models], links)
        save(merged, output)
    report_written(
        output,
        as_json=as_json,
        inputs=[value.name for value in merged.graph.inputs],
        outputs=[value.name for value in merged.graph.outputs],
    )


def _with_adapters(models: Sequence[Path], adapters: Sequence[Path], share: float) -> ir.Model:
    from sardonyx.train.trainable.lora import merge_adapters
    from sardonyx.train.trainable.peft_files import read_adapter

    if len(models) != 1:
        raise OptionError(
            f"expected one model, got {len(models)}.",
            where="--adapter",
            remedy="Merge the adapters into their model first.",
        )
    source = load(models[0])
    return merge_adapters(source, [read_adapter(path, source) for path in adapters], share)
