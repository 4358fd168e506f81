"""Entries: Python functions made from generated code, for calls that take less time than Python needs to prepare them.

An entry checks its arguments (exact types, shapes and memory order), writes their addresses to a tape, makes the
results, and plays the tape without the interpreter's lock. Anything unusual gives ``None``, and the caller goes the
usual way. The code knows CPython by the addresses of its functions, which stand with all else in a table that is the
function's ``self``.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from sardonyx.compiler.build import objects
from sardonyx.compiler.cache import store
from sardonyx.compiler.emitter import Emitter
from sardonyx.compiler.linking import MappedCode, linked, loaded
from sardonyx.compiler.machine_code import LoadedCode, module_text
from sardonyx.compiler.target import Target

# Where numpy keeps what of an array (PyArrayObject_fields), in bytes.
_DATA, _RANK, _SHAPE, _DTYPE, _FLAGS = 16, 24, 32, 56, 64
_ORDERED = 0x0001 | 0x0100
"""The flags of arrays that are contiguous and aligned."""

_TYPE = 8
"""Where an object's type is."""


class Word(IntEnum):
    """The words of the table."""

    GET_ITEM = 0
    CALL = 1
    SAVE_THREAD = 2
    RESTORE_THREAD = 3
    NEW_LIST = 4
    SET_ITEM = 5
    RELEASE = 6
    RETAIN = 7
    DICT_SIZE = 8
    NONE = 9
    DICT = 10
    ARRAY = 11
    EMPTY = 12
    PLAY = 13
    TAPE = 14
    KERNELS = 15
    POOL = 16
    FAULT = 17
    BUSY = 18
    INPUTS = 19
    OUTPUTS = 20
    INPUT_TABLE = 21
    OUTPUT_TABLE = 22


_FUNCTIONS = {
    Word.GET_ITEM: "PyDict_GetItem",
    Word.CALL: "PyObject_Call",
    Word.SAVE_THREAD: "PyEval_SaveThread",
    Word.RESTORE_THREAD: "PyEval_RestoreThread",
    Word.NEW_LIST: "PyList_New",
    Word.SET_ITEM: "PyList_SetItem",
    Word.RELEASE: "Py_DecRef",
    Word.RETAIN: "Py_IncRef",
    Word.DICT_SIZE: "PyDict_Size",
}
_INPUT_WORDS = 6  # name, dtype, rank, address of the shape, words to write, addresses of those
_OUTPUT_WORDS = 3  # arguments of numpy.empty, words to write, addresses of those


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_METH_O, _METH_NOARGS = 8, 4


class Entry:
    """A Python function made from generated code, with all that it needs to stay alive.

    Attributes:
        call: The function.
    """

    def __init__(self, code: str, target: Target, words: dict[Word, int], flags: int, alive: Sequence[Any]) -> None:
        api = ctypes.pythonapi
        table = np.zeros(len(Word), np.int64)
        for word, name in _FUNCTIONS.items():
            table[word] = ctypes.cast(getattr(api, name), ctypes.c_void_p).value or 0
        for word, value in words.items():
            table[word] = value
        self._loaded = _code(target)
        self._definition = _MethodDef(b"run", self._loaded.address(code), flags, None)
        self._alive = (*alive, table)
        make = api.PyCFunction_NewEx
        make.restype = ctypes.py_object
        make.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
        self.call: Callable[..., Any] = make(ctypes.addressof(self._definition), table.tobytes(), None)


@functools.cache
def _code(target: Target) -> MappedCode | LoadedCode:
    definitions = [_function("sardonyx_call", _call), _function("sardonyx_again", _again)]
    return loaded(linked(objects([module_text(target, definitions)], target, store(), jobs=1)), target)


def _function(name: str, write: Callable[[Emitter], None]) -> str:
    e = Emitter()
    write(e)
    return f"define ptr @{name}(ptr %self, ptr %argument) nounwind {{\n{e.text()}\n}}"


def _word(e: Emitter, word: Word, type: str = "ptr") -> str:
    # The table follows the head of the bytes object.
    table = e.address("%self", "i8", bytes.__basicsize__ - 1)
    return e.load(type, e.address(table, "i64", word), 1)


