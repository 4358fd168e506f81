"""Windows that move over images, and the blocks of channels and runs of outputs that images are cut into."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.core.dim import Size, ceil_div
from sardonyx.errors import OptionError

Number = str | int
"""An i64 as the code has it: the name of a value, or a number."""


@dataclass(frozen=True)
class Windows:
    """How windows move along the spatial axes: one entry an axis, in every attribute.

    Attributes:
        sizes: Taps of the window.
        strides: Input places from output to output.
        padding: Input places before the first that the first window covers; negative where it starts further in. How
            much is padded behind follows from the sizes of the output.
        dilations: Input places from tap to tap.
        base_dilations: How far apart the elements of the input are, with zeros between.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[Size, ...]
    dilations: tuple[int, ...]
    base_dilations: tuple[int, ...]

    @staticmethod
    def of(
        sizes: tuple[int, ...],
        strides: tuple[int, ...] | None = None,
        padding: tuple[Size, ...] | None = None,
        dilations: tuple[int, ...] | None = None,
        base_dilations: tuple[int, ...] | None = None,
    ) -> Windows:
        """Windows of which what is not given is 1, or no padding.

        Raises:
            OptionError: The padding of a dilated input is no number.
        """
        ones = (1,) * len(sizes)
        made = Windows(sizes, strides or ones, padding or (0,) * len(sizes), dilations or ones, base_dilations or ones)
        for low, base in zip(made.padding, made.base_dilations, strict=True):
            if base > 1 and not isinstance(low, int):
                raise OptionError(
                    f"the padding {low} of a dilated input is not known when code is generated.",
                    remedy="Give it as a number.",
                )
        return made


def rest_sizes(most: int) -> list[int]:
    """Sizes of which each, used once or not, make up any number of outputs below that of a full tile."""
    half = most // 2
    powers = [1 << power for power in reversed(range((most - 1 - half).bit_length()))]
    return [half, *powers] if half else []


def block_count(channels: int, lanes: int) -> int:
    """How many blocks a blocked image of so many channels has."""
    return int(ceil_div(channels, lanes))  # type: ignore[arg-type]
