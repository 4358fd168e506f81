"""``sardonyx run``: one run of a model, its outputs kept or compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from sardonyx.base.option_checks import require_count
from sardonyx.cli.output import (
    AsJson,
    Sizes,
    console,
    parse_sizes,
    print_json,
    progress,
    read_arrays,
    read_inputs,
    report_written,
    require_unread,
    write_arrays,
)
from sardonyx.errors import OptionError
from sardonyx.model import require_writable
from sardonyx.report.accuracy import TOLERANCE, convert_feeds, require_tolerance
from sardonyx.report.non_finite import NonFinite, non_finite
from sardonyx.report.output_figures import OutputFigures, output_figures
from sardonyx.report.quantities import assigned_sizes
from sardonyx.report.repetition import repeat as repeat_runs
from sardonyx.rewrite.verify.inputs import require_fit
from sardonyx.runtime import Session
from sardonyx.runtime.compiled.compiled_file import is_compiled_file
from sardonyx.runtime.profiling.profile import drawn_feeds

EXAMPLE = "sardonyx run model.onnx --inputs real.npz -o outputs.npz"

OPTIONS_OF_PARAMETERS = {"providers": "--provider", "expected": "--expect"}


def command(
    model: Annotated[Path, typer.Argument(help="The model, or a compiled file (.sdx).", show_default=False)],
    inputs: Annotated[
        Path | None, typer.Option(help="Inputs by name (.npz); random by default.", show_default=False)
    ] = None,
    sizes: Sizes = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the outputs, by name (.npz).", show_default=False)
    ] = None,
    save_inputs: Annotated[
        Path | None, typer.Option(help="Write the inputs, by name (.npz).", show_default=False)
    ] = None,
    expect: Annotated[
        Path | None, typer.Option(help="Expected outputs by name, some or all (.npz).", show_default=False)
    ] = None,
    tolerance: Annotated[
        float, typer.Option(help="Largest difference from --expect, relative to an output's largest element.")
    ] = TOLERANCE,
    repeat: Annotated[
        int, typer.Option(help="Run N times on the same inputs; fail if the bits of an output differ.")
    ] = 1,
    finite: Annotated[bool, typer.Option("--finite", help="Fail if an output contains NaN or infinity.")] = False,
    provider: Annotated[
        list[str] | None,
        typer.Option(help="Providers in order of preference (repeatable), or auto.", show_default=False),
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Number of threads; all by default.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Run a model once: show, write or check its outputs.

    NaN and infinity in an output are reported with the first node that made them. Exit code 1 if an output differs
    from --expect, is not finite with --finite, or differs between the runs of --repeat, with the first node that
    differs.
    """
    require_tolerance(tolerance)
    require_count(repeat, "repeat")
    assigned = parse_sizes(sizes)
    if inputs is not None and assigned:
        raise OptionError("the inputs determine the sizes", where="--sizes", remedy="Omit --sizes or --inputs.")
    for path in (output, save_inputs):
        if path is not None:
            require_writable(path)
    require_unread((model, inputs), {"output": output, "save-inputs": save_inputs})
    expected = None if expect is None else read_arrays(expect, "out::")
    with progress("compiling", quiet=as_json):
        session = Session(model, providers=provider or None, compile="wait", threads=threads)
    with progress("running", quiet=as_json):
        feeds, used = _feeds(model, session, read_inputs(inputs), assigned)

        def call() -> dict[str, Any]:
            return dict(zip((info.name for info in session.get_outputs()), session.run(None, feeds), strict=True))

        outputs = call()
    figures = list(output_figures(outputs, expected))
    origins: Sequence[NonFinite] = ()
    is_finite = not any(row.nan or row.infinite for row in figures)
    if not is_finite and not is_compiled_file(model):
        with progress("searching the first node that is not finite", quiet=as_json):
            origins = non_finite(session.model, feeds, provider=provider[0] if provider else "native")
    repeated = None
    if repeat > 1:
        with progress("running again", quiet=as_json):
            searched = None if is_compiled_file(model) else session.model
            first = provider[0] if provider else "native"
            repeated = repeat_runs(call, outputs, repeat, searched, feeds, provider=first)
    if output is not None:
        write_arrays(output, outputs)
    if save_inputs is not None:
        write_arrays(save_inputs, feeds)
    equal = all(row.error is None or row.error <= tolerance for row in figures)
    if as_json:
        print_json({
            "outputs": [row.as_dict() for row in figures], "sizes": used, "finite": is_finite,
            "non_finite": [origin.as_dict() for origin in origins],
            "repeated": None if repeated is None else repeated.as_dict(),
            "equal": equal if expect is not None else None,
            "written": [str(path) for path in (output, save_inputs) if path is not None],
        })  # fmt: skip
    else:
        _show(figures, used, origins, expected is not None, tolerance)
        if repeated is not None:
            console.print(f"{repeated}.", markup=False, soft_wrap=True)
        for path in (output, save_inputs):
            if path is not None:
                report_written(path, as_json=False)
    if not equal or (finite and not is_finite) or (repeated is not None and repeated.differing):
        raise typer.Exit(1)


def _feeds(
    model: Path, session: Session, arrays: dict[str, Any] | None, sizes: dict[str, int]
) -> tuple[Mapping[str, Any], Mapping[str, int]]:
    if arrays is None:
        return drawn_feeds(model, session, sizes or None)
    if is_compiled_file(model):
        return arrays, {}
    feeds = {**arrays, **convert_feeds(session.model, arrays)}
    require_fit(session.model, feeds)
    return feeds, {}


def _show(
    figures: Sequence[OutputFigures],
    sizes: Mapping[str, int],
    origins: Sequence[NonFinite],
    compared: bool,
    tolerance: float,
) -> None:
    table = Table(title=f"Outputs at {assigned_sizes(sizes)}" if sizes else "Outputs", title_justify="left")
    for name in ("output", "type", "shape"):
        table.add_column(name, overflow="fold")
    for name in ("least", "largest", "mean", "NaN", "infinite", *(["error"] if compared else [])):
        table.add_column(name, justify="right", no_wrap=True)
    for row in figures:
        numbers = ("" if number is None else f"{number:.4g}" for number in (row.least, row.largest, row.mean))
        error = [] if not compared else ["" if row.error is None else f"{row.error:.1e}"]
        table.add_row(
            row.name, row.type, f"({', '.join(map(str, row.shape))})", *numbers, str(row.nan or ""),
            str(row.infinite or ""), *error,
        )  # fmt: skip
    console.print(table)
    for line in (*_differences(figures, tolerance), *(f"{origin}." for origin in origins)):
        console.print(line, markup=False, soft_wrap=True)


def _differences(figures: Sequence[OutputFigures], tolerance: float) -> Iterator[str]:
    compared = [row for row in figures if row.error is not None]
    beyond = [row for row in compared if row.error is not None and row.error > tolerance]
    for row in beyond:
        yield f"{row.name} differs from the expected output: {row.detail or f'error {row.error:.1e}'}."
    if compared and not beyond:
        yield f"Equal within {tolerance:g}: {len(compared)} of {len(figures)} outputs compared."
