"""Long JSON lists of numbers to float32 arrays, by generated machine code that runs without the interpreter lock.

A number of up to 19 significant digits is an integer times a power of ten. The product of the integer and the first 64
bits of the power is exact to a few units of its 64 bits, which decide the float32 unless the product is next to the
middle of two float32. Such a number, and one that is very small, large or long, is read by Python. A digit, a point and
up to seven digits are a quotient of two integers in float64. The result is the same in every case: the text rounded to
float64, and the float64 rounded to float32.

Source: D. Lemire, "Number parsing at a gigabyte per second", Software: Practice and Experience 51(8), 2021.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sardonyx.base import background_threads
from sardonyx.base.artifact_store import store
from sardonyx.compiler.llvm.elf_loader import Code, loaded
from sardonyx.compiler.llvm.parallel_build import objects
from sardonyx.compiler.target.description import Target, host

LONG = 4096
"""Bytes of text from which the machine code pays for its load."""

_POWERS = range(-64, 40)
"""Powers of ten in the table."""

_SLOW_NUMBERS = 1024
"""Numbers of one list that Python reads before the whole list is left to the JSON parser."""

_FINISHED, _SLOW = 0, 1

_KEY = re.compile(rb'"data"[ \t\r\n]*:[ \t\r\n]*\[')

_NAME = os.urandom(16).hex().encode()
"""Begins the names of lists; a client cannot know it."""

_LISTS = 64
"""Lists of one body that are read ahead of the JSON."""

_loaded: list[Any] = []
"""The code, which is mapped while this list refers to it."""

_readers: list[ListReader] = []
_calls = 0

_CALLS = 256
"""Short lists after which the machine code is loaded for them."""

_LONGS = ("PyLong_AsLongLong", "PyLong_FromLongLong")
"""The functions of CPython that `read_list` calls, in the order of the table that is its ``self``."""

_METH_FASTCALL = 0x80

_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


@dataclass(frozen=True, eq=False)
class NumberList:
    """A list of numbers that was read before the JSON around the list.

    Attributes:
        array: The numbers as float32, shape [elements].
        text: The list in the body, for readers of another element type.
    """

    array: np.ndarray
    text: memoryview


def parse_float32(text: bytes, begin: int = 0) -> tuple[np.ndarray, int] | None:
    """Return the numbers of a flat JSON list as a vector, and the position after the list; None for another text.

    Args:
        text: The text; ``bytes``, whose memory ends with a zero byte.
        begin: The position of the list's bracket.
    """
    if text[begin : begin + 1] != b"[":
        return None
    # Memory that no number reaches is never touched, so that the limit on bodies limits memory.
    array = np.empty((len(text) - begin) // 2 + 1, np.float32)
    state = (ctypes.c_int64 * 2)(begin + 1, 0)
    function = native_parser()
    for _ in range(_SLOW_NUMBERS):
        status = function(text, len(text), array.ctypes.data, len(array), state)
        if status == _FINISHED:
            return array[: state[1]], state[0]
        match = _NUMBER.match(text, state[0]) if status == _SLOW else None
        if match is None or state[1] >= len(array):
            return None
        with np.errstate(over="ignore"):
            array[state[1]] = float(match[0])
        state[0], state[1] = match.end(), state[1] + 1
    return None


def without_number_lists(body: bytes) -> tuple[bytes, dict[bytes, NumberList]]:
    """Return a JSON text with a name of this process in place of each long list of ``"data"``, and the lists by name.

    The quotes of a text in JSON are escaped, so that ``"data":[`` begins a value wherever the text is well formed, and
    a text that is not well formed is not so afterwards.

    Args:
        body: The text.
    """
    lists: dict[bytes, NumberList] = {}
    parts, position = [], 0
    while (key := _KEY.search(body, position)) is not None and len(lists) < _LISTS:
        begin = key.end() - 1
        parsed = parse_float32(body, begin) if b'"FP32"' in body[max(0, key.start() - LONG) : begin] else None
        if parsed is None:
            break
        array, end = parsed
        name = b'"%s%d"' % (_NAME, len(lists))
        lists[name] = NumberList(array, memoryview(body)[begin:end])
        parts += [body[position:begin], name]
        position = end
    return b"".join([*parts, body[position:]]) if lists else body, lists


ListReader = Callable[[bytes, int, int, int], int]
"""Reads a flat list: text, position of the bracket, address of the float32 elements, their number; returns the position
after the list, or -1 for another text. The caller vouches for the types of the arguments and for the memory."""


def list_reader() -> ListReader | None:
    """Return the reader of short lists; None until a thread has loaded the machine code, after some calls."""
    global _calls
    if not _readers:
        _calls += 1
        if _calls == _CALLS:
            background_threads.start("sardonyx-number-lists", load_list_reader)
        return None
    return _readers[0]


def load_list_reader() -> None:
    """Load the reader of short lists."""
    if not _readers:
        _readers.append(_builtin())


def _builtin() -> ListReader:
    """Return ``read_list`` as a function of Python, whose calls take a third of the time of calls by ctypes."""
    api = ctypes.pythonapi
    addresses = [ctypes.cast(getattr(api, name), ctypes.c_void_p).value or 0 for name in _LONGS]
    code = _code()
    definition = _MethodDef(b"read_list", code.address("read_list"), _METH_FASTCALL, None)
    make = api.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.py_object]
    # Passed as the function's module, to which Python only holds a reference.
    owner = (code, definition)
    function: ListReader = make(ctypes.addressof(definition), np.array(addresses, np.int64).tobytes(), owner)
    return function


@functools.cache
def _code() -> Any:
    target = host()
    return loaded(Code(objects([module_text(target)], target, store(), jobs=1)), target)


@functools.cache
def native_parser() -> Callable[..., int]:
    """Return ``parse_numbers`` of :func:`module_text`, which reads the text and one zero byte after it."""
    code = _code()
    prototype = ctypes.CFUNCTYPE(
        ctypes.c_int64, ctypes.c_char_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p
    )
    function = prototype(code.address("parse_numbers"))
    _loaded.append(code)
    return function


def _power(exponent: int) -> tuple[int, int]:
    """Return the first 64 bits of a power of ten, and the exponent of the last of them."""
    if exponent >= 0:
        value, shift = 10**exponent, 0
    else:
        shift = 256
        value = (1 << shift) // 10**-exponent
    excess = value.bit_length() - 64
    return (value >> excess if excess >= 0 else value << -excess), excess - shift


def module_text(target: Target) -> str:
    """Return the module: ``parse_numbers(text, length, out, count, state)``.

    ``state`` is [position, elements], read at the start and written at the end. The function begins after the bracket,
    or after an element, and returns 0 after the closing bracket, 1 at a number that is left to the caller, and 2 at
    another text. The text ends with a zero byte at ``length``, at which every loop stops; eight bytes are read at once
    only within ``length``.
    """
    bits, exponents = zip(*map(_power, _POWERS), strict=True)
    signed = [value - (1 << 64) if value >> 63 else value for value in bits]
    size = len(_POWERS)
    tables = (
        f"@bits = private constant [{size} x i64] [{', '.join(f'i64 {value}' for value in signed)}]\n"
        f"@exponents = private constant [{size} x i64] [{', '.join(f'i64 {value}' for value in exponents)}]\n"
    )
    tables += f"@tens = private constant [8 x i64] [{', '.join(f'i64 {10**digits}' for digits in range(8))}]\n"
    body = _BODY.replace("{first}", str(-_POWERS[0])).replace("{size}", str(size))
    for name, position, value, following in (
        ("whole", "%digits_from", "0", "after_whole"),
        ("part", "%f_at", "%p_whole_w", "after_part"),
    ):
        body = body.replace(f"<{name}>", _digits(name, position, value, following))
    for name, following in (("s", "separator"), ("b", "before")):
        body = body.replace(f"<spaces {following}>", _SPACES.replace("{n}", name).replace("{following}", following))
    return f'target triple = "{target.triple}"\n{tables}{_EIGHT}{body}{_READ_LIST.replace("{head}", str(_HEAD))}'


def _digits(name: str, position: str, value: str, following: str) -> str:
    """Return blocks that read digits from a position: ``%NAME_w`` and ``%NAME_at`` at the block `following`."""
    return (
        _DIGITS.replace("{entry}", f"{name}_entry").replace("{position}", position).replace("{value}", value)
        .replace("{following}", following).replace("{n}", name)
    )  # fmt: skip


_DIGITS = """
{n}_eight:
  %{n}_p = phi i64 [ {position}, %{entry} ], [ %{n}_p8, %{n}_take ]
  %{n}_v = phi i64 [ {value}, %{entry} ], [ %{n}_v8, %{n}_take ]
  %{n}_p8 = add i64 %{n}_p, 8
  %{n}_fits = icmp ule i64 %{n}_p8, %length
  br i1 %{n}_fits, label %{n}_load, label %{n}_one
{n}_load:
  %{n}_pp = getelementptr i8, ptr %text, i64 %{n}_p
  %{n}_word = load i64, ptr %{n}_pp, align 1
  %{n}_zero = xor i64 %{n}_word, 3472328296227680304
  %{n}_over = add i64 %{n}_zero, 8536140394893047414
  %{n}_both = or i64 %{n}_zero, %{n}_over
  %{n}_high = and i64 %{n}_both, -9187201950435737472
  %{n}_all = icmp eq i64 %{n}_high, 0
  br i1 %{n}_all, label %{n}_take, label %{n}_some
{n}_take:
  %{n}_e = call i64 @eight_digits(i64 %{n}_zero)
  %{n}_f = mul i64 %{n}_v, 100000000
  %{n}_v8 = add i64 %{n}_f, %{n}_e
  br label %{n}_eight
{n}_some:
  ; The bytes before the first other byte, after zeros: a carry of the sum reaches later bytes alone.
  %{n}_bits = call i64 @llvm.cttz.i64(i64 %{n}_high, i1 true)
  %{n}_k = lshr i64 %{n}_bits, 3
  %{n}_k8 = sub i64 63, %{n}_bits
  %{n}_left = shl i64 %{n}_zero, 8
  %{n}_last = shl i64 %{n}_left, %{n}_k8
  %{n}_g = call i64 @eight_digits(i64 %{n}_last)
  %{n}_tp = getelementptr i64, ptr @tens, i64 %{n}_k
  %{n}_t = load i64, ptr %{n}_tp
  %{n}_h = mul i64 %{n}_v, %{n}_t
  %{n}_vk = add i64 %{n}_h, %{n}_g
  %{n}_pk = add i64 %{n}_p, %{n}_k
  br label %{n}_end
{n}_one:
  %{n}_p1 = phi i64 [ %{n}_p, %{n}_eight ], [ %{n}_at1, %{n}_more ]
  %{n}_v1 = phi i64 [ %{n}_v, %{n}_eight ], [ %{n}_w1, %{n}_more ]
  %{n}_cp = getelementptr i8, ptr %text, i64 %{n}_p1
  %{n}_c = load i8, ptr %{n}_cp
  %{n}_digit = sub i8 %{n}_c, 48
  %{n}_is = icmp ult i8 %{n}_digit, 10
  br i1 %{n}_is, label %{n}_more, label %{n}_end
{n}_more:
  %{n}_wide = zext i8 %{n}_digit to i64
  %{n}_ten = mul i64 %{n}_v1, 10
  %{n}_w1 = add i64 %{n}_ten, %{n}_wide
  %{n}_at1 = add i64 %{n}_p1, 1
  br label %{n}_one
{n}_end:
  %{n}_at = phi i64 [ %{n}_pk, %{n}_some ], [ %{n}_p1, %{n}_one ]
  %{n}_w = phi i64 [ %{n}_vk, %{n}_some ], [ %{n}_v1, %{n}_one ]
  br label %{following}
"""
"""Digits, eight at once: without a branch on their number, which no predictor knows."""

_SPACES = """
{n}_other:
  switch i8 %{n}_c, label %foreign [
    i8 32, label %{n}_space i8 10, label %{n}_space i8 13, label %{n}_space i8 9, label %{n}_space ]
{n}_space:
  br label %{following}
"""
"""Spaces between elements, which are skipped; another byte ends the list."""

_EIGHT = """
define internal i64 @eight_digits(i64 %digits) alwaysinline {
  %a1 = mul i64 %digits, 10
  %a2 = lshr i64 %digits, 8
  %a = add i64 %a1, %a2
  %b1 = and i64 %a, 1095216660735
  %b2 = mul i64 %b1, 4294967296000100
  %c1 = lshr i64 %a, 16
  %c2 = and i64 %c1, 1095216660735
  %c3 = mul i64 %c2, 42949672960001
  %d = add i64 %b2, %c3
  %e = lshr i64 %d, 32
  ret i64 %e
}
"""
"""The number of eight digits, one a byte: pairs, fours and eights are added within a word."""

_BODY = """
define i64 @parse_numbers(ptr %text, i64 %length, ptr %out, i64 %count, ptr %state) {
start:
  %state1 = getelementptr i64, ptr %state, i64 1
  %first = load i64, ptr %state
  %done = load i64, ptr %state1
  %fresh = icmp eq i64 %done, 0
  br i1 %fresh, label %before, label %separator
separator:
  %s_at = phi i64 [ %first, %start ], [ %stored_at, %stored ], [ %s_at1, %s_space ]
  %s_n = phi i64 [ %done, %start ], [ %next, %stored ], [ %s_n, %s_space ]
  %s_p = getelementptr i8, ptr %text, i64 %s_at
  %s_c = load i8, ptr %s_p
  %s_at1 = add i64 %s_at, 1
  switch i8 %s_c, label %s_other [ i8 44, label %comma i8 93, label %close ]
<spaces separator>
close:
  store i64 %s_at1, ptr %state
  store i64 %s_n, ptr %state1
  ret i64 0
comma:
  br label %before
before:
  %at = phi i64 [ %first, %start ], [ %s_at1, %comma ], [ %at1, %b_space ]
  %n = phi i64 [ 0, %start ], [ %s_n, %comma ], [ %n, %b_space ]
  %p = getelementptr i8, ptr %text, i64 %at
  %b_c = load i8, ptr %p
  %at1 = add i64 %at, 1
  %negative = icmp eq i8 %b_c, 45
  %digits_from = select i1 %negative, i64 %at1, i64 %at
  %d_p = getelementptr i8, ptr %text, i64 %digits_from
  %d_c = load i8, ptr %d_p
  %d_digit = sub i8 %d_c, 48
  %d_is = icmp ult i8 %d_digit, 10
  br i1 %d_is, label %room, label %b_other
<spaces before>
room:
  %has_room = icmp slt i64 %n, %count
  br i1 %has_room, label %brief, label %foreign
brief:
  ; A digit, a point and up to seven digits: both integers are exact in float64, and so is the quotient's rounding.
  %q_dot_at = add i64 %digits_from, 1
  %q_dot_p = getelementptr i8, ptr %text, i64 %q_dot_at
  %q_dot_c = load i8, ptr %q_dot_p
  %q_dot = icmp eq i8 %q_dot_c, 46
  %q_from = add i64 %digits_from, 2
  %q_last = add i64 %digits_from, 10
  %q_fits = icmp ule i64 %q_last, %length
  %q_may = and i1 %q_dot, %q_fits
  br i1 %q_may, label %brief_load, label %whole_entry
brief_load:
  %q_p = getelementptr i8, ptr %text, i64 %q_from
  %q_word = load i64, ptr %q_p, align 1
  %q_zero = xor i64 %q_word, 3472328296227680304
  %q_over = add i64 %q_zero, 8536140394893047414
  %q_both = or i64 %q_zero, %q_over
  %q_high = and i64 %q_both, -9187201950435737472
  %q_bits = call i64 @llvm.cttz.i64(i64 %q_high, i1 false)
  ; 7 for no digit, 64 for eight.
  %q_some = sub i64 %q_bits, 8
  %q_is_brief = icmp ult i64 %q_some, 56
  %q_d = zext i8 %d_digit to i64
  br i1 %q_is_brief, label %brief_digits, label %brief_not
brief_not:
  %q_is_long = icmp eq i64 %q_bits, 64
  br i1 %q_is_long, label %part_entry, label %whole_entry
brief_digits:
  %q_k = lshr i64 %q_bits, 3
  %q_at = add i64 %q_from, %q_k
  %q_c_p = getelementptr i8, ptr %text, i64 %q_at
  %q_c = load i8, ptr %q_c_p
  %q_lower = or i8 %q_c, 32
  %q_is_e = icmp eq i8 %q_lower, 101
  br i1 %q_is_e, label %whole_entry, label %brief_value
brief_value:
  %q_k8 = sub i64 63, %q_bits
  %q_left = shl i64 %q_zero, 8
  %q_end = shl i64 %q_left, %q_k8
  %q_g = call i64 @eight_digits(i64 %q_end)
  %q_t_p = getelementptr i64, ptr @tens, i64 %q_k
  %q_t = load i64, ptr %q_t_p
  %q_h = mul i64 %q_d, %q_t
  %q_w = add i64 %q_h, %q_g
  %q_float = sitofp i64 %q_w to double
  %q_divisor = sitofp i64 %q_t to double
  %q_quotient = fdiv double %q_float, %q_divisor
  %q_single = fptrunc double %q_quotient to float
  %q_i32 = bitcast float %q_single to i32
  %q_i64 = zext i32 %q_i32 to i64
  br label %stored
whole_entry:
  br label %whole_eight
<whole>
after_whole:
  %whole_size = sub i64 %whole_at, %digits_from
  ; No digit follows a leading zero.
  %is_zero_first = icmp eq i8 %d_digit, 0
  %is_several = icmp ugt i64 %whole_size, 1
  %is_octal = and i1 %is_zero_first, %is_several
  br i1 %is_octal, label %foreign, label %after_integer
after_integer:
  %i_p = getelementptr i8, ptr %text, i64 %whole_at
  %i_c = load i8, ptr %i_p
  %dot = icmp eq i8 %i_c, 46
  br i1 %dot, label %part_entry, label %exponent
part_entry:
  %p_whole_at = phi i64 [ %whole_at, %after_integer ], [ %q_dot_at, %brief_not ]
  %p_whole_w = phi i64 [ %whole_w, %after_integer ], [ %q_d, %brief_not ]
  %p_whole_size = phi i64 [ %whole_size, %after_integer ], [ 1, %brief_not ]
  %f_at = add i64 %p_whole_at, 1
  br label %part_eight
<part>
after_part:
  %part_count = sub i64 %part_at, %f_at
  %part_none = icmp eq i64 %part_count, 0
  br i1 %part_none, label %foreign, label %part_known
part_known:
  %p_size = add i64 %p_whole_size, %part_count
  %p_e = sub i64 0, %part_count
  %p_p = getelementptr i8, ptr %text, i64 %part_at
  %p_c = load i8, ptr %p_p
  br label %exponent
exponent:
  %x_at = phi i64 [ %whole_at, %after_integer ], [ %part_at, %part_known ]
  %w = phi i64 [ %whole_w, %after_integer ], [ %part_w, %part_known ]
  %size = phi i64 [ %whole_size, %after_integer ], [ %p_size, %part_known ]
  %e = phi i64 [ 0, %after_integer ], [ %p_e, %part_known ]
  %x_c = phi i8 [ %i_c, %after_integer ], [ %p_c, %part_known ]
  %x_lower = or i8 %x_c, 32
  %x_is = icmp eq i8 %x_lower, 101
  br i1 %x_is, label %exponent_sign, label %value
exponent_sign:
  %xs_at = add i64 %x_at, 1
  %xs_p = getelementptr i8, ptr %text, i64 %xs_at
  %xs_c = load i8, ptr %xs_p
  %xs_minus = icmp eq i8 %xs_c, 45
  %xs_plus = icmp eq i8 %xs_c, 43
  %xs_any = or i1 %xs_minus, %xs_plus
  %xs_one = zext i1 %xs_any to i64
  %xd_from = add i64 %xs_at, %xs_one
  br label %exponent_digits
exponent_digits:
  %xd_at = phi i64 [ %xd_from, %exponent_sign ], [ %xd_at1, %exponent_more ]
  %xd_e = phi i64 [ 0, %exponent_sign ], [ %xd_e1, %exponent_more ]
  %xd_p = getelementptr i8, ptr %text, i64 %xd_at
  %xd_c = load i8, ptr %xd_p
  %xd_digit = sub i8 %xd_c, 48
  %xd_is = icmp ult i8 %xd_digit, 10
  br i1 %xd_is, label %exponent_more, label %exponent_end
exponent_more:
  %xd_wide = zext i8 %xd_digit to i64
  %xd_ten = mul i64 %xd_e, 10
  %xd_sum = add i64 %xd_ten, %xd_wide
  ; Zeros after the point may be more than any exponent that is written out, and a text is never as long as this.
  %xd_big = icmp ugt i64 %xd_sum, 1000000000000000
  %xd_e1 = select i1 %xd_big, i64 1000000000000000, i64 %xd_sum
  %xd_at1 = add i64 %xd_at, 1
  br label %exponent_digits
exponent_end:
  %xd_none = icmp eq i64 %xd_at, %xd_from
  br i1 %xd_none, label %foreign, label %exponent_known
exponent_known:
  %xd_negative = sub i64 0, %xd_e
  %xd_signed = select i1 %xs_minus, i64 %xd_negative, i64 %xd_e
  %x_e = add i64 %e, %xd_signed
  br label %value
value:
  %end = phi i64 [ %x_at, %exponent ], [ %xd_at, %exponent_known ]
  %power = phi i64 [ %e, %exponent ], [ %x_e, %exponent_known ]
  %long = icmp ugt i64 %size, 19
  br i1 %long, label %leading, label %short
leading:
  ; Zeros before the first other digit do not count: 0.00012345678901234567.
  %l_at = phi i64 [ %digits_from, %value ], [ %l_at1, %l_next ]
  %l_rest = phi i64 [ %size, %value ], [ %l_less, %l_next ]
  %l_p = getelementptr i8, ptr %text, i64 %l_at
  %l_c = load i8, ptr %l_p
  %l_at1 = add i64 %l_at, 1
  %l_zero = icmp eq i8 %l_c, 48
  %l_dot = icmp eq i8 %l_c, 46
  %l_skip = or i1 %l_zero, %l_dot
  br i1 %l_skip, label %l_next, label %l_end
l_next:
  %l_one = zext i1 %l_zero to i64
  %l_less = sub i64 %l_rest, %l_one
  br label %leading
l_end:
  %l_long = icmp ugt i64 %l_rest, 19
  br i1 %l_long, label %slow, label %short
short:
  %is_zero = icmp eq i64 %w, 0
  %index = add i64 %power, {first}
  br i1 %is_zero, label %stored, label %scaled_range
scaled_range:
  %in_table = icmp ult i64 %index, {size}
  br i1 %in_table, label %scaled, label %slow
scaled:
  %lz = call i64 @llvm.ctlz.i64(i64 %w, i1 true)
  %normal = shl i64 %w, %lz
  %bits_p = getelementptr i64, ptr @bits, i64 %index
  %bits_v = load i64, ptr %bits_p
  %exp_p = getelementptr i64, ptr @exponents, i64 %index
  %exp_v = load i64, ptr %exp_p
  %wide_a = zext i64 %normal to i128
  %wide_b = zext i64 %bits_v to i128
  %product = mul i128 %wide_a, %wide_b
  %high_wide = lshr i128 %product, 64
  %high = trunc i128 %high_wide to i64
  %low = trunc i128 %product to i64
  %top = icmp slt i64 %high, 0
  %high2 = shl i64 %high, 1
  %low1 = lshr i64 %low, 63
  %shifted = or i64 %high2, %low1
  %m = select i1 %top, i64 %high, i64 %shifted
  %carry = zext i1 %top to i64
  ; 63 for the first bit, 63 for the product without carry, 127 for the bias.
  %b1 = sub i64 %exp_v, %lz
  %b2 = add i64 %b1, %carry
  %biased = add i64 %b2, 253
  %biased_range = sub i64 %biased, 1
  %is_normal = icmp ult i64 %biased_range, 253
  %tail = and i64 %m, 1099511627775
  %near = sub i64 %tail, 549755809792
  %is_near = icmp ult i64 %near, 8192
  %far = xor i1 %is_near, true
  %known = and i1 %is_normal, %far
  br i1 %known, label %rounded, label %slow
rounded:
  %mantissa = lshr i64 %m, 40
  %half = lshr i64 %m, 39
  %up = and i64 %half, 1
  %mantissa_up = add i64 %mantissa, %up
  %hidden = sub i64 %mantissa_up, 8388608
  %biased_bits = shl i64 %biased, 23
  %word = add i64 %biased_bits, %hidden
  br label %stored
stored:
  %magnitude = phi i64 [ 0, %short ], [ %word, %rounded ], [ %q_i64, %brief_value ]
  %stored_at = phi i64 [ %end, %short ], [ %end, %rounded ], [ %q_at, %brief_value ]
  %sign_bit = select i1 %negative, i64 2147483648, i64 0
  %result = or i64 %magnitude, %sign_bit
  %result32 = trunc i64 %result to i32
  %slot = getelementptr i32, ptr %out, i64 %n
  store i32 %result32, ptr %slot
  %next = add i64 %n, 1
  br label %separator
slow:
  store i64 %at, ptr %state
  store i64 %n, ptr %state1
  ret i64 1
foreign:
  ret i64 2
}
declare i64 @llvm.ctlz.i64(i64, i1)
declare i64 @llvm.cttz.i64(i64, i1)
"""

_HEAD = bytes.__basicsize__ - 1
"""Bytes before the text in an object of type ``bytes``; the last word of these but one is the length."""

_READ_LIST = """
define ptr @read_list(ptr %self, ptr %arguments, i64 %count_of_arguments) {
  %state = alloca [2 x i64]
  %table = getelementptr i8, ptr %self, i64 {head}
  %as_long = load ptr, ptr %table, align 1
  %from_long_p = getelementptr ptr, ptr %table, i64 1
  %from_long = load ptr, ptr %from_long_p, align 1
  %object = load ptr, ptr %arguments
  %text = getelementptr i8, ptr %object, i64 {head}
  %length_p = getelementptr i8, ptr %object, i64 16
  %length = load i64, ptr %length_p
  %a1 = getelementptr ptr, ptr %arguments, i64 1
  %o1 = load ptr, ptr %a1
  %begin = call i64 %as_long(ptr %o1)
  %a2 = getelementptr ptr, ptr %arguments, i64 2
  %o2 = load ptr, ptr %a2
  %address = call i64 %as_long(ptr %o2)
  %a3 = getelementptr ptr, ptr %arguments, i64 3
  %o3 = load ptr, ptr %a3
  %count = call i64 %as_long(ptr %o3)
  %is_inside = icmp ult i64 %begin, %length
  br i1 %is_inside, label %bracket, label %other
bracket:
  %first_p = getelementptr i8, ptr %text, i64 %begin
  %first = load i8, ptr %first_p
  %is_list = icmp eq i8 %first, 91
  br i1 %is_list, label %read, label %other
read:
  %after = add i64 %begin, 1
  store i64 %after, ptr %state
  %done_p = getelementptr i64, ptr %state, i64 1
  store i64 0, ptr %done_p
  %out = inttoptr i64 %address to ptr
  %status = call i64 @parse_numbers(ptr %text, i64 %length, ptr %out, i64 %count, ptr %state)
  %done = load i64, ptr %done_p
  %end = load i64, ptr %state
  %is_complete = icmp eq i64 %done, %count
  %is_read = icmp eq i64 %status, 0
  %is_good = and i1 %is_complete, %is_read
  %result = select i1 %is_good, i64 %end, i64 -1
  %good = call ptr %from_long(i64 %result)
  ret ptr %good
other:
  %bad = call ptr %from_long(i64 -1)
  ret ptr %bad
}
"""
"""``read_list(text, begin, address, count)`` in the form of CPython's ``METH_FASTCALL``."""