def _give_up(e: Emitter, condition: str, *, busy: bool = True) -> None:
    """Return None where a condition holds."""
    with e.when(condition):
        if busy:
            _leave(e)
        none = _word(e, Word.NONE)
        e.line(f"call void {_word(e, Word.RETAIN)}(ptr {none})")
        _return(e, none)


def _return(e: Emitter, value: str) -> None:
    e.line(f"ret ptr {value}")
    e.label(e.fresh("unreached"))


def _leave(e: Emitter) -> None:
    e.line(f"store atomic i32 0, ptr {_word(e, Word.BUSY)} release, align 4")


def _enter(e: Emitter) -> None:
    """Take the tape; None where another call has it."""
    pair = e.let(f"cmpxchg ptr {_word(e, Word.BUSY)}, i32 0, i32 1 acquire monotonic")
    taken = e.let(f"extractvalue {{ i32, i1 }} {pair}, 1")
    _give_up(e, e.let(f"xor i1 {taken}, true"), busy=False)


def _field(e: Emitter, object: str, offset: int, type: str) -> str:
    return e.load(type, e.address(object, "i8", offset), 4 if type == "i32" else 8)


def _patch(e: Emitter, array: str, row: str, count_at: int) -> None:
    """Write the address of an array's elements to words of the tape."""
    data = _field(e, array, _DATA, "ptr")
    count = _field(e, row, 8 * count_at, "i64")
    places = _field(e, row, 8 * (count_at + 1), "ptr")
    with e.loop(0, count) as i:
        e.store("ptr", data, e.load("ptr", e.address(places, "i64", i), 8), 8)


def _play(e: Emitter) -> str:
    """Play the tape without the interpreter's lock; returns whether there was a fault."""
    state = e.let(f"call ptr {_word(e, Word.SAVE_THREAD)}()")
    tape, kernels, pool = _word(e, Word.TAPE), _word(e, Word.KERNELS, "i64"), _word(e, Word.POOL)
    e.line(f"call void {_word(e, Word.PLAY)}(ptr {tape}, i64 {kernels}, ptr {pool})")
    e.line(f"call void {_word(e, Word.RESTORE_THREAD)}(ptr {state})")
    flag = _word(e, Word.FAULT)
    fault = e.let(f"icmp ne i32 {e.load('i32', flag, 4)}, 0")
    e.store("i32", "0", flag, 4)
    return fault


