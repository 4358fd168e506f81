"""Shared parts of all verbs: the console, JSON output, error messages, common arguments."""

from __future__ import annotations

import functools
import json
import math
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sardonyx.errors import ModelFileError, OptionError, SardonyxError

if TYPE_CHECKING:
    from rich.console import Console

MODEL_SUFFIXES = ("", ".onnx", ".pb", ".onnxtxt", ".onnxtext", ".textproto", ".pbtxt", ".prototxt")
"""Suffixes of model files; the text forms have their own, all others are binary."""

SECONDS_BEFORE_NOTICE = 5.0
"""Seconds of work after which a verb without a terminal reports, once, that the work goes on."""

WIDTH_OF_FILES = 120
"""Columns of output to files and pipes."""

_own_width = sys.stdout.isatty() or "COLUMNS" in os.environ

if TYPE_CHECKING:
    console: Console
    errors: Console


def __getattr__(name: str) -> Any:
    """Return ``console`` or ``errors``; rich is imported with them, which a server that starts does not wait for."""
    if name not in ("console", "errors"):
        raise AttributeError(name)
    return _consoles()[name]


@functools.cache
def _consoles() -> dict[str, Console]:
    from rich.console import Console

    class Output(Console):
        """Standard output; a reader that closes the pipe, such as ``head``, changes neither result nor exit code."""

        def on_broken_pipe(self) -> None:
            """Discard the rest of the output."""
            discard_output()

    width = None if _own_width else WIDTH_OF_FILES
    return {
        "console": Output(highlight=False, emoji=False, width=width),
        "errors": Console(stderr=True, highlight=False, emoji=False, soft_wrap=True),
    }


ModelPath = Annotated[
    Path, typer.Argument(help="The model: .onnx, .onnxtxt, .textproto, .prototxt.", show_default=False)
]


def require_output(path: Path | None) -> Path | None:
    """Refuse a file that cannot be written, or whose suffix belongs to no form of models, before any work.

    Raises:
        OptionError: The suffix is unknown, or no file can be written at the path.
    """
    if path is not None and path.suffix.lower() not in MODEL_SUFFIXES:
        raise OptionError(
            f"unknown suffix '{path.suffix}' of a model",
            where=str(path),
            remedy=f"Name a file {', '.join(filter(None, MODEL_SUFFIXES))}.",
        )
    if path is not None:
        from sardonyx.model import require_file

        require_file(path, "--output")
    return path


_OUTPUT = typer.Option("--output", "-o", help="The file to write.", show_default=False, callback=require_output)
Output = Annotated[Path, _OUTPUT]
OptionalOutput = Annotated[Path | None, _OUTPUT]
AsJson = Annotated[bool, typer.Option("--json", help="Print only JSON.")]
TimePasses = Annotated[bool, typer.Option("--time-passes", help="Show the time of each compiler pass.")]
Sizes = Annotated[
    list[str] | None,
    typer.Option("--sizes", "--size", help="Values of open sizes, N=8,S=128 (repeatable).", show_default=False),
]


def require_distinct(files: Mapping[str, Path | None]) -> None:
    """Refuse one file for two results, of which the later one would replace the other.

    Args:
        files: The paths by the name of the option; None for options that are not given.

    Raises:
        OptionError: Two options name one file.
    """
    options: dict[str, str] = {}
    for name, path in files.items():
        if path is None:
            continue
        other = options.setdefault(os.path.realpath(path), name)
        if other != name:
            raise OptionError(f"'{path}' is the file of --{other} too.", where=name, remedy="Name another file.")


def require_unread(read: Iterable[Path | None], written: Mapping[str, Path | None]) -> None:
    """Refuse a report, or another file that is no model, in place of a file that the command reads.

    Args:
        read: The paths of the model, the data and other inputs.
        written: The paths by the name of the option; None for options that are not given.

    Raises:
        OptionError: An option names a file that is read.
    """
    inputs = {os.path.realpath(path) for path in read if path is not None}
    for name, path in written.items():
        if path is not None and os.path.realpath(path) in inputs:
            raise OptionError(
                f"'{path}' is an input of the command, and would be replaced.", where=name, remedy="Name another file."
            )


