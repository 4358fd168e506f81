"""Windows that move over images, blocks of channels, and runs of outputs."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.core.dim import Size, ceil_div
from sardonyx.errors import UnsupportedError

Number = str | int
"""An i64 in the emitted code: the name of a value, or a number."""


@dataclass(frozen=True)
class Windows:
    """Windows along the spatial axes: every attribute has one entry for each axis.

    Attributes:
        sizes: Taps of the window.
        strides: Input elements from output to output.
        padding: Input elements before the first that the first window covers; negative if the first window starts
            further in. The padding at the end follows from the sizes of the output.
        dilations: Input elements from tap to tap.
        base_dilations: Distance of the elements of the input, with zeros between.
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
        """Return windows whose omitted attributes are 1, or no padding.

        Raises:
            UnsupportedError: The padding of a dilated input is not a number.
        """
        ones = (1,) * len(sizes)
        windows = Windows(
            sizes, strides or ones, padding or (0,) * len(sizes), dilations or ones, base_dilations or ones
        )
        for first, base in zip(windows.padding, windows.base_dilations, strict=True):
            if base > 1 and not isinstance(first, int):
                raise UnsupportedError(
                    f"the padding {first} of a dilated input is not known when code is generated.",
                    remedy="Give it as a number.",
                )
        return windows


def rest_sizes(most: int) -> list[int]:
    """Return sizes whose subsets add up to any number of outputs below a full tile."""
    half = most // 2
    powers = [1 << power for power in reversed(range((most - 1 - half).bit_length()))]
    return [half, *powers] if half else []


def block_count(channels: int, lanes: int) -> int:
    """Return the number of blocks of a blocked image."""
    return int(ceil_div(channels, lanes))  # type: ignore[arg-type]
