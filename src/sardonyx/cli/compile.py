"""``sardonyx compile``: machine code and weights in one file, or as a library for C."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sardonyx.cli.output import AsJson, ModelPath, TimePasses, console, print_json, progress
from sardonyx.compiler.pass_runner import recorded_pass_times
from sardonyx.errors import OptionError
from sardonyx.model import require_file
from sardonyx.report.pass_times import pass_time_data, pass_time_table
from sardonyx.report.quantities import print_all
from sardonyx.runtime import Session

EXAMPLE = "sardonyx compile model.onnx -o model.sdx"


def command(
    model: ModelPath,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file for sessions to write (.sdx).", show_default=False),
    ] = None,
    shared: Annotated[Path | None, typer.Option(help="The C library to write (.so).", show_default=False)] = None,
    header: Annotated[
        Path | None, typer.Option(help="The library's header; next to the library by default (.h).", show_default=False)
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(help="Prefix of the library's names; its file's name by default.", show_default=False)
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Threads to compile for; all by default.", show_default=False)
    ] = None,
    time_passes: TimePasses = False,
    as_json: AsJson = False,
) -> None:
    """Compile a model ahead of time, with its weights: to a file for sessions, or to a C library.

    The code runs on processors with the features of this one, or of SARDONYX_TARGET (sse, avx2, avx512); an .sdx file
    requires this version of Sardonyx. Both contain machine code: load only trusted files. A C library needs neither
    Python nor Sardonyx: `sardonyx compile model.onnx --shared libmodel.so --header model.h`; the system's cc links the
    library.
    """
    if output is None and shared is None:
        raise OptionError(
            "expected a file to write", where="compile", remedy="Give -o model.sdx, or --shared model.so."
        )
    if shared is None and (header is not None or prefix is not None):
        raise OptionError("requires --shared", where="--header, --prefix", remedy="Give --shared model.so.")
    for option, file in (("--output", output), ("--shared", shared), ("--header", header)):
        if file is not None:
            require_file(file, option)
    files: dict[str, Any] = {}
    with progress("compiling", quiet=as_json), recorded_pass_times(time_passes) as times:
        session = Session(model, compile="wait", threads=threads)
        if output is not None:
            session.save_compiled(output)
            files |= {"output": str(output), "bytes": output.stat().st_size}
        if shared is not None:
            header = header or shared.with_suffix(".h")
            session.save_library(shared, header, prefix)
            files |= {"shared": str(shared), "shared_bytes": shared.stat().st_size, "header": str(header)}
    if as_json:
        print_json({**files, "passes": pass_time_data(times)} if time_passes else files)
        return
    for file in (output, shared, header):
        if file is not None:
            console.print(f"{file}: {file.stat().st_size:,} bytes", markup=False)
    if time_passes:
        print_all(console, pass_time_table(times))
