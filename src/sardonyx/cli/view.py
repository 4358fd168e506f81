"""``sardonyx view``: the graph in the browser."""

from __future__ import annotations

import importlib
from typing import Annotated

import typer

from sardonyx.cli.output import ModelPath, console
from sardonyx.errors import MissingDependencyError, ModelFileError

EXAMPLE = "sardonyx view model.onnx"


def command(
    model: ModelPath,
    port: Annotated[int, typer.Option(help="Port of the server; 0 for any free port.")] = 0,
    browse: Annotated[bool, typer.Option("--browse/--no-browse", help="Open the browser.")] = True,
) -> None:
    """Show the graph in the browser, with Netron; Ctrl-C ends the server."""
    if not model.exists():
        raise ModelFileError("file not found", where=str(model), remedy="Give the path of a model.")
    try:
        netron = importlib.import_module("netron")
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "Netron is not installed", where="view", remedy="Install it with: pip install 'sardonyx[view]'"
        ) from error
    address = netron.serve(str(model), None, browse=browse, address=("localhost", port) if port else None, verbosity=0)
    console.print(f"Netron shows {model} at http://{address[0]}:{address[1]} (Ctrl-C ends it)", markup=False)
    netron.wait()
