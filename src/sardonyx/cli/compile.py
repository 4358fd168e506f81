"""``sardonyx compile``: machine code and weights in one file, or as a library for C."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sardonyx.cli.output import AsJson, ModelPath, console, print_json, progress
from sardonyx.errors import OptionError
from sardonyx.runtime import Session

EXAMPLE = "sardonyx compile model.onnx -o model.sdx"


def command(
    model: ModelPath,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where to write a file for sessions (.sdx).", show_default=False),
    ] = None,
    shared: Annotated[Path | None, typer.Option(help="Where to write a C library (.so).", show_default=False)] = None,
    header: Annotated[
        Path | None, typer.Option(help="Where its header goes; beside it by default (.h).", show_default=False)
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(help="What its names begin with; its file's name by default.", show_default=False)
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Threads to compile for; all that there are by default.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compile a model ahead of time, with its weights: to a file that a session maps, or to a library for C.

    Both are for processors that have what this one has, or what SARDONYX_TARGET names (sse, avx2, avx512), and an .sdx
    is for this version of Sardonyx. They hold machine code: load only what you would run. A C library needs neither
    Python nor Sardonyx: `sardonyx compile model.onnx --shared libmodel.so --header model.h`; the system's cc links it.
    """
    if output is None and shared is None:
        raise OptionError(
            "nothing is to be written", where="compile", remedy="Give -o model.sdx, or --shared model.so."
        )
    if shared is None and (header is not None or prefix is not None):
        raise OptionError("they belong to a C library", where="--header, --prefix", remedy="Give --shared model.so.")
    made: dict[str, Any] = {}
    with progress("compiling", quiet=as_json):
        session = Session(model, compile="wait", threads=threads)
        if output is not None:
            session.save_compiled(output)
            made |= {"output": str(output), "bytes": output.stat().st_size}
        if shared is not None:
            header = header or shared.with_suffix(".h")
            session.save_library(shared, header, prefix)
            made |= {"shared": str(shared), "shared_bytes": shared.stat().st_size, "header": str(header)}
    if as_json:
        print_json(made)
        return
    for file in (output, shared, header):
        if file is not None:
            console.print(f"{file}: {file.stat().st_size:,} bytes", markup=False)
