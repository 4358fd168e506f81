"""Element reader: code for one element of a value and of everything fused with the value.

For a Core value and an index along each of its axes, a reader writes the instructions of the element, in all
lanes of a vector at once. Movements change the index, elementwise primitives compute, and the recursion ends at values
in memory (loaded), constants, and values already in registers (an accumulator, the sum of a row).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sardonyx.compiler.analysis.dynamic_scales import single
from sardonyx.compiler.analysis.logistic import exponent_of_logistic
from sardonyx.compiler.analysis.primitive_traits import dtype_of, is_elementwise
from sardonyx.compiler.analysis.strided_views import Memory, may_repeat, repeats_one, shape_of
from sardonyx.compiler.codegen import elementwise, load_store
from sardonyx.compiler.codegen.dynamic_codes import Divisor, dynamic_codes, scale_of
from sardonyx.compiler.codegen.kernel_builder import Index
from sardonyx.compiler.codegen.position_arithmetic import ORIGIN, Position, PositionArithmetic
from sardonyx.compiler.codegen.requantize import Codes, packs, plain_codes
from sardonyx.compiler.codegen.vector_math_f32 import logistic
from sardonyx.compiler.llvm.ir_builder import Emitter, splat, vector
from sardonyx.compiler.llvm.vector_value import Vector
from sardonyx.core.dim import Size
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value

_MOST_STEP = 4
"""Distance of channels up to which whole blocks are loaded for some of their channels."""


@dataclass(frozen=True)
class Element:
    """An element of a value: a register.

    Attributes:
        name: The name of the register.
        uniform: True if the register is a scalar for all lanes.
    """

    name: str
    uniform: bool


@dataclass
class Reader(PositionArithmetic):
    """Writer of the loads and computations of values in one kernel.

    Attributes:
        memory: Returns the buffer of a value, or None for values without one.
        fault: Returns a pointer to the program's fault flag, for primitives with faults.
        computes: Returns True for the values that the kernel does not read from memory.
        mask: The lanes that exist; None for all.
        on_gather: Called with each gather and the position of its indices, when a trial collects gathers.
        across: Functions for loads and stores of elements contiguous along the rows of a block; None outside of
            blocks.
    """

    memory: Callable[[Value], Memory | None]
    fault: Callable[[], str]
    computes: Callable[[Value], bool] = lambda value: False
    mask: str | None = None
    on_gather: Callable[[Value, Position], None] | None = None
    across: tuple[Callable[[Memory, Index], str | None], Callable[[Memory, Index, Element], bool]] | None = None
    _known: dict[tuple[Value, Position, tuple[Size, ...] | None, int], tuple[Element, tuple[str, ...]]] = field(
        default_factory=dict
    )
    _requantizations: dict[Value, Codes | None] = field(default_factory=dict)
    _numbers: dict[Value, Element] = field(default_factory=dict)
    _singles: dict[Value, bool] = field(default_factory=dict)
    _divisors: dict[Value, Divisor] = field(default_factory=dict)
    _bound: dict[Value, Callable[[Position], Element]] = field(default_factory=dict)
    _indices: dict[tuple[Value, Position, int], tuple[list[Index], tuple[str, ...]]] = field(default_factory=dict)

    def bind(self, value: Value, element_at: Callable[[Position], Element]) -> None:
        """Define how a value that the kernel computes in its own way is read."""
        self._bound[value] = element_at

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Open a scope, such as a loop body: elements read inside are not reused after the scope."""
        around = self._known
        self._known = dict(around)
        yield
        self._known = around

    @contextmanager
    def trial(self) -> Iterator[Emitter]:
        """Discard the instructions written inside; yields the emitter that receives the instructions."""
        written = self.kernel.emitter
        self.kernel.emitter = Emitter(converts_halves=written.converts_halves)
        self.kernel.emitter.flushes_bfloat16 = written.flushes_bfloat16
        known, reshaped, self._indices, self._reshaped = self._indices, self._reshaped, {}, {}
        with self.inside():
            yield self.kernel.emitter
        self._indices, self._reshaped, self.kernel.emitter = known, reshaped, written

    def picked(self, value: Value, position: Position) -> list[Index]:
        """Return the positions read by a gather, along the indexed axes.

        An index out of range sets the fault flag, and position 0 is read.

        Args:
            value: The gather.
            position: The position of its indices, without their last axis.
        """
        if self.on_gather is not None:
            self.on_gather(value, position)
        row = self.row if any(index.row for index in position) else 0
        known = self._indices.get((value, position, row))
        if known is not None and self.kernel.emitter.is_known(known[1]):
            return known[0]
        source, indices = value.operands
        sizes = shape_of(source)[value.params["batch"] :]
        depth = shape_of(indices)[-1]
        assert isinstance(depth, int)
        picks = [self._checked(indices, (*position, Index(component)), sizes[component]) for component in range(depth)]
        if all(index.is_uniform for index in picks):
            self._indices[value, position, row] = picks, self.kernel.emitter.where
        return picks

    def _checked(self, indices: Value, position: Position, extent: Size) -> Index:
        e, at = self.kernel.emitter, self.element(indices, position)
        name = self.converted(dtype_of(indices), t.INT64, at.name, at.uniform)
        known = indices.known[..., position[-1].base] if indices.is_constant else None
        if known is None or not isinstance(extent, int) or not _is_inside(known, extent):
            size, lanes = self.kernel.size(extent), 1 if at.uniform else self.lanes
            type = vector(lanes, "i64")
            good = e.let(f"icmp ult {type} {name}, {e.spread(str(size), lanes, 'i64')}")
            zero = "zeroinitializer" if lanes > 1 else "0"
            name = e.let(f"select {vector(lanes, 'i1')} {good}, {type} {name}, {type} {zero}")
            self.require(good, lanes)
            # Opaque: LLVM would otherwise repeat the selection inside of loops that follow.
            name = e.opaque(type, name) if at.uniform else name
        return Index(name) if at.uniform else Index(0, vector=name)

    def vector(self, value: Value, position: Position) -> str:
        """Return the element of a value at a position, in every lane."""
        return self.spread(self.element(value, position), value)

    def spread(self, element: Element, value: Value) -> str:
        """Return an element of a value, broadcast to every lane."""
        if not element.uniform or self.lanes == 1:
            return element.name
        return self.kernel.emitter.spread(element.name, self.lanes, load_store.register_type(dtype_of(value)))

    def element(self, value: Value, position: Position, shape: tuple[Size, ...] | None = None) -> Element:
        """Return the element of a value at a position.

        Args:
            value: The value to read.
            position: An index along each axis of the value, or of ``shape`` if passed.
            shape: Sizes to which the value is reshaped. A buffer is read as this shape, without computing an index
                along each of its own axes.
        """
        if value in self._numbers:
            return self._numbers[value]
        row = self.row if any(index.row for index in position) else 0
        key, e = (value, position, shape, row), self.kernel.emitter
        known = self._known.get(key)
        if known is not None and e.is_known(known[1]):
            return known[0]
        element = self._compute_element(value, position, shape)
        self._known[key] = element, e.where
        return element

    def _compute_element(self, value: Value, position: Position, shape: tuple[Size, ...] | None) -> Element:
        bound, memory = self._bound.get(value), self.memory(value)
        if bound is None and memory is not None and (shape is None or not memory.block):
            return self.loaded(memory if shape is None else replace(memory, shape=shape), position)
        if bound is None and memory is None and is_elementwise(value):
            element = self._requantized(value, position, shape) or self._dynamic(value, position, shape)
            element = element or self._logistic(value, position, shape)
            return element or self.computed(value, position, shape)
        if bound is None and memory is None and value.op == "reshape":
            return self.element(value.operands[0], position, shape_of(value) if shape is None else shape)
        if shape is not None:
            own = shape_of(value)
            return self.element(
                value, (ORIGIN,) * len(own) if repeats_one(value) else self.reshaped(position, shape, own)
            )
        if bound is not None:
            return bound(position)
        rule = _MOVES.get(value.op)
        assert rule is not None, f"{value.op} is neither in memory nor fused"
        return rule(self, value, position)

    def computed(self, value: Value, position: Position, shape: tuple[Size, ...] | None = None) -> Element:
        """Return an elementwise value at a position, computed from its operands at this position."""
        operands = [self.element(operand, position, shape) for operand in value.operands]
        uniform = all(operand.uniform for operand in operands)
        names = (
            [operand.name for operand in operands]
            if uniform
            else [self.spread(element, operand) for element, operand in zip(operands, value.operands, strict=True)]
        )
        return Element(
            self.compute(value.op, [dtype_of(x) for x in value.operands], names, uniform, value.params), uniform
        )

    def _requantized(self, value: Value, position: Position, shape: tuple[Size, ...] | None) -> Element | None:
        """Return the codes of a quantization, or the floats that equal them, without a division; None for others."""
        if value.op != "convert":
            return None
        source = value.operands[0]
        is_float = dtype_of(value) == t.FLOAT
        result = source if is_float else value
        codes = self._requantization(result)
        if codes is None or not (is_float or codes.quotient):
            return None
        if any(step in self._bound or self.memory(step) is not None for step in codes.steps(result)):
            return None
        dividend = self.element(codes.dividend, position, shape)
        if dividend.uniform:
            return None
        factors = [self.floats(factor, position, shape) for factor in codes.factors]
        numbers = codes.numbers(Vector(self.kernel.emitter, dividend.name, "float", self.lanes), factors)
        name = numbers.name if is_float else self.converted(t.FLOAT, codes.dtype, numbers.name, False)
        return Element(name, False)

    def floats(self, value: Value, position: Position, shape: tuple[Size, ...] | None = None) -> Vector:
        """Return float32 elements at a position, in every lane."""
        name = self.spread(self.element(value, position, shape), value)
        return Vector(self.kernel.emitter, name, "float", self.lanes)

    def _requantization(self, value: Value) -> Codes | None:
        """Return the requantization that computes a value, if the processor has the instructions."""
        if value not in self._requantizations:
            codes = plain_codes(value, self.computes) if packs(self.kernel.target) else None
            self._requantizations[value] = codes
        return self._requantizations[value]

    def _dynamic(self, value: Value, position: Position, shape: tuple[Size, ...] | None) -> Element | None:
        """Return the codes of a dynamic quantization, or the floats that equal them; None for others."""
        if value.op != "convert" or not packs(self.kernel.target):
            return None
        is_float = dtype_of(value) == t.FLOAT
        result = value.operands[0] if is_float else value
        codes = dynamic_codes(result)
        steps = () if codes is None else (*codes.steps, *([result] if is_float else []))
        if codes is None or any(step in self._bound or self.memory(step) is not None for step in steps):
            return None
        divisor = self._divisors.get(codes.quotient)
        units = self.element(codes.quotient if divisor is None else codes.quotient.operands[0], position, shape)
        if units.uniform:
            return None
        x = Vector(self.kernel.emitter, units.name, "float", self.lanes)
        offset = self.spread(self.element(codes.offset, position, shape), codes.offset)
        numbers = codes.numbers(x if divisor is None else divisor(x), Vector(x.emitter, offset, "float", x.lanes))
        name = numbers.name if is_float else self.converted(t.FLOAT, t.UINT8, numbers.name, False)
        return Element(name, False)

    def prepare(self, value: Value) -> None:
        """Compute a single number, or prepare its quotients, before the loops of a kernel."""
        if value.op == "div" and (scale := scale_of(value)) is not None and packs(self.kernel.target):
            element = self._prepared(scale)
            if element is not None:
                self._divisors[value] = Divisor.of(Vector(self.kernel.emitter, element.name, "float", 1))
        for operand in value.operands:
            self._prepared(single(operand))

    def divisor(self, quotient: Value) -> Divisor | None:
        """Return the scale of quotients that :meth:`prepare` has prepared; None for others."""
        return self._divisors.get(quotient)

    def _prepared(self, value: Value) -> Element | None:
        """Compute a single number that depends on no element; None for other values."""
        if value not in self._numbers and self._is_number(value):
            self._numbers[value] = self.element(value, (ORIGIN,) * len(shape_of(value)))
        return self._numbers.get(value)

    def _is_number(self, value: Value) -> bool:
        """Return True for one computed number without faults, of other such numbers or in memory."""
        if value not in self._singles:
            is_single = all(size == 1 for size in shape_of(value)) and not value.is_constant
            self._singles[value] = is_single and value not in self._bound and self._reads_numbers(value)
        return self._singles[value]

    def _reads_numbers(self, value: Value) -> bool:
        """Return True for a value in memory, or one that constants and such numbers define without faults."""
        if self.memory(value) is not None:
            return True
        if not is_elementwise(value) and value.op not in ("reshape", "broadcast"):
            return False
        if elementwise.can_fault(value.op, [dtype_of(x) for x in value.operands]):
            return False
        return all(operand.is_constant or self._is_number(operand) for operand in value.operands)

    def _logistic(self, value: Value, position: Position, shape: tuple[Size, ...] | None) -> Element | None:
        """Return a quotient by ``1 + exp(x)`` as one function; None for other values, and where a part is in memory."""
        exponent = exponent_of_logistic(value)
        if exponent is None or any(part in self._bound or self.memory(part) is not None for part in exponent.parts):
            return None
        operands = value.operands[0], exponent.x
        elements = [self.element(operand, position, shape) for operand in operands]
        uniform = all(element.uniform for element in elements)
        lanes, e = 1 if uniform else self.lanes, self.kernel.emitter
        numerator, x = (
            Vector(e, element.name if uniform else self.spread(element, operand), "float", lanes)
            for element, operand in zip(elements, operands, strict=True)
        )
        return Element(logistic(numerator, x if exponent.negated else -x).name, uniform)

    def compute(
        self,
        primitive: str,
        dtypes: Sequence[t.DType],
        names: Sequence[str],
        uniform: bool,
        params: Mapping[str, Any] | None = None,
    ) -> str:
        """Apply an elementwise primitive to registers."""
        status = self.fault() if elementwise.can_fault(primitive, dtypes) else None
        lanes, mask = (1, None) if uniform else (self.lanes, self.mask)
        return elementwise.emit(self.kernel.emitter, primitive, dtypes, names, lanes, params, mask=mask, status=status)

    def converted(self, dtype: t.DType, target: t.DType, name: str, uniform: bool) -> str:
        """Return a register, converted to another element type."""
        if dtype == target:
            return name
        return self.compute("convert", [dtype], [name], uniform, {**_PLAIN_CONVERSION, "dtype": target})

    def loaded(self, memory: Memory, position: Position) -> Element:
        """Load an element of a buffer."""
        if self.across is None and (name := self._every_few_channels(memory, position)) is not None:
            return Element(name, False)
        at = self.offset(memory, position)
        e = self.kernel.emitter
        if self.across is not None and (register := self.across[0](memory, at)) is not None:
            return Element(register, False)
        at = self.in_row(at)
        if at.repeat > 1:
            return Element(self._repeated(memory, at), False)
        if at.is_uniform:
            return Element(load_store.load(e, memory.dtype, memory.pointer, at, 1), True)
        if at.vector or (isinstance(at.lane, str) and self.mask is not None):
            return Element(self._gathered(memory, self.lanes_of(at)), False)
        return Element(load_store.load(e, memory.dtype, memory.pointer, at, self.lanes, self.mask), False)

    def _every_few_channels(self, memory: Memory, position: Position) -> str | None:
        """Load every second, third or fourth channel of a blocked image from whole blocks; None for other positions."""
        if not memory.block or self.mask is not None or self.lanes != memory.block:
            return None
        batch, channel, *spatial = position
        step, (modulus, remainder), block = channel.lane, channel.congruence, memory.block
        if not (isinstance(step, int) and 2 <= step <= _MOST_STEP and modulus % block == 0) or channel.repeat > 1:
            return None
        if channel.vector or channel.row or any(at.row or not at.is_uniform for at in (batch, *spatial)):
            return None
        e, first = self.kernel.emitter, remainder % block
        channels = [first + lane * step for lane in range(self.lanes)]
        begin = e.sub(channel.base, first)
        starts = [
            self.offset(memory, (batch, Index(e.add(begin, number * block), 1, block), *spatial)).base
            for number in range(channels[-1] // block + 1)
        ]
        return load_store.load_parts(e, memory.dtype, memory.pointer, starts, channels, block)

    def _repeated(self, memory: Memory, at: Index) -> str:
        """Load elements each of which fills ``repeat`` neighbouring lanes."""
        e, few, mask = self.kernel.emitter, self.lanes // at.repeat, self.mask
        if mask is not None:
            first = ", ".join(f"i32 {lane}" for lane in range(0, self.lanes, at.repeat))
            flags = vector(self.lanes, "i1")
            mask = e.let(f"shufflevector {flags} {mask}, {flags} poison, <{few} x i32> <{first}>")
        loaded = load_store.load(e, memory.dtype, memory.pointer, Index(at.base, at.lane), few, mask)
        type = vector(few, load_store.register_type(memory.dtype))
        order = ", ".join(f"i32 {lane // at.repeat}" for lane in range(self.lanes))
        return e.let(f"shufflevector {type} {loaded}, {type} poison, <{self.lanes} x i32> <{order}>")

    def _gathered(self, memory: Memory, offsets: str) -> str:
        """Load elements at arbitrary offsets; lanes that do not exist read the first element."""
        e = self.kernel.emitter
        if self.mask is not None:
            wide = vector(self.lanes, "i64")
            mask = vector(self.lanes, "i1")
            offsets = e.let(f"select {mask} {self.mask}, {wide} {offsets}, {wide} zeroinitializer")
        element = load_store.register_type(memory.dtype)
        result = "poison"
        for lane in range(self.lanes):
            at = e.let(f"extractelement {vector(self.lanes, 'i64')} {offsets}, i64 {lane}")
            one = load_store.load(e, memory.dtype, memory.pointer, Index(at), 1)
            result = e.let(f"insertelement {vector(self.lanes, element)} {result}, {element} {one}, i64 {lane}")
        return result

    def store(self, memory: Memory, position: Position, value: Element) -> None:
        """Store a vector of elements."""
        e = self.kernel.emitter
        at = self.offset(memory, position)
        if self.across is not None and self.across[1](memory, at, value):
            return
        at = self.in_row(at)
        if at.is_uniform:
            load_store.store(e, memory.dtype, value.name, memory.pointer, at, 1)
            return
        element = load_store.register_type(memory.dtype)
        name = e.spread(value.name, self.lanes, element) if value.uniform else value.name
        if not at.vector and isinstance(at.lane, int) and at.repeat == 1:
            mask = self.mask
            if mask is not None and memory.block and position[1].lane:
                # The whole vector is stored: padding channels of the last block must be zeros.
                none = load_store.constant(memory.dtype, 0, self.lanes)
                type = vector(self.lanes, element)
                name, mask = e.let(f"select {vector(self.lanes, 'i1')} {mask}, {type} {name}, {type} {none}"), None
            load_store.store(e, memory.dtype, name, memory.pointer, at, self.lanes, mask)
            return
        offsets = self.lanes_of(at)
        for lane in range(self.lanes):
            one = e.let(f"extractelement {vector(self.lanes, element)} {name}, i64 {lane}")
            to = e.let(f"extractelement {vector(self.lanes, 'i64')} {offsets}, i64 {lane}")
            exists = None
            if self.mask is not None:
                exists = e.let(f"extractelement {vector(self.lanes, 'i1')} {self.mask}, i64 {lane}")
            load_store.store(e, memory.dtype, one, memory.pointer, Index(to), 1, exists)

    def require(self, good: str, lanes: int) -> None:
        """Set the program's fault flag unless a condition holds in every lane that exists."""
        e = self.kernel.emitter
        if lanes > 1:
            if self.mask is not None:
                absent = e.let(f"xor {vector(lanes, 'i1')} {self.mask}, {splat('true', lanes, 'i1')}")
                good = e.let(f"or {vector(lanes, 'i1')} {good}, {absent}")
            good = e.call("i1", f"llvm.vector.reduce.and.v{lanes}i1", [(vector(lanes, "i1"), good)])
        with e.when(e.let(f"xor i1 {good}, true")):
            e.store("i32", "1", self.fault(), 4)


# Movements: one function for each primitive that selects elements or computes them from the position.


def _constant(reader: Reader, value: Value, position: Position) -> Element:
    return Element(load_store.constant(dtype_of(value), value.known.ravel()[0], 1), True)


def _broadcast(reader: Reader, value: Value, position: Position) -> Element:
    source = value.operands[0]
    source_position: list[Index] = []
    for size, wide, at in zip(shape_of(source), shape_of(value), position, strict=True):
        if may_repeat(size, wide):
            e = reader.kernel.emitter
            wider = e.let(f"icmp ne i64 {reader.kernel.size(size)}, 1")
            at = reader.times(at, e.let(f"zext i1 {wider} to i64"))
        source_position.append(ORIGIN if size == 1 and wide != 1 else at)
    return reader.element(source, tuple(source_position))


def _permute(reader: Reader, value: Value, position: Position) -> Element:
    source_position = [ORIGIN] * len(position)
    for axis, at in zip(value.params["axes"], position, strict=True):
        source_position[axis] = at
    return reader.element(value.operands[0], tuple(source_position))


def _slice(reader: Reader, value: Value, position: Position) -> Element:
    ranges = zip(position, value.params["starts"], value.params["strides"], strict=True)
    source_position = [reader.shifted(reader.times(at, step), reader.kernel.size(start)) for at, start, step in ranges]
    return reader.element(value.operands[0], tuple(source_position))


def _reverse(reader: Reader, value: Value, position: Position) -> Element:
    source_position = list(position)
    for axis in value.params["axes"]:
        last = reader.kernel.emitter.sub(reader.kernel.size(shape_of(value)[axis]), 1)
        source_position[axis] = reader.shifted(reader.times(position[axis], -1), last)
    return reader.element(value.operands[0], tuple(source_position))


def _same(reader: Reader, value: Value, position: Position) -> Element:
    return reader.element(value.operands[0], position)


def _iota(reader: Reader, value: Value, position: Position) -> Element:
    at = reader.in_row(position[value.params["axis"]])
    name = str(at.base) if at.is_uniform else reader.lanes_of(at)
    return Element(reader.converted(t.INT64, dtype_of(value), name, at.is_uniform), at.is_uniform)


def _dims(reader: Reader, value: Value, position: Position) -> Element:
    """Return a single size; several sizes are written to memory first."""
    (size,) = value.params["sizes"]
    return Element(reader.converted(t.INT64, dtype_of(value), str(reader.kernel.size(size)), True), True)


def _gather(reader: Reader, value: Value, position: Position) -> Element:
    """Return the element of a gathered operand in memory."""
    source, indices = value.operands
    batch, rank = value.params["batch"], len(shape_of(indices)) - 1
    return reader.element(source, (*position[:batch], *reader.picked(value, position[:rank]), *position[rank:]))


def _is_inside(indices: np.ndarray, extent: int) -> bool:
    """Return True if all indices are in range."""
    return indices.size == 0 or (int(indices.min()) >= 0 and int(indices.max()) < extent)


def _bitcast(reader: Reader, value: Value, position: Position) -> Element:
    """Return parts of wider elements, or one element composed of narrower ones; the lowest part is first."""
    (source,) = value.operands
    e = reader.kernel.emitter
    old, new = dtype_of(source), dtype_of(value)

    def bits(element: Element, lanes: int) -> Vector:
        raw = load_store.to_memory(e, old, reader.spread(element, source) if lanes > 1 else element.name, lanes)
        held = Vector(e, raw, load_store.memory_type(old), lanes)
        return held if held.element.startswith("i") else held.bits()

    if old.bitwidth > new.bitwidth:
        *outer, part = position
        whole = reader.element(source, tuple(outer))
        lanes = 1 if whole.uniform and part.is_uniform else reader.lanes
        shift = reader.times(reader.in_row(part), new.bitwidth)
        by = Vector(e, str(shift.base) if lanes == 1 else reader.lanes_of(shift), "i64", lanes)
        result = bits(whole, lanes)
        if result.element != "i64":
            by = by.to("trunc", result.element)
        result = result.lshr(by).to("trunc", f"i{new.bitwidth}")
    else:
        parts = [reader.element(source, (*position, Index(i))) for i in range(new.bitwidth // old.bitwidth)]
        lanes = 1 if all(part.uniform for part in parts) else reader.lanes
        wide = [bits(part, lanes).to("zext", f"i{new.bitwidth}") for part in parts]
        result = functools.reduce(lambda a, b: a | b, [part << old.bitwidth * i for i, part in enumerate(wide)])
    if load_store.memory_type(new) != result.element:
        result = result.to("bitcast", load_store.memory_type(new))
    return Element(load_store.from_memory(e, new, result.name, lanes), lanes == 1)


_PLAIN_CONVERSION: Mapping[str, object] = {"saturate": True, "rounding": "up"}

_MOVES: dict[str, Callable[[Reader, Value, Position], Element]] = {
    "bitcast": _bitcast,
    "constant": _constant,
    "broadcast": _broadcast,
    "permute": _permute,
    "slice": _slice,
    "reverse": _reverse,
    "stop_gradient": _same,
    "iota": _iota,
    "dims": _dims,
    "gather": _gather,
}
