"""Instructions of every elementwise primitive: one table from name to rule.

Results equal those of :mod:`sardonyx.core.rules.numpy_rules`, with one liberty: the conversion of a floating-point
number out of the integer type's range (the processor's result, as in numpy). Floats of 16 bits and less are computed in
``float`` and rounded when stored or converted to, not after every primitive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from sardonyx.compiler.analysis.element_types import DTYPES
from sardonyx.compiler.codegen import load_store, minifloats, vector_math
from sardonyx.compiler.codegen.integer_arithmetic import Faults, divided, power, remainder
from sardonyx.compiler.llvm.ir_builder import Emitter
from sardonyx.compiler.llvm.vector_value import BITS, Vector
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import DType
from sardonyx.errors import UnsupportedError


class Operation(NamedTuple):
    """Arguments of a rule besides the operands.

    Attributes:
        dtype: The element type of the operands (of ``select``: the second and third).
        params: The parameters of the primitive.
        faults: Destination of run-time faults.
    """

    dtype: DType
    params: Mapping[str, Any]
    faults: Faults

    @property
    def kind(self) -> t.Kind:
        """The kind of number: bool, int, uint or float."""
        return t.kind(self.dtype)


Rule = Callable[..., Vector]

ARITHMETIC: dict[str, Rule] = {}
"""The rules of elementwise primitives: functions from the operation and its operands to the result."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a function as the rule of primitives."""

    def register(function: Rule) -> Rule:
        ARITHMETIC.update(dict.fromkeys(names, function))
        return function

    return register


def supported(primitive: str, dtypes: Sequence[DType], params: Mapping[str, Any] | None = None) -> bool:
    """Return True if compiled code computes a primitive for these element types.

    Args:
        primitive: The name of the primitive.
        dtypes: The element types of the operands.
        params: The parameters of the primitive.
    """
    if primitive not in ARITHMETIC:
        return False
    involved = [*dtypes, *([params["dtype"]] if params and "dtype" in params else [])]
    if not all(dtype in DTYPES for dtype in involved):
        return False
    if DType.FLOAT8E8M0 in involved and primitive not in ("convert", "bitcast", "select"):
        return False  # The type has no zero and no sign: it cannot represent most results.
    return primitive != "bitcast" or involved[0].bitwidth == involved[1].bitwidth


def can_fault(primitive: str, dtypes: Sequence[DType]) -> bool:
    """Return True if the primitive lacks a result for some operands, so that ``emit`` needs a status."""
    if primitive in ("div", "rem"):
        return t.is_integer(dtypes[0])
    return primitive == "pow" and t.kind(dtypes[0]) == "int"


_IDENTITIES: dict[str, Callable[[DType], float | int | bool]] = {
    "add": lambda dtype: 0,
    "mul": lambda dtype: 1,
    "and": lambda dtype: True if dtype == t.BOOL else -1,
    "or": lambda dtype: False if dtype == t.BOOL else 0,
    "max": lambda dtype: _least(dtype),
    "min": lambda dtype: _greatest(dtype),
}


def _least(dtype: DType) -> float | int | bool:
    if t.is_float(dtype):
        return -math.inf
    return False if dtype == t.BOOL else (-(1 << dtype.bitwidth - 1) if t.kind(dtype) == "int" else 0)


def _greatest(dtype: DType) -> float | int | bool:
    if t.is_float(dtype):
        return math.inf
    if dtype == t.BOOL:
        return True
    return (1 << dtype.bitwidth - 1) - 1 if t.kind(dtype) == "int" else -1


def identity(kind: str, dtype: DType) -> float | int | bool:
    """Return the identity element of a reduction."""
    return _IDENTITIES[kind](dtype)


ANY_ZERO: Mapping[str, Any] = MappingProxyType({"zero": "any"})
"""Parameters of a maximum or minimum that may be a zero of either sign, which takes fewer instructions."""

_BITWISE = {("max", True): "or", ("min", True): "and", ("add", True): "or", ("mul", True): "and"}


def combining(kind: str, dtype: DType) -> str:
    """Return the primitive that combines two partial results of a reduction."""
    return _BITWISE.get((kind, dtype == t.BOOL), kind)


