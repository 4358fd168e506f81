"""Losses: classes that state the labels of a batch and compute the loss over Core."""

from __future__ import annotations

from collections.abc import Callable

from sardonyx.errors import OptionError
from sardonyx.train.losses.classification import (
    BinaryCrossEntropy,
    CrossEntropy,
    Distillation,
    Focal,
    KullbackLeibler,
)
from sardonyx.train.losses.custom import FunctionLoss, ModelLoss, OutputLoss
from sardonyx.train.losses.embedding import Contrastive, Triplet
from sardonyx.train.losses.loss import Loss, Terms
from sardonyx.train.losses.regression import Cosine, Dice, Huber, MeanAbsoluteError, MeanSquaredError
from sardonyx.train.losses.sequence import CTC

LOSSES: dict[str, type[Loss]] = {
    "bce": BinaryCrossEntropy,
    "contrastive": Contrastive,
    "cosine": Cosine,
    "cross-entropy": CrossEntropy,
    "ctc": CTC,
    "dice": Dice,
    "distillation": Distillation,
    "focal": Focal,
    "huber": Huber,
    "kl": KullbackLeibler,
    "l1": MeanAbsoluteError,
    "mse": MeanSquaredError,
    "output": OutputLoss,
    "triplet": Triplet,
}
"""Losses by the name on the command line."""


def loss_of(loss: Loss | str | Callable[..., object]) -> Loss:
    """Return a loss: an instance, a name of :data:`LOSSES`, or a function over Core.

    Raises:
        OptionError: Unknown name.
    """
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, str):
        name = loss.replace("_", "-")
        if name not in LOSSES:
            raise OptionError(f"expected one of {', '.join(LOSSES)}, got {loss!r}.", where="loss")
        return LOSSES[name]()
    if not callable(loss):
        raise OptionError(f"expected a loss, a name or a function, got {loss!r}.", where="loss")
    return FunctionLoss(function=loss)  # type: ignore[arg-type]


__all__ = [
    "CTC",
    "LOSSES",
    "BinaryCrossEntropy",
    "Contrastive",
    "Cosine",
    "CrossEntropy",
    "Dice",
    "Distillation",
    "Focal",
    "FunctionLoss",
    "Huber",
    "KullbackLeibler",
    "Loss",
    "MeanAbsoluteError",
    "MeanSquaredError",
    "ModelLoss",
    "OutputLoss",
    "Terms",
    "Triplet",
    "loss_of",
]
