"""Entries: Python functions in generated code, for calls with little work.

Checking arguments and allocating results in Python would take longer than such a call. An entry checks its arguments
(exact types, ranks and memory order), prepares its tape if their sizes differ from the call before, writes their
addresses to the tape, allocates the results, and executes the tape without the interpreter lock. The entry returns
``None`` in every unusual case, and the caller uses the general path. The code refers to CPython and numpy by the
addresses of their functions, in a table that is the function's ``self``.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy._core import _multiarray_umath  # type: ignore[attr-defined]

from sardonyx.base.artifact_store import store
from sardonyx.base.call_once import once
from sardonyx.compiler.analysis.primitive_traits import dtype_of
from sardonyx.compiler.call.call_context import Context
from sardonyx.compiler.executor.tape_planner import FAULT, PlanWord, release
from sardonyx.compiler.llvm.elf_loader import Code, MappedCode, loaded
from sardonyx.compiler.llvm.ir_builder import Emitter
from sardonyx.compiler.llvm.object_code import LoadedCode, module_text
from sardonyx.compiler.llvm.parallel_build import objects
from sardonyx.compiler.target.description import Target
from sardonyx.core.ir.graph import Value

# Offsets in numpy's array struct (PyArrayObject_fields), in bytes.
_DATA, _RANK, _SHAPE, _DTYPE, _FLAGS = 16, 24, 32, 56, 64
_KIND = 24
"""Offset of kind, byte order and type number of an element type, one word (PyArray_Descr)."""

_ORDERED = 0x0001 | 0x0100
"""Flags of contiguous and aligned arrays."""

_TYPE = 8
"""Offset of an object's type."""


class Word(IntEnum):
    """Words of the table."""

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
    TRUE = 12
    EMPTY = 13
    PLAY = 14
    TAPE = 15
    KERNELS = 16
    POOL = 17
    FAULT = 18
    BUSY = 19
    INPUTS = 20
    OUTPUTS = 21
    INPUT_TABLE = 22
    OUTPUT_TABLE = 23
    READY = 24  # ptr to i64: 1 if the tape is prepared for the sizes of the axes
    AXES = 25  # number of axes of all inputs
    AXIS_TABLE = 26  # for each axis: size, register of the declared size
    SYMBOLS = 27
    SYMBOL_TABLE = 28  # for each symbol: register, index of an axis with this size
    REGISTERS = 29
    PLAN = 30  # table of the planning functions
    MEASURE = 31
    FILL = 32
    HOLD = 33
    TAKE = 34  # Python function that claims an arena of the measured size


_FUNCTIONS = {
    Word.GET_ITEM: "PyDict_GetItem",
    Word.CALL: "PyObject_CallObject",
    Word.SAVE_THREAD: "PyEval_SaveThread",
    Word.RESTORE_THREAD: "PyEval_RestoreThread",
    Word.NEW_LIST: "PyList_New",
    Word.SET_ITEM: "PyList_SetItem",
    Word.RELEASE: "Py_DecRef",
    Word.RETAIN: "Py_IncRef",
    Word.DICT_SIZE: "PyDict_Size",
}
_INPUT_WORDS = 6  # name, kind of dtype, rank, address of its axes, words to write, addresses of those
_OUTPUT_WORDS = 6  # dtype, rank, addresses of its sizes and of their registers, words to write, addresses of those
_AXIS_WORDS = 2
_SYMBOL_WORDS = 2
_EMPTY = 184
"""Index of ``PyArray_Empty`` in numpy's C API table, unchanged since numpy 1.0."""


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_METH_O, _METH_NOARGS = 8, 4


