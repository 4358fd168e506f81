"""``sardonyx distill``: training of a student on the answers of a teacher."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli import training
from sardonyx.cli.output import AsJson, ModelPath, Output

EXAMPLE = "sardonyx distill model.onnx --teacher better.onnx --data labeled.npz --epochs 3 -o small.onnx"

OPTIONS_OF_PARAMETERS = training.OPTIONS_OF_PARAMETERS


def command(
    model: ModelPath,
    output: Output,
    data: training.Samples,
    teacher: Annotated[Path, typer.Option(help="The model whose first output the student learns.")],
    temperature: Annotated[float, typer.Option(help="Divisor of the logits.")] = 2.0,
    alpha: Annotated[
        float, typer.Option(help="Share of the teacher; the rest is the loss of the labels; 1 needs no labels.")
    ] = 0.5,
    optimizer: training.OptimizerName = "adamw",
    rate: training.Rate = 1e-3,
    schedule: training.ScheduleName = "constant",
    epochs: training.Epochs = 1,
    batch_size: training.BatchSize = 32,
    evaluation: training.Evaluation = None,
    metric: training.Metrics = None,
    plot: training.Plot = None,
    checkpoint: training.Checkpoint = None,
    resume: training.Resume = False,
    precision: training.PrecisionName = "float32",
    max_memory: training.MaxMemory = None,
    seed: training.Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Train a student on the softened answers of a teacher, with or without labels."""
    from sardonyx.train.losses import Distillation
    from sardonyx.train.trainer.trainer import Trainer

    training.require_writable(plot, output=output)
    trainer = Trainer(
        model,
        Distillation(temperature=temperature, alpha=alpha),
        training.make_optimizer(optimizer, rate, schedule, {}),
        metrics=metric or (),
        teacher=teacher,
        precision=precision,  # type: ignore[arg-type]
        max_memory=training.bytes_of(max_memory),
        seed=seed,
    )
    history = trainer.fit(
        data, epochs=epochs, batch_size=batch_size, validation=evaluation, checkpoint=checkpoint, resume=resume,
        progress=False if as_json else None,
    )  # fmt: skip
    error = trainer.save(output)
    training.report(trainer, history, output, error, plot=plot, as_json=as_json)
