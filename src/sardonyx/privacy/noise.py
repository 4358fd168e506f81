"""The mechanism of one output: clip, round to a grid, add noise of integers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

import numpy as np

from sardonyx.errors import OptionError, UnsupportedError
from sardonyx.privacy.sampling import discrete_gaussian, discrete_laplace

Mechanism = Literal["laplace", "gaussian"]

_FINENESS = 1 << 10
"""Steps of the grid in the sensitivity of an element: the grid adds a thousandth to the noise."""

MOST_ELEMENTS = 4096
"""Elements of one answer: noise costs tens of microseconds an element, and privacy in proportion to their number."""


@dataclass(frozen=True)
class Noise:
    """The noise on one output.

    Attributes:
        low: The lower end to which elements are clipped; NaN becomes `low`.
        high: The upper end.
        epsilon: Epsilon of one row of the output.
        delta: Delta of one row, for the Gaussian mechanism; 0 for Laplace.
        mechanism: ``"laplace"`` or ``"gaussian"``.
        sensitivity: The most by which one protected record changes the clipped elements of a row: the sum of the
            changes for Laplace, the root of the sum of their squares for Gaussian. None for the bound that follows from
            clipping, under which a record may change every element from `low` to `high`. A smaller number is a
            statement of the caller about the model, which nothing checks.

    Raises:
        OptionError: A number is impossible.
    """

    low: float
    high: float
    epsilon: float
    delta: float = 0.0
    mechanism: Mechanism = "laplace"
    sensitivity: float | None = None

    def __post_init__(self) -> None:
        if self.mechanism not in get_args(Mechanism):
            raise OptionError(f"expected 'laplace' or 'gaussian', got {self.mechanism!r}.", where="privacy, mechanism")
        numbers = (self.low, self.high, self.epsilon, self.delta, self.sensitivity or 1.0)
        if not all(isinstance(number, (int, float)) and math.isfinite(number) for number in numbers):
            raise OptionError("expected finite numbers.", where="privacy, noise")
        if not self.low < self.high:
            raise OptionError(f"expected low < high, got {self.low} and {self.high}.", where="privacy, low")
        if not 1e-6 <= self.epsilon <= 100:
            raise OptionError(f"expected an epsilon from 1e-6 to 100, got {self.epsilon}.", where="privacy, epsilon")
        if self.mechanism == "gaussian" and not 0 < self.delta < 1:
            raise OptionError(
                f"expected a delta in (0, 1) for the Gaussian mechanism, got {self.delta}.", where="privacy, delta"
            )
        if self.mechanism == "laplace" and self.delta:
            raise OptionError("the Laplace mechanism has no delta.", where="privacy, delta", remedy="Leave it out.")
        if self.sensitivity is not None and not 0 < self.sensitivity <= 1e300:
            raise OptionError(f"expected a sensitivity above 0, got {self.sensitivity}.", where="privacy, sensitivity")

    @property
    def rho(self) -> float:
        """The cost of one row in zero-concentrated differential privacy: (rho + 2 sqrt(rho ln(1/delta)), delta)."""
        if self.mechanism == "laplace":
            return self.epsilon**2 / 2
        log = math.log(1 / self.delta)
        return (math.sqrt(log + self.epsilon) - math.sqrt(log)) ** 2

    @property
    def event(self) -> str:
        """The name of one row's mechanism in a ledger."""
        return f"laplace {self.epsilon!r}" if self.mechanism == "laplace" else f"gaussian {self.rho!r}"

    def scale(self, elements: int) -> tuple[float, int | Fraction]:
        """Return the width of the grid, and the noise in steps of the grid: the scale of Laplace, or the variance.

        Args:
            elements: Elements of a row.
        """
        width = self.high - self.low
        whole = width * (elements if self.mechanism == "laplace" else math.sqrt(elements))
        sensitivity = whole if self.sensitivity is None else self.sensitivity
        grid = 2.0 ** math.floor(math.log2(sensitivity / (_FINENESS * elements)))
        # Rounding moves each of two neighbouring values by half a step at most.
        steps = Fraction(sensitivity) / Fraction(grid)
        if self.mechanism == "laplace":
            return grid, math.ceil((steps + elements) / Fraction(self.epsilon))
        distance = math.ceil(steps + math.isqrt(elements) + 1)
        return grid, Fraction(distance * distance) / (2 * Fraction(self.rho))

    def add(self, array: np.ndarray, rows: int, name: str) -> np.ndarray:
        """Return an output with noise, of the same shape and element type.

        Args:
            array: The output; rows in axis 0 if `rows` is above 1.
            rows: Rows of the output, each with noise of its own.
            name: The name of the output.

        Raises:
            UnsupportedError: The output has no floating-point elements, too many elements, or another number of rows.
        """
        if array.dtype.kind != "f":
            raise UnsupportedError(f"expected a floating-point output, got {array.dtype}.", where=name)
        if not 0 < array.size <= MOST_ELEMENTS or (rows > 1 and (array.ndim == 0 or len(array) != rows)):
            raise UnsupportedError(
                f"expected 1 to {MOST_ELEMENTS} elements in {rows} equal rows, got {array.size}.", where=name
            )
        grid, scale = self.scale(array.size // rows)
        values = np.nan_to_num(array.astype(np.float64), nan=self.low, posinf=self.high, neginf=self.low)
        clipped = np.clip(values, self.low, self.high).ravel()
        if isinstance(scale, int):
            drawn = [discrete_laplace(scale) for _ in range(array.size)]
        else:
            drawn = [discrete_gaussian(scale) for _ in range(array.size)]
        steps = [round(Fraction(float(value)) / Fraction(grid)) for value in clipped]
        noisy = [float((step + noise) * Fraction(grid)) for step, noise in zip(steps, drawn, strict=True)]
        return np.array(noisy, np.float64).reshape(array.shape).astype(array.dtype)
