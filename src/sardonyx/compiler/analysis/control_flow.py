"""Control flow inside programs: loops and choices that native code runs, and their symbols."""

from __future__ import annotations

from sardonyx.compiler.analysis.element_types import DTYPES
from sardonyx.compiler.analysis.shape_stable_loops import shape_stability
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.core.dim import Dim, equal
from sardonyx.core.eval.run_context import tracing
from sardonyx.core.eval.tensor import get
from sardonyx.core.ir.graph import Value, bodies_of, symbols_in
from sardonyx.core.ir.types import TensorType, TupleType, Type

CONTROL = frozenset({"loop", "cond"})


def results_of(value: Value) -> list[Value]:
    """Return the results of a value with several results, as ``get`` values."""
    assert isinstance(value.type, TupleType)
    with tracing():
        return [get(value, i) for i in range(len(value.type.results))]


def iteration_symbol(value: Value) -> str | None:
    """Return the symbol of a data-dependent number of iterations, or None.

    The symbol is returned if the loop defines no other open symbol, if it is the length of every collected result, and
    if no other size depends on it.
    """
    symbols = open_symbols(value) if value.op == "loop" else ()
    if len(symbols) != 1:
        return None
    symbol = symbols[0]
    carried = value.params["carried"]
    shapes = [shape_of(result) for result in results_of(value)]
    lengths, others = [shape[:1] for shape in shapes[carried:]], [*shapes[:carried], *(s[1:] for s in shapes[carried:])]
    is_length = all(length == (Dim.symbol(symbol),) for length in lengths)
    return symbol if is_length and not any(symbol in symbols_in(other) for other in others) else None


def open_symbols(value: Value) -> tuple[str, ...]:
    """Return the symbols of control flow, except symbols with sizes determined by shape stability."""
    stability = shape_stability(value) if value.op == "loop" else None
    return tuple(symbol for symbol in value.params["symbols"] if stability is None or symbol not in stability.sizes)


def is_of_tensors(value: Value) -> bool:
    """Return True if all operands and results of control flow are tensors that kernels support."""
    return all(map(_is_tensor, _types(value)))


def _types(value: Value) -> list[Type]:
    types = [operand.type for operand in value.operands] + list(value.params["results"])
    return types + [result.type for body in bodies_of(value) for result in body.results]


def refusal(value: Value) -> str | None:
    """Return the reason why the interpreter must execute control flow, as far as types show, or None."""
    if open_symbols(value) and iteration_symbol(value) is None:
        return f"the result sizes of a {value.op} are only known after its execution"
    if not is_of_tensors(value):
        return f"a {value.op} over {next(type for type in _types(value) if not _is_tensor(type))}"
    if value.op == "cond":
        same = all(
            _same_shape(result, outer)
            for body in bodies_of(value)
            for result, outer in zip(body.results, results_of(value), strict=True)
        )
        return None if same else "the result sizes of the branches differ"
    carried, body = value.params["carried"], value.params["body"]
    before = value.operands[2 : 2 + carried]
    during, after = body.inputs[2 : 2 + carried], body.results[1 : 1 + carried]
    same = all(_same_shape(a, b) and _same_shape(b, c) for a, b, c in zip(before, during, after, strict=True))
    if not same and shape_stability(value) is None:
        return "a state of the loop changes its sizes"
    return None


def _is_tensor(type: object) -> bool:
    return isinstance(type, TensorType) and type.dtype in DTYPES


def _same_shape(a: Value, b: Value) -> bool:
    x, y = shape_of(a), shape_of(b)
    return len(x) == len(y) and all(m == n or bool(equal(m, n)) for m, n in zip(x, y, strict=True))
