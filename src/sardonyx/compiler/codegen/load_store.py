"""Loads and stores of vectors along an axis, and the LLVM types of elements.

In registers ``bool`` is ``i1``, and floats of 16 bits and less are ``float``, rounded to nearest, ties to even, when
stored. Integers of 4 and 2 bits are ``i8``, sign-extended if signed. Other integers, ``float`` and ``double`` have the
same type in memory and in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np

from sardonyx.compiler.analysis.element_types import MINIFLOATS, PACKED_BITS
from sardonyx.compiler.codegen import minifloats
from sardonyx.compiler.codegen.kernel_builder import Index
from sardonyx.compiler.llvm.ir_builder import Emitter, float_literal, splat, suffix, vector
from sardonyx.compiler.llvm.vector_value import Vector
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import DType
from sardonyx.errors import UnsupportedError

_REGISTER = {
    t.FLOAT: "float", t.DOUBLE: "double", t.FLOAT16: "float", t.BFLOAT16: "float", t.BOOL: "i1",
    t.INT8: "i8", t.INT16: "i16", t.INT32: "i32", t.INT64: "i64",
    t.UINT8: "i8", t.UINT16: "i16", t.UINT32: "i32", t.UINT64: "i64",
    **dict.fromkeys(PACKED_BITS, "i8"), **dict.fromkeys(MINIFLOATS, "float"),
}  # fmt: skip
_MEMORY = {
    **_REGISTER, t.FLOAT16: "i16", t.BFLOAT16: "i16", t.BOOL: "i8",
    **dict.fromkeys(MINIFLOATS, "i8"),
}  # fmt: skip


def register_type(dtype: DType) -> str:
    """Return the LLVM type of an element in a register.

    Raises:
        UnsupportedError: Compiled code does not support the element type.
    """
    return _look_up(_REGISTER, dtype)


def memory_type(dtype: DType) -> str:
    """Return the LLVM type of an element in memory, in numpy's representation.

    Raises:
        UnsupportedError: Compiled code does not support the element type.
    """
    return _look_up(_MEMORY, dtype)


def _look_up(types: dict[DType, str], dtype: DType) -> str:
    if dtype == t.COMPLEX64:
        return "i64"
    if dtype not in types:
        raise UnsupportedError(f"unsupported element type in compiled code: {dtype.name.lower()}.")
    return types[dtype]


def constant(dtype: DType, value: float | int | bool | np.generic, lanes: int) -> str:
    """Return the constant vector of equal elements in register form, rounded to the element type.

    Args:
        dtype: The element type.
        value: The number.
        lanes: Number of lanes.
    """
    type = register_type(dtype)
    if type in ("float", "double"):
        with np.errstate(over="ignore"):
            # A Python float is rounded once, straight to the element type.
            rounded = float(np.asarray(value, t.numpy_dtype(dtype)).astype(np.float64))
        return splat(float_literal(rounded, type), lanes, type)
    if type == "i1":
        return splat("true" if value else "false", lanes, type)
    if dtype == t.COMPLEX64:
        return splat(str(int(np.asarray(value, np.complex64).reshape(1).view(np.int64)[0])), lanes, type)
    return splat(str(int(value)), lanes, type)


def load(emitter: Emitter, dtype: DType, pointer: str, index: Index, lanes: int, mask: str | None = None) -> str:
    """Load a vector of elements along an axis, in register form.

    Args:
        emitter: Emitter of the instructions.
        dtype: The element type of the buffer.
        pointer: The buffer.
        index: The offsets of the lanes, in elements. With ``lane`` 0, one element fills all lanes and must be readable
            regardless of the mask.
        lanes: Number of lanes.
        mask: The lanes that exist, as ``<lanes x i1>`` (None: all; ``i1`` for one lane). Other lanes are 0, and their
            memory is not accessed.
    """
    element = memory_type(dtype)
    if lanes == 1 and mask is not None:
        result = emitter.variable(register_type(dtype), constant(dtype, 0, 1))
        with emitter.when(mask):
            result.set(_load_one(emitter, dtype, pointer, index))
        return result.get()
    if index.lane == 0 or lanes == 1:
        return emitter.spread(_load_one(emitter, dtype, pointer, index), lanes, register_type(dtype))
    if mask is not None:
        raw = _load_masked(emitter, element, pointer, index, lanes, mask)
    elif index.lane == 1:
        raw = _load_row(emitter, element, pointer, index.base, lanes)
    elif index.lane == -1:
        row = _load_row(emitter, element, pointer, emitter.sub(index.base, lanes - 1), lanes)
        raw = _reversed(emitter, row, lanes, element)
    elif index.lane == 2:
        raw = _load_every_second(emitter, element, pointer, index.base, lanes)
    else:
        raw = _load_strided(emitter, element, pointer, index, lanes)
    return from_memory(emitter, dtype, raw, lanes)


def load_parts(
    emitter: Emitter, dtype: DType, pointer: str, starts: Sequence[str | int], picks: Sequence[int], width: int
) -> str:
    """Load elements of several contiguous parts, in register form.

    Args:
        emitter: Emitter of the instructions.
        dtype: The element type of the buffer.
        pointer: The buffer.
        starts: The offset of each part, in elements.
        picks: The element of each lane, counted over the parts.
        width: Elements of a part.
    """
    element, wide = memory_type(dtype), width
    parts = [_load_row(emitter, element, pointer, start, width) for start in starts]
    while len(parts) > 2:
        parts += parts[-1:] * (len(parts) % 2)
        type, order = vector(wide, element), ", ".join(f"i32 {i}" for i in range(2 * wide))
        parts = [
            emitter.let(f"shufflevector {type} {low}, {type} {high}, <{2 * wide} x i32> <{order}>")
            for low, high in zip(parts[::2], parts[1::2], strict=True)
        ]
        wide *= 2
    type, chosen = vector(wide, element), ", ".join(f"i32 {pick}" for pick in picks)
    raw = emitter.let(f"shufflevector {type} {parts[0]}, {type} {parts[-1]}, <{len(picks)} x i32> <{chosen}>")
    return from_memory(emitter, dtype, raw, len(picks))


def store(
    emitter: Emitter, dtype: DType, value: str, pointer: str, index: Index, lanes: int, mask: str | None = None
) -> None:
    """Store a vector of elements along an axis, each rounded to the element type.

    Args:
        emitter: Emitter of the instructions.
        dtype: The element type of the buffer.
        value: The elements, in register form.
        pointer: The buffer.
        index: The offsets of the lanes, in elements; must differ between lanes.
        lanes: Number of lanes.
        mask: The lanes that exist, as ``<lanes x i1>`` (None: all; ``i1`` for one lane). Memory of other lanes is not
            accessed.

    Raises:
        UnsupportedError: All lanes have one offset.
    """
    if index.lane == 0 and lanes > 1:
        raise UnsupportedError("expected a different offset for each lane of a store, got one offset.")
    element = memory_type(dtype)
    raw = to_memory(emitter, dtype, value, lanes)
    if lanes == 1:
        with emitter.when(mask) if mask is not None else nullcontext():
            emitter.store(element, raw, emitter.address(pointer, element, index.base), _align(element))
    elif index.lane == 1:
        _store_row(emitter, element, raw, pointer, index.base, lanes, mask)
    elif index.lane == -1:
        base = emitter.sub(index.base, lanes - 1)
        reversed_mask = None if mask is None else _reversed(emitter, mask, lanes, "i1")
        _store_row(emitter, element, _reversed(emitter, raw, lanes, element), pointer, base, lanes, reversed_mask)
    elif mask is None:
        _store_strided(emitter, element, raw, pointer, index, lanes)
    else:
        _scatter(emitter, element, raw, pointer, index, lanes, mask)


def from_memory(emitter: Emitter, dtype: DType, raw: str, lanes: int) -> str:
    """Convert elements from memory form to register form."""
    if dtype == t.BOOL:
        return emitter.let(
            f"icmp ne {vector(lanes, 'i8')} {raw}, zeroinitializer" if lanes > 1 else f"icmp ne i8 {raw}, 0"
        )
    if dtype == t.FLOAT16:
        codes = Vector(emitter, raw, "i16", lanes)
        known = emitter.converts_halves
        return (codes.number().to("fpext", "float") if known else minifloats.decoded(minifloats.HALF, codes)).name
    if dtype == t.BFLOAT16:
        wide = vector(lanes, "i32")
        bits = emitter.let(f"zext {vector(lanes, 'i16')} {raw} to {wide}")
        moved = emitter.let(f"shl {wide} {bits}, {splat('16', lanes, 'i32')}")
        return emitter.let(f"bitcast {wide} {moved} to {vector(lanes, 'float')}")
    if dtype in minifloats.FORMATS:
        return minifloats.decoded(minifloats.FORMATS[dtype], Vector(emitter, raw, "i8", lanes)).name
    if dtype == DType.FLOAT8E8M0:
        return minifloats.power_of_two(Vector(emitter, raw, "i8", lanes)).name
    return wrapped(emitter, dtype, raw, lanes)


def to_memory(emitter: Emitter, dtype: DType, value: str, lanes: int) -> str:
    """Convert elements from register form to memory form, rounded to nearest, ties to even."""
    if dtype == t.BOOL:
        return emitter.let(f"zext {vector(lanes, 'i1')} {value} to {vector(lanes, 'i8')}")
    if dtype == t.FLOAT16:
        x, known = Vector(emitter, value, "float", lanes), emitter.converts_halves
        return (x.to("fptrunc", "half").bits() if known else minifloats.encoded(minifloats.HALF, x)).name
    if dtype == t.BFLOAT16:
        return _bfloat16_bits(emitter, value, lanes)
    if dtype in minifloats.FORMATS:
        return minifloats.encoded(minifloats.FORMATS[dtype], Vector(emitter, value, "float", lanes)).name
    if dtype == DType.FLOAT8E8M0:
        return minifloats.exponent_code(Vector(emitter, value, "float", lanes)).name
    if dtype in PACKED_BITS:
        return (Vector(emitter, value, "i8", lanes) & ((1 << PACKED_BITS[dtype]) - 1)).name
    return value


def wrapped(emitter: Emitter, dtype: DType, value: str, lanes: int) -> str:
    """Wrap integers of 4 and 2 bits in registers to their width; return other types unchanged."""
    if dtype not in PACKED_BITS:
        return value
    bits, x = PACKED_BITS[dtype], Vector(emitter, value, "i8", lanes)
    if t.kind(dtype) == "uint":
        return (x & ((1 << bits) - 1)).name
    return ((x << (8 - bits)) >> (8 - bits)).name


def _bfloat16_bits(emitter: Emitter, value: str, lanes: int) -> str:
    """Return the upper halves of floats, rounded to nearest, ties to even; NaN stays NaN."""
    wide = vector(lanes, "i32")
    let = emitter.let
    if emitter.flushes_bfloat16 and lanes in (8, 16):
        halves = vector(lanes, "bfloat")
        name = f"llvm.x86.avx512bf16.cvtneps2bf16.{32 * lanes}"
        narrow = emitter.call(halves, name, [(vector(lanes, "float"), value)])
        return let(f"bitcast {halves} {narrow} to {vector(lanes, 'i16')}")

    def number(value: int) -> str:
        return splat(str(value), lanes, "i32")

    bits = let(f"bitcast {vector(lanes, 'float')} {value} to {wide}")
    upper = let(f"lshr {wide} {bits}, {number(16)}")
    odd = let(f"and {wide} {upper}, {number(1)}")
    rounded = let(f"add {wide} {let(f'add {wide} {bits}, {odd}')}, {number(0x7FFF)}")
    quiet = let(f"or {wide} {bits}, {number(0x400000)}")
    is_nan = let(f"fcmp uno {vector(lanes, 'float')} {value}, {value}")
    chosen = let(f"select {vector(lanes, 'i1')} {is_nan}, {wide} {quiet}, {wide} {rounded}")
    return let(f"trunc {wide} {let(f'lshr {wide} {chosen}, {number(16)}')} to {vector(lanes, 'i16')}")


def round_to(emitter: Emitter, dtype: DType, value: str, lanes: int) -> str:
    """Round to values of the element type, in register form."""
    if register_type(dtype) == "float" and dtype != t.FLOAT:
        return from_memory(emitter, dtype, to_memory(emitter, dtype, value, lanes), lanes)
    return value


# Contiguous and strided accesses.


def _align(element: str) -> int:
    return {"i8": 1, "i16": 2, "i32": 4, "float": 4, "i64": 8, "double": 8}[element]


def _load_one(emitter: Emitter, dtype: DType, pointer: str, index: Index) -> str:
    element = memory_type(dtype)
    raw = emitter.load(element, emitter.address(pointer, element, index.base), _align(element))
    return from_memory(emitter, dtype, raw, 1)


def _load_row(emitter: Emitter, element: str, pointer: str, base: str | int, lanes: int) -> str:
    return emitter.load(vector(lanes, element), emitter.address(pointer, element, base), _align(element))


def _store_row(
    emitter: Emitter, element: str, raw: str, pointer: str, base: str | int, lanes: int, mask: str | None
) -> None:
    type, address = vector(lanes, element), emitter.address(pointer, element, base)
    if mask is None:
        emitter.store(type, raw, address, _align(element))
    else:
        emitter.masked_store(type, raw, address, _align(element), mask, lanes)


def _load_every_second(emitter: Emitter, element: str, pointer: str, base: str | int, lanes: int) -> str:
    """Load with stride 2: two contiguous loads overlap in one element, so as not to read past the end."""
    type = vector(lanes, element)
    first = _load_row(emitter, element, pointer, base, lanes)
    second = _load_row(emitter, element, pointer, emitter.add(base, lanes - 1), lanes)
    chosen = ", ".join(f"i32 {i if i < lanes else i + 1}" for i in range(0, 2 * lanes, 2))
    return emitter.let(f"shufflevector {type} {first}, {type} {second}, <{lanes} x i32> <{chosen}>")


def _load_strided(emitter: Emitter, element: str, pointer: str, index: Index, lanes: int) -> str:
    type, result = vector(lanes, element), "poison"
    start = emitter.address(pointer, element, index.base)
    for lane in range(lanes):
        one = emitter.load(element, emitter.address(start, element, emitter.mul(lane, index.lane)), _align(element))
        result = emitter.let(f"insertelement {type} {result}, {element} {one}, i64 {lane}")
    return result


def _store_strided(emitter: Emitter, element: str, raw: str, pointer: str, index: Index, lanes: int) -> None:
    start = emitter.address(pointer, element, index.base)
    for lane in range(lanes):
        one = emitter.let(f"extractelement {vector(lanes, element)} {raw}, i64 {lane}")
        emitter.store(element, one, emitter.address(start, element, emitter.mul(lane, index.lane)), _align(element))


def _load_masked(emitter: Emitter, element: str, pointer: str, index: Index, lanes: int, mask: str) -> str:
    type = vector(lanes, element)
    if index.lane == 1:
        return emitter.masked_load(type, emitter.address(pointer, element, index.base), _align(element), mask, lanes)
    if index.lane == -1:
        address = emitter.address(pointer, element, emitter.sub(index.base, lanes - 1))
        row = emitter.masked_load(type, address, _align(element), _reversed(emitter, mask, lanes, "i1"), lanes)
        return _reversed(emitter, row, lanes, element)
    name, addresses = (
        f"llvm.masked.gather.{suffix(type)}.v{lanes}p0",
        _addresses(emitter, element, pointer, index, lanes),
    )
    emitter.declarations[f"declare {type} @{name}(<{lanes} x ptr>, i32, <{lanes} x i1>, {type})"] = None
    return emitter.let(
        f"call {type} @{name}(<{lanes} x ptr> {addresses}, i32 {_align(element)}, <{lanes} x i1> {mask}, "
        f"{type} zeroinitializer)"
    )


def _scatter(emitter: Emitter, element: str, raw: str, pointer: str, index: Index, lanes: int, mask: str) -> None:
    type = vector(lanes, element)
    name, addresses = (
        f"llvm.masked.scatter.{suffix(type)}.v{lanes}p0",
        _addresses(emitter, element, pointer, index, lanes),
    )
    emitter.declarations[f"declare void @{name}({type}, <{lanes} x ptr>, i32, <{lanes} x i1>)"] = None
    emitter.line(
        f"call void @{name}({type} {raw}, <{lanes} x ptr> {addresses}, i32 {_align(element)}, <{lanes} x i1> {mask})"
    )


def _addresses(emitter: Emitter, element: str, pointer: str, index: Index, lanes: int) -> str:
    wide, start = vector(lanes, "i64"), emitter.address(pointer, element, index.base)
    if isinstance(index.lane, int):
        steps = f"<{', '.join(f'i64 {lane * index.lane}' for lane in range(lanes))}>"
    else:
        step = emitter.spread(index.lane, lanes, "i64")
        steps = emitter.let(f"mul nsw {wide} {emitter.lane_numbers(lanes)}, {step}")
    return emitter.let(f"getelementptr {element}, ptr {start}, {wide} {steps}")


def _reversed(emitter: Emitter, value: str, lanes: int, element: str) -> str:
    type, order = vector(lanes, element), ", ".join(f"i32 {i}" for i in reversed(range(lanes)))
    return emitter.let(f"shufflevector {type} {value}, {type} poison, <{lanes} x i32> <{order}>")
