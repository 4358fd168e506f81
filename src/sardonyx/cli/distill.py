"""``sardonyx distill``: training of a student on the answers of a teacher."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli import training
from sardonyx.cli.option_groups import expand_options
from sardonyx.cli.output import ModelPath, Output

EXAMPLE = "sardonyx distill model.onnx --teacher better.onnx --data labeled.npz --epochs 3 -o small.onnx"

OPTIONS_OF_PARAMETERS = training.OPTIONS_OF_PARAMETERS


@expand_options
def command(
    model: ModelPath,
    output: Output,
    data: training.Samples,
    loop: training.LoopOptions,
    teacher: Annotated[Path, typer.Option(help="The model whose first output the student learns.")],
    temperature: Annotated[float, typer.Option(help="Divisor of the logits.")] = 2.0,
    alpha: Annotated[
        float, typer.Option(help="Share of the teacher; the rest is the loss of the labels; 1 needs no labels.")
    ] = 0.5,
) -> None:
    """Train a student on the softened answers of a teacher, with or without labels."""
    from sardonyx.train.losses import Distillation
    from sardonyx.train.trainer.trainer import Trainer

    loss = Distillation(temperature=temperature, alpha=alpha)
    training.run_training(lambda **options: Trainer(model, loss, teacher=teacher, **options), data, loop, output)
