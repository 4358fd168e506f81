"""``sardonyx compile``: machine code and weights in one file."""

from __future__ import annotations

from typing import Annotated

import typer

from sardonyx.cli.output import AsJson, ModelPath, Output, console, print_json, progress
from sardonyx.runtime import Session

EXAMPLE = "sardonyx compile model.onnx -o model.sdx"


def command(
    model: ModelPath,
    output: Output,
    threads: Annotated[
        int | None, typer.Option(help="Threads to compile for; all that there are by default.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compile a model ahead of time, with its weights, to one file that a session maps and runs as it is.

    The file is for processors that have what this one has, or what SARDONYX_TARGET names (sse, avx2, avx512), and for
    this version of Sardonyx. It holds machine code: load only files that you would run.
    """
    with progress("compiling", quiet=as_json):
        session = Session(model, compile="wait", threads=threads)
        session.save_compiled(output)
    size = output.stat().st_size
    if as_json:
        print_json({"output": str(output), "bytes": size})
    else:
        console.print(f"{output}: {size:,} bytes", markup=False)
