"""``sardonyx gradient``: derivatives of a model as a model."""

from __future__ import annotations

from typing import Annotated

import typer

from sardonyx.cli.output import AsJson, ModelPath, Output, names_in, report_written

EXAMPLE = "sardonyx gradient model.onnx --of y --wrt image -o saliency.onnx"


def command(
    model: ModelPath,
    output: Output,
    of: Annotated[
        str | None, typer.Option(help="The differentiated tensor; the first output by default.", show_default=False)
    ] = None,
    wrt: Annotated[
        list[str] | None,
        typer.Option(
            help="Inputs, weights or inner tensors to differentiate by (A,B; repeatable); all parameters by default.",
            show_default=False,
        ),
    ] = None,
    kind: Annotated[str, typer.Option(help="gradient, vjp, jvp, hvp or per-sample.")] = "gradient",
    form: Annotated[str, typer.Option(help="portable: standard nodes; operator: one Gradient node.")] = "portable",
    as_json: AsJson = False,
) -> None:
    """Write a model that computes derivatives besides its outputs."""
    from sardonyx.model import save
    from sardonyx.train.gradient import gradient

    names = list(names_in(wrt)) or None
    save(gradient(model, of, names, kind=kind, form=form), output)  # type: ignore[arg-type]
    report_written(output, as_json=as_json)
