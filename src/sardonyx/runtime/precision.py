"""The precision of a session: the request, and the report of the form that the model has after loading."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Precision = Literal["float32", "auto", "bf16", "int8"]
"""The numbers that a session computes with: as the model says, the fastest within a tolerance, or a type."""


@dataclass(frozen=True)
class PrecisionForm:
    """A form of the model that was measured.

    Attributes:
        name: ``"float32"`` (the model as given), ``"bf16"``, ``"int8"`` or ``"int8 weights"``.
        error: Largest difference of an output from the model as given, over the output's largest magnitude; None if the
            form was not measured.
        seconds: Time of a run, the least of several; None if the form was not measured.
        reason: The reason why the form is impossible; empty otherwise.
    """

    name: str
    error: float | None = None
    seconds: float | None = None
    reason: str = ""

    def __str__(self) -> str:
        if self.error is None or self.seconds is None:
            return f"{self.name}: {self.reason}"
        return f"{self.name}: error {self.error:.2g}, {1e3 * self.seconds:.3f} ms"


@dataclass(frozen=True)
class PrecisionReport:
    """The form that a session has chosen at load, with the evidence.

    Attributes:
        requested: The requested precision.
        chosen: The name of the chosen form.
        tolerance: The largest error allowed.
        samples: The samples that errors were measured on: ``"drawn"`` or ``"given"``, with their number.
        forms: All forms.
    """

    requested: Precision
    chosen: str
    tolerance: float
    samples: str
    forms: tuple[PrecisionForm, ...]

    def __str__(self) -> str:
        lines = [f"{self.chosen} of {self.requested}, tolerance {self.tolerance:g}, {self.samples} samples"]
        return "\n".join([*lines, *(f"  {form}" for form in self.forms)])
