"""Convolutions and pooling of images: kernels, layouts of operands, and epilogues."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from sardonyx.compiler.analysis.patterns import Convolution
from sardonyx.compiler.analysis.primitive_traits import dtype_of
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.codegen import load_store, requantize
from sardonyx.compiler.codegen.element_reader import Element
from sardonyx.compiler.codegen.kernel_builder import Epilogue, Index
from sardonyx.compiler.codegen.loop_nest import bound_at, masked, stored
from sardonyx.compiler.codegen.position_arithmetic import ORIGIN
from sardonyx.compiler.kernels.conv import matrix, winograd
from sardonyx.compiler.kernels.conv.blocked_pooling import pooling
from sardonyx.compiler.kernels.conv.convolution import convolution
from sardonyx.compiler.kernels.conv.depthwise_bytes import depthwise_bytes
from sardonyx.compiler.kernels.conv.grouped import depthwise
from sardonyx.compiler.kernels.conv.nchw import planar
from sardonyx.compiler.kernels.conv.nchw_pooling import planar_pooling
from sardonyx.compiler.kernels.conv.row_stores import store_rows
from sardonyx.compiler.kernels.conv.runtime_packing import pack, packed_size
from sardonyx.compiler.kernels.conv.window_sweep import Image
from sardonyx.compiler.kernels.conv.winograd_weights import WeightTransform
from sardonyx.compiler.lower.context import KernelWriter
from sardonyx.compiler.lower.extremes import Extremes
from sardonyx.compiler.lower.launch import Prepared, Scratch, Stage
from sardonyx.compiler.lower.weight_packing import (
    DepthwiseBytePacking,
    DepthwisePacking,
    FilterPacking,
    MatrixUnitPacking,
    PlanarPacking,
    WinogradPacking,
)
from sardonyx.compiler.schedule.convolution_choice import fixed, wide_axes
from sardonyx.compiler.tiling import winograd as tiles
from sardonyx.compiler.tiling.choice import Choice
from sardonyx.compiler.tiling.convolution import ConvolutionProblem, ConvolutionSchedule, matrix_plan
from sardonyx.compiler.tiling.convolution_tiles import Tile
from sardonyx.compiler.tiling.matrix_convolution import MatrixConvolution
from sardonyx.compiler.tiling.pooling import PoolingProblem, PoolingSchedule
from sardonyx.compiler.tiling.windows import Windows
from sardonyx.core.dim import Size
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.errors import UnsupportedError

_ROW_DTYPES = frozenset({t.FLOAT, t.INT32, t.UINT8, t.INT8})
"""The element types of results that are transposed for NCHW."""


def _windows(conv: Convolution) -> Windows:
    """Return the windows of a convolution along its wide axes."""
    params, sizes = conv.core.params, fixed(shape_of(conv.weights)[3:])
    margins = conv.margins or ((0, 0),) * len(sizes)
    low = tuple(low + margin for (low, _), (margin, _) in zip(params["padding"], margins, strict=True))
    parameters = sizes, params["strides"], low, params["kernel_dilation"], params["base_dilation"]
    return Windows.of(*(tuple(parameter[axis] for axis in wide_axes(conv)) for parameter in parameters))


def _lines(conv: Convolution) -> MatrixConvolution:
    """Return the geometry of a convolution on the matrix unit."""
    shape, out = shape_of(conv.image), shape_of(conv.result)
    channels, filters = fixed((shape[1], out[1]))
    wide = wide_axes(conv)
    out_sizes, sizes = (fixed([sizes[2 + axis] for axis in wide]) for sizes in (out, shape))
    return matrix_plan(channels, filters, out_sizes, _windows(conv), sizes)


def _lines_stage(conv: Convolution, plan: MatrixConvolution) -> Stage:
    """Return the memory of the lines of a convolution on the matrix unit."""
    return Stage(conv.image, plan.bytes(shape_of(conv.image)[0]))


def pooling_windows(value: Value) -> Windows:
    """Return the windows of a ``reduce_window``."""
    params = value.params
    return Windows.of(
        params["window"], params["strides"], tuple(low for low, _ in params["padding"]), params["dilation"]
    )


def describe_pooling(value: Value, blocked: bool, bits: int) -> PoolingProblem:
    """Return the problem of a ``reduce_window``.

    Args:
        value: The ``reduce_window``.
        blocked: True for a blocked image, False for NCHW.
        bits: Bits of an element in a register.

    Raises:
        UnsupportedError: No kernel computes the pooling.
    """
    kind, rank = value.params["kind"], len(value.params["window"])
    if kind not in ("add", "max", "min"):
        raise UnsupportedError(f"no kernel for reduce_window of kind {kind!r}; expected 'add', 'max' or 'min'.")
    if not 1 <= rank <= 3 or not all(isinstance(size, int) for size in value.params["window"]):
        raise UnsupportedError(
            f"no kernel for reduce_window with window {value.params['window']}; expected 1 to 3 axes of constant size."
        )
    return PoolingProblem(pooling_windows(value), shape_of(value)[len(shape_of(value)) - rank :], bits, blocked)


class ImageKernel:
    """A convolution or a pooling while the kernel is emitted.

    Args:
        writer: The kernel.
    """

    def __init__(self, writer: KernelWriter) -> None:
        self.context = writer.context
        self.writer = writer
        self.target = writer.context.target
        self.extremes: Extremes | None = None

    def convolve(self, conv: Convolution, choice: Choice[ConvolutionSchedule]) -> tuple[Size, str]:
        """Emit a convolution; return the work items and the name of the kernel."""
        w, kernel, schedule = self.writer, self.writer.kernel, choice.schedule
        w.choice = choice
        kernel.emitter.flushes_bfloat16 = schedule.tile is not None and schedule.tile.bfloat16
        w.prepare_numbers()
        self.extremes = Extremes(w, w.group.root) if w.group.root in self.context.reduced else None
        params = conv.core.params
        shape, out = shape_of(conv.image), shape_of(conv.result)
        channels, filters = shape[1], out[1]
        assert isinstance(channels, int)
        assert isinstance(filters, int)
        has_words = schedule.tile is not None and schedule.tile.dot_width > 1
        dtype = dtype_of(conv.image) if params["dtype"] == t.INT32 or has_words else t.FLOAT
        reads_image = not schedule.staged or (schedule.algorithm == "winograd" and dtype == t.FLOAT)
        pointer = w.pointer(self.context.image(conv.image, schedule.blocked, dtype)) if reads_image else ""
        wide = wide_axes(conv)
        image = Image(pointer, channels, tuple(shape[2 + axis] for axis in wide), schedule.blocked, dtype)
        windows = _windows(conv)
        out_sizes = tuple(out[2 + axis] for axis in wide)
        epilogue = self._epilogue(conv.result, wide)
        form = f"{conv.weights.type} {schedule.packed_layout} {self.target.name}"
        assert isinstance(choice.problem, ConvolutionProblem)
        if schedule.algorithm == "depthwise" and choice.problem.dot_width > 1:
            stride = windows.strides[-1]
            bytes_packing = DepthwiseBytePacking(conv.weights, self.target, windows.sizes, stride, conv.shift, dtype)
            key = f"{form} {windows.sizes} words of {dtype} less {conv.shift} by {stride}"
            weights = Prepared(conv.weights, key, bytes_packing)
            items = depthwise_bytes(
                kernel, x=image, weights=w.pointer(weights), batch=shape[0], windows=windows, out=out_sizes,
                outputs=schedule.outputs, shift=conv.shift, epilogue=epilogue,
            )  # fmt: skip
        elif schedule.algorithm == "depthwise":
            packing = DepthwisePacking(conv.weights, self.target, windows.sizes, conv.shift)
            moves = conv.shift == 0
            weights = Prepared(conv.weights, f"{form} {windows.sizes} less {conv.shift}", packing, moves)
            items = depthwise(
                kernel,
                x=image,
                weights=w.pointer(weights),
                batch=shape[0],
                windows=windows,
                out=out_sizes,
                outputs=schedule.outputs,
                shift=conv.shift,
                epilogue=self._epilogue(conv.result, wide, result_type=t.FLOAT if t.is_integer(dtype) else None),
            )
        elif schedule.algorithm == "planar":
            weights = Prepared(conv.weights, form, PlanarPacking(conv.weights), moves=True)
            items = planar(
                kernel, x=image, weights=w.pointer(weights), filters=filters, batch=shape[0], windows=windows,
                out=out_sizes, outputs=schedule.outputs, epilogue=self._epilogue(conv.result, wide, planar=True),
            )  # fmt: skip
        elif schedule.algorithm == "matrix":
            plan = _lines(conv)
            weights = Prepared(conv.weights, form, MatrixUnitPacking(conv.weights, plan))
            lines = w.pointer(_lines_stage(conv, plan))
            items = matrix.multiply(kernel, plan, lines, w.pointer(weights), shape[0], len(wide), epilogue)
        elif schedule.algorithm == "winograd":
            items = self._winograd(conv, schedule, image, form, self._epilogue(conv.result))
        else:
            tile = schedule.tile
            assert tile is not None
            packed = self._packed(conv, tile) if schedule.runtime_packing else Prepared(
                conv.weights, f"{form} {windows.sizes}", FilterPacking(conv.weights, tile, windows.sizes),
                tile.dot_width == 1,
            )  # fmt: skip
            items = convolution(
                kernel, x=image, weights=w.pointer(packed), batch=shape[0], windows=windows, out=out_sizes, tile=tile,
                outputs=schedule.outputs, epilogue=epilogue,
            )  # fmt: skip
        if self.extremes is not None:
            self.extremes.store(items)
        return items, schedule.title

    def _packed(self, conv: Convolution, tile: Tile) -> Stage:
        """Return the memory for weights packed by a kernel in the same call."""
        return Stage(conv.weights, 4 * packed_size(tile, math.prod(fixed(shape_of(conv.weights)[3:]))))

    def pack(self, conv: Convolution, schedule: ConvolutionSchedule) -> Size:
        """Emit the kernel that packs weights in the call; return the work items."""
        w, reader = self.writer, self.writer.reader
        e = w.kernel.emitter
        if schedule.algorithm == "winograd":
            return self._prepare_winograd(conv, schedule)
        tile, window = schedule.tile, fixed(shape_of(conv.weights)[3:])
        assert tile is not None

        def weight(filter: str | int, channel: str | int, tap: str | int) -> str:
            produced = tile.filters // tile.groups
            position = [Index(e.div(filter, produced)), Index(e.rem(filter, produced)), Index(channel)]
            for i, size in enumerate(window):
                position.append(Index(e.rem(e.div(tap, math.prod(window[i + 1 :])), size)))
            element = reader.element(conv.weights, tuple(position))
            return reader.converted(dtype_of(conv.weights), t.FLOAT, element.name, element.uniform)

        packed = w.pointer(self._packed(conv, tile))
        return pack(w.kernel, tile, weight=weight, packed=packed, taps=math.prod(window))

    def _winograd(
        self, conv: Convolution, schedule: ConvolutionSchedule, image: Image, form: str, epilogue: Epilogue
    ) -> Size:
        w, plan = self.writer, self.plan(conv, schedule)
        transform = WinogradPacking(conv.weights, schedule.winograd_tile, self.target, schedule.fresh)
        kernel = None
        if not schedule.fresh and dtype_of(conv.weights) == t.FLOAT:
            filters, channels = fixed(shape_of(conv.weights)[1:3])
            kernel = WeightTransform(schedule.winograd_tile, filters, channels)
        weights: Stage | Prepared = Prepared(conv.weights, form, transform, schedule.fresh, kernel)
        if schedule.runtime_packing:
            weights = Stage(conv.weights, plan.weight_bytes)
        if not schedule.staged:
            scratch = w.pointer(Scratch(plan.scratch))
            return winograd.convolve(w.kernel, plan, image, w.pointer(weights), scratch, epilogue)
        transformed = w.pointer(Stage(conv.image, plan.transformed))
        scratch = w.pointer(Scratch(plan.scratch))
        return winograd.multiply(w.kernel, plan, image, transformed, w.pointer(weights), scratch, epilogue)

    def _prepare_winograd(self, conv: Convolution, schedule: ConvolutionSchedule) -> Size:
        """Emit the kernel that transforms or packs weights in the call; return the work items."""
        w, reader, plan = self.writer, self.writer.reader, self.plan(conv, schedule)

        def weights(filters: Index, channel: str | int, row: int, column: int, mask: str) -> str:
            with masked(reader, mask):
                position = (Index(0), filters, Index(channel), Index(row), Index(column))
                element = reader.element(conv.weights, position)
                name = reader.converted(dtype_of(conv.weights), t.FLOAT, element.name, element.uniform)
                return reader.spread(Element(name, element.uniform), conv.weights)

        prepared = w.pointer(Stage(conv.weights, plan.weight_bytes))
        return winograd.prepare_weights(w.kernel, plan, weights, prepared)

    def plan(self, conv: Convolution, schedule: ConvolutionSchedule) -> tiles.Winograd:
        """Return the tiling of a Winograd convolution."""
        shape, out = shape_of(conv.image), shape_of(conv.result)
        low = conv.core.params["padding"]
        channels, filters = fixed((shape[1], out[1]))
        return tiles.Winograd(
            self.target, schedule.winograd_tile, shape[0], channels, filters, (out[2], out[3]), (low[0][0], low[1][0]),
            self.context.threads, schedule.staged, schedule.fresh, conv.core.params["dtype"] == t.INT32,
        )  # fmt: skip

    def transform(self, conv: Convolution, schedule: ConvolutionSchedule) -> Size:
        """Emit the first stage of a convolution, a transform of inputs or a copy to lines; return the work items."""
        w = self.writer
        shape = shape_of(conv.image)
        if schedule.algorithm == "matrix":
            geometry = _lines(conv)
            source = w.pointer(self.context.image(conv.image, schedule.blocked, dtype_of(conv.image)))
            x = Image(source, geometry.channels, geometry.image, schedule.blocked, dtype_of(conv.image))
            lines = w.pointer(_lines_stage(conv, geometry))
            return matrix.interleave(w.kernel, geometry, x, lines, shape[0], filling=conv.filling, flips=conv.flips)
        plan = self.plan(conv, schedule)
        image = Image(w.pointer(self.context.image(conv.image, True, t.FLOAT)), plan.channels, shape[2:], True)
        return winograd.transform(w.kernel, plan, image, w.pointer(Stage(conv.image, plan.transformed)))

    def _epilogue(
        self,
        result: Value,
        wide: Sequence[int] | None = None,
        *,
        planar: bool = False,
        result_type: t.DType | None = None,
    ) -> Epilogue:
        """Return the epilogue of a kernel of blocks of channels, at positions along the ``wide`` axes.

        Args:
            result: The image computed by the kernel.
            wide: The axes; None for all.
            planar: True if the vectors of the kernel are positions along the last of the axes.
            result_type: Element type of the vectors if different from the type of ``result``; holds all values exactly.
        """
        w, reader = self.writer, self.writer.reader
        root = w.group.root
        memory = w.located(root)
        channels = shape_of(result)[1]
        lanes = reader.lanes
        dtype = dtype_of(result)
        bound_values = [result] if result_type in (None, dtype) else [
            member for member in w.group.members
            if member.op == "convert" and member.operands[0] is result and dtype_of(member) == result_type
        ]  # fmt: skip
        packs = requantize.packs(self.target) and memory.block
        codes = requantize.codes(root, w.group.members, w.computes) if packs else None
        is_row_major = (
            not planar and not memory.block and memory.dtype in _ROW_DTYPES and shape_of(root) == shape_of(result)
        )

        def epilogue(at: tuple[Index, ...], vector: str, mask: str | None) -> None:
            batch, channel, *along = at
            spatial = list(along)
            if wide is not None:
                spatial = [ORIGIN] * (len(shape_of(result)) - 2)
                for axis, index in zip(wide, along, strict=True):
                    spatial[axis] = index
            position = (batch, channel if planar else Index(channel.base, 1, lanes), *spatial)
            e = w.kernel.emitter
            remaining: str | int = lanes
            if not planar and mask is None and not (isinstance(channels, int) and channels % lanes == 0):
                remaining = e.most(e.least(e.sub(w.kernel.size(channels), channel.base), lanes), 0)
                mask = e.lanes_below(remaining, lanes)
            with masked(reader, mask):
                for value in bound_values:
                    reader.bind(value, bound_at(value, position, Element(vector, False)))
                if result not in bound_values:
                    number = reader.converted(result_type or dtype, dtype, vector, False)
                    reader.bind(result, bound_at(result, position, Element(number, False)))
                if is_row_major and w.kernel.neighbours is not None:
                    element, offset = load_store.memory_type(memory.dtype), reader.offset(memory, position)
                    number = reader.spread(reader.element(root, position), root)
                    w.kernel.neighbours.wait(
                        e.address(memory.pointer, element, offset.base),
                        load_store.to_memory(e, memory.dtype, number, lanes),
                        lanes,
                        functools.partial(store_rows, e, lanes, element, offset.lane, remaining),
                    )
                    if self.extremes is not None:
                        self.extremes.add(position, mask)
                    return
                if codes is None or w.kernel.neighbours is None:
                    stored(reader, root, memory, position)
                    if self.extremes is not None:
                        self.extremes.add(position, mask)
                    return
                # The channels, and so factors and mask, are those of all neighbours.
                factors = [reader.floats(factor, position) for factor in codes.factors]
                address = e.address(memory.pointer, f"i{8 * codes.bytes}", reader.offset(memory, position).base)
                store = functools.partial(codes.round_and_store, e, lanes, factors, mask)
                w.kernel.neighbours.wait(
                    address, reader.floats(codes.dividend, position).name, requantize.PACKED, store
                )  # fmt: skip

        return epilogue

    def pool(self, value: Value, choice: Choice[PoolingSchedule]) -> Size:
        """Emit a pooling; return the work items."""
        w, params, source = self.writer, value.params, value.operands[0]
        w.choice = choice
        rank = len(params["window"])
        shape, out = shape_of(source), shape_of(value)
        leading = len(shape) - rank
        windows = pooling_windows(value)
        dtype, blocked = dtype_of(source), source in self.context.blocks
        pointer, sizes, out_sizes = w.pointer(source), shape[leading:], out[leading:]
        if not blocked:
            return planar_pooling(
                w.kernel, params["kind"], x=Image(pointer, 1, sizes, False, dtype), batch=math.prod(shape[:leading]),
                windows=windows, out=out_sizes, epilogue=self._planar_epilogue(value, leading),
                schedule=choice.schedule,
            )  # fmt: skip
        channels = shape[1]
        assert isinstance(channels, int)
        element = {"float": "float", "double": "double"}.get(str(dtype.name).lower(), f"i{dtype.bitwidth}")
        return pooling(
            w.kernel, params["kind"], x=Image(pointer, channels, sizes), batch=shape[0], windows=windows, out=out_sizes,
            epilogue=self._epilogue(value), schedule=choice.schedule, element=element, signed=t.kind(dtype) != "uint",
        )  # fmt: skip

    def _planar_epilogue(self, value: Value, leading: int) -> Epilogue:
        """Return the epilogue of a kernel whose vectors run along the last axis, with all leading axes merged."""
        w, reader = self.writer, self.writer.reader
        root = w.group.root
        memory = w.located(root)
        shape = shape_of(value)

        def epilogue(at: tuple[Index, ...], vector: str, mask: str | None) -> None:
            number, _, *spatial = at
            batch: list[Index] = []
            for size in reversed(shape[1:leading]):
                number, inner = reader.split(number, w.kernel.size(size))
                batch.insert(0, inner)
            position = (*([number] if leading else []), *batch, *spatial)
            with masked(reader, mask):
                reader.bind(value, bound_at(value, position, Element(vector, reader.lanes == 1)))
                stored(reader, root, memory, position)

        return epilogue
