"""``sardonyx finetune``: training of low-rank adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli import training
from sardonyx.cli.output import AsJson, ModelPath, Output, names_in

EXAMPLE = "sardonyx finetune model.onnx --lora 8 --data labeled.npz --epochs 3 -o tuned.onnx"

OPTIONS_OF_PARAMETERS = {**training.OPTIONS_OF_PARAMETERS, "trainable": "--targets"}


def command(
    model: ModelPath,
    output: Output,
    data: training.Samples,
    rank: Annotated[int, typer.Option("--lora", help="Rank of the adapters.")] = 8,
    alpha: Annotated[
        float | None, typer.Option(help="Scale of the adapters, divided by the rank.", show_default=False)
    ] = None,
    dora: Annotated[bool, typer.Option("--dora", help="Train the lengths of output channels apart.")] = False,
    targets: Annotated[
        list[str] | None, typer.Option(help="Weights to adapt: names or patterns (repeatable).", show_default=False)
    ] = None,
    adapter: Annotated[
        Path | None, typer.Option(help="Write the adapters apart, as safetensors.", show_default=False)
    ] = None,
    loss: training.Loss = "cross-entropy",
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
    """Train low-rank adapters of the weights, and write the model with merged adapters."""
    from sardonyx.train.trainable.lora import LoRA
    from sardonyx.train.trainer.trainer import Trainer

    training.require_writable(plot, output=output, adapter=adapter)
    trainer = Trainer(
        model,
        training.make_loss(loss, None, None),
        training.make_optimizer(optimizer, rate, schedule, {}),
        metrics=metric or (),
        batch_norm="frozen",
        lora=LoRA(rank, alpha, tuple(names_in(targets)) or "*", dora),
        precision=precision,  # type: ignore[arg-type]
        max_memory=training.bytes_of(max_memory),
        seed=seed,
    )
    history = trainer.fit(
        data, epochs=epochs, batch_size=batch_size, validation=evaluation, checkpoint=checkpoint, resume=resume,
        progress=False if as_json else None,
    )  # fmt: skip
    error = trainer.save(output)
    if adapter is not None:
        trainer.adapter().save(adapter)
    training.report(trainer, history, output, error, plot=plot, as_json=as_json)
