"""``sardonyx split``: a model as parts that run one after another, or beside each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli.byte_counts import parse_bytes
from sardonyx.cli.output import AsJson, ModelPath, console, print_json, progress
from sardonyx.errors import ModelFileError, OptionError

EXAMPLE = "sardonyx split model.onnx --parts 2 -o parts"


def command(
    model: ModelPath,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="The folder to write; it is created.", show_default=False
        ),
    ],
    parts: Annotated[int | None, typer.Option(help="Number of parts.", show_default=False)] = None,
    by_memory: Annotated[
        str | None, typer.Option(help="Most bytes of weights of a part, e.g. 512MiB.", show_default=False)
    ] = None,
    ways: Annotated[
        int | None,
        typer.Option(help="Number of equal shares of the large weights, instead of parts.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Split a model into parts that run one after another, and prove the chain equal to the model.

    The folder gets part-1.onnx, part-2.onnx, …, and pipeline.json with the names of files and outputs. An input of a
    part is an input of the model, or an output of an earlier part.

    With --ways N, parts compute each request together: stage-1-way-1.onnx … and tensor_parallel.json, which names the
    values that the ways add or join after each stage.
    """
    from sardonyx.distributed.split import split
    from sardonyx.model import save, write_text

    if ways is not None:
        named = {"--ways": ways, "--parts": parts, "--by-memory": by_memory}
        present = [name for name, option in named.items() if option is not None]
        if len(present) > 1:
            problem = f"expected one of --ways, --parts and --by-memory, got {' and '.join(present)}."
            raise OptionError(problem, where="split")
        _split_tensors(model, output, ways, as_json)
        return
    limit = None if by_memory is None else parse_bytes(by_memory, "--by-memory")
    with progress("splitting", quiet=as_json):
        pipeline = split(model, parts, by_memory=limit)
        files = [f"part-{number}.onnx" for number in range(1, len(pipeline.parts) + 1)]
        _create(output)
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


def _split_tensors(model: Path, output: Path, ways: int, as_json: bool) -> None:
    from sardonyx.distributed.tensor_parallel import split_tensors
    from sardonyx.model import save, write_text

    with progress("splitting", quiet=as_json):
        parallel = split_tensors(model, ways)
        _create(output)
        stages = []
        for number, stage in enumerate(parallel.stages, 1):
            files = [f"stage-{number}-way-{way}.onnx" for way in range(1, ways + 1)]
            for name, part in zip(files, stage.models, strict=True):
                save(part, output / name)
            joins = [{"name": one.name, "part": one.part, "axis": one.axis} for one in stage.joins]
            stages.append({"files": files, "joins": joins})
        report = {
            "ways": ways,
            "stages": stages,
            "outputs": dict(parallel.outputs),
            "weight_bytes": list(parallel.weight_bytes),
            "error": parallel.error,
        }
        write_text(output / "tensor_parallel.json", json.dumps(report, indent=2) + "\n")
    if as_json:
        print_json({"written": str(output), **report})
        return
    exchanges = sum(len(stage.joins) for stage in parallel.stages)
    for way, weights in enumerate(parallel.weight_bytes, 1):
        console.print(f"way {way}: {weights:,} bytes of weights", markup=False)
    counts = f"{_counted(len(stages), 'stage')} in {output}, {_counted(exchanges, 'value')} exchanged"
    console.print(counts, markup=False, soft_wrap=True)
    console.print(f"proved: largest relative difference {parallel.error:.3g}", markup=False)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _create(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelFileError(f"cannot be written: {error.strerror}", where=str(folder)) from error
