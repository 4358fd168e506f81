"""``sardonyx encrypt``: a model for named recipients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli.output import AsJson, console, print_json, progress
from sardonyx.errors import OptionError

EXAMPLE = "sardonyx encrypt model.onnx -o model.onnxe --to owner.key.pub"


def command(
    model: Annotated[Path, typer.Argument(help="The model, or a compiled file (.sdx).", show_default=False)],
    to: Annotated[
        list[str],
        typer.Option(
            help="A recipient (repeatable): the file or the text of a key, env:NAME, passphrase:file:PATH,"
            " passphrase:env:NAME, or PROVIDER:TEXT.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write.", show_default=False)
    ] = None,
    weights: Annotated[
        bool, typer.Option("--weights", help="Encrypt the files of external data alone; the graph stays readable.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--rewrap", help="Replace the recipients of an encrypted file; its contents stay.")
    ] = False,
    key: Annotated[
        list[str] | None, typer.Option(help="A key that opens the file, with --rewrap.", show_default=False)
    ] = None,
    issuer: Annotated[
        str | None, typer.Option(help="The Ed25519 key that signs the licence.", show_default=False)
    ] = None,
    holder: Annotated[str, typer.Option(help="Licence: name of the licensee.", show_default=False)] = "",
    not_before: Annotated[str | None, typer.Option(help="Licence: first day (UTC).", show_default=False)] = None,
    not_after: Annotated[str | None, typer.Option(help="Licence: last moment (UTC).", show_default=False)] = None,
    machine: Annotated[
        list[str] | None,
        typer.Option(help="Licence: a machine, by `keygen --machine` (repeatable).", show_default=False),
    ] = None,
    cores: Annotated[int | None, typer.Option(help="Licence: most processors.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Encrypt a model with its data files for named recipients; sessions open the result with a key.

    A session finds keys in SARDONYX_KEYS, or by sardonyx.add_key. Whoever can open a file can copy the model:
    encryption protects files, not a running process.
    """
    from sardonyx.trust.encryption import Licence, encrypt, moment, rewrap

    is_licensed = any((holder, not_before, not_after, machine, cores is not None))
    if is_licensed and issuer is None:
        raise OptionError("a licence requires its issuer's key", where="encrypt", remedy="Give --issuer issuer.key.")
    licence = None
    if issuer is not None:
        start, end = (None if text is None else moment(text) for text in (not_before, not_after))
        licence = Licence(holder, start, end, tuple(machine or ()), cores)
    with progress("encrypting", quiet=as_json):
        if again:
            written = [rewrap(model, output, to=to, keys=key or (), licence=licence, issuer=issuer)]
        elif output is None:
            raise OptionError("expected a file to write", where="encrypt", remedy="Give -o model.onnxe.")
        else:
            written = encrypt(model, output, to=to, weights_only=weights, licence=licence, issuer=issuer)
    if as_json:
        print_json({"written": [str(path) for path in written], "recipients": len(to)})
        return
    for path in written:
        console.print(f"{path}: {path.stat().st_size:,} bytes", markup=False)
