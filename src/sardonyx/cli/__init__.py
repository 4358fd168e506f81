"""The command line: one file per verb, thin over the Python API.

Exit codes: 0 done; 1 the model has errors, or the operation failed; 2 invalid request (no such file, unknown option
value); 3 the result could not be proved equal (``--strict``).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any

import typer

from sardonyx.base.gc_pause import imports_frozen
from sardonyx.cli.help_pages import VerbCommand, VerbGroup
from sardonyx.errors import ResourceError, SardonyxError

SECTIONS: dict[str, dict[str, str]] = {
    "Inspect": {
        "demo": "Optimize the two shipped models with proof, and detect handwritten digits with them.",
        "info": "Summarize a model: interface, operators, weights, arithmetic, memory.",
        "check": "Check a model: print each problem, its location, and the command for its repair.",
        "view": "Show the graph in the browser, with Netron.",
        "diff": "Compare two models node by node.",
    },
    "Rewrite": {
        "optimize": "Rewrite a model to fewer, cheaper nodes, prove the result equal, and write standard ONNX.",
        "simplify": "Fold constants and remove redundant nodes: `optimize` with bit-exact rewrites only.",
        "fp16": "Convert float32 to float16 or bfloat16, keeping float32 where operators or accuracy need it.",
        "quantize": "Quantize weights and activations, or weights alone, and measure the error of the outputs.",
        "factorize": "Replace layers by two of low rank where that is smaller, and measure the error of the outputs.",
        "cluster": "Share the weights of layers by palettes, and measure the error of the outputs.",
        "prune": "Remove channels, heads or layers, or set weights to zero, and measure the error of the outputs.",
        "compress": "Search for the smallest and fastest model that keeps a budget of accuracy, size and time.",
        "extract": "Cut out the part of a model between named tensors.",
        "merge": "Join models end to end: outputs of each feed inputs of the next.",
        "split": "Split a model into parts that run one after another, and prove the chain equal to the model.",
        "rename": "Rename inputs, outputs, tensors, nodes or dimensions.",
        "set-shape": "Set input shapes, fixed or open, and repair constants baked from the old shapes.",
        "convert-opset": "Convert to another operator set, newer or older, or to another IR version.",
        "convert": "Write a model in another format: binary, ONNX text, protobuf text; with or without external data.",
    },
    "Other frameworks": {
        "convert-from": "Convert a program of another framework, and prove the model equal to the program.",
        "convert-to": "Convert a model to another framework or engine, and prove the result equal to the model.",
    },
    "Train": {
        "train": "Train a model on labelled data, and write an inference model with the trained weights.",
        "finetune": "Train low-rank adapters of the weights, and write the model with merged adapters.",
        "distill": "Train a student on the softened answers of a teacher, with or without labels.",
        "gradient": "Write a model that computes derivatives besides its outputs.",
    },
    "Run and measure": {
        "run": "Run a model once: show, write or check its outputs.",
        "compile": "Compile a model ahead of time, with its weights: to a file for sessions, or to a C library.",
        "explain": "Show the compiled form of a model: kernels with their nodes, and interpreted values.",
        "profile": "Measure a model kernel by kernel, against the peak of the machine.",
        "bench": "Measure models on several engines: percentiles, ratios, throughput, energy.",
        "compare": "Compare two models, or two providers on one, tensor by tensor.",
        "reduce": "Shrink a failing model to the smallest part that fails in the same way.",
    },
    "Serve": {
        "serve": "Serve models over HTTP and gRPC by the Open Inference Protocol.",
        "call": "Send one request to a server, and show or write the outputs.",
    },
    "Hub": {
        "hub": "Search, get and list models of hubs, with digests and a lock file.",
    },
    "Trust": {
        "keygen": "Make a key: the secret in a file that only its owner reads, the public half beside it.",
        "encrypt": "Encrypt a model with its data files for named recipients; sessions open the result with a key.",
        "decrypt": "Decrypt a model with its data files into plain files; the digests are verified.",
        "watermark": "Mark a model by a secret key without a change of answers, or search a model for the mark.",
        "sign": "Sign a model with its data files, or a folder, in the format of OpenSSF Model Signing.",
        "sbom": "Write the bill of materials of a model (CycloneDX ML-BOM).",
        "verify": "Verify that a trusted key signed a model and every data file of it, as they are now.",
    },
    "Lists": {
        "passes": "List the passes of the optimizer: effect and exactness of each.",
        "ops": "List the operators that a session runs: versions, element types, definition and tests.",
    },
}
"""Verbs with their help lines, by section, in order; ``command`` of the module ``sardonyx.cli.<verb>`` runs a verb."""

VERBS = {verb: line for verbs in SECTIONS.values() for verb, line in verbs.items()}
"""All verbs and their help lines."""

OPTIONS = (
    ("--version", "Print the version and exit."),
    ("--install-completion", "Install completion for the current shell."),
    ("--show-completion", "Print the completion for the current shell, to copy or customize."),
    ("-h, --help", "Show this text and exit."),
)

EXIT_CODES = (
    "Exit codes: 0 done, 1 the model has errors or the operation failed, 2 invalid request, 3 not proved (--strict)."
)


def build(needed: Collection[str] = tuple(VERBS)) -> typer.Typer:
    """Return the application with all its verbs.

    Args:
        needed: Verbs to load; other verbs only have their help line, to keep start-up short.
    """
    app = typer.Typer(
        name="sardonyx",
        help="Take an ONNX model from file to answer: check, optimize with proof, compress, convert, compile, measure.",
        epilog=EXIT_CODES,
        no_args_is_help=True,
        add_completion=True,
        cls=_Sardonyx,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for verb, line in VERBS.items():
        command: Callable[..., Any] = _unloaded
        if verb in needed:
            with imports_frozen():
                command = importlib.import_module(f"sardonyx.cli.{verb.replace('-', '_')}").command
        app.command(verb, cls=VerbCommand, short_help=line)(command)

    @app.callback(invoke_without_command=True)
    def top(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
        if version:
            from sardonyx import __version__
            from sardonyx.cli.output import print_text

            print_text(__version__)
            raise typer.Exit

    return app


class _Sardonyx(VerbGroup):
    """The program, with its verbs."""

    sections = SECTIONS
    options = OPTIONS


def _unloaded() -> None:
    """Do nothing: placeholder of a verb that the command line does not name."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the ``sardonyx`` command.

    Args:
        arguments: Command line without the program's name; the process's own if None.

    Raises:
        SystemExit: Always, with an exit code of this module's list.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    completing = "_SARDONYX_COMPLETE" in os.environ
    app = build(VERBS if completing else [verb for verb in VERBS if verb in words])
    try:
        try:
            app(args=words, prog_name="sardonyx")
        except MemoryError as error:
            raise ResourceError("the machine has too little memory for the request.") from error
    except SardonyxError as error:
        from sardonyx.cli.output import print_json, report_error

        report_error(error)
        if "--json" in words:
            details = {name: getattr(error, name) for name in ("problem", "where", "remedy")}
            print_json({"error": {"kind": type(error).__name__, **details}})
        sys.exit(error.exit_code)
