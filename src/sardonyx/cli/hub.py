"""``sardonyx hub``: models of hubs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli.output import AsJson, console, print_json, progress
from sardonyx.errors import OptionError

EXAMPLE = "sardonyx hub get file:model.onnx --lock sardonyx.lock"

OPTIONS_OF_PARAMETERS = {"source": "NAME"}


def command(
    action: Annotated[str, typer.Argument(help="search, get or list.", show_default=False)],
    name: Annotated[
        str,
        typer.Argument(
            help="get: hf:ORG/REPO[@REV]/PATH, onnx:MODEL[:OPSET], oci:REGISTRY/REPO[:TAG], https://…#sha256=…,"
            " file:PATH. search: hf:TEXT or onnx:TEXT.",
            show_default=False,
        ),
    ] = "",
    lock: Annotated[
        Path | None, typer.Option(help="Lock file of revisions and digests, read and extended.", show_default=False)
    ] = None,
    unverified: Annotated[
        bool, typer.Option("--unverified", help="Accept files for which the source states no digest.")
    ] = False,
    quota: Annotated[int | None, typer.Option(help="Most bytes of all downloads.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Search, get and list models of hubs, with digests and a lock file.

    `get` prints the path of the model. SARDONYX_HUB names the folder of downloads, SARDONYX_OFFLINE=1 forbids requests.
    """
    from sardonyx.hub import get, search, stored

    if action == "get" and name:
        with progress("getting", quiet=as_json):
            obtained = get(name, lock=lock, unverified=unverified, quota=quota)
        files = {file: {"sha256": sum, "bytes": size} for file, (sum, size) in obtained.files.items()}
        if as_json:
            print_json({"path": str(obtained.path), "revision": obtained.revision, "files": files})
        else:
            console.print(str(obtained.path), markup=False)
    elif action == "search" and name:
        source, _, text = name.partition(":")
        entries = search(source, text)
        if as_json:
            print_json([{"name": entry.name, "tags": entry.tags, "bytes": entry.size} for entry in entries])
        for entry in entries if not as_json else ():
            console.print(f"{entry.name}  {', '.join(entry.tags[:6])}", markup=False)
    elif action == "list":
        models = stored()
        if as_json:
            print_json([{"name": model.name, "revision": model.revision, "path": str(model.path)} for model in models])
        for model in models if not as_json else ():
            console.print(f"{model.name}  {model.revision}  {model.path}", markup=False)
    else:
        raise OptionError(f"expected search TEXT, get NAME or list, got '{action}'.", where="hub")
