"""The schedule of a convolution: algorithm, layout of the image, register tile.

:func:`choose_convolution` chooses once. Layout assignment, packing, the kernel and ``explain`` read the chosen
:class:`ConvolutionSchedule`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling import costs, winograd
from sardonyx.compiler.tiling.choice import Candidate, Choice, apply_override, require, take_fields
from sardonyx.compiler.tiling.convolution_tiles import (
    MOST_ADVANCE,
    Tile,
    choose_tile,
    grouped_outputs,
    planar_vectors,
    tile_costs,
)
from sardonyx.compiler.tiling.matrix_convolution import PLANES, MatrixConvolution
from sardonyx.compiler.tiling.toom_cook import LARGEST
from sardonyx.compiler.tiling.windows import Windows, block_count
from sardonyx.core.dim import Dim, Size
from sardonyx.core.ir.types import BFLOAT16, FLOAT, UINT8, DType, is_integer
from sardonyx.errors import ShapeError

Algorithm = Literal["direct", "planar", "depthwise", "winograd", "matrix"]


@dataclass(frozen=True)
class ConvolutionProblem:
    """A convolution of images.

    Attributes:
        batch: Images.
        channels: Input channels of all groups.
        filters: Output channels of all groups.
        groups: Groups of channels.
        window: Taps along the spatial axes.
        strides: Input elements from output to output.
        dilations: Input elements from tap to tap.
        base_dilations: Distance of the input's elements, with zeros between.
        out: Spatial sizes of the output.
        dtype: The element type of the image.
        axis: The spatial axis whose outputs are neighbours of a tile: the last one along which a window moves.
        threads: Threads that share the work.
        constant_weights: True if the weights are known when the program is compiled.
        ends: True if no other convolution and no pooling reads the result.
        dot_width: Adjacent channels that a lane multiplies and adds in one instruction.
        exact: The most results along an axis of a tile of Winograd's algorithm that is exact for the weights, and an
            image of 8-bit integers or their differences; 0 if none is.
        symbols: Symbols of open sizes with the values that costs assume; the others count as an image's size.
    """

    batch: Size
    channels: int
    filters: int
    groups: int
    window: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    base_dilations: tuple[int, ...]
    out: tuple[Size, ...]
    dtype: DType
    axis: int
    threads: int
    constant_weights: bool = True
    ends: bool = False
    dot_width: int = 1
    exact: int = 0
    symbols: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        sizes = "x".join(f"({size})" if isinstance(size, Dim) else str(size) for size in self.out)
        parts = [
            f"convolution {self.channels}->{self.filters} window {_times(self.window)} out {sizes} axis {self.axis}",
            f"batch {self.batch} {self.dtype.name.lower()} threads {self.threads}",
        ]
        for name, value in (
            ("strides", self.strides), ("dilations", self.dilations), ("base dilations", self.base_dilations),
        ):  # fmt: skip
            if set(value) != {1}:
                parts.append(f"{name} {_times(value)}")
        parts += [f"groups {self.groups}"] if self.groups > 1 else []
        parts += [] if self.constant_weights else ["run-time weights"]
        parts += ["last"] if self.ends else []
        parts += [f"dot width {self.dot_width}"] if self.dot_width > 1 else []
        parts += [f"exact tiles of {self.exact}"] if self.exact else []
        parts += [f"{symbol}={value}" for symbol, value in self.symbols]
        return " ".join(parts)

    @property
    def width(self) -> Size:
        """Outputs of a row."""
        return self.out[self.axis]

    @property
    def has_pairs(self) -> bool:
        """True if a lane multiplies pairs of bfloat16."""
        return self.dtype == BFLOAT16 and self.dot_width == 2

    @property
    def direct_cost(self) -> float:
        """Cost of the direct form in scalar FMAs of a thread."""
        return self.fmas * (costs.BFLOAT16_PAIR_FMAS / 2 if self.has_pairs else 1)

    @property
    def fmas(self) -> float:
        """Scalar FMAs of a thread, computed directly; open sizes count as those in the middle of a network."""
        batch = self.batch if isinstance(self.batch, int) else 1
        return batch * self.channels * self.filters * math.prod(self.window) * math.prod(self._typical) / self.threads

    @property
    def _typical(self) -> tuple[int, ...]:
        symbols = dict(self.symbols)
        return tuple(size if isinstance(size, int) else _typical_size(size, symbols) for size in self.out)

    @property
    def largest_winograd_error(self) -> float:
        """The largest error bound of a Winograd convolution."""
        return costs.WINOGRAD_MAX_ERROR if self.constant_weights else costs.WINOGRAD_MAX_COMPUTED_ERROR

    @property
    def winograd_sizes(self) -> dict[str, Any]:
        """The arguments of Winograd's cost."""
        rows, columns = self._typical
        batch = self.batch if isinstance(self.batch, int) else 1
        return {"batch": batch, "channels": self.channels, "filters": self.filters, "out": (rows, columns)}


