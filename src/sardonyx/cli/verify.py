"""``sardonyx verify``: the check of a signature."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli.output import AsJson, console, print_json, progress

EXAMPLE = "sardonyx verify model.onnx --key author.pem.pub"


def command(
    model: Annotated[Path, typer.Argument(help="The model, a compiled file, or a folder.", show_default=False)],
    key: Annotated[Path | None, typer.Option(help="The trusted public key (PEM).", show_default=False)] = None,
    certificate: Annotated[
        list[Path] | None, typer.Option(help="A trusted certificate (PEM, repeatable).", show_default=False)
    ] = None,
    signature: Annotated[
        Path | None, typer.Option(help="The signature; next to the model by default (.sig).", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Verify that a trusted key signed a model and every data file of it, as they are now.

    Exit code 1 if the signature does not hold, 2 if the signature or the key is missing or unreadable.
    """
    from sardonyx.trust.signing import verify

    with progress("verifying", quiet=as_json):
        signed = verify(model, signature, public_key=key, certificates=certificate or ())
    if as_json:
        print_json({"verified": True, "files": [str(path) for path in signed.files], "by": str(signed.verifier)})
        return
    count = f"{len(signed.files)} file{'' if len(signed.files) == 1 else 's'}"
    console.print(f"{model}: signed by {signed.verifier}, {count}", markup=False)
