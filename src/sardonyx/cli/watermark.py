"""``sardonyx watermark``: a secret mark in the weights of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli.output import AsJson, ModelPath, OptionalOutput, console, print_json, progress, report_written
from sardonyx.errors import OptionError

EXAMPLE = "sardonyx watermark digits_classifier.onnx -o marked.onnx --key mark.key"


def command(
    model: ModelPath,
    output: OptionalOutput = None,
    key: Annotated[
        str, typer.Option(help="The secret of the mark: a file of `keygen --kind aes256`, or env:NAME.")
    ] = "mark.key",
    original: Annotated[
        Path | None,
        typer.Option(help="Search MODEL for the mark: the model before it was marked.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Mark a model by a secret key without a change of answers, or search a model for the mark.

    With --original, nothing is written: the p-value bounds the probability that a model without the mark agrees with
    the key as well. The exit code is 0 for every p-value: which one is evidence is yours to decide. The mark survives
    rounding, integer weights, pruning and fine-tuning. Rescaled channels, by somebody who knows of marks or by a
    quantizer that equalizes channels, have no mark.
    """
    from sardonyx.model import load, save
    from sardonyx.trust.encryption.key_text import Key
    from sardonyx.trust.encryption.recipients import recipient
    from sardonyx.trust.watermark import detect, embed

    if (output is None) == (original is None):
        raise OptionError(
            "expected a file to write, or the original model.", where="watermark",
            remedy="Give -o marked.onnx to mark, or --original model.onnx to search.",
        )  # fmt: skip
    secret = recipient(key)
    if not isinstance(secret, Key):
        raise OptionError("expected a file with a key, or env:NAME.", where="--key")
    if original is not None:
        with progress("searching", quiet=as_json):
            evidence = detect(load(model), load(original), secret)
        if as_json:
            print_json(vars(evidence))
            return
        compared = f"{evidence.channels} channels of {evidence.layers} layers compared"
        console.print(f"p-value at most {evidence.p_value:.3g}: {compared}", markup=False)
        return
    assert output is not None
    with progress("marking", quiet=as_json):
        marked = embed(load(model), secret)
        save(marked.model, output)
    report_written(output, as_json=as_json, channels=marked.channels, layers=marked.layers)
