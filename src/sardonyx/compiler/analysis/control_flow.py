"""Loops and choices as parts of a program: which of them run in native code, and what their bodies are."""

from __future__ import annotations

from sardonyx.compiler.analysis.element_types import DTYPES
from sardonyx.compiler.analysis.shape_stable_loops import settling
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.core.dim import Dim, equal
from sardonyx.core.eval.run_context import tracing
from sardonyx.core.eval.tensor import get
from sardonyx.core.ir.graph import Value, bodies_of, symbols_in
from sardonyx.core.ir.types import TensorType, TupleType, Type

CONTROL = frozenset({"loop", "cond"})


def results_of(value: Value) -> list[Value]:
    """What a value with several results gives, each as the ``get`` that takes it."""
    assert isinstance(value.type, TupleType)
    with tracing():
        return [get(value, i) for i in range(len(value.type.results))]


def counted(value: Value) -> str | None:
    """The symbol of a loop whose iterations only it can tell, if all that it collects is of that length; else None."""
    symbols = open_symbols(value) if value.op == "loop" else ()
    if len(symbols) != 1:
        return None
    symbol = symbols[0]
    carried = value.params["carried"]
    shapes = [shape_of(result) for result in results_of(value)]
    lengths, others = [shape[:1] for shape in shapes[carried:]], [*shapes[:carried], *(s[1:] for s in shapes[carried:])]
    told = all(length == (Dim.symbol(symbol),) for length in lengths)
    return symbol if told and not any(symbol in symbols_in(other) for other in others) else None


def open_symbols(value: Value) -> tuple[str, ...]:
    """The symbols that control flow defines, without those that are known where a loop's state keeps its sizes."""
    settles = settling(value) if value.op == "loop" else None
    return tuple(each for each in value.params["symbols"] if settles is None or each not in settles.sizes)


def is_of_tensors(value: Value) -> bool:
    """Whether control flow takes and gives tensors alone, of element types that kernels know."""
    return all(map(_is_tensor, _types(value)))


def _types(value: Value) -> list[Type]:
    types = [operand.type for operand in value.operands] + list(value.params["results"])
    return types + [result.type for body in bodies_of(value) for result in body.results]


def refusal(value: Value) -> str | None:
    """Why control flow is left to the interpreter, as far as types tell; None where they are no reason."""
    if open_symbols(value) and counted(value) is None:
        return f"sizes of what a {value.op} gives are only known after it"
    if not is_of_tensors(value):
        return f"a {value.op} of {next(type for type in _types(value) if not _is_tensor(type))}"
    if value.op == "cond":
        same = all(
            _same_type(result, given)
            for body in bodies_of(value)
            for result, given in zip(body.results, results_of(value), strict=True)
        )
        return None if same else "branches give other sizes"
    carried, body = value.params["carried"], value.params["body"]
    before = value.operands[2 : 2 + carried]
    during, after = body.inputs[2 : 2 + carried], body.results[1 : 1 + carried]
    same = all(_same_type(a, b) and _same_type(b, c) for a, b, c in zip(before, during, after, strict=True))
    if not same and settling(value) is None:
        return "a loop carries what changes its size"
    return None


def _is_tensor(type: object) -> bool:
    return isinstance(type, TensorType) and type.dtype in DTYPES


def _same_type(a: Value, b: Value) -> bool:
    x, y = shape_of(a), shape_of(b)
    return len(x) == len(y) and all(m == n or bool(equal(m, n)) for m, n in zip(x, y, strict=True))
