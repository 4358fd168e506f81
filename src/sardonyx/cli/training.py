"""Options and output that the training verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from sardonyx.cli.byte_counts import parse_bytes
from sardonyx.cli.output import console, names_in, print_json
from sardonyx.errors import OptionError

if TYPE_CHECKING:
    from sardonyx.train.optimizers import Optimizer
    from sardonyx.train.schedules import Schedule
    from sardonyx.train.trainer.history import History
    from sardonyx.train.trainer.trainer import Trainer

Samples = Annotated[
    Path, typer.Option("--data", help="Arrays of inputs by name, and labels, label or y (.npz), samples in axis 0.")
]
Loss = Annotated[
    str,
    typer.Option(
        help="cross-entropy, bce, mse, l1, huber, focal, kl, cosine, dice, ctc, triplet, contrastive, distillation, "
        "output, or an ONNX model (.onnx) of outputs and labels."
    ),
]
OptimizerName = Annotated[
    str, typer.Option(help="adamw, adam, sgd, lion, muon, lamb, adafactor, adagrad, rmsprop or adadelta.")
]
Rate = Annotated[float, typer.Option("--lr", help="Learning rate.")]
ScheduleName = Annotated[str, typer.Option(help="constant, cosine, linear, one-cycle or plateau.")]
Epochs = Annotated[int, typer.Option(help="Epochs.")]
BatchSize = Annotated[int, typer.Option(help="Samples of a batch.")]
Evaluation = Annotated[
    Path | None, typer.Option("--eval", help="Data of evaluations after each epoch (.npz).", show_default=False)
]
Metrics = Annotated[
    list[str] | None,
    typer.Option("--metric", help="top1, top5, binary-accuracy, mse, mae or rmse (repeatable).", show_default=False),
]
Plot = Annotated[Path | None, typer.Option(help="Write a plot of losses and metrics (.png, .svg).", show_default=False)]
Checkpoint = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Folder of checkpoints; Ctrl-C leaves one.", show_default=False)
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint.")]
MaxMemory = Annotated[
    str | None,
    typer.Option(
        help="Memory of a step, e.g. 2GiB; values are computed again where they do not fit.", show_default=False
    ),
]
PrecisionName = Annotated[str, typer.Option("--precision", help="float32, or bf16: products in bfloat16.")]
Seed = Annotated[int, typer.Option(help="Seed of the order of samples and of dropout.")]

OPTIONS_OF_PARAMETERS = {"metrics": "--metric", "validation": "--eval"}
"""Options by the parameters of the trainer that have other names."""


def bytes_of(text: str | None) -> int | None:
    """Return the bytes of ``--max-memory``; None for any.

    Raises:
        OptionError: The text is no size.
    """
    return None if text is None else parse_bytes(text, "--max-memory")


def make_optimizer(name: str, rate: float, schedule: str, options: dict[str, float]) -> Optimizer:
    """Return an optimizer by name.

    Raises:
        OptionError: An option is unknown or impossible.
    """
    from dataclasses import fields

    from sardonyx.train.optimizers import OPTIMIZERS
    from sardonyx.train.schedules import SCHEDULES

    if name not in OPTIMIZERS:
        raise OptionError(f"expected one of {', '.join(OPTIMIZERS)}, got {name!r}.", where="--optimizer")
    if schedule not in SCHEDULES or schedule == "step":
        known = ", ".join(one for one in SCHEDULES if one != "step")
        raise OptionError(f"expected one of {known}, got {schedule!r}.", where="--schedule")
    rates: float | Schedule = rate if schedule == "constant" else SCHEDULES[schedule](rate=rate)
    accepted = {field.name for field in fields(OPTIMIZERS[name])}
    if unknown := [option for option in options if option not in accepted]:
        raise OptionError(f"the optimizer {name} has no such option.", where=unknown[0])
    return OPTIMIZERS[name](rate=rates, **options)


def make_loss(text: str, output: str | None, label: str | None, axis: int | None = None) -> Any:
    """Return a loss by name or from a model file.

    Args:
        text: The name or the file.
        output: The output that the loss reads; None for the first.
        label: The name of the labels; None for that of the loss.
        axis: The axis of classes; None for that of the loss.

    Raises:
        OptionError: Unknown name, or the loss has no axis of classes.
    """
    from dataclasses import fields, replace

    from sardonyx.train.losses import ModelLoss, loss_of

    loss = ModelLoss(model=text) if text.endswith(".onnx") else loss_of(text)
    options = (("output", output), ("label", label), ("axis", axis))
    changes: dict[str, Any] = {name: value for name, value in options if value is not None}
    if "axis" in changes and "axis" not in {field.name for field in fields(loss)}:
        raise OptionError(f"the loss {text} has no axis of classes.", where="axis")
    return replace(loss, **changes)


def require_writable(plot: Path | None, **files: Path | None) -> None:
    """Check that files can be written, before a training.

    Args:
        plot: The file of the plot; None for none.
        files: Other files, by the name of the option.

    Raises:
        MissingDependencyError: Matplotlib is not installed.
        OptionError: A file cannot be written, or the extension of the plot names no format.
    """
    from sardonyx.model import require_file

    for name, path in files.items():
        if path is not None:
            require_file(path, name)
    if plot is not None:
        from sardonyx.train.trainer.history import require_plot

        require_plot(plot)


def show_history(history: History) -> None:
    """Print one row an epoch."""
    table = Table(header_style="bold")
    for name in history:
        table.add_column(name.replace("_", " "), justify="right")
    for row in history.rows:
        table.add_row(
            *(f"{int(row[name])}" if name == "epoch" else f"{row.get(name, float('nan')):.4g}" for name in history)
        )
    console.print(table)


def report(trainer: Trainer, history: History, output: Path, error: float, *, plot: Path | None, as_json: bool) -> None:
    """Write the plot, and print the history and the written file."""
    if plot is not None:
        history.plot(plot)
    if as_json:
        print_json({
            "written": str(output), "parameters": list(trainer.parameters), "notes": list(trainer.notes),
            "history": history.rows, "difference": error,
        })  # fmt: skip
        return
    for note in trainer.notes:
        console.print(note, markup=False)
    show_history(history)
    console.print(f"{len(trainer.parameters)} tensors trained.", markup=False)
    console.print(f"The file answers as the trainer: largest difference {error:.1e} of the largest element.")
    console.print(f"Written: {output}", markup=False, soft_wrap=True)


def patterns(trainable: list[str] | None) -> str | list[str]:
    """Return the patterns of trained parameters."""
    return list(names_in(trainable)) or "*"
