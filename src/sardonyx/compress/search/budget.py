"""Budgets: limits of a compressed model, from numbers or texts such as ``"10ms"`` and ``"4MB"``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from sardonyx.errors import OptionError

Quantity = str | float | int

BYTES: Mapping[str, float] = {
    "": 1, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30,
}  # fmt: skip
SECONDS: Mapping[str, float] = {"": 1, "S": 1, "MS": 1e-3, "US": 1e-6, "NS": 1e-9, "MIN": 60, "M": 60, "H": 3600}
JOULES: Mapping[str, float] = {"": 1, "J": 1, "MJ": 1e-3, "UJ": 1e-6, "NJ": 1e-9}

_QUANTITY = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*([A-Za-z]*)\s*")


@dataclass(frozen=True)
class Budget:
    """Limits that a compressed model keeps; a limit that is None does not count.

    Args:
        drop: The largest loss of the metric, in its units: 0.5 of a percentage is half a point.
        sqnr: The smallest signal-to-quantization-noise ratio of an output in dB.
        latency: The longest time of a run on one sample: ``"10ms"``, or seconds.
        size: The largest file: ``"4MB"``, ``"4MiB"``, or bytes.
        memory: The most bytes of a run: weights as the engine reads them, and live values.
        energy: The most energy of a run: ``"5mJ"``, or joules.

    Raises:
        OptionError: A limit is negative, not finite, or has an unknown unit.

    Example:
        >>> Budget(drop=0.5, latency="10ms", size="4MB")
    """

    drop: float | None = None
    sqnr: float | None = None
    latency: Quantity | None = None
    size: Quantity | None = None
    memory: Quantity | None = None
    energy: Quantity | None = None

    def __post_init__(self) -> None:
        for name in ("drop", "sqnr"):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
                raise OptionError(f"expected a number of 0 or more, got {value!r}.", where=name)
        _ = self.limits

    @property
    def limits(self) -> dict[str, float]:
        """The limits of size, memory (bytes), latency (seconds) and energy (joules) that are set."""
        units = {"size": BYTES, "memory": BYTES, "latency": SECONDS, "energy": JOULES}
        texts = {name: getattr(self, name) for name in units}
        return {name: quantity(text, units[name], name) for name, text in texts.items() if text is not None}


def _as_written(unit: str) -> str:
    """Return a unit in its usual letters: ms, mJ, MB, MiB."""
    if unit.endswith("B"):
        return unit.replace("I", "i")
    return f"{unit[:-1].lower()}J" if unit.endswith("J") else unit.lower()


def quantity(text: Quantity, units: Mapping[str, float], where: str) -> float:
    """Return a number with a unit, such as ``"4MB"``, as a positive number in the base unit.

    Args:
        text: The text, or a number in the base unit.
        units: The base units by name in capitals.
        where: The name of the option.

    Raises:
        OptionError: The text has another form, or the number is not above 0.
    """
    known = ", ".join(_as_written(name) for name in units if name)
    if isinstance(text, str):
        match = _QUANTITY.fullmatch(text.replace("\N{MICRO SIGN}", "u"))
        if match is None or match[2].upper() not in units:
            raise OptionError(f"expected a number with a unit ({known}), got '{text}'.", where=where)
        value = float(match[1]) * units[match[2].upper()]
    elif isinstance(text, bool) or not isinstance(text, (int, float)):
        raise OptionError(f"expected a number with a unit ({known}), got {text!r}.", where=where)
    else:
        value = float(text)
    if not math.isfinite(value) or value <= 0:
        raise OptionError(f"expected more than 0, got {text!r}.", where=where)
    return value
