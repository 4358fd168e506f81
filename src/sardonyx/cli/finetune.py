"""``sardonyx finetune``: training of low-rank adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli import training
from sardonyx.cli.option_groups import expand_options
from sardonyx.cli.output import ModelPath, Output, names_in

EXAMPLE = "sardonyx finetune model.onnx --lora 8 --data labeled.npz --epochs 3 -o tuned.onnx"

OPTIONS_OF_PARAMETERS = {
    **training.OPTIONS_OF_PARAMETERS,
    **training.OPTIONS_OF_LOSSES,
    "dropout": "--lora-dropout",
}


@expand_options
def command(
    model: ModelPath,
    output: Output,
    data: training.Samples,
    loss_options: training.LossOptions,
    loop: training.LoopOptions,
    rank: Annotated[int, typer.Option("--lora", help="Rank of the adapters.")] = 8,
    alpha: Annotated[
        float | None, typer.Option(help="Scale of the adapters, divided by the rank.", show_default=False)
    ] = None,
    dora: Annotated[bool, typer.Option("--dora", help="Train the lengths of output channels apart.")] = False,
    rslora: Annotated[bool, typer.Option("--rslora", help="Divide the scale by the root of the rank.")] = False,
    dropout: Annotated[
        float, typer.Option("--lora-dropout", help="Share of the inputs of adapters that a step leaves out.")
    ] = 0.0,
    targets: Annotated[
        list[str] | None, typer.Option(help="Weights to adapt: names or patterns (repeatable).", show_default=False)
    ] = None,
    trainable: Annotated[
        list[str] | None,
        typer.Option(
            help="Weights to train whole beside the adapters: names, patterns, last, norms or biases (repeatable).",
            show_default=False,
        ),
    ] = None,
    adapter: Annotated[
        Path | None, typer.Option(help="Write the adapters apart, as safetensors.", show_default=False)
    ] = None,
) -> None:
    """Train low-rank adapters of the weights, and write the model with merged adapters."""
    from sardonyx.model import load
    from sardonyx.train.trainable.lora import LoRA
    from sardonyx.train.trainer.trainer import Trainer

    source = load(model)
    loss = training.make_loss(loss_options, data, source)
    lora = LoRA(rank, alpha, tuple(names_in(targets)) or "*", dora, rslora, dropout)
    whole = names_in(trainable) or "*"
    training.run_training(
        lambda **options: Trainer(source, loss, batch_norm="frozen", lora=lora, trainable=whole, **options),
        data,
        loop,
        output,
        adapter=adapter,
    )
