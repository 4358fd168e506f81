"""Pooling of blocked images: the sum, maximum or minimum of each window."""

from __future__ import annotations

from typing import Literal

from sardonyx.compiler.codegen.kernel_builder import Epilogue, Kernel
from sardonyx.compiler.kernels.conv.channelwise import Channelwise
from sardonyx.compiler.kernels.conv.window_sweep import Image, Sweep
from sardonyx.compiler.llvm.ir_builder import float_literal, vector
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
        self.bits = vector(lanes, {"float": "i32", "double": "i64"}.get(element, element))

    def identity(self) -> str:
        if not self.integers:
            value = {"add": 0.0, "max": float("-inf"), "min": float("inf")}[self.kind]
            return float_literal(value, self.element)
        bits = int(self.element[1:])
        if self.kind == "add":
            return "0"
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if self.sign == "s" else (0, (1 << bits) - 1)
        return str(low if self.kind == "max" else high)

    def prepare(self, value: str) -> list[str]:
        if self.kind == "add" or self.integers:
            return [value]
        # All bits are set in NaN lanes: a bitwise or with these bits makes any number NaN.
        e = self.emitter
        nan = e.let(f"fcmp uno {self.type} {value}, {value}")
        flags = vector(self.lanes, "i1")
        return [value, e.let(f"sext {flags} {nan} to {self.bits}")]

    def combine(self, result: str, values: list[str], factors: list[str]) -> str:
        e, value = self.emitter, values[0]
        if self.kind == "add":
            return e.let(f"{'add' if self.integers else 'fadd'} {self.type} {result}, {value}")
        condition = f"icmp {self.sign}" if self.integers else "fcmp o"
        better = e.let(f"{condition}{'gt' if self.kind == 'max' else 'lt'} {self.type} {value}, {result}")
        best = self._select(better, value, result)
        if self.integers:
            return best
        pattern = e.let(f"or {self.bits} {e.let(f'bitcast {self.type} {best} to {self.bits}')}, {values[1]}")
        return e.let(f"bitcast {self.bits} {pattern} to {self.type}")

    def merge(self, first: str, second: str) -> str:
        return self.combine(first, self.prepare(second), [])

    def _select(self, condition: str, then: str, otherwise: str) -> str:
        flags = vector(self.lanes, "i1")
        return self.emitter.let(f"select {flags} {condition}, {self.type} {then}, {self.type} {otherwise}")
