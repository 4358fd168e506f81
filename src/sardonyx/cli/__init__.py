"""The command line: one file a verb, thin over the Python API.

Exit codes: 0 done; 1 the model has errors, or the operation failed; 2 the request makes no sense
(no such file, unknown option value); 3 the result could not be proved equal (``--strict``).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import typer

from sardonyx.cli.output import report_error
from sardonyx.errors import SardonyxError

VERBS = (
    "demo",
    "info",
    "check",
    "view",
    "diff",
    "optimize",
    "simplify",
    "fp16",
    "passes",
    "extract",
    "merge",
    "rename",
    "set-shape",
    "convert-opset",
    "convert",
)
"""Verbs, in the order of the help; each is module ``sardonyx.cli.<verb>`` with a function ``command``."""


def build() -> typer.Typer:
    """The application with all its verbs."""
    app = typer.Typer(
        name="sardonyx",
        help="Take an ONNX model from file to answer: check, optimize with proof, compress, convert.",
        no_args_is_help=True,
        add_completion=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for verb in VERBS:
        module = importlib.import_module(f"sardonyx.cli.{verb.replace('-', '_')}")
        command: Callable[..., Any] = module.command
        app.command(verb, epilog=f"Example: [bold]{module.EXAMPLE}[/bold]")(command)

    @app.callback(invoke_without_command=True)
    def top(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
        if version:
            from sardonyx import __version__

            typer.echo(__version__)
            raise typer.Exit

    return app


def main() -> None:
    """Entry point of the ``sardonyx`` command."""
    try:
        build()()
    except SardonyxError as error:
        report_error(error)
        sys.exit(error.exit_code)