def typical_symbols(sizes: Iterable[Size]) -> dict[str, int]:
    """Return values of symbols for which sizes of inputs, such as ``32*h``, are at most those of a typical image.

    Symbols that may be the size of a typical image are left out.
    """
    symbols: dict[str, int] = {}
    for size in sizes:
        if isinstance(size, Dim) and len(size.symbols()) == 1:
            (symbol,) = size.symbols()
            symbols[symbol] = min(symbols.get(symbol, costs.TYPICAL_IMAGE), _symbol_of_image(size, symbol))
    return {symbol: value for symbol, value in symbols.items() if value != costs.TYPICAL_IMAGE}


def _symbol_of_image(size: Dim, symbol: str) -> int:
    for value in range(costs.TYPICAL_IMAGE, 1, -1):
        try:
            if size.evaluate({symbol: value}) <= costs.TYPICAL_IMAGE:
                return value
        except ShapeError:  # No input has this size.
            continue
    return 1


def _typical_size(size: Dim, symbols: Mapping[str, int]) -> int:
    """Return the rows or columns that costs assume for an open size: an image's, at most a typical one."""
    try:
        of_image = size.evaluate({symbol: symbols.get(symbol, costs.TYPICAL_IMAGE) for symbol in size.symbols()})
    except ShapeError:  # No image of this size exists.
        return costs.TYPICAL_SIZE
    return min(max(of_image, 1), costs.TYPICAL_SIZE)


def _times(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


_TILE_FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "lanes": int, "blocks": int, "outputs": int, "inner": int, "blocked": bool, "filters": int, "channels": int,
    "groups": int, "form": str, "dot_width": int, "saturates": bool, "bfloat16": bool,
}  # fmt: skip


