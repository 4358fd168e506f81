"""Pooling of blocked images: the sum, maximum or minimum of each window."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from sardonyx.compiler.codegen.kernel_builder import Epilogue, Kernel
from sardonyx.compiler.kernels.conv.channelwise import Channelwise
from sardonyx.compiler.kernels.conv.window_sweep import Image, Sweep
from sardonyx.compiler.llvm.ir_builder import float_literal
from sardonyx.compiler.llvm.vector_value import BITS, Vector
from sardonyx.compiler.tiling.pooling import PoolingSchedule
from sardonyx.compiler.tiling.windows import Windows, block_count
from sardonyx.core.dim import Size

Kind = Literal["add", "max", "min"]


def pooling(
    kernel: Kernel,
    kind: Kind,
    *,
    x: Image,
    batch: Size,
    windows: Windows,
    out: tuple[Size, ...],
    epilogue: Epilogue,
    schedule: PoolingSchedule,
    element: str = "float",
    signed: bool = True,
) -> Size:
    """Write a reduction over windows of a blocked image.

    Elements outside of the image are skipped; NaN wins over every number. The epilogue gets whole blocks of channels;
    channels past the last one hold the reduction of zeros.

    Args:
        kernel: The kernel.
        kind: The reduction.
        x: The image.
        batch: Number of images.
        windows: The windows, with the rank of the image.
        out: The spatial sizes of the output.
        epilogue: Consumes the results.
        schedule: The schedule, see :func:`~sardonyx.compiler.tiling.pooling.choose_pooling`.
        element: The LLVM type of the elements.
        signed: True if integers are signed.

    Returns:
        The number of work items.
    """
    lanes, outputs = schedule.lanes, schedule.outputs
    sweep = Sweep(kernel, x, windows, out, batch, block_count(x.channels, lanes), outputs=outputs)
    _Pooling(sweep, x, element, lanes, epilogue, kind, signed).write()
    return sweep.items


class _Pooling(Channelwise):
    def __init__(
        self,
        sweep: Sweep,
        x: Image,
        element: str,
        lanes: int,
        epilogue: Epilogue,
        kind: Kind,
        signed: bool,
    ) -> None:
        super().__init__(sweep, x, element, lanes, epilogue)
        self.kind = kind
        self.integers = element.startswith("i")
        self.sign = "s" if signed else "u"
        self.keys = not self.integers and kind != "add"
        """True if results are integers in the order of the floats, where -0 is below +0 and NaN is the extremum."""
        self.width = BITS[element]

    def identity(self) -> str:
        if not self.keys:
            return self.outside()
        least, greatest = -(1 << self.width - 1), (1 << self.width - 1) - 1
        infinity = _bits_of(math.inf, self.width)
        key = (greatest ^ infinity) + least if self.kind == "max" else infinity
        return float_literal(_number_of(key, self.width), self.element)

    def outside(self) -> str:
        if not self.integers:
            value = {"add": 0.0, "max": float("-inf"), "min": float("inf")}[self.kind]
            return float_literal(value, self.element)
        if self.kind == "add":
            return "0"
        bits = self.width
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if self.sign == "s" else (0, (1 << bits) - 1)
        return str(low if self.kind == "max" else high)

    def prepare(self, value: str) -> list[str]:
        if not self.keys:
            return [value]
        x = Vector(self.emitter, value, self.element, self.lanes)
        extremum = (1 << self.width - 1) - 1 if self.kind == "max" else -(1 << self.width - 1)
        key = self._key(x.bits())
        return [x.is_nan().where(key.like(extremum), key).number().name]

    def _key(self, bits: Vector) -> Vector:
        """Return integers in the order of the floats with these bits; the inverse too."""
        return bits ^ ((bits >> (self.width - 1)) & ((1 << self.width - 1) - 1))

    def combine(self, result: str, values: list[str], factors: list[str]) -> str:
        x, y = (Vector(self.emitter, name, self.element, self.lanes) for name in (result, values[0]))
        if self.kind == "add":
            return (x + y).name
        choice = ("s" if self.keys else self.sign) + self.kind
        if self.keys:
            return x.bits().call(choice, y.bits()).number().name
        return x.call(choice, y).name

    def merge(self, first: str, second: str) -> str:
        return self.combine(first, [second], [])

    def finish(self, result: str) -> str:
        if not self.keys:
            return result
        return self._key(Vector(self.emitter, result, self.element, self.lanes).bits()).number().name


def _bits_of(number: float, width: int) -> int:
    """Return the bits of a float as an unsigned integer."""
    return int(np.array(number, f"f{width // 8}").view(f"u{width // 8}"))


def _number_of(bits: int, width: int) -> float:
    """Return the float with the bits of a signed integer."""
    return float(np.array(bits, f"i{width // 8}").view(f"f{width // 8}"))