class Entry:
    """A Python function of generated code.

    Attributes:
        call: The function; it references everything in use, since a call may outlast the entry.
        words: The words of its table that are no addresses of Python's functions.
    """

    def __init__(self, code: str, target: Target, words: dict[Word, int], flags: int, alive: Sequence[Any]) -> None:
        self.words = words
        api = ctypes.pythonapi
        table = np.zeros(len(Word), np.int64)
        for word, name in _FUNCTIONS.items():
            table[word] = ctypes.cast(getattr(api, name), ctypes.c_void_p).value or 0
        for word, value in words.items():
            table[word] = value
        functions = _code(target, code)
        definition = _MethodDef(b"run", functions.address(code), flags, None)
        make = api.PyCFunction_NewEx
        make.restype = ctypes.py_object
        make.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.py_object]
        # Passed as the function's module, to which Python only holds a reference.
        owner = (*alive, functions, definition)
        self.call: Callable[..., Any] = make(ctypes.addressof(definition), table.tobytes(), owner)


@once
def _code(target: Target, name: str) -> MappedCode | LoadedCode:
    """Compile one function alone: the first call of a process needs only one of them."""
    write = {"sardonyx_call": _call, "sardonyx_again": _again, "sardonyx_connect": _connect}[name]
    text = module_text(target, [_function(name, write)])
    return loaded(Code(objects([text], target, store(), jobs=1)), target)


def _function(name: str, write: Callable[[Emitter], None]) -> str:
    e = Emitter()
    write(e)
    return f"define ptr @{name}(ptr %self, ptr %argument) nounwind {{\n{e.text()}\n}}"


def _word(e: Emitter, word: Word, type: str = "ptr") -> str:
    # The table follows the head of the bytes object.
    table = e.address("%self", "i8", bytes.__basicsize__ - 1)
    return e.load(type, e.address(table, "i64", word), 1)


def _give_up(e: Emitter, condition: str, *, busy: bool = True, held: bool = False) -> None:
    """Return None if a condition holds, after releasing the tape if ``busy`` and the arena if ``held``."""
    with e.when(condition):
        if busy:
            _leave(e, held=held)
        none = _word(e, Word.NONE)
        e.line(f"call void {_word(e, Word.RETAIN)}(ptr {none})")
        _return(e, none)


def _return(e: Emitter, value: str) -> None:
    e.line(f"ret ptr {value}")
    e.label(e.fresh("unreached"))


def _leave(e: Emitter, *, held: bool = False) -> None:
    """Release the tape, and the arena if ``held``."""
    if held:
        block = _block(e)
        with e.when(e.let(f"icmp ne ptr {block}, null")):
            release(e, block)
    e.line(f"store atomic i32 0, ptr {_word(e, Word.BUSY)} release, align 4")


def _enter(e: Emitter) -> None:
    """Claim the tape; return None if another call has it."""
    pair = e.let(f"cmpxchg ptr {_word(e, Word.BUSY)}, i32 0, i32 1 acquire monotonic")
    claimed = e.let(f"extractvalue {{ i32, i1 }} {pair}, 1")
    _give_up(e, e.let(f"xor i1 {claimed}, true"), busy=False)


def _field(e: Emitter, object: str, offset: int, type: str) -> str:
    return e.load(type, e.address(object, "i8", offset), 4 if type == "i32" else 8)


def _patch(e: Emitter, array: str, row: str, count_at: int) -> None:
    """Write the address of an array's elements to words of the tape."""
    data = _field(e, array, _DATA, "ptr")
    count = _field(e, row, 8 * count_at, "i64")
    addresses = _field(e, row, 8 * (count_at + 1), "ptr")
    with e.loop(0, count) as i:
        e.store("ptr", data, e.load("ptr", e.address(addresses, "i64", i), 8), 8)


def _play(e: Emitter) -> str:
    """Execute the tape without the interpreter lock; return an ``i1`` that is true after a fault."""
    state = e.let(f"call ptr {_word(e, Word.SAVE_THREAD)}()")
    tape, kernels, pool = _word(e, Word.TAPE), _word(e, Word.KERNELS, "i64"), _word(e, Word.POOL)
    e.line(f"call void {_word(e, Word.PLAY)}(ptr {tape}, i64 {kernels}, ptr {pool})")
    e.line(f"call void {_word(e, Word.RESTORE_THREAD)}(ptr {state})")
    flag = _word(e, Word.FAULT)
    fault = e.let(f"icmp ne i32 {e.load('i32', flag, 4)}, 0")
    e.store("i32", "0", flag, 4)
    return fault


