"""``sardonyx sign``: the signature of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli.output import AsJson, progress, report_written
from sardonyx.errors import OptionError

EXAMPLE = "sardonyx sign model.onnx --key author.pem"


def command(
    model: Annotated[Path, typer.Argument(help="The model, a compiled file, or a folder.", show_default=False)],
    key: Annotated[Path, typer.Option(help="The secret key (PEM), by `keygen --kind ecdsa`.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The signature; next to the model by default (.sig).", show_default=False),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(help="The certificate of the key (PEM).", show_default=False)
    ] = None,
    chain: Annotated[
        list[Path] | None, typer.Option(help="An intermediate certificate (repeatable).", show_default=False)
    ] = None,
    password: Annotated[
        str | None,
        typer.Option(help="The password of the key: env:NAME, a variable of the environment.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Sign a model with its data files, or a folder, in the format of OpenSSF Model Signing."""
    import os

    from sardonyx.trust.signing import sign

    secret = None
    if password is not None:
        secret = os.environ.get(password.removeprefix("env:"))
        if secret is None:
            raise OptionError(f"the environment has no variable {password.removeprefix('env:')}.", where="password")
    with progress("signing", quiet=as_json):
        written = sign(model, output, key=key, password=secret, certificate=certificate, chain=chain or ())
    report_written(written, as_json=as_json)