def _call(e: Emitter) -> None:
    """``call(feeds)``: the results as a list, or None."""
    _give_up(e, e.let(f"icmp ne ptr {_field(e, '%argument', _TYPE, 'ptr')}, {_word(e, Word.DICT)}"), busy=False)
    size = e.let(f"call i64 {_word(e, Word.DICT_SIZE)}(ptr %argument)")
    inputs = _word(e, Word.INPUTS, "i64")
    _give_up(e, e.let(f"icmp ne i64 {size}, {inputs}"), busy=False)
    _enter(e)
    with e.loop(0, inputs) as i:
        row = e.address(_word(e, Word.INPUT_TABLE), "i64", e.mul(i, _INPUT_WORDS))
        name = _field(e, row, 0, "ptr")
        array = e.let(f"call ptr {_word(e, Word.GET_ITEM)}(ptr %argument, ptr {name})")
        _give_up(e, e.let(f"icmp eq ptr {array}, null"))
        _give_up(e, e.let(f"icmp ne ptr {_field(e, array, _TYPE, 'ptr')}, {_word(e, Word.ARRAY)}"))
        _give_up(e, e.let(f"icmp ne ptr {_field(e, array, _DTYPE, 'ptr')}, {_field(e, row, 8, 'ptr')}"))
        flags = e.let(f"and i32 {_field(e, array, _FLAGS, 'i32')}, {_ORDERED}")
        _give_up(e, e.let(f"icmp ne i32 {flags}, {_ORDERED}"))
        rank = _field(e, row, 16, "i64")
        known = e.let(f"sext i32 {_field(e, array, _RANK, 'i32')} to i64")
        _give_up(e, e.let(f"icmp ne i64 {known}, {rank}"))
        shape, wanted = _field(e, array, _SHAPE, "ptr"), _field(e, row, 24, "ptr")
        with e.loop(0, rank) as axis:
            here, there = (e.load("i64", e.address(each, "i64", axis), 8) for each in (shape, wanted))
            _give_up(e, e.let(f"icmp ne i64 {here}, {there}"))
        _patch(e, array, row, 4)
    outputs = _word(e, Word.OUTPUTS, "i64")
    found = e.let(f"call ptr {_word(e, Word.NEW_LIST)}(i64 {outputs})")
    with e.when(e.let(f"icmp eq ptr {found}, null")):
        _leave(e)
        _return(e, "null")
    with e.loop(0, outputs) as i:
        row = e.address(_word(e, Word.OUTPUT_TABLE), "i64", e.mul(i, _OUTPUT_WORDS))
        empty, arguments = _word(e, Word.EMPTY), _field(e, row, 0, "ptr")
        array = e.let(f"call ptr {_word(e, Word.CALL)}(ptr {empty}, ptr {arguments}, ptr null)")
        with e.when(e.let(f"icmp eq ptr {array}, null")):
            e.line(f"call void {_word(e, Word.RELEASE)}(ptr {found})")
            _leave(e)
            _return(e, "null")
        _patch(e, array, row, 1)
        e.line(f"call i32 {_word(e, Word.SET_ITEM)}(ptr {found}, i64 {i}, ptr {array})")
    fault = _play(e)
    with e.when(fault):
        e.line(f"call void {_word(e, Word.RELEASE)}(ptr {found})")
    _give_up(e, fault)
    _leave(e)
    e.line(f"ret ptr {found}")


def _again(e: Emitter) -> None:
    """``again()``: play the tape as it is; True, or None."""
    _enter(e)
    _give_up(e, _play(e))
    _leave(e)
    found = _word(e, Word.EMPTY)
    e.line(f"call void {_word(e, Word.RETAIN)}(ptr {found})")
    e.line(f"ret ptr {found}")


def call_entry(
    target: Target,
    words: dict[Word, int],
    inputs: Sequence[tuple[str, np.dtype, tuple[int, ...], Sequence[int]]],
    outputs: Sequence[tuple[np.dtype, tuple[int, ...], Sequence[int]]],
    alive: Sequence[Any],
) -> Entry:
    """The function of a dict of arrays that gives a list of arrays.

    Args:
        target: What the code is for.
        words: Tape, kernels, player, pool, fault and busy flags.
        inputs: Name, element type, shape, and the addresses of the words that hold its address.
        outputs: Element type, shape, and the same addresses.
        alive: What must not go away.
    """
    kept: list[Any] = [*alive, np.ndarray, np.empty]

    def words_of(values: Sequence[int]) -> int:
        array = np.array(values or [0], np.int64)
        kept.append(array)
        return int(array.ctypes.data)

    rows: list[int] = []
    for name, dtype, shape, places in inputs:
        kept += [name, dtype]
        rows += [id(name), id(dtype), len(shape), words_of(shape), len(places), words_of(places)]
    results: list[int] = []
    for dtype, shape, places in outputs:
        arguments = (shape, dtype)
        kept.append(arguments)
        results += [id(arguments), len(places), words_of(places)]
    more = {
        Word.NONE: id(None), Word.DICT: id(dict), Word.ARRAY: id(np.ndarray), Word.EMPTY: id(np.empty),
        Word.INPUTS: len(inputs), Word.OUTPUTS: len(outputs), Word.INPUT_TABLE: words_of(rows),
        Word.OUTPUT_TABLE: words_of(results),
    }  # fmt: skip
    return Entry("sardonyx_call", target, words | more, _METH_O, kept)


def again_entry(target: Target, words: dict[Word, int], alive: Sequence[Any]) -> Entry:
    """The function that plays a tape as it is and gives True."""
    return Entry("sardonyx_again", target, words | {Word.NONE: id(None), Word.EMPTY: id(True)}, _METH_NOARGS, alive)
