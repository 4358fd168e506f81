"""The schedule of a pooling: lanes, outputs of a register tile, and bands of rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling import costs
from sardonyx.compiler.tiling.choice import Choice, apply_override, require, take_fields
from sardonyx.compiler.tiling.windows import Windows
from sardonyx.core.dim import Dim, Size
from sardonyx.errors import UnsupportedError


@dataclass(frozen=True)
class PoolingProblem:
    """A reduction over windows of images.

    Attributes:
        windows: The windows, which have no base dilation.
        out: Spatial sizes of the output.
        bits: Bits of an element in a register.
        blocked: True for a blocked image, False for NCHW.
    """

    windows: Windows
    out: tuple[Size, ...]
    bits: int
    blocked: bool

    def __str__(self) -> str:
        w = self.windows
        sizes = "x".join(f"({size})" if isinstance(size, Dim) else str(size) for size in self.out)
        window, strides, dilations = ("x".join(map(str, counts)) for counts in (w.sizes, w.strides, w.dilations))
        layout = "blocked" if self.blocked else "NCHW"
        return f"pooling window {window} strides {strides} dilations {dilations} out {sizes} {self.bits} bits {layout}"


_FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "blocked": bool, "lanes": int, "outputs": int, "rows": int, "pitch": int,
}  # fmt: skip


@dataclass(frozen=True)
class PoolingSchedule:
    """Lanes, lines and work items of the kernel of a pooling.

    Attributes:
        blocked: True if lanes are channels of a block, False if neighbouring outputs of an NCHW image.
        lanes: Lanes of a vector.
        outputs: Outputs of a row that are computed at a time: of a register tile of a blocked image, or of a line of
            an NCHW image.
        rows: Rows of outputs in a work item; 1 for a blocked image.
        pitch: Elements of a line of column results of an NCHW image, with borders; 0 for a blocked image.
    """

    blocked: bool
    lanes: int
    outputs: int
    rows: int = 1
    pitch: int = 0

    def __str__(self) -> str:
        if self.blocked:
            return f"blocked, {self.lanes} lanes, tile of {self.outputs} outputs"
        return f"NCHW, {self.lanes} lanes, lines of {self.outputs} outputs, {self.rows} rows per item"

    def to_dict(self) -> dict[str, Any]:
        """Return the schedule as plain data."""
        return {
            "kind": "pooling", "blocked": self.blocked, "lanes": self.lanes, "outputs": self.outputs,
            "rows": self.rows, "pitch": self.pitch,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PoolingSchedule:
        """Return the schedule of :meth:`to_dict`.

        Raises:
            OptionError: A field is missing, unknown or of another type.
        """
        return cls(**take_fields("pooling", data, _FIELDS))

    def validate(self, problem: PoolingProblem, target: Target) -> None:
        """Refuse a schedule that is impossible for the problem.

        Raises:
            OptionError: A field has a value that is impossible for the problem on the target.
        """
        require(self.blocked == problem.blocked, f"blocked is {problem.blocked} for this problem.")
        if self.blocked:
            require(self.lanes == target.lanes(32), f"lanes is {target.lanes(32)} on {target.name}.")
            require(1 <= self.outputs <= 64, f"expected 1 to 64 outputs, got {self.outputs}.")
            require(self.rows == 1 and self.pitch == 0, "rows and pitch belong to NCHW images.")
            return
        most, lanes, width = target.lanes(problem.bits), self.lanes, problem.out[-1]
        require(lanes in [1 << bit for bit in range(most.bit_length())], f"expected a power of two up to {most} lanes.")
        require(not isinstance(width, int) or lanes <= max(width, 1), f"expected at most {width} lanes, got {lanes}.")
        whole = isinstance(width, int) and self.outputs == width
        require(whole or (self.outputs >= lanes and self.outputs % lanes == 0), "outputs is no multiple of the lanes.")
        require(self.pitch == line_pitch(problem, lanes, self.outputs), "pitch does not belong to these outputs.")
        most = 8 * costs.POOLING_LINE_ELEMENTS
        require(self.rows >= 1 and self.rows * self.pitch <= most, f"the lines have more than {most} elements.")


def planar_lanes(most: int, width: Size) -> int:
    """Return the lanes of vectors of outputs: at most the outputs of a row, if known."""
    return min(most, 1 << max(width, 1).bit_length() - 1) if isinstance(width, int) else most


def line_pitch(problem: PoolingProblem, lanes: int, outputs: int) -> int:
    """Return the elements of a line from which so many outputs are computed."""
    w = problem.windows
    return -(-(-(-outputs // lanes) * lanes * w.strides[-1] + _span(w)) // lanes) * lanes


def _span(windows: Windows) -> int:
    """Elements of a row from the first tap of a window to the last."""
    return (windows.sizes[-1] - 1) * windows.dilations[-1] + 1


def choose_pooling(problem: PoolingProblem, target: Target) -> Choice[PoolingSchedule]:
    """Choose the schedule of a pooling.

    Raises:
        UnsupportedError: The windows are too long.
        OptionError: The user's schedule for the problem is invalid.
    """
    if problem.blocked:
        # Half of the registers hold results, the others inputs.
        schedule = PoolingSchedule(True, target.lanes(32), target.vector_registers // 2)
        return apply_override(Choice(problem, schedule, "a blocked image"), target)
    windows, out = problem.windows, problem.out
    width, height = out[-1], out[-2] if len(out) > 1 else 1
    lanes = planar_lanes(target.lanes(problem.bits), width)
    fitting = (costs.POOLING_LINE_OUTPUTS - _span(windows)) // windows.strides[-1] // lanes * lanes
    outputs = max(fitting, lanes)
    if isinstance(width, int) and lanes <= width <= fitting:
        outputs = width
    pitch = line_pitch(problem, lanes, outputs)
    leading = math.prod(windows.sizes[:-1])
    if max(pitch, leading) > 8 * costs.POOLING_LINE_ELEMENTS:
        raise UnsupportedError("windows of so many elements have no kernel.")
    rows = max(1, costs.POOLING_LINE_ELEMENTS // pitch)
    if isinstance(height, int) and height:
        rows = -(-height // -(-height // rows))
    return apply_override(Choice(problem, PoolingSchedule(False, lanes, outputs, rows, pitch), "an NCHW image"), target)
