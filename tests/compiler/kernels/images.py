"""Images as kernels take them, and kernels over images that store what they are given."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sardonyx.compiler.codegen.kernel_builder import Epilogue, Index, Kernel
from sardonyx.compiler.target.description import NAMED, host
from sardonyx.compiler.tiling.windows import Windows, block_count
from sardonyx.core.dim import Dim, Size

TARGETS = {target.name: target for target in (NAMED["avx2"], host())}
"""The targets that the test machine can run."""

BATCH = Dim.symbol("batch")
IN = tuple(Dim.symbol(name) for name in ("in_z", "in_y", "in_x"))
OUT = tuple(Dim.symbol(name) for name in ("out_z", "out_y", "out_x"))

DEPTHWISE_WINDOWS = {
    "3x3": (Windows.of((3, 3), padding=(1, 1)), (1, 1)),
    "3x3 strided": (Windows.of((3, 3), (2, 2), (1, 1)), (1, 1)),
    "3x3 strided, padded behind": (Windows.of((3, 3), (2, 2), (0, 0)), (1, 1)),
    "5x5": (Windows.of((5, 5), padding=(2, 2)), (2, 2)),
    "5x5 strided": (Windows.of((5, 5), (2, 2), (2, 2)), (2, 2)),
    "1x41": (Windows.of((1, 41), padding=(0, 20)), (0, 20)),
}
"""Windows that all depthwise kernels compute, with the zeros behind an image."""


def aligned(shape: Sequence[int], dtype: type = np.float32, fill: float = 0) -> np.ndarray:
    """Return an array aligned to a cache line."""
    count = int(np.prod(shape))
    room = np.full(count * np.dtype(dtype).itemsize + 64, 0, np.uint8)
    start = -room.ctypes.data % 64
    result = room[start : start + count * np.dtype(dtype).itemsize].view(dtype).reshape(shape)
    result[...] = fill
    return result


def symbols(batch: int, sizes: Sequence[int], out: Sequence[int]) -> dict[str, int]:
    """Return the values of the symbols."""
    names = ("z", "y", "x")[3 - len(sizes) :]
    inputs = {f"in_{name}": size for name, size in zip(names, sizes, strict=True)}
    return {"batch": batch, **inputs, **{f"out_{name}": size for name, size in zip(names, out, strict=True)}}


def out_sizes(sizes: Sequence[int], windows: Windows, high: Sequence[int]) -> tuple[int, ...]:
    """Return the output sizes: the number of windows that fit."""
    result = []
    for i, size in enumerate(sizes):
        dilated = (size - 1) * windows.base_dilations[i] + 1 if size else 0
        low = windows.padding[i]
        assert isinstance(low, int)
        reach = (windows.sizes[i] - 1) * windows.dilations[i] + 1
        result.append(max(0, (dilated + low + high[i] - reach) // windows.strides[i] + 1))
    return tuple(result)


def to_blocked(x: np.ndarray, lanes: int) -> np.ndarray:
    """[N, C, *sizes] to [N, C/B, *sizes, B]."""
    batch, channels, *sizes = x.shape
    blocks = block_count(channels, lanes)
    padded = np.zeros((batch, blocks * lanes, *sizes), x.dtype)
    padded[:, :channels] = x
    result = aligned((batch, blocks, *sizes, lanes), x.dtype.type)
    result[...] = np.moveaxis(padded.reshape(batch, blocks, lanes, *sizes), 2, -1)
    return result


def to_plain(x: np.ndarray) -> np.ndarray:
    """[N, C/B, *sizes, B] to [N, C, *sizes], with the channels that fill the last block."""
    batch, blocks, *sizes, lanes = x.shape
    return np.moveaxis(x, -1, 2).reshape(batch, blocks * lanes, *sizes)


def copied(x: np.ndarray) -> np.ndarray:
    """Return a copy of an array, aligned to a cache line."""
    result = aligned(x.shape, x.dtype.type)
    result[...] = x
    return result


def storing(
    kernel: Kernel, pointer: str, channels: int, out: Sequence[Size], lanes: int, element: str = "float"
) -> Epilogue:
    """Stores results as a blocked image, or as a plain one for one lane."""
    e = kernel.emitter
    bytes = {"float": 4, "double": 8, "i8": 1, "i32": 4}[element]

    def epilogue(index: tuple[Index, ...], value: str, mask: str | None) -> None:
        image, channel, *positions = index
        assert mask is None
        assert channel.lane == (1 if lanes > 1 else 0)
        at = e.add(e.mul(image.base, block_count(channels, lanes)), e.div(channel.base, lanes))
        for size, position in zip(out, positions, strict=True):
            at = e.add(e.mul(at, kernel.size(size)), position.base)
        type = f"<{lanes} x {element}>" if lanes > 1 else element
        e.store(type, value, e.address(pointer, element, e.mul(at, lanes)), lanes * bytes)

    return epilogue


def stored(batch: int, channels: int, out: Sequence[int], lanes: int, dtype: type = np.float32) -> np.ndarray:
    """Room for what :func:`storing` stores, with what no result is in it."""
    shape = (batch, block_count(channels, lanes), *out, *([lanes] if lanes > 1 else []))
    return aligned(shape, dtype, 99 if math.prod(shape) else 0)
