"""Options and output that the training verbs share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from sardonyx.cli.byte_counts import parse_bytes
from sardonyx.cli.output import AsJson, console, print_json, require_distinct
from sardonyx.errors import OptionError

if TYPE_CHECKING:
    import onnx_ir as ir

    from sardonyx.train.losses import Loss
    from sardonyx.train.optimizers import SAM, Optimizer
    from sardonyx.train.schedules import Schedule
    from sardonyx.train.trainer.history import History
    from sardonyx.train.trainer.trainer import Trainer

Samples = Annotated[
    Path,
    typer.Option(
        "--data",
        help="Arrays of inputs by name, and labels, label or y (.npz), samples in axis 0; or a folder with a folder of "
        "images or .npy files for each class.",
    ),
]


@dataclass(frozen=True)
class LoopOptions:
    """Options of every training; each field is an option of the verbs that accept the class."""

    optimizer: Annotated[
        str, typer.Option(help="adamw, adam, sgd, lion, muon, lamb, adafactor, adagrad, rmsprop or adadelta.")
    ] = "adamw"
    rate: Annotated[float, typer.Option("--lr", help="Learning rate.")] = 1e-3
    sam: Annotated[
        float | None,
        typer.Option(help="Take gradients at weights moved by this length (SAM), e.g. 0.05.", show_default=False),
    ] = None
    schedule: Annotated[str, typer.Option(help="constant, step, cosine, linear, one-cycle or plateau.")] = "constant"
    milestones: Annotated[
        str | None,
        typer.Option(help="Steps after which the rate of step is a tenth of before (1000,2000).", show_default=False),
    ] = None
    warmup: Annotated[int, typer.Option(help="Steps from a rate of 0, of cosine and linear.")] = 0
    weight_decay: Annotated[float | None, typer.Option(help="Decay of weights.", show_default=False)] = None
    momentum: Annotated[float | None, typer.Option(help="Momentum of sgd, rmsprop or muon.", show_default=False)] = None
    clip_norm: Annotated[float | None, typer.Option(help="Largest length of the gradient.", show_default=False)] = None
    epochs: Annotated[int, typer.Option(help="Epochs.")] = 1
    batch_size: Annotated[int, typer.Option(help="Samples of a batch.")] = 32
    accumulate: Annotated[int, typer.Option(help="Batches a step.")] = 1
    ema: Annotated[
        float | None, typer.Option(help="Keep running means of the parameters, and write them.", show_default=False)
    ] = None
    evaluation: Annotated[
        Path | None, typer.Option("--eval", help="Data of evaluations after each epoch, as --data.", show_default=False)
    ] = None
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "--metric", help="top1, top5, binary-accuracy, mse, mae or rmse (repeatable).", show_default=False
        ),
    ] = None
    patience: Annotated[
        int | None,
        typer.Option(
            help="Stop after so many epochs without a smaller loss of --eval, and write the best epoch.",
            show_default=False,
        ),
    ] = None
    plot: Annotated[
        Path | None, typer.Option(help="Write a plot of losses and metrics (.png, .svg).", show_default=False)
    ] = None
    log: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write each epoch for TensorBoard.", show_default=False)
    ] = None
    checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder of checkpoints; Ctrl-C leaves one.", show_default=False),
    ] = None
    checkpoint_steps: Annotated[
        int | None, typer.Option(help="Steps between checkpoints within an epoch.", show_default=False)
    ] = None
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint.")] = False
    precision: Annotated[str, typer.Option("--precision", help="float32, or bf16: products in bfloat16.")] = "float32"
    max_memory: Annotated[
        str | None,
        typer.Option(
            help="Memory of a step, e.g. 2GiB; values are computed again where they do not fit.", show_default=False
        ),
    ] = None
    seed: Annotated[int, typer.Option(help="Seed of the order of samples and of dropout.")] = 0
    as_json: AsJson = False

    def optimizer_options(self) -> dict[str, Any]:
        """Return the arguments of a trainer that do not depend on the verb.

        Raises:
            OptionError: An option is unknown or impossible.
        """
        return {
            "optimizer": make_optimizer(self),
            "metrics": self.metric or (),
            "clip_norm": self.clip_norm,
            "accumulate": self.accumulate,
            "ema": self.ema,
            "precision": self.precision,
            "max_memory": None if self.max_memory is None else parse_bytes(self.max_memory, "--max-memory"),
            "seed": self.seed,
        }


@dataclass(frozen=True)
class LossOptions:
    """Options of the loss; each field is an option of the verbs that accept the class."""

    loss: Annotated[
        str,
        typer.Option(
            help="cross-entropy, bce, mse, l1, huber, focal, kl, cosine, dice, ctc, triplet, contrastive, "
            "distillation, output, or an ONNX model (.onnx) of outputs and labels."
        ),
    ] = "cross-entropy"
    loss_output: Annotated[
        str | None, typer.Option(help="The output that the loss reads; the first by default.", show_default=False)
    ] = None
    label: Annotated[
        str | None, typer.Option(help="The name of the labels in the data; `labels` by default.", show_default=False)
    ] = None
    axis: Annotated[
        int | None,
        typer.Option(help="The axis of classes of the scores; the last by default, 1 of images.", show_default=False),
    ] = None
    label_smoothing: Annotated[
        float | None, typer.Option(help="Share of the probability spread over all classes.", show_default=False)
    ] = None
    class_weights: Annotated[
        str | None,
        typer.Option(
            help="A factor for each class (1,2.5,1), or balanced: the inverse of the frequency in --data.",
            show_default=False,
        ),
    ] = None
    soft_labels: Annotated[
        bool, typer.Option("--soft-labels", help="Labels are probabilities of all classes, not indices.")
    ] = False
    ignore: Annotated[
        int | None, typer.Option(help="The label of elements that count nothing; -100 by default.", show_default=False)
    ] = None


OPTIONS_OF_PARAMETERS = {
    "metrics": "--metric",
    "validation": "--eval",
}
"""Options by the parameters of the trainer that have other names."""

OPTIONS_OF_LOSSES = {"output": "--loss-output", "soft": "--soft-labels"}
"""As :data:`OPTIONS_OF_PARAMETERS`, of losses."""


def make_optimizer(options: LoopOptions) -> Optimizer | SAM:
    """Return the optimizer that the options describe.

    Raises:
        OptionError: An option is unknown or impossible.
    """
    from sardonyx.train.optimizers import OPTIMIZERS, SAM
    from sardonyx.train.schedules import SCHEDULES

    name, schedule = options.optimizer, options.schedule
    if name not in OPTIMIZERS:
        raise OptionError(f"expected one of {', '.join(OPTIMIZERS)}, got {name!r}.", where="--optimizer")
    if schedule not in SCHEDULES:
        raise OptionError(f"expected one of {', '.join(SCHEDULES)}, got {schedule!r}.", where="--schedule")
    if schedule == "step" and options.milestones is None:
        raise OptionError("the schedule step needs steps.", where="--schedule", remedy="Give --milestones 1000,2000.")
    if schedule == "plateau" and options.evaluation is None:
        raise OptionError("the schedule plateau watches the loss of --eval.", where="--schedule", remedy="Give --eval.")
    rates: float | Schedule = options.rate
    if schedule != "constant" or options.warmup or options.milestones is not None:
        kind = SCHEDULES[schedule]
        extra: dict[str, Any] = {"warmup": options.warmup} if options.warmup else {}
        if options.milestones is not None:
            extra["milestones"] = _milestones(options.milestones)
        _require_fields(kind, extra, f"the schedule {schedule}", SCHEDULES)
        rates = kind(rate=options.rate, **extra)
    chosen = {name: getattr(options, name) for name in ("weight_decay", "momentum")}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    _require_fields(OPTIMIZERS[name], chosen, f"the optimizer {name}", OPTIMIZERS)
    base = OPTIMIZERS[name](rate=rates, **chosen)
    if options.sam is None:
        return base
    if not options.sam > 0:
        raise OptionError(f"expected a length above 0, got {options.sam}.", where="--sam")
    return SAM(base=base, rho=options.sam)


def _milestones(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise OptionError(f"expected numbers of steps with commas, got {text!r}.", where="--milestones")
    return [int(word) for word in words]


def _require_fields(kind: type[Any], names: Iterable[str], subject: str, known: Mapping[str, type[Any]]) -> None:
    """Check that a class has fields of some names.

    Args:
        kind: The class.
        names: The names.
        subject: The class, for the message.
        known: Other classes by name, of which those with the field are named.

    Raises:
        OptionError: The class lacks one.
    """
    accepted = {field.name for field in fields(kind)}
    for name in names:
        if name not in accepted:
            others = [other for other, one in known.items() if name in {field.name for field in fields(one)}]
            raise OptionError(f"{subject} has no such option.", where=name, remedy=f"Use it with {', '.join(others)}.")


def make_loss(options: LossOptions, data: Path, model: ir.Model) -> Loss:
    """Return the loss that the options describe.

    Args:
        options: The options.
        data: The data, whose labels ``--class-weights balanced`` counts.
        model: The model, whose output has a score for each class.

    Raises:
        OptionError: Unknown name, or the loss has no such option.
    """
    from dataclasses import replace

    from sardonyx.train.losses import LOSSES, ModelLoss, loss_of

    loss = ModelLoss(model=options.loss) if options.loss.endswith(".onnx") else loss_of(options.loss)
    chosen: dict[str, Any] = {
        "output": options.loss_output,
        "label": options.label,
        "axis": options.axis,
        "label_smoothing": options.label_smoothing,
        "class_weights": options.class_weights,
        "soft": options.soft_labels or None,
        "ignore": options.ignore,
    }
    chosen = {name: value for name, value in chosen.items() if value is not None}
    _require_fields(type(loss), chosen, f"the loss {options.loss}", LOSSES)
    if options.class_weights is not None:
        chosen["class_weights"] = _class_weights(options, data, model)
    return replace(loss, **chosen)


def _class_weights(options: LossOptions, data: Path, model: ir.Model) -> Sequence[float]:
    text = options.class_weights or ""
    if text == "balanced":
        from sardonyx.train.data.labels import balanced_weights, labels_of

        return balanced_weights(labels_of(data, options.label), _number_of_classes(options, model), options.ignore)
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise OptionError(
            f"expected numbers with commas, or balanced, got {text!r}.", where="--class-weights"
        ) from None


def _number_of_classes(options: LossOptions, model: ir.Model) -> int | None:
    """Return the declared size of the axis of classes; None if the size is open."""
    from sardonyx.train.losses.classification import class_axis

    outputs = {str(value.name): value for value in model.graph.outputs}
    value = outputs.get(options.loss_output or next(iter(outputs), ""))
    if value is None or not value.shape:
        return None
    size = value.shape[class_axis(len(value.shape), options.axis)]
    return size if isinstance(size, int) else None


def run_training(
    make: Callable[..., Trainer], data: Path, options: LoopOptions, output: Path, *, adapter: Path | None = None
) -> None:
    """Train, write the model, and print the report.

    Args:
        make: Returns the trainer, from the arguments that do not depend on the verb.
        data: The data.
        options: The options.
        output: The file of the model.
        adapter: The file of the adapters; None for none.

    Raises:
        SardonyxError: The training or an option is refused.
    """
    from sardonyx.train.trainer.callbacks import EarlyStopping, TensorBoard

    if options.patience is not None and options.evaluation is None:
        raise OptionError("expected data of evaluations.", where="patience", remedy="Give --eval.")
    if options.metric and options.evaluation is None:
        raise OptionError("metrics are those of evaluations.", where="metric", remedy="Give --eval.")
    if options.checkpoint_steps is not None and options.checkpoint is None:
        raise OptionError("expected a folder of checkpoints.", where="checkpoint_steps", remedy="Give --checkpoint.")
    require_writable(options.plot, output=output, adapter=adapter)
    callbacks: list[Any] = []
    if options.log is not None:
        callbacks.append(TensorBoard(options.log))
    if options.patience is not None:
        callbacks.append(EarlyStopping(patience=options.patience))
    trainer = make(**options.optimizer_options())
    history = trainer.fit(
        data,
        epochs=options.epochs,
        batch_size=options.batch_size,
        validation=options.evaluation,
        callbacks=callbacks,
        checkpoint=options.checkpoint,
        checkpoint_steps=options.checkpoint_steps,
        resume=options.resume,
        progress=False if options.as_json else None,
    )
    error = trainer.save(output, average=options.ema is not None)
    if adapter is not None:
        trainer.adapter(average=options.ema is not None).save(adapter)
    report(trainer, history, output, error, plot=options.plot, as_json=options.as_json)


def require_writable(plot: Path | None, **files: Path | None) -> None:
    """Check that files can be written, before a training.

    Args:
        plot: The file of the plot; None for none.
        files: Other files, by the name of the option.

    Raises:
        MissingDependencyError: Matplotlib is not installed.
        OptionError: A file cannot be written or is named twice, or the extension of the plot names no format.
    """
    from sardonyx.model import require_file

    require_distinct({**files, "plot": plot})
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
