"""Optimizers: classes with the state, the scalars and the update of one tensor."""

from __future__ import annotations

from sardonyx.errors import OptionError
from sardonyx.train.optimizers.adaptive import Adadelta, Adagrad, Adam, AdamW, RMSprop
from sardonyx.train.optimizers.anchored import EWC
from sardonyx.train.optimizers.matrix import LAMB, Adafactor, Muon
from sardonyx.train.optimizers.momentum import SGD, Lion
from sardonyx.train.optimizers.optimizer import Optimizer, Slot
from sardonyx.train.optimizers.sharpness import SAM

OPTIMIZERS: dict[str, type[Optimizer]] = {
    "adadelta": Adadelta,
    "adafactor": Adafactor,
    "adagrad": Adagrad,
    "adam": Adam,
    "adamw": AdamW,
    "lamb": LAMB,
    "lion": Lion,
    "muon": Muon,
    "rmsprop": RMSprop,
    "sgd": SGD,
}
"""Optimizers by the name on the command line."""


def optimizer_of(optimizer: Optimizer | SAM | str) -> Optimizer | SAM:
    """Return an optimizer: an instance, or a name of :data:`OPTIMIZERS`.

    Raises:
        OptionError: Unknown name.
    """
    if isinstance(optimizer, str):
        if optimizer.lower() not in OPTIMIZERS:
            raise OptionError(f"expected one of {', '.join(OPTIMIZERS)}, got {optimizer!r}.", where="optimizer")
        return OPTIMIZERS[optimizer.lower()]()
    if not isinstance(optimizer, (Optimizer, SAM)):
        raise OptionError(f"expected an optimizer or a name, got {optimizer!r}.", where="optimizer")
    return optimizer


__all__ = [
    "EWC",
    "LAMB",
    "OPTIMIZERS",
    "SAM",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Lion",
    "Muon",
    "Optimizer",
    "RMSprop",
    "Slot",
    "optimizer_of",
]