def _call(e: Emitter) -> None:
    """``call(feeds)``: return the results as a list, or None."""
    _give_up(e, e.let(f"icmp ne ptr {_field(e, '%argument', _TYPE, 'ptr')}, {_word(e, Word.DICT)}"), busy=False)
    size = e.let(f"call i64 {_word(e, Word.DICT_SIZE)}(ptr %argument)")
    inputs = _word(e, Word.INPUTS, "i64")
    _give_up(e, e.let(f"icmp ne i64 {size}, {inputs}"), busy=False)
    _enter(e)
    ready = _word(e, Word.READY)
    with e.loop(0, inputs) as i:
        row = e.address(_word(e, Word.INPUT_TABLE), "i64", e.mul(i, _INPUT_WORDS))
        array = _checked_input(e, row)
        shape, axes = _field(e, array, _SHAPE, "ptr"), _field(e, row, 24, "ptr")
        with e.loop(0, _field(e, row, 16, "i64")) as axis:
            actual = e.load("i64", e.address(shape, "i64", axis), 8)
            known = e.address(axes, "i64", e.mul(axis, _AXIS_WORDS))
            with e.when(e.let(f"icmp ne i64 {actual}, {e.load('i64', known, 8)}")):
                e.store("i64", actual, known, 8)
                e.store("i64", "0", ready, 8)
        _patch(e, array, row, 4)
    fresh = e.let(f"icmp eq i64 {e.load('i64', ready, 8)}, 0")
    with e.when(fresh):
        _measure(e)
    shared = e.let(f"icmp ne ptr {_block(e)}, null")
    with e.when(e.let(f"or i1 {fresh}, {shared}")):
        _arena(e, fresh, ready)
    results = _results(e)
    fault = _play(e)
    with e.when(fault):
        e.line(f"call void {_word(e, Word.RELEASE)}(ptr {results})")
    _give_up(e, fault, held=True)
    _leave(e, held=True)
    e.line(f"ret ptr {results}")


def _checked_input(e: Emitter, row: str) -> str:
    """Return the array of an input; give up unless type, rank and order match."""
    name = _field(e, row, 0, "ptr")
    array = e.let(f"call ptr {_word(e, Word.GET_ITEM)}(ptr %argument, ptr {name})")
    _give_up(e, e.let(f"icmp eq ptr {array}, null"))
    _give_up(e, e.let(f"icmp ne ptr {_field(e, array, _TYPE, 'ptr')}, {_word(e, Word.ARRAY)}"))
    kind = _field(e, _field(e, array, _DTYPE, "ptr"), _KIND, "i64")
    _give_up(e, e.let(f"icmp ne i64 {kind}, {_field(e, row, 8, 'i64')}"))
    flags = e.let(f"and i32 {_field(e, array, _FLAGS, 'i32')}, {_ORDERED}")
    _give_up(e, e.let(f"icmp ne i32 {flags}, {_ORDERED}"))
    rank = e.let(f"sext i32 {_field(e, array, _RANK, 'i32')} to i64")
    _give_up(e, e.let(f"icmp ne i64 {rank}, {_field(e, row, 16, 'i64')}"))
    return array


def _block(e: Emitter) -> str:
    """Return the arena's block; null if the context has its own arena."""
    return e.load("ptr", e.address(_word(e, Word.PLAN), "i64", int(PlanWord.BLOCK)), 8)


