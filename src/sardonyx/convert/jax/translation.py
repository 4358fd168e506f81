"""Translate a jaxpr to ONNX nodes, primitive by primitive, with sizes computed from shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.convert.graph_builder import GraphBuilder
from sardonyx.convert.imported import Call, Outcome
from sardonyx.errors import UnsupportedError

Rule = Callable[..., Any]

RULES: dict[str, Rule] = {}
"""Translations by primitive: functions of (context, equation, inputs) that return one or more values."""

COMPLEX_RULES: dict[str, Rule] = {}
"""Translations of primitives with complex operands or results: pairs of real numbers on a last axis."""

INLINED = frozenset(
    (
        "jit",
        "pjit",
        "closed_call",
        "core_call",
        "custom_jvp_call",
        "custom_vjp_call",
        "remat",
        "remat2",
        "checkpoint",
        "custom_vjp_call_jaxpr",
    )
)
"""Primitives that call a jaxpr, whose equations replace the call."""

_DEEPEST = 200


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a function as the translation of primitives."""

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


class Context(GraphBuilder):
    """A graph under construction from a jaxpr.

    Args:
        names: Names in use.
        symbols: Scalars of the outermost graph by name of the open size.
        calls: Collects the result of each equation.
    """

    def __init__(self, names: Any, symbols: dict[str, ir.Value], calls: list[Call]) -> None:
        super().__init__(names)
        self.symbols = symbols
        self.calls = calls
        self.depth = 0
        self.opsets: list[int] = []

    def require_opset(self, version: int) -> None:
        """Let the model have at least this operator set."""
        self.opsets.append(version)

    def inner(self) -> Context:
        """Return the context of a body, which may refer to outer values."""
        context = Context(self.names, self.symbols, self.calls)
        context.depth = self.depth + 1
        context.opsets = self.opsets
        return context

    # Values

    def ints(self, numbers: Sequence[int]) -> ir.Value:
        """Return an int64 vector."""
        return self.constant(np.asarray(numbers, np.int64))

    def scalar(self, value: Any, dtype: Any) -> ir.Value:
        """Return a scalar of an element type."""
        return self.constant(np.asarray(value).astype(dtype))

    def cast(self, value: ir.Value, dtype: Any) -> ir.Value:
        """Return a value converted to an element type of numpy."""
        return self.node("Cast", value, to=ir.DataType.from_numpy(np.dtype(dtype)))

    def size_value(self, size: Any) -> ir.Value:
        """Return a size as an int64 scalar: a number, or a sum of products of open sizes and functions."""
        if isinstance(size, (int, np.integer)):
            return self.constant(int(size), np.int64)
        total: ir.Value | None = None
        for term, coefficient in size._sorted_terms:
            value = self.constant(int(coefficient), np.int64)
            for factor, power in term._factors:
                for _ in range(int(power)):
                    value = self.node("Mul", value, self._factor(factor))
            total = value if total is None else self.node("Add", total, value)
        return self.constant(0, np.int64) if total is None else total

    def _factor(self, factor: Any) -> ir.Value:
        """Return an open size, or a function of sizes."""
        if factor.var is not None:
            return self.symbols[str(factor.var)]
        left, right = (self.size_value(operand) for operand in factor.operands)
        match str(factor.operation):
            case "max":
                return self.node("Max", left, right)
            case "min":
                return self.node("Min", left, right)
            case "mod":
                return self.node("Mod", left, right)
            case "floordiv":
                return self.node("Div", self.node("Sub", left, self.node("Mod", left, right)), right)
        raise UnsupportedError(f"sizes with the function '{factor.operation}'", where="jax")

    def sizes(self, shape: Sequence[Any]) -> ir.Value:
        """Return sizes as an int64 vector."""
        if all(isinstance(size, (int, np.integer)) for size in shape):
            return self.ints([int(size) for size in shape])
        parts = [self.node("Reshape", self.size_value(size), self.ints([1])) for size in shape]
        return self.node("Concat", *parts, axis=0)

    def reshaped(self, value: ir.Value, shape: Sequence[Any]) -> ir.Value:
        """Return the elements with other sizes."""
        return self.node("Reshape", value, self.sizes(shape), allowzero=1 if 0 in map(_known, shape) else None)

    # Equations

    def call(self, jaxpr: Any, constants: Sequence[Any], operands: Sequence[ir.Value]) -> list[ir.Value]:
        """Add the equations of a jaxpr over operands, and return its results."""
        if self.depth > _DEEPEST:
            raise UnsupportedError(f"jaxprs nested more than {_DEEPEST} times", where="jax")
        values: dict[Any, ir.Value] = {}
        known = known_values(jaxpr, constants)
        for variable, constant in zip(jaxpr.constvars, constants, strict=True):
            if variable not in known:
                values[variable] = constant if isinstance(constant, ir.Value) else self.array(constant)
        values.update(zip(jaxpr.invars, operands, strict=True))

        def read(atom: Any) -> ir.Value:
            if hasattr(atom, "val"):
                return self.array(np.asarray(atom.val, atom.aval.dtype))
            return values[atom]

        for equation in jaxpr.eqns:
            if equation.outvars and all(variable in known for variable in equation.outvars):
                continue
            for atom in equation.invars:
                if not hasattr(atom, "val") and atom in known and atom not in values:
                    values[atom] = self.array(known[atom])
            results = self.equation(equation, [read(atom) for atom in equation.invars])
            values.update(zip(equation.outvars, results, strict=True))
        for atom in jaxpr.outvars:
            if not hasattr(atom, "val") and atom in known:
                values[atom] = self.array(known[atom])
        return [read(atom) for atom in jaxpr.outvars]

    def array(self, constant: Any) -> ir.Value:
        """Return a captured array as a constant."""
        if is_key(constant):
            raise UnsupportedError("random numbers of an open number", where="jax", remedy="Fix the sizes.")
        array = np.asarray(constant)
        if array.dtype.kind == "c":
            array = np.stack([array.real, array.imag], -1)
        if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
            raise UnsupportedError(f"a constant of type {array.dtype}", where="jax")
        return self.constant(array, name="weight" if array.size > 64 else "")

    def equation(self, equation: Any, inputs: list[ir.Value]) -> list[ir.Value]:
        """Add one equation.

        Raises:
            UnsupportedError: The primitive has no translation; names primitive and source line.
        """
        name, parameters = equation.primitive.name, equation.params
        outcome: Outcome = "converted"
        if name in INLINED:
            closed = next(parameters[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in parameters)
            inner = getattr(closed, "jaxpr", closed)
            self.depth += 1
            results = self.call(inner, getattr(closed, "consts", ()), inputs)
            self.depth -= 1
            return results
        where = source_line(equation)
        has_complex = any(map(is_complex, (*equation.invars, *equation.outvars)))
        translation = (COMPLEX_RULES if has_complex else RULES).get(name)
        if translation is None:
            raise UnsupportedError(
                f"the primitive '{name}' has no translation{' for complex numbers' if has_complex else ''}",
                where=where,
                remedy="Write the function with other operations of jax.numpy.",
            )
        result = translation(self, equation, *inputs)
        self.calls.append(Call(name, outcome, where))
        return list(result) if isinstance(result, (list, tuple)) else [result]


KEYED = ("random_seed", "random_wrap")
"""Primitives that make keys of random numbers; numbers of known keys are computed when the function is converted."""


def is_key(value: Any) -> bool:
    """Return True for keys of random numbers."""
    return str(getattr(value, "dtype", "")).startswith("key<")


def known_values(jaxpr: Any, constants: Sequence[Any]) -> dict[Any, Any]:
    """Return the values of the variables that follow from keys of random numbers alone, by variable."""
    known: dict[Any, Any] = {
        variable: constant for variable, constant in zip(jaxpr.constvars, constants, strict=True) if is_key(constant)
    }
    if not known and not any(equation.primitive.name in KEYED for equation in jaxpr.eqns):
        return {}
    for equation in jaxpr.eqns:
        atoms = equation.invars
        if equation.effects or not (atoms or equation.primitive.name in (*KEYED, "iota")):
            continue
        if not all(hasattr(atom, "val") or atom in known for atom in atoms):
            continue
        if not all(isinstance(size, int) for variable in equation.outvars for size in variable.aval.shape):
            continue
        operands = [atom.val if hasattr(atom, "val") else known[atom] for atom in atoms]
        bound = equation.primitive.get_bind_params(equation.params)
        subfunctions, parameters = bound if isinstance(bound, tuple) else ((), bound)
        results = equation.primitive.bind(*subfunctions, *operands, **parameters)
        results = results if equation.primitive.multiple_results else [results]
        known.update(zip(equation.outvars, results, strict=True))
    return known


def _known(size: Any) -> int | None:
    return int(size) if isinstance(size, (int, np.integer)) else None


def source_line(equation: Any) -> str:
    """Return the user's source line of an equation, "jax" if unknown."""
    try:
        from jax._src import source_info_util

        frame = source_info_util.user_frame(equation.source_info.traceback)
    except (ImportError, AttributeError, TypeError):
        return "jax"
    return f"{frame.file_name}:{frame.start_line}" if frame is not None else "jax"


def is_complex(atom: Any) -> bool:
    """Return True for a variable that holds complex numbers."""
    return getattr(getattr(atom.aval, "dtype", None), "kind", "") == "c"


def dtype_of(atom: Any) -> Any:
    """Return the element type of a variable."""
    return np.dtype(atom.aval.dtype)
