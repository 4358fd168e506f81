"""Convolutions and pooling of images: kernels, layouts of operands, and epilogues."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from sardonyx.compiler.analysis.patterns import Convolution
from sardonyx.compiler.analysis.primitive_traits import dtype_of
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.codegen import requantize
from sardonyx.compiler.codegen.element_reader import ORIGIN, Element
from sardonyx.compiler.codegen.kernel_builder import Epilogue, Index
from sardonyx.compiler.codegen.loop_nest import bound_at, masked, stored
from sardonyx.compiler.kernels.conv import winograd
from sardonyx.compiler.kernels.conv.blocked_pooling import pooling
from sardonyx.compiler.kernels.conv.convolution import convolution, pack_weights
from sardonyx.compiler.kernels.conv.grouped import depthwise, pack_depthwise_weights
from sardonyx.compiler.kernels.conv.nchw import pack_planar_weights, planar
from sardonyx.compiler.kernels.conv.nchw_pooling import planar_pooling
from sardonyx.compiler.kernels.conv.runtime_packing import pack, packed_size
from sardonyx.compiler.kernels.conv.window_sweep import Image
from sardonyx.compiler.llvm.vector_value import Vector
from sardonyx.compiler.lower.context import Writing
from sardonyx.compiler.lower.launch import Prepared, Scratch, Stage
from sardonyx.compiler.schedule.convolution_choice import fixed, wide_axes
from sardonyx.compiler.tiling import winograd as tiles
from sardonyx.compiler.tiling.choice import Choice
from sardonyx.compiler.tiling.convolution import ConvolutionSchedule, Tile
from sardonyx.compiler.tiling.pooling import PoolingProblem, PoolingSchedule
from sardonyx.compiler.tiling.windows import Windows
from sardonyx.core.dim import Size
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.errors import UnsupportedError


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
        raise UnsupportedError(f"reduce_window {kind} has no kernel.")
    if not 1 <= rank <= 3 or not all(isinstance(size, int) for size in value.params["window"]):
        raise UnsupportedError("reduce_window over these axes has no kernel.")
    return PoolingProblem(pooling_windows(value), shape_of(value)[len(shape_of(value)) - rank :], bits, blocked)


class ImageKernel:
    """A convolution or a pooling while its kernel is written.

    Args:
        writing: The kernel.
    """

    def __init__(self, writing: Writing) -> None:
        self.whole = writing.whole
        self.writing = writing
        self.target = writing.whole.target

    def convolve(self, found: Convolution, choice: Choice[ConvolutionSchedule]) -> tuple[Size, str]:
        """Emit a convolution; return the work items and the name of the kernel."""
        w, kernel, chosen = self.writing, self.writing.kernel, choice.schedule
        w.choice = choice
        params = found.core.params
        shape, out = shape_of(found.image), shape_of(found.result)
        channels, filters = shape[1], out[1]
        assert isinstance(channels, int)
        assert isinstance(filters, int)
        dtype = dtype_of(found.image) if params["dtype"] == t.INT32 else t.FLOAT
        pointer = "" if chosen.staged else w.pointer(self.whole.image(found.image, chosen.blocked, dtype))
        wide = wide_axes(found)
        image = Image(pointer, channels, tuple(shape[2 + axis] for axis in wide), chosen.blocked, dtype)
        sizes = fixed(shape_of(found.weights)[3:])
        windows = Windows.of(
            *(tuple(each[axis] for axis in wide) for each in (
                sizes, params["strides"], tuple(low for low, _ in params["padding"]), params["kernel_dilation"],
                params["base_dilation"],
            ))
        )  # fmt: skip
        places = tuple(out[2 + axis] for axis in wide)
        epilogue = self._epilogue(found.result, wide)
        form = f"{found.weights.type} {chosen.packed_layout} {self.target.name}"
        if chosen.algorithm == "depthwise":
            weights = Prepared(
                found.weights, form, lambda read: pack_depthwise_weights(read(found.weights), self.target)
            )
            items = depthwise(
                kernel,
                x=image,
                weights=w.pointer(weights),
                batch=shape[0],
                windows=windows,
                out=places,
                outputs=chosen.outputs,
                epilogue=self._epilogue(found.result, wide, given=t.FLOAT if t.is_integer(dtype) else None),
            )
        elif chosen.algorithm == "planar":
            weights = Prepared(found.weights, form, lambda read: pack_planar_weights(read(found.weights)))
            items = planar(
                kernel, x=image, weights=w.pointer(weights), filters=filters, batch=shape[0], windows=windows,
                out=places, outputs=chosen.outputs, epilogue=self._epilogue(found.result, wide, planar=True),
            )  # fmt: skip
        elif chosen.algorithm == "winograd":
            items = self._winograd(found, chosen, image, form, self._epilogue(found.result))
        else:
            tile = chosen.tile
            assert tile is not None
            packed = self._packed(found, tile) if chosen.runtime_packing else Prepared(
                found.weights, form, lambda read: pack_weights(read(found.weights), tile)
            )  # fmt: skip
            items = convolution(
                kernel, x=image, weights=w.pointer(packed), batch=shape[0], windows=windows, out=places, tile=tile,
                outputs=chosen.outputs, epilogue=epilogue,
            )  # fmt: skip
        return items, chosen.title

    def _packed(self, found: Convolution, tile: Tile) -> Stage:
        """Return the memory for weights that a kernel packs."""
        return Stage(found.weights, 4 * packed_size(tile, math.prod(fixed(shape_of(found.weights)[3:]))))

    def pack(self, found: Convolution, chosen: ConvolutionSchedule) -> Size:
        """Emit the kernel that packs weights; return the work items."""
        w, reader = self.writing, self.writing.reader
        e = w.kernel.emitter
        tile, window = chosen.tile, fixed(shape_of(found.weights)[3:])
        assert tile is not None

        def weight(filter: str | int, channel: str | int, tap: str | int) -> str:
            produced = tile.filters // tile.groups
            place = [Index(e.div(filter, produced)), Index(e.rem(filter, produced)), Index(channel)]
            for i, size in enumerate(window):
                place.append(Index(e.rem(e.div(tap, math.prod(window[i + 1 :])), size)))
            element = reader.element(found.weights, tuple(place))
            return reader.converted(dtype_of(found.weights), t.FLOAT, element.name, element.uniform)

        room = w.pointer(self._packed(found, tile))
        return pack(w.kernel, tile, weight=weight, packed=room, taps=math.prod(window))

    def _winograd(
        self, found: Convolution, chosen: ConvolutionSchedule, image: Image, form: str, epilogue: Epilogue
    ) -> Size:
        w = self.writing

        def transform(read: Callable[[Value], np.ndarray]) -> np.ndarray:
            source = read(found.weights)[0].astype(np.float32, copy=False)
            if chosen.fresh:
                return tiles.pack_weights(source, self.target)
            return tiles.transform_weights(source, chosen.winograd_tile, self.target)

        weights = Prepared(found.weights, form, transform)
        plan = self.plan(found, chosen)
        if not chosen.staged:
            scratch = w.pointer(Scratch(plan.scratch))
            return winograd.convolve(w.kernel, plan, image, w.pointer(weights), scratch, epilogue)
        transformed = w.pointer(Stage(found.image, plan.transformed))
        scratch = w.pointer(Scratch(plan.scratch))
        return winograd.multiply(w.kernel, plan, transformed, w.pointer(weights), scratch, epilogue)

    def plan(self, found: Convolution, chosen: ConvolutionSchedule) -> tiles.Winograd:
        """Return the tiling of Winograd's convolution."""
        shape, out = shape_of(found.image), shape_of(found.result)
        low = found.core.params["padding"]
        channels, filters = fixed((shape[1], out[1]))
        return tiles.Winograd(
            self.target, chosen.winograd_tile, shape[0], channels, filters, (out[2], out[3]), (low[0][0], low[1][0]),
            self.whole.threads, chosen.staged, chosen.fresh,
        )  # fmt: skip

    def transform(self, found: Convolution, chosen: ConvolutionSchedule) -> Size:
        """Emit the first stage of Winograd's convolution; return the work items."""
        w = self.writing
        plan = self.plan(found, chosen)
        shape = shape_of(found.image)
        image = Image(w.pointer(self.whole.image(found.image, True, t.FLOAT)), plan.channels, shape[2:], True)
        return winograd.transform(w.kernel, plan, image, w.pointer(Stage(found.image, plan.transformed)))

    def _epilogue(
        self, result: Value, wide: Sequence[int] | None = None, *, planar: bool = False, given: t.DType | None = None
    ) -> Epilogue:
        """Return the epilogue of a kernel that gives blocks of channels, at positions along the ``wide`` axes.

        ``wide`` None means all axes. With ``planar`` the kernel gives vectors of positions along the last of these
        axes. Results are ``given`` as elements of their type, or of another that holds the values exactly.
        """
        w, reader = self.writing, self.writing.reader
        root = w.group.root
        memory = w.located(root)
        channels = shape_of(result)[1]
        lanes = reader.lanes
        dtype = dtype_of(result)
        same = [result] if given in (None, dtype) else [
            each for each in w.group.members
            if each.op == "convert" and each.operands[0] is result and dtype_of(each) == given
        ]  # fmt: skip
        found = requantize.codes(root, w.group.members) if requantize.packs(self.target) and memory.block else None

        def epilogue(at: tuple[Index, ...], vector: str, mask: str | None) -> None:
            batch, channel, *along = at
            spatial = list(along)
            if wide is not None:
                spatial = [ORIGIN] * (len(shape_of(result)) - 2)
                for axis, index in zip(wide, along, strict=True):
                    spatial[axis] = index
            place = (batch, channel if planar else Index(channel.base, 1, lanes), *spatial)
            e = w.kernel.emitter
            if not planar and mask is None and not (isinstance(channels, int) and channels % lanes == 0):
                left = e.sub(w.kernel.size(channels), channel.base)
                mask = e.lanes_below(e.most(e.least(left, lanes), 0), lanes)
            with masked(reader, mask):
                for value in same:
                    reader.bind(value, bound_at(value, place, Element(vector, False)))
                if result not in same:
                    number = reader.converted(given or dtype, dtype, vector, False)
                    reader.bind(result, bound_at(result, place, Element(number, False)))
                if found is None or w.kernel.neighbours is None:
                    stored(reader, root, memory, place)
                    return
                whole = found.rounded(Vector(e, reader.vector(found.source, place), "float", lanes))
                if mask is not None:
                    # The channels that fill the last block are zeros.
                    whole = Vector(e, mask, "i1", lanes).where(whole, -found.zero)
                there = e.address(memory.pointer, "i8", reader.offset(memory, place).base)
                w.kernel.neighbours.wait(there, whole.name, requantize.PACKED, functools.partial(found.store, e))

        return epilogue

    def pool(self, value: Value, choice: Choice[PoolingSchedule]) -> Size:
        """Emit a pooling; return the work items."""
        w, params, source = self.writing, value.params, value.operands[0]
        w.choice = choice
        rank = len(params["window"])
        shape, out = shape_of(source), shape_of(value)
        leading = len(shape) - rank
        windows = pooling_windows(value)
        dtype, blocked = dtype_of(source), source in self.whole.blocks
        pointer, sizes, places = w.pointer(source), shape[leading:], out[leading:]
        if not blocked:
            return planar_pooling(
                w.kernel, params["kind"], x=Image(pointer, 1, sizes, False, dtype), batch=math.prod(shape[:leading]),
                windows=windows, out=places, epilogue=self._planar_epilogue(value, leading), schedule=choice.schedule,
            )  # fmt: skip
        channels = shape[1]
        assert isinstance(channels, int)
        element = {"float": "float", "double": "double"}.get(str(dtype.name).lower(), f"i{dtype.bitwidth}")
        return pooling(
            w.kernel, params["kind"], x=Image(pointer, channels, sizes), batch=shape[0], windows=windows, out=places,
            epilogue=self._epilogue(value), schedule=choice.schedule, element=element, signed=t.kind(dtype) != "uint",
        )  # fmt: skip

    def _planar_epilogue(self, value: Value, leading: int) -> Epilogue:
        """Return the epilogue of a kernel that gives vectors along the last axis, all leading axes as one."""
        w, reader = self.writing, self.writing.reader
        root = w.group.root
        memory = w.located(root)
        shape = shape_of(value)

        def epilogue(at: tuple[Index, ...], vector: str, mask: str | None) -> None:
            number, _, *spatial = at
            front: list[Index] = []
            for size in reversed(shape[1:leading]):
                number, inner = reader.split(number, w.kernel.size(size))
                front.insert(0, inner)
            place = (*([number] if leading else []), *front, *spatial)
            with masked(reader, mask):
                reader.bind(value, bound_at(value, place, Element(vector, reader.lanes == 1)))
                stored(reader, root, memory, place)

        return epilogue