def _arena(e: Emitter, unfilled: str, ready: str) -> None:
    """Claim the arena, and fill the tape if the arena changed or if ``unfilled`` holds."""
    table = _word(e, Word.PLAN)
    fills = e.variable("i1", unfilled)
    with e.when(e.let(f"icmp eq i64 {e.let(f'call i64 {_word(e, Word.HOLD)}(ptr {table})')}, 0")):
        e.store("i64", "0", ready, 8)
        claimed = e.let(f"call ptr {_word(e, Word.CALL)}(ptr {_word(e, Word.TAKE)}, ptr null)")
        _raise_if_null(e, claimed)
        e.line(f"call void {_word(e, Word.RELEASE)}(ptr {claimed})")
        fills.set("true")
    with e.when(fills.get()):
        e.line(f"call void {_word(e, Word.FILL)}(ptr {table})")
        e.store("i64", "1", ready, 8)


def _measure(e: Emitter) -> None:
    """Evaluate the size program for the sizes of the axes."""
    registers, axes = _word(e, Word.REGISTERS), _word(e, Word.AXIS_TABLE)
    with e.loop(0, _word(e, Word.SYMBOLS, "i64")) as symbol:
        row = e.address(_word(e, Word.SYMBOL_TABLE), "i64", e.mul(symbol, _SYMBOL_WORDS))
        size = e.load("i64", e.address(axes, "i64", e.mul(_field(e, row, 8, "i64"), _AXIS_WORDS)), 8)
        e.store("i64", size, e.address(registers, "i64", _field(e, row, 0, "i64")), 8)
    table = _word(e, Word.PLAN)
    needed = e.let(f"call i64 {_word(e, Word.MEASURE)}(ptr {table})")
    _give_up(e, e.let(f"icmp eq i64 {needed}, {FAULT}"))
    with e.loop(0, _word(e, Word.AXES, "i64")) as axis:
        row = e.address(axes, "i64", e.mul(axis, _AXIS_WORDS))
        declared = e.load("i64", e.address(registers, "i64", _field(e, row, 8, "i64")), 8)
        _give_up(e, e.let(f"icmp ne i64 {declared}, {_field(e, row, 0, 'i64')}"))


def _raise_if_null(e: Emitter, object: str, beside: str = "", *, busy: bool = True, held: bool = False) -> None:
    """Propagate an exception if an object is null, releasing another object first."""
    with e.when(e.let(f"icmp eq ptr {object}, null")):
        if beside:
            e.line(f"call void {_word(e, Word.RELEASE)}(ptr {beside})")
        if busy:
            _leave(e, held=held)
        _return(e, "null")


def _results(e: Emitter, *, busy: bool = True) -> str:
    """Allocate the results and write their addresses to the tape; return a Python list.

    Args:
        e: The emitter.
        busy: True if the call has claimed the tape and the arena, and must release both on an error.
    """
    outputs, registers = _word(e, Word.OUTPUTS, "i64"), _word(e, Word.REGISTERS)
    results = e.let(f"call ptr {_word(e, Word.NEW_LIST)}(i64 {outputs})")
    _raise_if_null(e, results, busy=busy, held=True)
    with e.loop(0, outputs) as i:
        row = e.address(_word(e, Word.OUTPUT_TABLE), "i64", e.mul(i, _OUTPUT_WORDS))
        dtype, shape, of_axes = (_field(e, row, at, "ptr") for at in (0, 16, 24))
        rank = _field(e, row, 8, "i64")
        with e.loop(0, rank) as axis:
            register = e.load("i64", e.address(of_axes, "i64", axis), 8)
            size = e.load("i64", e.address(registers, "i64", register), 8)
            e.store("i64", size, e.address(shape, "i64", axis), 8)
        # PyArray_Empty steals a reference to the element type.
        e.line(f"call void {_word(e, Word.RETAIN)}(ptr {dtype})")
        axes = e.let(f"trunc i64 {rank} to i32")
        arguments = f"i32 {axes}, ptr {shape}, ptr {dtype}, i32 0"
        array = e.let(f"call ptr {_word(e, Word.EMPTY)}({arguments})")
        _raise_if_null(e, array, results, busy=busy, held=True)
        _patch(e, array, row, 4)
        e.line(f"call i32 {_word(e, Word.SET_ITEM)}(ptr {results}, i64 {i}, ptr {array})")
    return results


