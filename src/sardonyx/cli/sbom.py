"""``sardonyx sbom``: the bill of materials of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli.output import AsJson, ModelPath, print_text, report_written

EXAMPLE = "sardonyx sbom model.onnx -o model.cdx.json"


def command(
    model: ModelPath,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write; by default standard output.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the bill of materials of a model (CycloneDX ML-BOM): digests, operators, sizes, licence, evidence."""
    from sardonyx.model.save import write_text
    from sardonyx.trust.sbom import sbom

    text = sbom(model)
    if output is None:
        print_text(text)
        return
    write_text(output, text + "\n")
    report_written(output, as_json=as_json)