def discard_output() -> None:
    """Send standard output to nowhere, because its reader closed the pipe."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def report_error(error: SardonyxError) -> None:
    """Print an expected error with its location and remedy, without a traceback."""
    errors = _consoles()["errors"]
    errors.print("[bold red]error:[/]", end=" ")
    errors.print(str(error), markup=False)


def print_text(text: str) -> None:
    """Print a text as it is; a reader that closes the pipe changes neither result nor exit code."""
    try:
        typer.echo(text)
    except BrokenPipeError:
        discard_output()


def print_json(data: Any) -> None:
    """Print plain data as JSON; infinities and NaN, which JSON lacks, become strings."""
    print_text(json.dumps(_plain(data), indent=2, allow_nan=False))


def _plain(data: Any) -> Any:
    if isinstance(data, float) and not math.isfinite(data):
        return str(data)
    if isinstance(data, Mapping):
        return {str(key): _plain(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_plain(value) for value in data]
    if isinstance(data, (set, frozenset)):
        return sorted(_plain(value) for value in data)
    if hasattr(data, "dtype") and getattr(data, "ndim", None) == 0:
        return _plain(data.item())
    return data


@contextmanager
def progress(text: str, *, quiet: bool = False) -> Iterator[None]:
    """Show a progress indicator on a terminal; elsewhere, write one line to standard error if the work takes long."""
    if quiet:
        yield
        return
    errors = _consoles()["errors"]
    if not errors.is_terminal:
        with _notice_of_long_work(text):
            yield
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True) as bar:
        bar.add_task(text)
        yield


@contextmanager
def _notice_of_long_work(text: str) -> Iterator[None]:
    message = f"{text}: in progress after {SECONDS_BEFORE_NOTICE:g} s"
    notice = threading.Timer(SECONDS_BEFORE_NOTICE, _consoles()["errors"].print, [message], {"markup": False})
    notice.daemon = True
    notice.start()
    try:
        yield
    finally:
        notice.cancel()
        # A notice that has begun is completed before the verb writes its results.
        notice.join()


def report_written(path: Path, *, as_json: bool, **more: Any) -> None:
    """Report that a file was written."""
    if as_json:
        print_json({"written": str(path), **more})
    else:
        _consoles()["console"].print(f"Written: {path}", markup=False, soft_wrap=True)


def read_inputs(path: Path | None) -> dict[str, Any] | None:
    """Return real inputs from an .npz file: one array per input, by name (``in::NAME`` is accepted too).

    Raises:
        ModelFileError: The file cannot be read as .npz.
    """
    return None if path is None else read_arrays(path, "in::")


def read_arrays(path: Path, prefix: str) -> dict[str, Any]:
    """Return the arrays of an .npz file by name.

    Args:
        path: The file.
        prefix: If some names have this prefix, only the arrays of these names, without the prefix.

    Raises:
        ModelFileError: The file cannot be read as .npz.
    """
    from sardonyx.model.named_arrays import read_named_arrays

    arrays = read_named_arrays(path)
    marked = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
    return marked or arrays


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays to an .npz file, by name; element types that numpy lacks become float32 or int8.

    Raises:
        OptionError: A value is a sequence or a map, which the format cannot hold.
        ModelFileError: The file cannot be written.
    """
    import numpy as np

    stored: dict[str, Any] = {}
    for name, value in arrays.items():
        if not isinstance(value, (np.ndarray, np.generic)):
            raise OptionError("expected arrays, got a sequence or a map", where=f"{path}, '{name}'")
        array = np.asarray(value)
        if array.dtype.kind == "O":
            array = array.astype(str)
        elif array.dtype.isbuiltin != 1:
            array = array.astype(np.int8 if "int" in array.dtype.name else np.float32)
        stored[name] = array
    try:
        # An open file: numpy appends a suffix to a path without one.
        with path.open("wb") as file:
            np.savez(file, **stored)
    except OSError as error:
        raise ModelFileError(f"cannot be written: {error.strerror}", where=str(path)) from error


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a table as comma-separated values, with a line of names first.

    Raises:
        ModelFileError: The file cannot be written.
    """
    import csv
    import io

    from sardonyx.model import write_text

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    write_text(path, text.getvalue())


def names_in(texts: Iterable[str] | None) -> list[str]:
    """Return the names in a repeatable option whose values may hold several names separated by commas."""
    return [name for text in texts or () for name in (part.strip() for part in text.split(",")) if name]


def parse_pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """Parse ``["a=b", "c=d"]`` to ``{"a": "b", "c": "d"}``.

    Raises:
        OptionError: A text has no ``=``, or two texts contradict each other.
    """
    pairs: dict[str, str] = {}
    for text in texts:
        old, equals, new = text.partition("=")
        if not equals or not old or not new:
            raise OptionError(f"expected OLD=NEW, got '{text}'", where=option)
        if pairs.setdefault(old, new) != new:
            raise OptionError(f"'{old}' occurs twice", where=option)
    return pairs


def parse_sizes(texts: Iterable[str] | None) -> dict[str, int]:
    """Parse ``["batch=8,height=96"]`` to ``{"batch": 8, "height": 96}``.

    Raises:
        OptionError: A text is not ``NAME=number``, or a name has two values.
    """
    sizes: dict[str, int] = {}
    for text in names_in(texts):
        name, equals, number = text.partition("=")
        if not equals or not number.isdecimal():
            raise OptionError(f"expected NAME=8, got '{text}'", where="--sizes")
        if sizes.setdefault(name, int(number)) != int(number):
            raise OptionError(f"'{name}' occurs twice", where="--sizes")
    return sizes