@dataclass(frozen=True)
class ConvolutionSchedule:
    """Algorithm, layout and tile of the kernel of a convolution.

    Attributes:
        algorithm: ``direct``, ``planar``, ``depthwise``, ``winograd``, or ``matrix``: tiles of the matrix unit.
        blocked: True for a blocked image, False for NCHW.
        tile: The register tile of a direct convolution.
        outputs: Outputs of a register tile of the planar form (a multiple of the lanes), the depthwise form and the
            grouped form; 0 for the others.
        winograd_tile: Rows and columns of a tile's results of Winograd's convolution.
        staged: True if a separate kernel transforms the inputs of Winograd's convolution, or copies the image to lines.
        fresh: True if kernels transform the weights of Winograd's convolution during the call.
        runtime_packing: True if a kernel packs computed weights.
    """

    algorithm: Algorithm
    blocked: bool
    tile: Tile | None = None
    outputs: int = 0
    winograd_tile: tuple[int, int] = (1, 1)
    staged: bool = False
    fresh: bool = False
    runtime_packing: bool = False

    @property
    def title(self) -> str:
        """Name of the kernel."""
        if self.algorithm == "winograd":
            return f"winograd F({_times(self.winograd_tile)})"
        return f"{self.algorithm} convolution"

    @property
    def packed_layout(self) -> str:
        """The order of packed weights, as text: a key, with the weights' type and the target."""
        if self.algorithm == "winograd":
            return f"winograd weights {'as they are' if self.fresh else f'for {self.winograd_tile}'}"
        if self.algorithm == "matrix":
            return "panels of the matrix unit"
        return f"{self.algorithm} {None if self.tile is None else replace(self.tile, outputs=0)}"

    def __str__(self) -> str:
        layout = "blocked" if self.blocked else "NCHW"
        if self.algorithm == "winograd":
            extras = [name for name, on in (("staged", self.staged), ("fresh weights", self.fresh)) if on]
            return ", ".join([self.title, layout, *extras])
        parts = [self.algorithm, layout]
        if self.tile is not None:
            tile = self.tile
            parts = [
                f"{tile.form} tile of {tile.outputs} outputs x {tile.blocks} blocks x {tile.lanes}", layout,
                f"{tile.inner} channels a step",
            ]  # fmt: skip
            parts += [f"dot width {tile.dot_width}"] if tile.dot_width > 1 else []
        parts += [f"{self.outputs} outputs"] if self.outputs else []
        parts += ["packed at run time"] if self.runtime_packing else []
        return ", ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the schedule as plain data."""
        tile = None
        if self.tile is not None:
            tile = asdict(self.tile)
        return {
            "kind": "convolution", "algorithm": self.algorithm, "blocked": self.blocked, "tile": tile,
            "outputs": self.outputs, "winograd_tile": list(self.winograd_tile), "staged": self.staged,
            "fresh": self.fresh, "runtime_packing": self.runtime_packing,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ConvolutionSchedule:
        """Return the schedule of :meth:`to_dict`.

        Raises:
            OptionError: A field is missing, unknown or of another type.
        """
        f = take_fields("convolution", data, {
            "algorithm": str, "blocked": bool, "tile": (dict, type(None)), "outputs": int, "winograd_tile": list,
            "staged": bool, "fresh": bool, "runtime_packing": bool,
        })  # fmt: skip
        require(f["algorithm"] in get_args(Algorithm), f"unknown algorithm {f['algorithm']!r}.")
        tile = None
        if f["tile"] is not None:
            fields = take_fields("tile", {"kind": "tile", **f["tile"]}, _TILE_FIELDS)
            tile = Tile(**fields)
        results = f["winograd_tile"]
        require(len(results) == 2 and all(type(size) is int for size in results), "winograd_tile takes two numbers.")
        f |= {"tile": tile, "winograd_tile": (results[0], results[1])}
        return cls(**f)

    def validate(self, problem: ConvolutionProblem, target: Target) -> None:
        """Refuse a schedule that is impossible for the problem.

        Raises:
            OptionError: A field has a value that is impossible for the problem on the target.
        """
        lanes = target.lanes(32)
        runtime = not problem.constant_weights
        require(self.runtime_packing == runtime, f"runtime_packing is {runtime} for this problem.")
        takes = self.algorithm in ("direct", "winograd")
        require(takes or not runtime, "computed weights take the direct algorithm or Winograd's.")
        require((self.tile is not None) == (self.algorithm == "direct"), "a tile belongs to the direct algorithm.")
        if self.algorithm == "depthwise":
            require(is_depthwise(problem), "depthwise takes as many groups as channels and filters.")
        elif self.algorithm == "matrix":
            reason = refuse_matrix(problem, target)
            require(reason is None, f"matrix: {reason}.")
            require(self.staged, "matrix copies the image to lines: staged is true.")
        elif is_integer(problem.dtype) and self.algorithm != "winograd":
            require(self.algorithm == "direct" and not is_depthwise(problem), "integers have no other algorithm.")
        if self.algorithm == "matrix":
            blocked = problem.channels > PLANES
            require(self.blocked == blocked, f"matrix takes blocked {blocked} of {problem.channels} channels.")
        elif self.algorithm in ("depthwise", "winograd") or is_integer(problem.dtype):
            require(self.blocked, f"{self.algorithm} takes a blocked image.")
        if self.algorithm == "planar":
            reason = refuse_planar(problem, target)
            require(reason is None, f"planar: {reason}.")
            vectors, rest = divmod(self.outputs, lanes)
            require(rest == 0 and 1 <= vectors <= 16, f"expected outputs to be 1 to 16 times {lanes}.")
            require(not self.blocked, "planar takes an image that is not blocked.")
        if self.algorithm == "winograd":
            require(is_winograd(problem), "winograd takes 3x3, 1x3 or 3x1 windows of stride 1 and one group.")
            integer = is_integer(problem.dtype)
            require(not integer or _is_integer_winograd(problem, target), "winograd is not exact for these integers.")
            if integer:
                known = winograd.integer_tiles(problem.window, problem.exact)
                require(self.winograd_tile in known, f"expected a winograd_tile of {known}.")
            rows, columns = (range(2, LARGEST + 1) if taps > 1 else range(1, 2) for taps in problem.window)
            fits = self.winograd_tile[0] in rows and self.winograd_tile[1] in columns
            require(fits, f"expected a winograd_tile in {rows.start}..{LARGEST}, or 1 along an axis of one tap.")
            require(not integer or not (self.staged or self.fresh), "integers are transformed in one kernel.")
            error = 0.0 if integer else winograd.error_bound(self.winograd_tile, problem.channels)
            allowed = problem.largest_winograd_error
            require(
                error <= allowed, f"the error bound of {self.title} is {error:.1e}, expected at most {allowed:.1e}."
            )
        else:
            require(self.algorithm == "matrix" or not self.staged, "staged belongs to winograd and matrix.")
            require(not self.fresh, "fresh belongs to winograd.")
        if self.tile is not None:
            _validate_tile(self.tile, problem, target, self.blocked)
        needs = self.algorithm in ("planar", "depthwise") or (self.tile is not None and self.tile.form == "grouped")
        require(1 <= self.outputs <= 512 if needs else self.outputs == 0, f"outputs is invalid: {self.outputs}.")


def _validate_tile(tile: Tile, problem: ConvolutionProblem, target: Target, blocked: bool) -> None:
    fixed = choose_tile(
        target, channels=problem.channels, filters=problem.filters, groups=problem.groups, blocked=blocked,
        width=problem.width, taps=math.prod(problem.window), dot_width=problem.dot_width, bfloat16=problem.has_pairs,
    )  # fmt: skip
    for name in ("lanes", "blocked", "filters", "channels", "groups", "dot_width", "saturates", "bfloat16"):
        value, expected = getattr(tile, name), getattr(fixed, name)
        require(value == expected, f"the tile's {name} is {expected} for this problem on {target.name}, got {value}.")
    most = block_count(tile.filters, tile.lanes)
    require(1 <= tile.blocks <= min(most, 8), f"expected 1 to {min(most, 8)} blocks, got {tile.blocks}.")
    require(1 <= tile.outputs <= 64, f"expected 1 to 64 outputs, got {tile.outputs}.")
    if blocked:
        require(tile.inner == fixed.inner, f"the tile's inner is {fixed.inner} for a blocked image, got {tile.inner}.")
    else:
        members = max(tile.channels // tile.groups, 1)
        require(
            1 <= tile.inner <= 16 and members % tile.inner == 0,
            f"expected inner to divide {members} channels.",
        )
    members = tile.channels // tile.groups
    if tile.form == "dot":
        fits = blocked and tile.groups == 1 and tile.dot_width == 1 and tile.filters <= tile.lanes
        require(fits and tile.blocks == 1, f"dot takes a blocked image of floats and at most {tile.lanes} filters.")
    elif tile.form == "grouped":
        fits = tile.groups > 1 and members == tile.filters // tile.groups and members > 0 and tile.lanes % members == 0
        require(blocked and tile.dot_width == 1 and fits and tile.blocks == 1, "grouped takes small groups of floats.")
    else:
        require(tile.form == "direct", f"unknown form of a tile {tile.form!r}.")


def is_depthwise(problem: ConvolutionProblem) -> bool:
    """Return True if each channel is a group with one filter."""
    return problem.groups == problem.channels == problem.filters and problem.channels > 1


def is_winograd(problem: ConvolutionProblem) -> bool:
    """Return True if Winograd's algorithm computes such windows."""
    return (
        problem.groups == 1 and problem.window in ((3, 3), (1, 3), (3, 1))
        and (problem.constant_weights or problem.dtype == FLOAT)
        and set(problem.strides + problem.dilations + problem.base_dilations) == {1}
    )  # fmt: skip


def _is_integer_winograd(problem: ConvolutionProblem, target: Target) -> bool:
    """Return True if Winograd's algorithm computes a convolution of integers exactly."""
    return is_winograd(problem) and problem.exact > 0 and target.together(16) > 1


def suits_pairs(problem: ConvolutionProblem, target: Target) -> bool:
    """Return True if a direct convolution of pairs of bfloat16 is the fastest form of a convolution of bfloat16.

    Few channels would be blocks of zeros for the most part.
    """
    if not (target.multiplies_bfloat16 and target.fast_pairs) or problem.groups > 1 or not problem.constant_weights:
        return False
    if problem.channels < costs.FEWEST_PAIRED_CHANNELS:
        return False
    return _choose(replace(problem, dtype=BFLOAT16, dot_width=2), target).schedule.algorithm == "direct"


def refuse_planar(problem: ConvolutionProblem, target: Target) -> str | None:
    """Return why the planar form cannot compute a convolution; None if it can."""
    lanes, axis = target.lanes(32), problem.axis
    if problem.groups > 1:
        return "it takes one group"
    if problem.dtype != FLOAT:
        return "it takes float32"
    if problem.channels > lanes // 2 or problem.filters > lanes // 2:
        return f"it takes at most {lanes // 2} channels and filters"
    if problem.strides[axis] > MOST_ADVANCE or problem.base_dilations[axis] != 1:
        return f"it takes strides up to {MOST_ADVANCE} and inputs without dilation"
    return None


def choose_convolution(problem: ConvolutionProblem, target: Target) -> Choice[ConvolutionSchedule]:
    """Choose the schedule of a convolution.

    Raises:
        OptionError: The user's schedule for the problem is invalid.
    """
    return apply_override(_choose(problem, target), target)


@functools.lru_cache(maxsize=4096)
def _choose(problem: ConvolutionProblem, target: Target) -> Choice[ConvolutionSchedule]:
    if problem.constant_weights and is_depthwise(problem):
        outputs = grouped_outputs(target, 1, problem.window[problem.axis])
        return Choice(problem, ConvolutionSchedule("depthwise", True, outputs=outputs), "each channel is a group")
    direct, alternatives = _direct(problem, target)
    if refuse_matrix(problem, target) is None:
        return _choose_matrix(problem, direct)
    if is_integer(problem.dtype):
        if _is_integer_winograd(problem, target):
            return _choose_integer_winograd(problem, target, direct, alternatives)
        return Choice(problem, direct, "8-bit or 16-bit integers", problem.fmas, alternatives)
    if not problem.constant_weights:
        if problem.dtype == FLOAT:
            return _choose_winograd(problem, target, direct, alternatives)
        return Choice(problem, direct, "computed weights", problem.fmas, alternatives)
    refusal = refuse_planar(problem, target) or _refuse_slow_planar(problem, target)
    if refusal is None:
        lanes = target.lanes(32)
        planar = ConvolutionSchedule("planar", False, outputs=planar_vectors(target, problem.filters) * lanes)
        rejected = Candidate(direct, "at least half of each block of channels would be empty", problem.fmas)
        return Choice(problem, planar, "few channels and filters", None, (rejected,))
    return _choose_winograd(problem, target, direct, alternatives)


def refuse_matrix(problem: ConvolutionProblem, target: Target) -> str | None:
    """Return why the matrix unit cannot compute a convolution; None if it can."""
    if not target.has_tiles:
        return "the processor has no matrix unit"
    if problem.dtype != UINT8 or problem.dot_width != 4 or not problem.constant_weights:
        return "it takes images of uint8 and constant weights of int8"
    if problem.groups > 1 or set(problem.base_dilations) != {1}:
        return "it takes one group and inputs without dilation"
    if len(problem.out) > 2 or not all(isinstance(size, int) and size > 0 for size in problem.out):
        return "it takes one or two spatial axes of known size"
    return None


def matrix_plan(
    channels: int,
    filters: int,
    out: tuple[int, ...],
    windows: Windows,
    image: tuple[int, ...] = (0, 0),
) -> MatrixConvolution:
    """Return the geometry of a convolution on the matrix unit; a single spatial axis is the horizontal one."""

    def pair(values: tuple[Any, ...], missing: int) -> tuple[int, int]:
        return (missing, values[0]) if len(values) == 1 else (values[0], values[1])

    return MatrixConvolution(
        channels, filters, pair(image, 1), pair(out, 1), pair(windows.sizes, 1), pair(windows.strides, 1),
        pair(windows.dilations, 1), pair(windows.padding, 0),
    )  # fmt: skip


def _choose_matrix(problem: ConvolutionProblem, direct: ConvolutionSchedule) -> Choice[ConvolutionSchedule]:
    """Choose between the matrix unit and vectors, by estimated cycles."""
    out = tuple(size for size in problem.out if isinstance(size, int))
    windows = Windows.of(problem.window, problem.strides, None, problem.dilations)
    plan = matrix_plan(problem.channels, problem.filters, out, windows)
    matrix = ConvolutionSchedule("matrix", not plan.planes, staged=True)
    if plan.cycles < plan.vector_cycles:
        rejected = Candidate(direct, "higher estimated cost", plan.vector_cycles)
        return Choice(problem, matrix, "tiles of the matrix unit", plan.cycles, (rejected,))
    rejected = Candidate(matrix, "higher estimated cost", plan.cycles)
    return Choice(problem, direct, "few terms for tiles of the matrix unit", plan.vector_cycles, (rejected,))


def _direct(
    problem: ConvolutionProblem, target: Target
) -> tuple[ConvolutionSchedule, tuple[Candidate[ConvolutionSchedule], ...]]:
    """The direct schedule with the tile of least cost, and the others as rejected candidates."""
    blocked = problem.channels > costs.MOST_PLANES or problem.dot_width > 1 or is_integer(problem.dtype)
    compared = tile_costs(
        target, channels=problem.channels, filters=problem.filters, groups=problem.groups, blocked=blocked,
        width=problem.width, taps=math.prod(problem.window), dot_width=problem.dot_width, bfloat16=problem.has_pairs,
    )  # fmt: skip
    best = min(compared, key=compared.__getitem__)

    def schedule(tile: Tile) -> ConvolutionSchedule:
        outputs = 0
        if tile.form == "grouped":
            outputs = grouped_outputs(target, tile.channels // tile.groups, problem.window[problem.axis])
        return ConvolutionSchedule("direct", blocked, tile, outputs, runtime_packing=not problem.constant_weights)

    rejected = tuple(
        Candidate(
            schedule(tile),
            "higher estimated cost",
            problem.direct_cost * cost / compared[best] if compared[best] else None,
        )
        for tile, cost in compared.items()
        if tile != best
    )
    return schedule(best), rejected


def _refuse_slow_planar(problem: ConvolutionProblem, target: Target) -> str | None:
    """Return why the planar form would be slower than a blocked one; None if it is faster."""
    if isinstance(problem.width, int) and problem.width < target.lanes(32):
        return "rows are narrower than a vector"
    if not problem.ends and problem.channels * math.prod(problem.window) < costs.BLOCKING_FMAS:
        return "its result would be converted to blocks"
    return None


def _choose_integer_winograd(
    problem: ConvolutionProblem,
    target: Target,
    direct: ConvolutionSchedule,
    alternatives: tuple[Candidate[ConvolutionSchedule], ...],
) -> Choice[ConvolutionSchedule]:
    """Choose between the direct form of integers and Winograd's, by estimated cost."""
    compared = [
        Candidate(
            ConvolutionSchedule("winograd", True, winograd_tile=tile),
            "higher estimated cost",
            winograd.integer_cost(target, tile, **problem.winograd_sizes, workers=problem.threads),
        )
        for tile in winograd.integer_tiles(problem.window, problem.exact)
    ]
    product = costs.INTEGER_QUAD_FMAS if problem.dot_width == 4 else costs.INTEGER_PAIR_FMAS
    fmas = problem.fmas * (product if target.saturates else 1) / problem.dot_width
    compared.append(Candidate(direct, "higher estimated cost", fmas))
    best, *rejected = sorted(compared, key=lambda candidate: candidate.cost or 0)
    return Choice(problem, best.schedule, "least estimated cost", best.cost, (*rejected, *alternatives))


def _choose_winograd(
    problem: ConvolutionProblem,
    target: Target,
    direct: ConvolutionSchedule,
    alternatives: tuple[Candidate[ConvolutionSchedule], ...],
) -> Choice[ConvolutionSchedule]:
    """Choose between the direct form and Winograd's, by cost among the tiles that are exact enough."""
    lanes, fmas = target.lanes(32), problem.direct_cost
    if not is_winograd(problem) or problem.channels < lanes or 2 * problem.filters < lanes:
        return Choice(problem, direct, "least estimated cost of the direct tiles", fmas, alternatives)
    sizes = problem.winograd_sizes
    taps = (problem.window[0], problem.window[1])
    smallest = (2 if taps[0] > 1 else 1, 2 if taps[1] > 1 else 1)
    if winograd.error_bound(smallest, problem.channels) > problem.largest_winograd_error:
        return Choice(problem, direct, "no Winograd tile is exact enough", fmas, alternatives)
    compared = winograd.tile_costs(
        target, **sizes, taps=taps, workers=problem.threads, largest_error=problem.largest_winograd_error
    )

    def schedule(tile: tuple[int, int]) -> ConvolutionSchedule:
        plan = winograd.Winograd(target, tile, **sizes, workers=problem.threads)
        fresh = winograd.has_fresh_weights(target, tile, problem.channels, problem.filters)
        return ConvolutionSchedule(
            "winograd", True, winograd_tile=tile, staged=winograd.prefers_stages(plan), fresh=fresh,
            runtime_packing=not problem.constant_weights,
        )  # fmt: skip

    ordered = sorted(compared, key=compared.__getitem__)
    shown = tuple(Candidate(schedule(tile), "higher estimated cost", compared[tile]) for tile in ordered[:4])
    best = ordered[0]
    if compared[best] >= fmas:
        return Choice(problem, direct, "least estimated cost", fmas, (*shown, *alternatives))
    rejected = Candidate(direct, "higher estimated cost", fmas)
    return Choice(problem, schedule(best), "least estimated cost", compared[best], (*shown[1:], rejected))
