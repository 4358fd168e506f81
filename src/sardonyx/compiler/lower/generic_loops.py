"""Generic loops: contractions, convolutions and windows over any axes and types, without templates.

A vector of results at a time accumulates all operands; masks exclude lanes whose operand is outside of the image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from sardonyx.compiler.analysis.primitive_traits import EXTREMA, dtype_of
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.codegen import load_store
from sardonyx.compiler.codegen.arg_reduction import Extremum
from sardonyx.compiler.codegen.element_reader import Element, Reader
from sardonyx.compiler.codegen.elementwise import combining, identity
from sardonyx.compiler.codegen.kernel_builder import Index
from sardonyx.compiler.codegen.loop_nest import masked
from sardonyx.compiler.llvm.ir_builder import vector
from sardonyx.compiler.lower.context import KernelWriter
from sardonyx.core.dim import Size
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value

Positions = Sequence[Index]
Compute = Callable[[Positions], Element]


def generic_computation(writer: KernelWriter, value: Value) -> Compute:
    """Return the emitter of results of a ``contract``, ``convolve`` or ``reduce_window``, by position."""
    return _COMPUTATIONS[value.op](writer, value)


class _Sum:
    """A sum of products, one vector of results at a time.

    Args:
        writer: The kernel.
        value: The ``contract`` or ``convolve``.
    """

    def __init__(self, writer: KernelWriter, value: Value) -> None:
        self.reader = writer.reader
        self.value = value
        self.dtype: t.DType = value.params["dtype"]
        register = load_store.register_type(self.dtype)
        zero = load_store.constant(self.dtype, 0, self.reader.lanes)
        self.total = writer.kernel.emitter.variable(vector(self.reader.lanes, register), zero)

    def add(self, x: Positions, y: Positions) -> None:
        """Add the product of the operands at two positions, in the lanes of the reader's mask."""
        factors = [self._factor(operand, at) for operand, at in zip(self.value.operands, (x, y), strict=True)]
        product = self._compute("mul", factors)
        self.total.set(self._masked_update(self._compute("add", [self.total.get(), product])))

    def _factor(self, operand: Value, position: Positions) -> str:
        element = self.reader.element(operand, tuple(position))
        name = self.reader.converted(dtype_of(operand), self.dtype, element.name, element.uniform)
        return self.reader.spread(Element(name, element.uniform), self.value)

    def _compute(self, primitive: str, names: list[str]) -> str:
        return self.reader.compute(primitive, [self.dtype, self.dtype], names, False)

    def _masked_update(self, name: str) -> str:
        return _select_masked(self.reader, self.total.type, name, self.total.get())

    def result(self) -> Element:
        """Return the accumulated sum."""
        return Element(self.total.get(), self.reader.lanes == 1)


def _select_masked(reader: Reader, type: str, new: str, old: str) -> str:
    if reader.mask is None:
        return new
    flags = vector(reader.lanes, "i1")
    return reader.kernel.emitter.let(f"select {flags} {reader.mask}, {type} {new}, {type} {old}")


def _contract(w: KernelWriter, value: Value) -> Compute:
    x, y = value.operands
    pairs, left, right = (value.params[name] for name in ("batch", "left", "right"))
    rows = [axis for axis in range(len(shape_of(x))) if axis not in left and axis not in [a for a, _ in pairs]]
    columns = [axis for axis in range(len(shape_of(y))) if axis not in right and axis not in [b for _, b in pairs]]

    def at(position: Positions) -> Element:
        sum = _Sum(w, value)
        here: list[Index] = [Index(0)] * len(shape_of(x))
        there: list[Index] = [Index(0)] * len(shape_of(y))
        for (a, b), index in zip(pairs, position, strict=False):
            here[a], there[b] = index, index
        for axis, index in zip(rows, position[len(pairs) :], strict=False):
            here[axis] = index
        for axis, index in zip(columns, position[len(pairs) + len(rows) :], strict=True):
            there[axis] = index

        def sum_over(axes: Sequence[tuple[int, int]]) -> None:
            if not axes:
                sum.add(here, there)
                return
            a, b = axes[0]
            with w.kernel.emitter.loop(0, w.kernel.size(shape_of(x)[a])) as i, w.reader.inside():
                here[a] = there[b] = Index(i)
                sum_over(axes[1:])

        sum_over(list(zip(left, right, strict=True)))
        return sum.result()

    return at


def _convolve(w: KernelWriter, value: Value) -> Compute:
    x, weights = value.operands
    params = value.params
    lows = [low for low, _ in params["padding"]]

    def at(position: Positions) -> Element:
        group, batch, feature, *spatial = position
        sum = _Sum(w, value)

        def products(source: list[Index], tap: list[Index]) -> None:
            with w.kernel.emitter.loop(0, w.kernel.size(shape_of(x)[2])) as i, w.reader.inside():
                sum.add((group, batch, Index(i), *source), (group, feature, Index(i), *tap))

        over_window(
            w.reader, spatial, shape_of(x)[3:], shape_of(weights)[3:], params["strides"], lows,
            params["kernel_dilation"], params["base_dilation"], products,
        )  # fmt: skip
        return sum.result()

    return at


