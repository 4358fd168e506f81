"""Which algorithm computes a convolution, and in which layout it reads its image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sardonyx.compiler.analysis.constant_values import is_closed
from sardonyx.compiler.analysis.patterns import Convolution
from sardonyx.compiler.analysis.primitive_traits import dtype_of
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling import winograd as tiles
from sardonyx.compiler.tiling.convolution import MOST_ADVANCE
from sardonyx.compiler.tiling.int8_forms import form_of
from sardonyx.core.dim import Size
from sardonyx.core.ir import types as t
from sardonyx.errors import UnsupportedError

NARROW_DTYPES = frozenset({t.UINT8, t.INT8, t.INT16})
"""Integers of which images are convolved."""


PLAIN_CHANNELS = 4
"""Most channels of an image that is convolved as it comes, plane by plane."""


PLANAR_WORTH = 128
"""Multiplications of a result that pay for an image being laid out in blocks afterwards."""


MAX_ERROR = 2e-5
"""The error that Winograd's convolution may have, in proportion to the largest result."""


@dataclass(frozen=True)
class Choice:
    """How a convolution is computed.

    Attributes:
        algorithm: ``direct``, ``planar``, ``depthwise`` or ``winograd``.
        blocked: Whether the image has to be in blocked layout.
        tile: Rows and columns of a tile's results in Winograd's convolution.
        staged: Whether that transforms its inputs in a kernel of its own.
        fresh: Whether that transforms its weights as it needs them.
        packed: Whether weights are known only when a program runs, and packed by a kernel of their own.
    """

    algorithm: str
    blocked: bool
    tile: tuple[int, int] = (1, 1)
    staged: bool = False
    fresh: bool = False
    packed: bool = False

    @property
    def title(self) -> str:
        """What to call it."""
        if self.algorithm == "winograd":
            return f"winograd F({self.tile[0]}x{self.tile[1]})"
        return f"{self.algorithm} convolution"


def choice(found: Convolution, target: Target, threads: int) -> Choice:
    """How to compute a convolution.

    Raises:
        UnsupportedError: There is no kernel for it.
    """
    params = found.core.params
    weights = found.weights
    narrow = is_closed(weights) and params["dtype"] == t.INT32 and dtype_of(found.image) in NARROW_DTYPES
    floats = params["dtype"] in (t.FLOAT, t.FLOAT16, t.BFLOAT16) and dtype_of(found.image) == params["dtype"]
    if not narrow and not floats:
        raise UnsupportedError(f"convolve of {found.image.type} as {params['dtype'].name.lower()} has no kernel.")
    channels, filters = shape_of(found.image)[1], shape_of(found.result)[1]
    if not isinstance(channels, int) or not isinstance(filters, int) or not 1 <= len(params["strides"]) <= 3:
        raise UnsupportedError("convolve of an open number of channels has no kernel.")
    if not is_closed(weights):
        fixed(shape_of(weights))
        return Choice("direct", channels > PLAIN_CHANNELS, packed=True)
    if found.groups == channels == filters and channels > 1:
        return Choice("depthwise", True)
    if narrow:
        if form_of(found.image, weights, target) is None:
            raise UnsupportedError(f"convolve of {found.image.type} with {weights.type} has no kernel.")
        return Choice("direct", True)
    if _is_planar(found, channels, filters, target):
        return Choice("planar", False)
    fast = _winograd(found, channels, filters, target, threads)
    return fast or Choice("direct", channels > PLAIN_CHANNELS)


def _is_planar(found: Convolution, channels: int, filters: int, target: Target) -> bool:
    """Whether blocks of channels would be empty by half, and rows are wide enough to be the lanes."""
    lanes, params, axis = target.lanes(32), found.core.params, wide_axes(found)[-1]
    width = shape_of(found.result)[2 + axis]
    return (
        found.groups == 1
        and dtype_of(found.image) == t.FLOAT
        and channels <= lanes // 2
        and filters <= lanes // 2
        and params["strides"][axis] <= MOST_ADVANCE
        and params["base_dilation"][axis] == 1
        and (not isinstance(width, int) or width >= lanes)
        and (found.ends or channels * math.prod(fixed(shape_of(found.weights)[3:])) >= PLANAR_WORTH)
    )


def _winograd(found: Convolution, channels: int, filters: int, target: Target, threads: int) -> Choice | None:
    """The form of Winograd's convolution that is estimated to be the fastest; None where the direct way is."""
    params = found.core.params
    window = shape_of(found.weights)[3:]
    simple = (
        found.groups == 1 and len(params["strides"]) == 2 and window in ((3, 3), (1, 3), (3, 1))
        and set(params["strides"] + params["kernel_dilation"] + params["base_dilation"]) == {1}
    )  # fmt: skip
    if not simple or channels < target.lanes(32) or 2 * filters < target.lanes(32):
        return None
    # An open size is taken for that of an image in the middle of a network.
    height, width = (size if isinstance(size, int) else 56 for size in shape_of(found.result)[2:])
    batch = shape_of(found.result)[0]
    images = batch if isinstance(batch, int) else 1
    rows, columns = fixed(window)
    taps = (rows, columns)
    direct = images * channels * filters * math.prod(taps) * height * width / threads
    sizes: dict[str, Any] = {"batch": images, "channels": channels, "filters": filters, "out": (height, width)}
    tile, cost = tiles.best_tile(target, **sizes, taps=taps, workers=threads, largest_error=MAX_ERROR)
    if cost >= direct:
        return None
    plan = tiles.Winograd(target, tile, **sizes, workers=threads)
    fresh = tiles.has_fresh_weights(target, tile, channels, filters)
    return Choice("winograd", True, tile, tiles.prefers_stages(plan), fresh)


def wide_axes(found: Convolution) -> tuple[int, ...]:
    """The spatial axes that a window can move along or see more than one place of; one at least."""
    params = found.core.params
    kept = []
    for axis, (size, out, taps) in enumerate(
        zip(shape_of(found.image)[2:], shape_of(found.result)[2:], shape_of(found.weights)[3:], strict=True)
    ):
        if not (size == out == taps == 1 and params["padding"][axis] == (0, 0)):
            kept.append(axis)
    return tuple(kept) or (len(params["strides"]) - 1,)


def fixed(sizes: Sequence[Size]) -> tuple[int, ...]:
    """Sizes that are numbers.

    Raises:
        UnsupportedError: One of them is open.
    """
    if not all(isinstance(size, int) for size in sizes):
        raise UnsupportedError("weights of open sizes have no kernel.")
    return tuple(size for size in sizes if isinstance(size, int))