def _again(e: Emitter) -> None:
    """``again()``: execute the tape unchanged; return True, or None."""
    _enter(e)
    with e.when(e.let(f"icmp ne ptr {_block(e)}, null")):
        ready = _word(e, Word.READY)
        _arena(e, e.let(f"icmp eq i64 {e.load('i64', ready, 8)}, 0"), ready)
    _give_up(e, _play(e), held=True)
    _leave(e, held=True)
    true = _word(e, Word.TRUE)
    e.line(f"call void {_word(e, Word.RETAIN)}(ptr {true})")
    e.line(f"ret ptr {true}")


def _connect(e: Emitter) -> None:
    """``connect(arrays)``: point the tape to given and to new arrays; return the new ones, or None."""
    with e.loop(0, _word(e, Word.INPUTS, "i64")) as i:
        row = e.address(_word(e, Word.INPUT_TABLE), "i64", e.mul(i, _INPUT_WORDS))
        items = e.address("%argument", "i8", tuple.__basicsize__)
        array = e.load("ptr", e.address(items, "ptr", i), 8)
        _give_up(e, e.let(f"icmp ne ptr {_field(e, array, _TYPE, 'ptr')}, {_word(e, Word.ARRAY)}"), busy=False)
        _patch(e, array, row, 4)
    e.line(f"ret ptr {_results(e, busy=False)}")


class Input(NamedTuple):
    """An input of a function.

    Attributes:
        name: Name of the input.
        dtype: Element type.
        declared: Registers of the sizes.
        shape: The sizes for which the tape is prepared.
        words: Addresses of the tape's words for the address of the input.
    """

    name: str
    dtype: np.dtype
    declared: Sequence[int]
    shape: Sequence[int]
    words: Sequence[int]


class Output(NamedTuple):
    """A result of a function.

    Attributes:
        dtype: Element type.
        shape: Registers of the sizes.
        words: Addresses of the tape's words for the address of the result.
    """

    dtype: np.dtype
    shape: Sequence[int]
    words: Sequence[int]


def output(context: Context, value: Value) -> Output:
    """Return the description of a value that a context computes outside of the arena."""
    return Output(dtype_of(value).numpy(), context.plan.shapes[value], context.words(value))


class _Words:
    """Lists of words at fixed addresses."""

    def __init__(self) -> None:
        self.owners: list[Any] = []

    def __call__(self, values: Sequence[int]) -> int:
        """Return the address of a list."""
        array = np.array(values or [0], np.int64)
        self.owners.append(array)
        return int(array.ctypes.data)


def call_entry(
    target: Target,
    words: dict[Word, int],
    inputs: Sequence[Input],
    outputs: Sequence[Output],
    context: Context,
    alive: Sequence[Any],
) -> Entry:
    """Return a function from a dict of arrays to a list of arrays.

    Args:
        target: The processor.
        words: Tape, kernels, player, pool and fault flag.
        inputs: The inputs; each symbol is one of their sizes.
        outputs: The results.
        context: The tape, prepared for the inputs' shapes and not used by other calls.
        alive: Objects to keep alive.
    """
    listed = _Words()
    axes = [item for input in inputs for pair in zip(input.shape, input.declared, strict=True) for item in pair]
    first = listed(axes)
    rows: list[int] = []
    for name, dtype, declared, _, addresses in inputs:
        listed.owners.append(name)
        rows += [id(name), _kind(dtype), len(declared), first, len(addresses), listed(addresses)]
        first += 8 * _AXIS_WORDS * len(declared)
    of_axes = [register for input in inputs for register in input.declared]
    symbols = [item for register in context.plan.symbols.values() for item in (register, of_axes.index(register))]
    more = {
        Word.DICT: id(dict), Word.INPUTS: len(inputs), Word.INPUT_TABLE: listed(rows), Word.AXES: len(of_axes),
        Word.AXIS_TABLE: first - 8 * len(axes), Word.SYMBOLS: len(context.plan.symbols),
        Word.SYMBOL_TABLE: listed(symbols), **_arrays(context, outputs, listed),
        Word.MEASURE: context.linked.player.code.address("measure"),
    }  # fmt: skip
    return Entry("sardonyx_call", target, words | more | _ready(context, listed), _METH_O, [*alive, *listed.owners])