def emit(
    emitter: Emitter,
    primitive: str,
    dtypes: Sequence[DType],
    operands: Sequence[str],
    lanes: int,
    params: Mapping[str, Any] | None = None,
    *,
    mask: str | None = None,
    status: str | None = None,
) -> str:
    """Write the instructions of a primitive and return its result.

    Args:
        emitter: Emitter of the instructions.
        primitive: The name of the primitive.
        dtypes: The element types of the operands.
        operands: Vectors of ``lanes`` elements in register form (:func:`.load_store.register_type`).
        lanes: Number of lanes.
        params: The parameters of the primitive.
        mask: The lanes that exist (None: all). Other lanes are computed too, but cannot fault.
        status: A pointer to an ``i32`` that becomes 1 if a lane lacks a result (an integer divided by zero, a 0 raised
            to a negative power): the caller then runs the interpreter, which raises the error. Required if
            :func:`can_fault` returns True, unless the divisor or exponent is a harmless constant.

    Raises:
        UnsupportedError: :func:`supported` returns False, or a required status is missing.
    """
    if not supported(primitive, dtypes, params):
        names = ", ".join(dtype.name.lower() for dtype in dtypes)
        raise UnsupportedError(f"unsupported element types for compiled {primitive}: {names}.")
    vectors = [
        Vector(emitter, name, load_store.register_type(dtype), lanes)
        for name, dtype in zip(operands, dtypes, strict=True)
    ]
    operation = Operation(dtypes[-1], params or {}, Faults(mask, status))
    result = ARITHMETIC[primitive](operation, *vectors)
    dtype = operation.params.get("dtype", operation.dtype) if result.element != "i1" else t.BOOL
    return load_store.wrapped(emitter, dtype, result.name, lanes)


# One operand.


@rule("neg")
def _neg(op: Operation, x: Vector) -> Vector:
    return -x


@rule("abs")
def _abs(op: Operation, x: Vector) -> Vector:
    return x if op.kind == "uint" else x.abs()


@rule("sign")
def _sign(op: Operation, x: Vector) -> Vector:
    if op.kind == "uint":
        return x.compare("ne", 0).to("zext", x.element)
    if op.kind == "int":
        return x.above(-1).below(1)
    one = x.like(1.0).with_sign_of(x)
    return x.compare("one", 0.0).where(one, x.is_nan().where(x, 0.0))


def _rounding(intrinsic: str) -> Rule:
    def rounded(op: Operation, x: Vector) -> Vector:
        return x.call(intrinsic) if x.is_float else x

    return rounded


for _name, _intrinsic in (("floor", "floor"), ("ceil", "ceil"), ("round", "roundeven")):
    rule(_name)(_rounding(_intrinsic))


@rule("not")
def _not(op: Operation, x: Vector) -> Vector:
    return ~x


def _function(name: str) -> Rule:
    def of(op: Operation, x: Vector) -> Vector:
        return vector_math.FUNCTIONS[name](x)

    return of


for _name in vector_math.FUNCTIONS:
    rule(_name)(_function(_name))


# Two operands.


@rule("add")
def _add(op: Operation, x: Vector, y: Vector) -> Vector:
    return x + y


@rule("sub")
def _sub(op: Operation, x: Vector, y: Vector) -> Vector:
    return x - y


@rule("mul")
def _mul(op: Operation, x: Vector, y: Vector) -> Vector:
    return x * y


@rule("div")
def _div(op: Operation, x: Vector, y: Vector) -> Vector:
    return x / y if x.is_float else divided(op.faults, x, y, signed=op.kind == "int")


@rule("rem")
def _rem(op: Operation, x: Vector, y: Vector) -> Vector:
    return x._two("frem", y) if x.is_float else remainder(op.faults, x, y, signed=op.kind == "int")


@rule("pow")
def _pow(op: Operation, x: Vector, y: Vector) -> Vector:
    return vector_math.power(x, y) if x.is_float else power(op.faults, x, y, signed=op.kind == "int")


def _extremum(greatest: bool) -> Rule:
    def extremum(op: Operation, x: Vector, y: Vector) -> Vector:
        if op.kind == "bool":
            return x | y if greatest else x & y
        if not x.is_float:
            return x.call(("s" if op.kind == "int" else "u") + ("max" if greatest else "min"), y)
        if not x.name.startswith("%"):
            x, y = y, x
        if op.params is ANY_ZERO:
            return y.is_nan().where(y, x.above(y) if greatest else x.below(y))
        number = y.uniform()
        if number is None or math.isnan(number):
            return _float_extremum(x, y, greatest)
        return _bounded(x, number, greatest)

    return extremum


def _bounded(x: Vector, number: float, greatest: bool) -> Vector:
    """Return the extremum of a vector and a number, where -0 is below +0; NaN comes through."""
    if number == 0 and greatest != (math.copysign(1, number) < 0):
        return x.compare("ugt" if greatest else "ult", number).where(x, number)
    return x.above(number) if greatest else x.below(number)


def _float_extremum(x: Vector, y: Vector, greatest: bool) -> Vector:
    """Return the extremum of two vectors, where -0 is below +0; NaN comes through."""
    # Each is the extremum, and of two zeros, or beside NaN, its own operand.
    first, second = (x.above(y), y.above(x)) if greatest else (x.below(y), y.below(x))
    either = first.bits() | second.bits()  # A number with bits of NaN is NaN.
    if not greatest:
        return either.number()
    return x.compare("uno", y).where(either, first.bits() & second.bits()).number()


