"""``sardonyx train``: training of a model file."""

from __future__ import annotations

from typing import Annotated

import typer

from sardonyx.cli import training
from sardonyx.cli.output import AsJson, ModelPath, Output, names_in

EXAMPLE = "sardonyx train model.onnx --data labeled.npz --loss cross-entropy --epochs 3 -o tuned.onnx"

OPTIONS_OF_PARAMETERS = training.OPTIONS_OF_PARAMETERS


def command(
    model: ModelPath,
    output: Output,
    data: training.Samples,
    loss: training.Loss = "cross-entropy",
    optimizer: training.OptimizerName = "adamw",
    rate: training.Rate = 1e-3,
    schedule: training.ScheduleName = "constant",
    epochs: training.Epochs = 1,
    batch_size: training.BatchSize = 32,
    evaluation: training.Evaluation = None,
    metric: training.Metrics = None,
    trainable: Annotated[
        list[str] | None,
        typer.Option(
            help="Parameters to train: patterns of names of tensors or nodes, biases, norms, last, last:N.",
            show_default=False,
        ),
    ] = None,
    loss_output: Annotated[
        str | None, typer.Option(help="The output that the loss reads; the first by default.", show_default=False)
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="The name of the labels in the data; `labels` by default.", show_default=False)
    ] = None,
    axis: Annotated[
        int | None,
        typer.Option(help="The axis of classes of the scores; the last by default, 1 of images.", show_default=False),
    ] = None,
    batch_norm: Annotated[str, typer.Option(help="train: statistics of batches; frozen: those of the file.")] = "train",
    weight_decay: Annotated[float | None, typer.Option(help="Decay of weights.", show_default=False)] = None,
    momentum: Annotated[
        float | None, typer.Option(help="Momentum of sgd, rmsprop or muon.", show_default=False)
    ] = None,
    clip_norm: Annotated[float | None, typer.Option(help="Largest length of the gradient.", show_default=False)] = None,
    sparse: Annotated[
        list[str] | None,
        typer.Option(
            help="Embeddings of which a step updates the rows that its batch reads: embeddings, or patterns of names.",
            show_default=False,
        ),
    ] = None,
    accumulate: Annotated[int, typer.Option(help="Batches a step.")] = 1,
    ema: Annotated[
        float | None, typer.Option(help="Keep running means of the parameters, and write them.", show_default=False)
    ] = None,
    classes: Annotated[
        int | None, typer.Option(help="Replace the last layer by one with this number of classes.", show_default=False)
    ] = None,
    plot: training.Plot = None,
    checkpoint: training.Checkpoint = None,
    resume: training.Resume = False,
    precision: training.PrecisionName = "float32",
    max_memory: training.MaxMemory = None,
    seed: training.Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Train a model on labelled data, and write an inference model with the trained weights."""
    from sardonyx.train.trainable.heads import swap_head
    from sardonyx.train.trainer.trainer import Trainer

    training.require_writable(plot, output=output)
    options = {
        name: value for name, value in (("weight_decay", weight_decay), ("momentum", momentum)) if value is not None
    }
    trainer = Trainer(
        model if classes is None else swap_head(model, classes, output=loss_output, seed=seed),
        training.make_loss(loss, loss_output, label, axis),
        training.make_optimizer(optimizer, rate, schedule, options),
        trainable=training.patterns(trainable),
        metrics=metric or (),
        batch_norm=batch_norm,  # type: ignore[arg-type]
        clip_norm=clip_norm,
        sparse=list(names_in(sparse)),
        accumulate=accumulate,
        ema=ema,
        precision=precision,  # type: ignore[arg-type]
        max_memory=training.bytes_of(max_memory),
        seed=seed,
    )
    history = trainer.fit(
        data, epochs=epochs, batch_size=batch_size, validation=evaluation, checkpoint=checkpoint, resume=resume,
        progress=False if as_json else None,
    )  # fmt: skip
    error = trainer.save(output, average=ema is not None)
    training.report(trainer, history, output, error, plot=plot, as_json=as_json)