def again_entry(target: Target, words: dict[Word, int], context: Context, alive: Sequence[Any]) -> Entry:
    """Return a function that executes a tape unchanged and returns True.

    Args:
        target: The processor.
        words: Tape, kernels, player, pool and fault flag.
        context: The tape, prepared and not used by other calls.
        alive: Objects to keep alive.
    """
    listed = _Words()
    more = {Word.TRUE: id(True)}
    return Entry(
        "sardonyx_again", target, words | more | _ready(context, listed), _METH_NOARGS, [*alive, *listed.owners]
    )


def connect_entry(context: Context) -> Entry:
    """Return a function that points a tape to a tuple of arrays, and to new arrays as its results.

    The function checks only the type of the arguments, and returns None unless all are numpy arrays. The caller
    guarantees a prepared tape without other users.

    Args:
        context: The tape; the arrays are ``linked.reads``, in order, and the new arrays ``linked.makes``.
    """
    listed, linked = _Words(), context.linked
    addresses = [context.words(value) for value in linked.reads]
    rows = [word for words_of_value in addresses for word in (0, 0, 0, 0, len(words_of_value), listed(words_of_value))]
    words = {Word.NONE: id(None), Word.INPUTS: len(addresses), Word.INPUT_TABLE: listed(rows)}
    words |= _arrays(context, [output(context, value) for value in linked.makes], listed)
    alive = [context.tape, context.registers, *listed.owners]
    return Entry("sardonyx_connect", linked.player.target, words, _METH_O, alive)


def _arrays(context: Context, outputs: Sequence[Output], listed: _Words) -> dict[Word, int]:
    """Return the words for checking and creating arrays; ``listed`` owns the referenced objects."""
    rows: list[int] = []
    for dtype, shape, addresses in outputs:
        listed.owners.append(dtype)
        rows += [id(dtype), len(shape), listed([0] * len(shape)), listed(shape), len(addresses), listed(addresses)]
    return {
        Word.ARRAY: id(np.ndarray), Word.EMPTY: _empty(), Word.OUTPUTS: len(outputs),
        Word.OUTPUT_TABLE: listed(rows), Word.REGISTERS: int(context.registers.ctypes.data),
    }  # fmt: skip


def _ready(context: Context, listed: _Words) -> dict[Word, int]:
    """Return the words for claiming a context's tape and arena; ``listed`` owns the referenced objects."""
    take, code = context.take, context.linked.player.code
    listed.owners += [context, take]
    return {
        Word.NONE: id(None), Word.BUSY: listed([0]), Word.READY: listed([1]),
        Word.PLAN: int(context.table.ctypes.data), Word.FILL: code.address("fill"),
        Word.HOLD: code.address("hold"), Word.TAKE: id(take),
    }  # fmt: skip


def _kind(dtype: np.dtype) -> int:
    """Return a word that identifies an element type; unpickled types are other objects with the same word."""
    return ctypes.c_int64.from_address(id(dtype) + _KIND).value


@functools.cache
def _empty() -> int:
    """Return the address of numpy's ``PyArray_Empty``.

    The C signature is ``(int rank, npy_intp *shape, PyArray_Descr *stolen, int fortran)``.
    """
    table = ctypes.pythonapi.PyCapsule_GetPointer
    table.restype, table.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    functions = table(_multiarray_umath._ARRAY_API, None)
    return int(ctypes.c_void_p.from_address(functions + 8 * _EMPTY).value or 0)
