"""``sardonyx split``: a model as parts that run one after another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli.byte_counts import parse_bytes
from sardonyx.cli.output import AsJson, ModelPath, console, print_json, progress
from sardonyx.errors import ModelFileError

EXAMPLE = "sardonyx split model.onnx --parts 2 -o parts"


def command(
    model: ModelPath,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folder to write; it is created.", show_default=False)
    ],
    parts: Annotated[int | None, typer.Option(help="Number of parts.", show_default=False)] = None,
    by_memory: Annotated[
        str | None, typer.Option(help="Most bytes of weights of a part, e.g. 512MiB.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Split a model into parts that run one after another, and prove the chain equal to the model.

    The folder gets part-1.onnx, part-2.onnx, …, and pipeline.json with the names of files and outputs. An input of a
    part is an input of the model, or an output of an earlier part.
    """
    from sardonyx.distributed.split import split
    from sardonyx.model import save, write_text

    limit = None if by_memory is None else parse_bytes(by_memory, "--by-memory")
    with progress("splitting", quiet=as_json):
        pipeline = split(model, parts, by_memory=limit)
        files = [f"part-{number}.onnx" for number in range(1, len(pipeline.parts) + 1)]
        try:
            output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ModelFileError(f"cannot be written: {error.strerror}", where=str(output)) from error
        for name, part in zip(files, pipeline.parts, strict=True):
            save(part, output / name)
        report = {
            "parts": files,
            "outputs": list(pipeline.outputs),
            "weight_bytes": list(pipeline.weight_bytes),
            "transferred_bytes": list(pipeline.transferred_bytes),
            "error": pipeline.error,
        }
        write_text(output / "pipeline.json", json.dumps(report, indent=2) + "\n")
    if as_json:
        print_json({"written": str(output), **report})
        return
    transfers = [*(f"{size:,} bytes to the next" for size in pipeline.transferred_bytes), "outputs"]
    for name, weights, transfer in zip(files, pipeline.weight_bytes, transfers, strict=True):
        console.print(f"{output / name}: {weights:,} bytes of weights, {transfer}", markup=False, soft_wrap=True)
    console.print(f"proved: largest relative difference {pipeline.error:.3g}", markup=False)
