"""``sardonyx keygen``: keys for encryption and licences."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sardonyx.base.neighbour_files import neighbour
from sardonyx.cli.output import AsJson, console, print_json
from sardonyx.errors import OptionError

EXAMPLE = "sardonyx keygen -o owner.key"


def command(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file of the secret key to write.", show_default=False)
    ] = None,
    kind: Annotated[
        str,
        typer.Option(
            help="x25519: a pair for encryption; ed25519: a pair for licences; aes256: one shared secret;"
            " ecdsa: a pair for signatures (PEM)."
        ),
    ] = "x25519",
    machine: Annotated[bool, typer.Option("--machine", help="Print this machine's name in licences, no key.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a key: the secret in a file that only its owner reads, the public half beside it (.pub)."""
    from sardonyx.trust.encryption import Key, generate_key, machine_id, write_key

    if machine:
        print_json({"machine": machine_id()}) if as_json else console.print(machine_id(), markup=False)
        return
    if output is None:
        raise OptionError("expected a file to write", where="keygen", remedy="Give -o owner.key.")
    if kind not in ("x25519", "ed25519", "aes256", "ecdsa"):
        raise OptionError(f"expected x25519, ed25519, aes256 or ecdsa, got {kind}.", where="--kind")
    public = neighbour(output, ".pub")
    if kind != "aes256" and public.exists():
        raise OptionError("exists; a key is not overwritten.", where=str(public), remedy="Name another file.")
    if kind == "ecdsa":
        from sardonyx.trust.signing import generate_signing_key

        _show({"secret": str(output), "public": str(generate_signing_key(output))}, as_json)
        return
    key: Key = generate_key(kind)  # type: ignore[arg-type]
    write_key(key, output)
    files = {"secret": str(output)}
    if kind != "aes256":
        write_key(key.public(), public)
        files |= {"public": str(public), "text": key.public().text()}
    _show(files, as_json)


def _show(files: dict[str, str], as_json: bool) -> None:
    if as_json:
        print_json(files)
        return
    for name, value in files.items():
        console.print(f"{name}: {value}", markup=False)
