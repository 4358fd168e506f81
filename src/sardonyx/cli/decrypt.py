"""``sardonyx decrypt``: an encrypted model as plain files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli.output import AsJson, console, print_json, progress

EXAMPLE = "sardonyx decrypt model.onnxe -o plain.onnx --key owner.key"


def command(
    model: Annotated[Path, typer.Argument(help="The encrypted model or compiled file.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.", show_default=False)],
    key: Annotated[
        list[str] | None,
        typer.Option(
            help="A key (repeatable): a file, env:NAME, passphrase:file:PATH, passphrase:env:NAME or PROVIDER:TEXT.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Decrypt a model with its data files into plain files; the digests are verified."""
    from sardonyx.trust.encryption import decrypt

    with progress("decrypting", quiet=as_json):
        written = decrypt(model, output, keys=key or ())
    if as_json:
        print_json({"written": [str(path) for path in written]})
        return
    for path in written:
        console.print(f"{path}: {path.stat().st_size:,} bytes", markup=False)
