"""The command line: one file a verb, thin over the Python API.

Exit codes: 0 done; 1 the model has errors, or the operation failed; 2 the request makes no sense
(no such file, unknown option value); 3 the result could not be proved equal (``--strict``).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any

import typer

from sardonyx.cli.output import print_json, report_error
from sardonyx.errors import SardonyxError

VERBS = {
    "demo": "Optimize the two shipped models with proof, and find handwritten digits with them.",
    "info": "Say what a model is: interface, operators, weights, arithmetic, memory.",
    "check": "Check a model, and say what is wrong, where, and which command repairs it.",
    "view": "Show the graph in the browser, with Netron.",
    "diff": "Compare two models node by node.",
    "optimize": "Rewrite a model to fewer, cheaper nodes, prove that it computes the same, and write standard ONNX.",
    "simplify": "Fold constants and remove what does nothing: as `optimize`, with rewrites that keep every bit only.",
    "fp16": "Convert float32 to float16 or bfloat16, keeping float32 where operators or accuracy need it.",
    "compile": "Compile a model ahead of time, with its weights: to a file that a session maps, or to a library for C.",
    "explain": "Say what a model is compiled to: kernels, what is in each, and what the interpreter is left with.",
    "profile": "Measure a model kernel by kernel, against what the machine can do.",
    "bench": "Measure a model on several engines, side by side.",
    "compare": "Compare two models, or two providers on one, tensor by tensor.",
    "reduce": "Shrink a failing model to the smallest part that fails in the same way.",
    "passes": "List the passes of the optimizer: what each does, and how exact it is.",
    "ops": "List the operators that a session runs: versions, element types, how each is defined and tested.",
    "extract": "Cut out the part of a model between named tensors.",
    "merge": "Join models end to end: outputs of each feed inputs of the next.",
    "rename": "Rename inputs, outputs, tensors, nodes or dimensions.",
    "set-shape": "Give inputs new shapes, fixed or open, and repair the constants baked from the old ones.",
    "convert-opset": "Convert to another operator set, newer or older, or to another IR version.",
    "convert": "Write a model in another form: binary, ONNX text, protobuf text, with or without external data.",
}
"""Verbs and their line in the help, in its order; each is a module ``sardonyx.cli.<verb>`` with ``command``."""

EXIT_CODES = (
    "Exit codes: 0 done, 1 the model has errors or the operation failed, "
    "2 the request makes no sense, 3 not proved (--strict)."
)


def build(needed: Collection[str] = tuple(VERBS)) -> typer.Typer:
    """The application with all its verbs.

    Args:
        needed: Verbs to load; of the others there is only the line in the help, which keeps start-up short.
    """
    app = typer.Typer(
        name="sardonyx",
        help="Take an ONNX model from file to answer: check, optimize with proof, compress, convert, compile, measure.",
        epilog=EXIT_CODES,
        no_args_is_help=True,
        add_completion=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for verb, line in VERBS.items():
        command: Callable[..., Any] = _unloaded
        epilog = None
        if verb in needed:
            module = importlib.import_module(f"sardonyx.cli.{verb.replace('-', '_')}")
            command, epilog = module.command, f"Example: [bold]{module.EXAMPLE}[/bold]"
        app.command(verb, short_help=line, epilog=epilog)(command)

    @app.callback(invoke_without_command=True)
    def top(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
        if version:
            from sardonyx import __version__

            typer.echo(__version__)
            raise typer.Exit

    return app


def _unloaded() -> None:
    """Stands for a verb that the command line does not name."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the ``sardonyx`` command.

    Args:
        arguments: The command line without the program's name; that of the process when None.

    Raises:
        SystemExit: always; the code is one of those above.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    completing = "_SARDONYX_COMPLETE" in os.environ
    app = build(VERBS if completing else [verb for verb in VERBS if verb in given])
    try:
        app(args=given, prog_name="sardonyx")
    except SardonyxError as error:
        report_error(error)
        if "--json" in given:
            told = {name: getattr(error, name) for name in ("problem", "where", "remedy")}
            print_json({"error": {"kind": type(error).__name__, **told}})
        sys.exit(error.exit_code)
