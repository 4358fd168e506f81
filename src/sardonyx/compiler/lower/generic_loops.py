"""Contractions, convolutions and windows by plain loops: whatever their axes and types, for what no template takes.

A vector of results at a time goes through all that it is made of; lanes whose operand lies outside of the image are
left out by masks.
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
from sardonyx.compiler.lower.context import Writing
from sardonyx.core.dim import Size
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value

Places = Sequence[Index]
Compute = Callable[[Places], Element]


def plain(writing: Writing, value: Value) -> Compute:
    """What writes the computation of a ``contract``, ``convolve`` or ``reduce_window`` at a place."""
    return _WAYS[value.op](writing, value)


class _Sum:
    """A sum of products, a vector at a time.

    Args:
        writing: The kernel.
        value: What it is.
    """

    def __init__(self, writing: Writing, value: Value) -> None:
        self.reader = writing.reader
        self.value = value
        self.dtype: t.DType = value.params["dtype"]
        register = load_store.register_type(self.dtype)
        zero = load_store.constant(self.dtype, 0, self.reader.lanes)
        self.total = writing.kernel.emitter.variable(vector(self.reader.lanes, register), zero)

    def add(self, x: Places, y: Places) -> None:
        """Add the product of the operands at two places, in the lanes that the reader's mask has."""
        factors = [self._factor(operand, at) for operand, at in zip(self.value.operands, (x, y), strict=True)]
        product = self._computed("mul", factors)
        self.total.set(self._kept(self._computed("add", [self.total.get(), product])))

    def _factor(self, operand: Value, place: Places) -> str:
        found = self.reader.element(operand, tuple(place))
        name = self.reader.converted(dtype_of(operand), self.dtype, found.name, found.uniform)
        return self.reader.spread(Element(name, found.uniform), self.value)

    def _computed(self, primitive: str, names: list[str]) -> str:
        return self.reader.compute(primitive, [self.dtype, self.dtype], names, False)

    def _kept(self, name: str) -> str:
        return _where_masked(self.reader, self.total.type, name, self.total.get())

    def found(self) -> Element:
        """The sum of what was added."""
        return Element(self.total.get(), self.reader.lanes == 1)


def _where_masked(reader: Reader, type: str, new: str, old: str) -> str:
    if reader.mask is None:
        return new
    flags = vector(reader.lanes, "i1")
    return reader.kernel.emitter.let(f"select {flags} {reader.mask}, {type} {new}, {type} {old}")


def _contract(w: Writing, value: Value) -> Compute:
    x, y = value.operands
    pairs, left, right = (value.params[name] for name in ("batch", "left", "right"))
    rows = [axis for axis in range(len(shape_of(x))) if axis not in left and axis not in [a for a, _ in pairs]]
    columns = [axis for axis in range(len(shape_of(y))) if axis not in right and axis not in [b for _, b in pairs]]

    def at(place: Places) -> Element:
        sum = _Sum(w, value)
        here: list[Index] = [Index(0)] * len(shape_of(x))
        there: list[Index] = [Index(0)] * len(shape_of(y))
        for (a, b), index in zip(pairs, place, strict=False):
            here[a], there[b] = index, index
        for axis, index in zip(rows, place[len(pairs) :], strict=False):
            here[axis] = index
        for axis, index in zip(columns, place[len(pairs) + len(rows) :], strict=True):
            there[axis] = index

        def over(paired: Sequence[tuple[int, int]]) -> None:
            if not paired:
                sum.add(here, there)
                return
            a, b = paired[0]
            with w.kernel.emitter.loop(0, w.kernel.size(shape_of(x)[a])) as i, w.reader.inside():
                here[a] = there[b] = Index(i)
                over(paired[1:])

        over(list(zip(left, right, strict=True)))
        return sum.found()

    return at


def _convolve(w: Writing, value: Value) -> Compute:
    x, weights = value.operands
    params = value.params
    lows = [low for low, _ in params["padding"]]

    def at(place: Places) -> Element:
        group, batch, feature, *spatial = place
        sum = _Sum(w, value)

        def products(source: list[Index], tap: list[Index]) -> None:
            with w.kernel.emitter.loop(0, w.kernel.size(shape_of(x)[2])) as i, w.reader.inside():
                sum.add((group, batch, Index(i), *source), (group, feature, Index(i), *tap))

        over_window(
            w.reader, spatial, shape_of(x)[3:], shape_of(weights)[3:], params["strides"], lows,
            params["kernel_dilation"], params["base_dilation"], products,
        )  # fmt: skip
        return sum.found()

    return at


