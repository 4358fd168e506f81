"""What all verbs share: the console, machine-readable output, the way errors are shown, arguments in common."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from sardonyx.errors import ModelFileError, OptionError, SardonyxError

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)

ModelPath = Annotated[Path, typer.Argument(help="The model: .onnx, .onnxtxt, .textproto.", show_default=False)]
Output = Annotated[Path, typer.Option("--output", "-o", help="Where to write the result.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines, and nothing else.")]


def report_error(error: SardonyxError) -> None:
    """Show an error that was raised on purpose: what, where, what to do; never a traceback."""
    errors.print("[bold red]error:[/]", end=" ")
    errors.print(str(error), markup=False)


def print_json(data: Any) -> None:
    """Print plain data as JSON; infinities and NaN become strings, since JSON has none."""
    typer.echo(json.dumps(_plain(data), indent=2, allow_nan=False))


def _plain(data: Any) -> Any:
    if isinstance(data, float) and not np.isfinite(data):
        return str(data)
    if isinstance(data, Mapping):
        return {str(key): _plain(value) for key, value in data.items()}
    if isinstance(data, (list, tuple, set)):
        return [_plain(value) for value in data]
    if isinstance(data, np.generic):
        return _plain(data.item())
    return data


@contextmanager
def progress(text: str, *, quiet: bool = False) -> Iterator[None]:
    """Show that something long is under way, on a terminal only."""
    if quiet or not errors.is_terminal:
        yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True) as bar:
        bar.add_task(text)
        yield


def read_inputs(path: Path | None) -> dict[str, Any] | None:
    """Real inputs from an .npz file: one array an input, by name (``in::NAME`` is accepted too).

    Raises:
        ModelFileError: the file cannot be read as .npz.
    """
    if path is None:
        return None
    try:
        with np.load(path, allow_pickle=False) as stored:
            marked = [name for name in stored.files if name.startswith("in::")]
            return {name.removeprefix("in::"): stored[name] for name in (marked or stored.files)}
    except (OSError, ValueError) as error:
        raise ModelFileError(f"cannot be read as inputs: {error}", where=str(path)) from error


def parse_shapes(texts: list[str] | None) -> dict[str, list[int | str | None]] | None:
    """``name:1,3,H,?`` → ``{"name": [1, 3, "H", None]}``.

    Raises:
        OptionError: a text has no colon, or a size is negative.
    """
    if not texts:
        return None
    shapes: dict[str, list[int | str | None]] = {}
    for text in texts:
        name, colon, sizes = text.rpartition(":")
        if not colon:
            raise OptionError(f"'{text}' is no shape", where="--input-shape", remedy="Write NAME:1,3,H,W.")
        shapes[name] = [_size(part.strip()) for part in sizes.split(",") if part.strip()]
    return shapes


def _size(text: str) -> int | str | None:
    if text in ("?", "-1"):
        return None
    if text.lstrip("-").isdigit():
        if int(text) < 0:
            raise OptionError(f"a size cannot be {text}", where="--input-shape", remedy="Write ? for an open size.")
        return int(text)
    return text
