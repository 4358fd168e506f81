"""The privacy that many noisy answers use together."""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Mapping
from dataclasses import dataclass

from sardonyx.errors import OptionError


@dataclass(frozen=True)
class Budget:
    """The privacy that the answers of a model to one client may use together.

    Attributes:
        epsilon: The largest epsilon.
        delta: The probability that the guarantee may fail; 0 for Laplace alone, by the sum of epsilons.

    Raises:
        OptionError: A number is impossible.
    """

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.epsilon < math.inf and 0 <= self.delta < 1):
            raise OptionError(
                f"expected an epsilon above 0 and a delta in [0, 1), got {self.epsilon} and {self.delta}.",
                where="privacy, budget",
            )


def epsilon_of(answers: Mapping[str, int], delta: float) -> float:
    """Return epsilon of the (epsilon, delta) guarantee of answers together; infinite if there is none.

    The smallest of three bounds counts: the sum of epsilons; all answers as zero-concentrated privacy; and with
    dp-accounting, the Gaussian answers by Rényi privacy plus the sum of the others' epsilons. Bounds are for noise that
    was chosen in advance; the ledger refuses by their value before an answer is computed.

    Args:
        answers: Numbers of answers by :attr:`.Noise.event`.
        delta: Delta of the guarantee.
    """
    laplace = [(_number(event), count) for event, count in answers.items() if event.startswith("laplace")]
    pure = sum(epsilon * count for epsilon, count in laplace)
    rho = sum(_number(event) * count for event, count in answers.items() if event.startswith("gaussian"))
    if not rho:
        bounds = [pure]
    elif not delta:
        return math.inf
    else:
        bounds = [pure + _epsilon_of_rho(rho, delta)]
        if importlib.util.find_spec("dp_accounting") is not None:
            bounds.append(pure + _epsilon_by_renyi(rho, delta))
    if delta:
        squares = sum(
            count * _number(event) ** 2 / 2 for event, count in answers.items() if event.startswith("laplace")
        )
        bounds.append(_epsilon_of_rho(rho + squares, delta))
    return min(bounds)


def _number(event: str) -> float:
    return float(event.partition(" ")[2])


def _epsilon_of_rho(rho: float, delta: float) -> float:
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


@functools.lru_cache(maxsize=1024)
def _epsilon_by_renyi(rho: float, delta: float) -> float:
    """Return epsilon of Gaussian noise; answers of several deviations are as private as one of the sum of rho."""
    import dp_accounting
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant()
    accountant.compose(dp_accounting.GaussianDpEvent(1 / math.sqrt(2 * rho)))
    return float(accountant.get_epsilon(delta))