def _reduce_window(w: Writing, value: Value) -> Compute:
    reader, params, kind = w.reader, value.params, value.params["kind"]
    (source,) = value.operands
    dtype, rank = dtype_of(source), len(params["window"])
    leading = len(shape_of(source)) - rank
    sizes = shape_of(source)[leading:]
    lows = [low for low, _ in params["padding"]]
    ones = (1,) * rank

    def over(place: Places, element: Callable[[list[Index], str], None]) -> None:
        def found(inside: list[Index], tap: list[Index]) -> None:
            element(inside, reader.vector(source, (*place[:leading], *inside)))

        over_window(
            reader, place[leading:], sizes, params["window"], params["strides"], lows, params["dilation"], ones, found
        )

    def reduced(place: Places) -> Element:
        start = load_store.constant(dtype, identity(kind, dtype), reader.lanes)
        total = w.kernel.emitter.variable(vector(reader.lanes, load_store.register_type(dtype)), start)

        def combine(inside: list[Index], name: str) -> None:
            both = reader.compute(combining(kind, dtype), [dtype, dtype], [total.get(), name], False)
            total.set(_where_masked(reader, total.type, both, total.get()))

        over(place, combine)
        return Element(total.get(), reader.lanes == 1)

    def chosen(place: Places) -> Element:
        extremum = Extremum(reader, kind, dtype, reader.lanes, math.prod(sizes))

        def look(inside: list[Index], name: str) -> None:
            at = Index(0)
            for index, size in zip(inside, sizes, strict=True):
                at = reader.plus(reader.times(at, w.kernel.size(size)), index)
            extremum.take(name, reader.lanes_of(at), reader.mask)

        over(place, look)
        return Element(extremum.indices(), reader.lanes == 1)

    return chosen if kind in EXTREMA else reduced


def over_window(
    reader: Reader,
    place: Sequence[Index],
    sizes: Sequence[Size],
    window: Sequence[Size],
    strides: Sequence[int],
    lows: Sequence[Size],
    dilation: Sequence[int],
    base: Sequence[int],
    body: Callable[[list[Index], list[Index]], None],
) -> None:
    """Write the loops over the elements of a window, those outside of the image left out.

    Args:
        reader: Its mask is set in the body.
        place: Which window, an axis each.
        sizes: The image's.
        window: Elements of a window.
        strides: From window to window.
        lows: Elements of padding before the first.
        dilation: Steps from element to element of a window.
        base: Steps from element to element of the image.
        body: Given the places in the image and in the window.
    """
    e, kernel = reader.kernel.emitter, reader.kernel

    def axis(number: int, inside: list[Index], taps: list[Index]) -> None:
        if number == len(sizes):
            body(inside, taps)
            return
        size = kernel.size(sizes[number])
        with e.loop(0, kernel.size(window[number])) as tap, reader.inside():
            start = reader.times(place[number], strides[number])
            at = reader.shifted(start, e.sub(e.mul(tap, dilation[number]), kernel.size(lows[number])))
            lanes = 1 if at.is_uniform else reader.lanes
            type = vector(lanes, "i64")
            name = str(at.base) if at.is_uniform else reader.lanes_of(at)
            reach = e.most(e.sub(e.mul(size, base[number]), base[number] - 1), 0)
            good = e.let(f"icmp ult {type} {name}, {e.spread(str(reach), lanes, 'i64')}")
            if base[number] > 1:
                step = e.spread(str(base[number]), lanes, "i64")
                left = e.let(f"urem {type} {name}, {step}")
                hit = e.let(f"icmp eq {type} {left}, {'zeroinitializer' if lanes > 1 else '0'}")
                good = e.let(f"and {vector(lanes, 'i1')} {good}, {hit}")
                whole = e.let(f"udiv {type} {name}, {step}")
                at = Index(whole) if at.is_uniform else Index(0, vector=whole)
            if lanes == 1:
                with e.when(good), reader.inside():
                    axis(number + 1, [*inside, at], [*taps, Index(tap)])
                return
            flags = vector(lanes, "i1")
            mask = good if reader.mask is None else e.let(f"and {flags} {good}, {reader.mask}")
            some = e.call("i1", f"llvm.vector.reduce.or.v{lanes}i1", [(flags, mask)])
            with e.when(some), masked(reader, mask):
                axis(number + 1, [*inside, at], [*taps, Index(tap)])

    axis(0, [], [])


_WAYS: dict[str, Callable[[Writing, Value], Compute]] = {
    "contract": _contract,
    "convolve": _convolve,
    "reduce_window": _reduce_window,
}
