"""``sardonyx train``: training of a model file."""

from __future__ import annotations

from typing import Annotated

import typer

from sardonyx.cli import training
from sardonyx.cli.option_groups import expand_options
from sardonyx.cli.output import ModelPath, Output, names_in

EXAMPLE = "sardonyx train model.onnx --data labeled.npz --loss cross-entropy --epochs 3 -o tuned.onnx"

OPTIONS_OF_PARAMETERS = {**training.OPTIONS_OF_PARAMETERS, **training.OPTIONS_OF_LOSSES}


@expand_options
def command(
    model: ModelPath,
    output: Output,
    data: training.Samples,
    loss_options: training.LossOptions,
    loop: training.LoopOptions,
    trainable: Annotated[
        list[str] | None,
        typer.Option(
            help="Parameters to train: patterns of names of tensors or nodes, biases, norms, last, last:N.",
            show_default=False,
        ),
    ] = None,
    batch_norm: Annotated[str, typer.Option(help="train: statistics of batches; frozen: those of the file.")] = "train",
    sparse: Annotated[
        list[str] | None,
        typer.Option(
            help="Embeddings of which a step updates the rows that its batch reads: embeddings, or patterns of names.",
            show_default=False,
        ),
    ] = None,
    classes: Annotated[
        int | None, typer.Option(help="Replace the last layer by one with this number of classes.", show_default=False)
    ] = None,
) -> None:
    """Train a model on labelled data, and write an inference model with the trained weights."""
    from sardonyx.model import load
    from sardonyx.train.trainable.heads import swap_head
    from sardonyx.train.trainer.trainer import Trainer

    source = load(model)
    if classes is not None:
        source = swap_head(source, classes, output=loss_options.loss_output, seed=loop.seed)
    loss = training.make_loss(loss_options, data, source)
    training.run_training(
        lambda **options: Trainer(
            source,
            loss,
            trainable=list(names_in(trainable)) or "*",
            batch_norm=batch_norm,  # type: ignore[arg-type]
            sparse=list(names_in(sparse)),
            **options,
        ),
        data,
        loop,
        output,
    )