rule("max")(_extremum(True))
rule("min")(_extremum(False))


@rule("and")
def _and(op: Operation, x: Vector, y: Vector) -> Vector:
    return x & y


@rule("or")
def _or(op: Operation, x: Vector, y: Vector) -> Vector:
    return x | y


@rule("xor")
def _xor(op: Operation, x: Vector, y: Vector) -> Vector:
    return x ^ y


def _shift(left: bool) -> Rule:
    def shift(op: Operation, x: Vector, by: Vector) -> Vector:
        bits = BITS[x.element]
        inside = by.compare("ult", bits)
        amount = inside.where(by, 0)
        if left:
            return inside.where(x << amount, 0)
        if op.kind == "uint":
            return inside.where(x.lshr(amount), 0)
        return inside.where(x >> amount, x >> (bits - 1))

    return shift


rule("shift_left")(_shift(True))
rule("shift_right")(_shift(False))


@rule("equal")
def _equal(op: Operation, x: Vector, y: Vector) -> Vector:
    return x.equals(y)


@rule("less")
def _less(op: Operation, x: Vector, y: Vector) -> Vector:
    return x.compare("ult", y) if op.kind in ("uint", "bool") else x < y


# Three.


@rule("select")
def _select(op: Operation, condition: Vector, x: Vector, y: Vector) -> Vector:
    return condition.where(x, y)


# Conversions.


@rule("convert")
def _convert(op: Operation, x: Vector) -> Vector:
    source, target = op.kind, op.params["dtype"]
    if target == op.dtype and target not in t.FLOAT8:  # Of these, infinities may be cut off.
        return x
    kind, element = t.kind(target), load_store.register_type(target)
    if kind == "bool":
        return x.compare("une" if x.is_float else "ne", 0)
    if kind == "float":
        return _to_float(op, x, target)
    if source == "float":
        return _to_integer(x, kind, element)
    if BITS[element] <= BITS[x.element]:
        return x if element == x.element else x.to("trunc", element)
    return x.to("sext" if source == "int" else "zext", element)


def _to_float(op: Operation, x: Vector, target: DType) -> Vector:
    element = load_store.register_type(target)
    if not x.is_float:
        x = x.to("sitofp" if op.kind == "int" else "uitofp", element)
    elif BITS[element] < BITS[x.element]:
        x = x.to("fptrunc", element) if target in (t.FLOAT, t.BFLOAT16) else _rounded_to_odd(x)
    elif BITS[element] > BITS[x.element]:
        x = x.to("fpext", element)
    if target == DType.FLOAT8E8M0:
        return minifloats.nearest_power_of_two(x, op.params["saturate"], op.params["rounding"])
    if target in t.FLOAT8 and op.params["saturate"]:
        limit = minifloats.FORMATS[target].greatest
        x = x.above(-limit).below(limit)
    return Vector(x.emitter, load_store.round_to(x.emitter, target, x.name, x.lanes), element, x.lanes)


def _rounded_to_odd(x: Vector) -> Vector:
    """Convert ``double`` to ``float`` by rounding to odd, so that the next rounding is correct.

    The last bit is set if bits were lost: rounding once more to a shorter type is then equal to rounding the
    ``double``.
    """
    nearest = x.to("fptrunc", "float")
    back = nearest.to("fpext", "double")
    away = (back.abs() > x.abs()).to("sext", "i32")
    cut = back.compare("one", x).to("zext", "i32")
    return ((nearest.bits() + away) | cut).number()


def _to_integer(x: Vector, kind: t.Kind, element: str) -> Vector:
    """Truncate toward zero; values out of range give the processor's result, frozen: LLVM defines none."""
    if BITS[element] < 32:
        return _toward_zero(x, "i32").to("trunc", element)
    if kind == "int":
        return _toward_zero(x, element)
    if element == "i32":
        return _toward_zero(x, "i64").to("trunc", element)
    half = float(1 << 63)
    large = x >= half
    result = _toward_zero(large.where(x - half, x), "i64")
    return result ^ large.where(result.like(-(1 << 63)), 0)


def _toward_zero(x: Vector, element: str) -> Vector:
    result = x.to("fptosi", element)
    return result._let(f"freeze {result}")


@rule("bitcast")
def _bitcast(op: Operation, x: Vector) -> Vector:
    target: DType = op.params["dtype"]
    raw = load_store.to_memory(x.emitter, op.dtype, x.name, x.lanes)
    held = Vector(x.emitter, raw, load_store.memory_type(op.dtype), x.lanes)
    if held.element != load_store.memory_type(target):
        held = held.to("bitcast", load_store.memory_type(target))
    name = load_store.from_memory(x.emitter, target, held.name, x.lanes)
    return Vector(x.emitter, name, load_store.register_type(target), x.lanes)