def _reduce_window(w: KernelWriter, value: Value) -> Compute:
    reader, params, kind = w.reader, value.params, value.params["kind"]
    (source,) = value.operands
    dtype, rank = dtype_of(source), len(params["window"])
    leading = len(shape_of(source)) - rank
    sizes = shape_of(source)[leading:]
    lows = [low for low, _ in params["padding"]]
    ones = (1,) * rank

    def for_each(position: Positions, element: Callable[[list[Index], str], None]) -> None:
        def visit(inside: list[Index], tap: list[Index]) -> None:
            element(inside, reader.vector(source, (*position[:leading], *inside)))

        over_window(
            reader,
            position[leading:],
            sizes,
            params["window"],
            params["strides"],
            lows,
            params["dilation"],
            ones,
            visit,
        )

    def reduction(position: Positions) -> Element:
        start = load_store.constant(dtype, identity(kind, dtype), reader.lanes)
        total = w.kernel.emitter.variable(vector(reader.lanes, load_store.register_type(dtype)), start)

        def combine(inside: list[Index], name: str) -> None:
            both = reader.compute(combining(kind, dtype), [dtype, dtype], [total.get(), name], False)
            total.set(_select_masked(reader, total.type, both, total.get()))

        for_each(position, combine)
        return Element(total.get(), reader.lanes == 1)

    def index_of_extremum(position: Positions) -> Element:
        extremum = Extremum(reader, kind, dtype, reader.lanes, math.prod(sizes))

        def compare(inside: list[Index], name: str) -> None:
            at = Index(0)
            for index, size in zip(inside, sizes, strict=True):
                at = reader.plus(reader.times(at, w.kernel.size(size)), index)
            extremum.take(name, reader.lanes_of(at), reader.mask)

        for_each(position, compare)
        return Element(extremum.indices(), reader.lanes == 1)

    return index_of_extremum if kind in EXTREMA else reduction


def over_window(
    reader: Reader,
    position: Sequence[Index],
    sizes: Sequence[Size],
    window: Sequence[Size],
    strides: Sequence[int],
    lows: Sequence[Size],
    dilation: Sequence[int],
    base: Sequence[int],
    body: Callable[[list[Index], list[Index]], None],
) -> None:
    """Write the loops over the elements of a window, excluding elements outside of the image.

    Args:
        reader: Reader of the body; its mask is set.
        position: Index of the window along each axis.
        sizes: Spatial sizes of the image.
        window: Elements of a window along each axis.
        strides: Strides from window to window.
        lows: Elements of padding before the first element.
        dilation: Steps between adjacent elements of a window.
        base: Steps between adjacent elements of the image.
        body: Emits the work for a position in the image and a position in the window.
    """
    e, kernel = reader.kernel.emitter, reader.kernel

    def axis(number: int, inside: list[Index], taps: list[Index]) -> None:
        if number == len(sizes):
            body(inside, taps)
            return
        size = kernel.size(sizes[number])
        with e.loop(0, kernel.size(window[number])) as tap, reader.inside():
            start = reader.times(position[number], strides[number])
            at = reader.shifted(start, e.sub(e.mul(tap, dilation[number]), kernel.size(lows[number])))
            lanes = 1 if at.is_uniform else reader.lanes
            type = vector(lanes, "i64")
            name = str(at.base) if at.is_uniform else reader.lanes_of(at)
            reach = e.most(e.sub(e.mul(size, base[number]), base[number] - 1), 0)
            is_inside = e.let(f"icmp ult {type} {name}, {e.spread(str(reach), lanes, 'i64')}")
            if base[number] > 1:
                step = e.spread(str(base[number]), lanes, "i64")
                remainder = e.let(f"urem {type} {name}, {step}")
                is_element = e.let(f"icmp eq {type} {remainder}, {'zeroinitializer' if lanes > 1 else '0'}")
                is_inside = e.let(f"and {vector(lanes, 'i1')} {is_inside}, {is_element}")
                quotient = e.let(f"udiv {type} {name}, {step}")
                at = Index(quotient) if at.is_uniform else Index(0, vector=quotient)
            if lanes == 1:
                with e.when(is_inside), reader.inside():
                    axis(number + 1, [*inside, at], [*taps, Index(tap)])
                return
            flags = vector(lanes, "i1")
            mask = is_inside if reader.mask is None else e.let(f"and {flags} {is_inside}, {reader.mask}")
            any_inside = e.call("i1", f"llvm.vector.reduce.or.v{lanes}i1", [(flags, mask)])
            with e.when(any_inside), masked(reader, mask):
                axis(number + 1, [*inside, at], [*taps, Index(tap)])

    axis(0, [], [])


_COMPUTATIONS: dict[str, Callable[[KernelWriter, Value], Compute]] = {
    "contract": _contract,
    "convolve": _convolve,
    "reduce_window": _reduce_window,
}
