"""The policy of a model whose answers are private: noise by output, a budget, a ledger."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx.errors import OptionError
from sardonyx.privacy.accounting import Budget, epsilon_of
from sardonyx.privacy.ledger import Ledger
from sardonyx.privacy.noise import Noise


@dataclass(frozen=True)
class PrivateAnswers:
    """The policy of one model.

    Attributes:
        outputs: The noise of each output that clients may receive; other outputs are withheld.
        budget: The limit of each client.
        ledger: The ledger of all answers.

    Raises:
        OptionError: There are no outputs, or one row exceeds the budget.
    """

    outputs: Mapping[str, Noise]
    budget: Budget
    ledger: Ledger

    def __post_init__(self) -> None:
        if not self.outputs:
            raise OptionError("expected at least one output with its noise.", where="privacy, outputs")
        epsilon = epsilon_of(self._events(list(self.outputs), 1), self.budget.delta)
        if epsilon > self.budget.epsilon:
            raise OptionError(
                f"one row of all outputs uses epsilon {epsilon:.6g} of {self.budget.epsilon:.6g} at delta"
                f" {self.budget.delta:g}.",
                where="privacy, budget",
                remedy="Set a smaller epsilon of each row, or a delta of the budget for the Gaussian mechanism.",
            )

    def _events(self, names: list[str], rows: int) -> dict[str, int]:
        outputs = Counter(self.outputs[name].event for name in names)
        return {event: count * rows for event, count in outputs.items()}

    def charge(self, client: str, model: str, names: list[str], rows: int) -> float:
        """Record an answer before it is computed; see :meth:`.Ledger.charge`.

        Args:
            client: The name of the client.
            model: The name of the model.
            names: The outputs of the answer.
            rows: Rows of the answer.

        Raises:
            PrivacyBudgetError: The budget does not suffice; nothing is recorded.
            ResourceError: The file cannot be written.
        """
        return self.ledger.charge(client, model, self._events(names, rows), self.budget)

    def noisy(self, name: str, array: np.ndarray, rows: int) -> np.ndarray:
        """Return an output with its noise; see :meth:`.Noise.add`.

        Raises:
            UnsupportedError: The output has no noisy form.
        """
        return self.outputs[name].add(array, rows, name)


def read_policies(path: Path, ledger: Ledger) -> dict[str, PrivateAnswers]:
    """Return the policies of a JSON file by model: ``{model: {"budget": {...}, "outputs": {name: {...}}}}``.

    Args:
        path: The file.
        ledger: The ledger of all models.

    Raises:
        OptionError: The file cannot be read, or a field is unknown, missing or impossible.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise OptionError(f"the policies cannot be read: {error}.", where=str(path)) from error
    policies = {}
    try:
        for model, policy in dict(value).items():
            outputs = {name: Noise(**noise) for name, noise in dict(policy["outputs"]).items()}
            policies[model] = PrivateAnswers(outputs, Budget(**policy["budget"]), ledger)
            if unknown := _unknown(policy):
                raise OptionError(f"unknown field {unknown!r}.", where=f"{path}, {model}")
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise OptionError(
            f"expected outputs with noise, and a budget, of each model: {error!r}.", where=str(path)
        ) from error
    return policies


def _unknown(policy: Mapping[str, Any]) -> str:
    return next((name for name in policy if name not in ("outputs", "budget")), "")
