"""Core functions as StableHLO operations: every value in order, conditions and loops as regions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function, Value
from sardonyx.core.ir.types import TensorType, TupleType
from sardonyx.errors import UnsupportedError
from sardonyx.export.stablehlo import elementwise, primitives
from sardonyx.export.stablehlo.hlo_forms import HLO_FORMS
from sardonyx.export.stablehlo.text_writer import Operand, TextWriter, element, type_text

FAMILIES = (elementwise, primitives)
"""Modules that register forms."""


def write(w: TextWriter, function: Function, arguments: Sequence[Operand]) -> list[Operand]:
    """Write a function's values and return its results.

    Raises:
        UnsupportedError: A value has no form in StableHLO: names the value and the rule.
    """
    w.written.update(zip(function.inputs, arguments, strict=True))
    for declared, argument in zip(function.inputs, arguments, strict=True):
        w.bind_sizes(declared.type, argument)
    for value in function.values:
        if value not in w.written:
            try:
                _write_value(w, value)
            except UnsupportedError as error:
                raise UnsupportedError(error.problem, where=error.where or value.origin, remedy=error.remedy) from error
    return [w.written[value] for value in function.results]


def _write_value(w: TextWriter, value: Value) -> None:
    operands = [w.written[operand] for operand in value.operands]
    match value.op:
        case "get":
            w.written[value] = operands[0][value.params["index"]]
        case "bind":
            w.written[value] = operands[0]
            if not depends_on_data(value.operands[0]):
                if _is_computed_in_floats(value.operands[0]):
                    rule = "the size is computed in floats, which compilers of StableHLO refuse."
                    w.refuse(value.params["symbol"], rule)
                else:
                    w.bind(value.params["symbol"], _element(w, operands[0], value.params["element"]))
        case "call":
            inner: Function = value.params["function"]
            outer = dict(w.written)
            results = write(w, inner, operands)
            w.written = {**outer, value: results}
        case "cond":
            w.written[value] = _cond(w, value, operands)
        case "loop":
            w.written[value] = _loop(w, value, operands)
        case "host":
            raise UnsupportedError(f"StableHLO has no form for {value.params['function'].name}.")
        case _:
            assert isinstance(value.type, TensorType) and value.type.shape is not None
            element(value.type.dtype)
            result = HLO_FORMS[value.op](w, value, *operands, **value.params)
            # Sizes that are equal may be different expressions: those of the value's type count.
            w.written[value] = Operand(result.name, result.dtype, result.shape)
            w.bind_sizes(value.type, result)


def depends_on_data(value: Value) -> bool:
    """Return True if a value depends on the elements of inputs, not on their sizes alone."""
    return any(one.op in ("input", "host", "loop", "cond", "random") for one in _sources(value))


def _is_computed_in_floats(value: Value) -> bool:
    """Return True if an integer depends on numbers in floating point: compilers fold sizes of integers alone."""
    return any(
        isinstance(one.type, TensorType) and t.kind(one.type.dtype) == "float" and not one.is_constant
        for one in _sources(value)
    )


def _sources(value: Value) -> Iterator[Value]:
    """Yield a value and all values from which it is computed, once each."""
    seen: set[Value] = set()
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen.add(one)
            yield one
            waiting += [*one.operands, *one.definers]


def _element(w: TextWriter, x: Operand, index: tuple[int, ...]) -> Operand:
    if index:
        parts = ", ".join(f"{i}:{i + 1}" for i in index)
        shape = (1,) * len(index)
        x = w.op(f"stablehlo.slice {x.name} [{parts}] : ({x.type}) -> {type_text(x.dtype, shape)}", x.dtype, shape)
    return w.convert(w.reshape(x, ()), t.INT64)


def _types(value: Value) -> list[TensorType]:
    """Return the types of a value with several results.

    Raises:
        UnsupportedError: A result is no tensor, or data decides one of its sizes.
    """
    assert isinstance(value.type, TupleType)
    types = []
    for type_ in value.type.results:
        if not isinstance(type_, TensorType) or type_.shape is None:
            raise UnsupportedError(f"StableHLO has no values of type {type_}.")
        types.append(type_)
    return types


def _cond(w: TextWriter, value: Value, operands: list[Operand]) -> list[Operand]:
    types = _types(value)
    if value.params["symbols"]:
        raise UnsupportedError("the branches have results of different sizes, which StableHLO has not.")
    condition = w.reshape(operands[0], ())
    name = w.name("chosen")
    results = [type_text(type_.dtype, type_.shape or ()) for type_ in types]
    w.line(f'{name}:{len(types)} = "stablehlo.if"({condition.name}) ({{')
    for i, branch in enumerate((value.params["then"], value.params["otherwise"])):
        with w.region():
            _return(w, write(w, branch, operands[1:]), results)
        w.line("}, {" if not i else f"}}) : (tensor<i1>) -> ({', '.join(results)})")
    return _several(name, types)


def _return(w: TextWriter, values: Sequence[Operand], types: Sequence[str]) -> None:
    w.line(f"stablehlo.return {', '.join(value.name for value in values)} : {', '.join(types)}")


def _several(name: str, types: Sequence[TensorType]) -> list[Operand]:
    return [
        Operand(name if len(types) == 1 else f"{name}#{i}", type_.dtype, type_.shape or ())
        for i, type_ in enumerate(types)
    ]


def _loop(w: TextWriter, value: Value, operands: list[Operand]) -> list[Operand]:
    """Write a loop over a counter, a condition, the states, and buffers of the collected rows."""
    body: Function = value.params["body"]
    carried: int = value.params["carried"]
    types = _types(value)
    count, go = operands[0], operands[1]
    stays = body.results[0].is_constant and bool(body.results[0].known)
    starts = value.operands[1].is_constant and bool(value.operands[1].known)
    own = set(value.params["symbols"])
    rows = types[carried:]
    sized = {str(type_.shape[0]) for type_ in rows if type_.shape and str(type_.shape[0]) in own}
    others = {symbol for type_ in types for size in type_.shape or () for symbol in _symbols(size)} & own - sized
    if others or (sized and (not stays or not starts or depends_on_data(value.operands[0]))):
        raise UnsupportedError("data decides the number of rows that a loop collects, and StableHLO has no such sizes.")
    for symbol in sized:
        w.bind(symbol, w.convert(w.reshape(count, ()), t.INT64))
    buffers = [w.full(0, type_.dtype, type_.shape or ()) for type_ in rows]
    zero = w.constant(np.array(0, np.int64), t.INT64)
    state = [zero, w.reshape(go, ()), *operands[2 : 2 + carried], *buffers]
    shapes = [
        TensorType(t.INT64, ()),
        TensorType(t.BOOL, ()),
        *(TensorType(type_.dtype, type_.shape) for type_ in types),
    ]
    spelled = [type_text(type_.dtype, type_.shape or ()) for type_ in shapes]
    if any(operand.type != text for operand, text in zip(state, spelled, strict=True)):
        raise UnsupportedError("a state of the loop changes its sizes, which StableHLO has not.")
    name = w.name("loop")
    total = w.convert(w.reshape(count, ()), t.INT64)
    w.line(f'{name}:{len(state)} = "stablehlo.while"({", ".join(one.name for one in state)}) ({{')
    for part in ("condition", "body"):
        with w.region():
            names = [Operand(w.name("s"), type_.dtype, type_.shape or ()) for type_ in shapes]
            w.line(f"^bb0({', '.join(f'{one.name}: {text}' for one, text in zip(names, spelled, strict=True))}):")
            if part == "condition":
                _return(w, [w.binary("and", w.compare("LT", names[0], total), names[1])], ["tensor<i1>"])
            else:
                _return(w, _step(w, body, names, operands[2 + carried :], carried), spelled)
        w.line("}, {" if part == "condition" else f"}}) : ({', '.join(spelled)}) -> ({', '.join(spelled)})")
    return _several(name, shapes)[2:]


def _step(
    w: TextWriter, body: Function, names: list[Operand], captured: Sequence[Operand], carried: int
) -> list[Operand]:
    index, go = names[0], names[1]
    results = write(w, body, [index, go, *names[2 : 2 + carried], *captured])
    one = w.constant(np.array(1, np.int64), t.INT64)
    buffers = []
    for buffer, row in zip(names[2 + carried :], results[1 + carried :], strict=True):
        update = w.reshape(row, (1, *buffer.shape[1:]))
        zero = w.constant(np.array(0, np.int64), t.INT64)
        positions = [index, *[zero] * (len(buffer.shape) - 1)]
        text = f"stablehlo.dynamic_update_slice {buffer.name}, {update.name}, {', '.join(p.name for p in positions)}"
        types = ", ".join([buffer.type, update.type, *("tensor<i64>" for _ in positions)])
        buffers.append(w.op(f"{text} : ({types}) -> {buffer.type}", buffer.dtype, buffer.shape))
    return [w.binary("add", index, one), w.reshape(results[0], ()), *results[1 : 1 + carried], *buffers]


def _symbols(size: Any) -> list[str]:
    return [] if isinstance(size, int) else list(size.symbols_in_order)
