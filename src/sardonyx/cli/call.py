"""``sardonyx call``: one request to a server."""

from __future__ import annotations

import json
import os
import ssl
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from sardonyx.cli.output import AsJson, console, print_json, report_written, write_arrays
from sardonyx.errors import OptionError, RequestError

EXAMPLE = "sardonyx call http://127.0.0.1:8000 model image=image.npy"


def command(
    url: Annotated[str, typer.Argument(help="Address of the server.", show_default=False)],
    model: Annotated[str, typer.Argument(help="Name of the model.", show_default=False)],
    inputs: Annotated[
        list[str] | None,
        typer.Argument(help="Inputs: name=file.npy, or name=numbers in JSON.", show_default=False),
    ] = None,
    outputs: Annotated[
        list[str] | None, typer.Option(help="Outputs to request (repeatable); all by default.", show_default=False)
    ] = None,
    version: Annotated[str, typer.Option(help="Version of the model; the newest by default.")] = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the outputs, by name (.npz).", show_default=False)
    ] = None,
    token: Annotated[
        Path | None,
        typer.Option(help="File with the token; SARDONYX_TOKEN is the token itself.", show_default=False),
    ] = None,
    tls_ca: Annotated[
        Path | None,
        typer.Option(help="Authorities of the server (PEM); those of the system by default.", show_default=False),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate of this client (PEM).", show_default=False)] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key (PEM).", show_default=False)] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait.")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Send one request to a server, and show or write the outputs.

    Without inputs, show the inputs and outputs of the model.
    """
    from sardonyx.serve.client import Client, model_path

    client = Client(url, _token(token), timeout, _tls(tls_ca, tls_cert, tls_key))
    declared: dict[str, str] | None = None
    try:
        metadata = client.get(model_path(model, version))
    except RequestError as error:
        # A token that may only infer: the types are those of the arrays.
        if error.kind != "forbidden" or not inputs or not all(text.endswith(".npy") for text in inputs):
            raise
    else:
        if not inputs:
            print_json(metadata)
            return
        try:
            declared = {part["name"]: part["datatype"] for part in metadata["inputs"]}
        except (KeyError, TypeError) as error:
            raise RequestError("the answer of the server describes no model.", kind="internal", where=url) from error
    feeds = dict(_input(text, declared) for text in inputs)
    result = client.infer(model, feeds, outputs or (), version)
    if output is not None:
        write_arrays(output, result.outputs)
    described = {
        name: {"shape": list(array.shape), "data": array.ravel()[:1000].tolist()}
        for name, array in result.outputs.items()
    }
    if as_json:
        print_json({"version": result.version, "revision": result.revision, "outputs": described})
        return
    console.print(f"version {result.version}, revision {result.revision}", markup=False)
    for name, array in result.outputs.items():
        console.print(f"{name} {array.dtype}{list(array.shape)}:", markup=False)
        console.print(np.array2string(array, threshold=64), markup=False, soft_wrap=True)
    if output is not None:
        report_written(output, as_json=False)


def _token(path: Path | None) -> str:
    if path is None:
        return os.environ.get("SARDONYX_TOKEN", "")
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"the token cannot be read: {error}", where="--token") from error


def _tls(authorities: Path | None, certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if authorities is None and certificate is None and key is None:
        return None
    if certificate is None and key is not None:
        raise OptionError("expected a certificate with the key.", where="--tls-cert")
    try:
        context = ssl.create_default_context(cafile=authorities)
        if certificate is not None:
            context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise OptionError(f"the certificates cannot be read: {error}", where="--tls-ca, --tls-cert") from error
    return context


def _input(text: str, declared: dict[str, str] | None) -> tuple[str, Any]:
    from sardonyx.serve.protocol.datatypes import named

    name, separator, value = text.partition("=")
    if not separator or (declared is not None and name not in declared):
        problem = f"the model has no input {name!r}." if separator else f"expected name=value, got {text!r}."
        raise OptionError(problem, where="inputs", remedy=f"Inputs: {', '.join(declared)}." if declared else "")
    dtype = None if declared is None else named(declared[name], name).dtype
    try:
        if value.endswith(".npy"):
            array = np.load(value, allow_pickle=False)
        else:
            array = np.array(json.loads(value), dtype)
    except (OSError, EOFError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise OptionError(f"the input cannot be read: {error}", where=name) from error
    if dtype is not None and array.dtype != dtype:
        raise RequestError(
            f"expected elements of type {dtype}, got {array.dtype}.", where=name,
            remedy=f"Convert the array to {'strings' if dtype.kind == 'O' else dtype.name}.",
        )  # fmt: skip
    return name, array
