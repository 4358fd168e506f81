"""Flower: a client whose rounds train a model, for federated learning over machines that hold their data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.base.extras import require
from sardonyx.errors import FeedError
from sardonyx.train.trainer.trainer import Trainer

LOSS = "loss"

_SHARED = ("parameter:", "statistic:")
"""State that all clients share; moments of optimizers and running means stay on the client."""


def weights(trainer: Trainer) -> list[np.ndarray]:
    """Return the parameters and running statistics of a trainer, in the order of its state."""
    return [np.array(array) for name, array in trainer.state().items() if name.startswith(_SHARED)]


def set_weights(trainer: Trainer, arrays: Sequence[np.ndarray]) -> None:
    """Replace the parameters and running statistics of a trainer.

    Args:
        trainer: The trainer.
        arrays: The arrays of :func:`weights` of a trainer of the same model and options.

    Raises:
        FeedError: Number, sizes or element types differ, or an element is not finite.
    """
    state = dict(trainer.state())
    names = [name for name in state if name.startswith(_SHARED)]
    if len(arrays) != len(names):
        raise FeedError(f"expected {len(names)} arrays, got {len(arrays)}.", where="Flower parameters")
    for name, array in zip(names, arrays, strict=True):
        array = np.asarray(array)
        if array.shape != state[name].shape or array.dtype != state[name].dtype:
            raise FeedError(
                f"expected {state[name].dtype}{list(state[name].shape)}, got {array.dtype}{list(array.shape)}.",
                where=f"Flower parameters, {name.partition(':')[2]}",
            )
        if not np.isfinite(array.astype(np.float64)).all():
            raise FeedError("expected finite elements.", where=f"Flower parameters, {name.partition(':')[2]}")
        state[name] = array
    trainer.load_state(state)


def flower_client(
    trainer: Trainer,
    data: Any,
    *,
    validation: Any = None,
    epochs: int = 1,
    batch_size: int = 32,
    samples: Callable[[Any], int] | None = None,
) -> Any:
    """Return a Flower client (``NumPyClient``) that trains with a trainer.

    The server's weights replace those of the trainer before a round: trained parameters and running statistics, in the
    order of the trainer's state. Moments of the optimizer stay on the client. The configuration of a round may contain
    ``epochs`` and ``batch_size``.

    Args:
        trainer: The trainer; every client has one of the same model and options.
        data: Data of training, as of :meth:`.Trainer.fit`.
        validation: Data of evaluations; `data` if None.
        epochs: Epochs of a round, unless the server says otherwise.
        batch_size: Samples of a batch, unless the server says otherwise.
        samples: Returns the number of samples of data; by default the length of the first array.

    Raises:
        MissingDependencyError: Flower is not installed.

    Example:
        >>> def client_fn(context):
        ...     return flower_client(Trainer("model.onnx"), {"image": x, "labels": y}).to_client()
    """
    require("flwr", "flower", "Flower clients")
    from flwr.client import NumPyClient

    count = samples or _length

    class Client(NumPyClient):  # type: ignore[misc]
        def get_parameters(self, config: dict[str, Any]) -> list[np.ndarray]:
            return weights(trainer)

        def fit(
            self, parameters: list[np.ndarray], config: dict[str, Any]
        ) -> tuple[list[np.ndarray], int, dict[str, Any]]:
            set_weights(trainer, parameters)
            history = trainer.fit(
                data, epochs=len(trainer.history.rows) + int(config.get("epochs", epochs)),
                batch_size=int(config.get("batch_size", batch_size)), progress=False,
            )  # fmt: skip
            return weights(trainer), count(data), {LOSS: float(history.rows[-1][LOSS])}

        def evaluate(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[float, int, dict[str, Any]]:
            set_weights(trainer, parameters)
            part = data if validation is None else validation
            values = trainer.evaluate(part, batch_size=int(config.get("batch_size", batch_size)))
            return float(values.pop(LOSS)), count(part), {name: float(value) for name, value in values.items()}

    return Client()


def _length(data: Any) -> int:
    first = (
        next(iter(data.values())) if isinstance(data, Mapping) else data[0] if isinstance(data, (tuple, list)) else data
    )
    try:
        return len(first)
    except TypeError as error:
        raise FeedError(
            "the number of samples is unknown.", where="Flower data", remedy="Give `samples=`, a function of the data."
        ) from error
