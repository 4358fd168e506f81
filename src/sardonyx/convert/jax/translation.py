"""Translate a jaxpr to ONNX nodes, primitive by primitive, with sizes computed from shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
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
"""Translations of primitives with pairs: complex numbers, and keys of random numbers, on a last axis."""

_PRINTED = frozenset(("debug_print", "debug_callback"))
"""Primitives without results that print; a model prints nothing."""

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

    def call(
        self,
        jaxpr: Any,
        constants: Sequence[Any],
        operands: Sequence[ir.Value],
        known_operands: Mapping[int, Any] = MappingProxyType({}),
    ) -> list[ir.Value]:
        """Add the equations of a jaxpr over operands, and return its results.

        Args:
            jaxpr: The equations.
            constants: Values of the jaxpr's constants.
            operands: Values of the jaxpr's inputs.
            known_operands: Numbers of inputs, by index, that follow from keys of random numbers alone.
        """
        if self.depth > _DEEPEST:
            raise UnsupportedError(f"jaxprs nested more than {_DEEPEST} times", where="jax")
        values: dict[Any, ir.Value] = {}
        known = known_values(jaxpr, constants, {jaxpr.invars[index]: item for index, item in known_operands.items()})
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
            inner = {
                index: known[atom]
                for index, atom in enumerate(equation.invars)
                if not hasattr(atom, "val") and atom in known
            }
            results = self.equation(equation, [read(atom) for atom in equation.invars], inner)
            values.update(zip(equation.outvars, results, strict=True))
        for atom in jaxpr.outvars:
            if not hasattr(atom, "val") and atom in known:
                values[atom] = self.array(known[atom])
        return [read(atom) for atom in jaxpr.outvars]

    def array(self, constant: Any) -> ir.Value:
        """Return a captured array as a constant."""
        if is_key(constant):
            import jax

            constant = jax.random.key_data(constant)
        array = np.asarray(constant)
        if array.dtype.kind == "c":
            array = np.stack([array.real, array.imag], -1)
        if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
            raise UnsupportedError(f"a constant of type {array.dtype}", where="jax")
        return self.constant(array, name="weight" if array.size > 64 else "")

    def equation(self, equation: Any, inputs: list[ir.Value], known: Mapping[int, Any]) -> list[ir.Value]:
        """Add one equation.

        Args:
            equation: The equation.
            inputs: Values of its operands.
            known: Numbers of operands, by index, that follow from keys of random numbers alone.

        Raises:
            UnsupportedError: The primitive has no translation; names primitive and source line.
        """
        name, parameters = equation.primitive.name, equation.params
        outcome: Outcome = "converted"
        if name in INLINED:
            closed = next(parameters[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in parameters)
            inner = getattr(closed, "jaxpr", closed)
            self.depth += 1
            results = self.call(inner, getattr(closed, "consts", ()), inputs, known)
            self.depth -= 1
            return results
        where = source_line(equation)
        if name in _PRINTED:
            self.calls.append(Call(name, "removed", where))
            return []
        atoms = (*equation.invars, *equation.outvars)
        has_complex = any(map(is_complex, atoms))
        translation = (COMPLEX_RULES if any(map(is_pair, atoms)) else RULES).get(name)
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


def known_values(jaxpr: Any, constants: Sequence[Any], operands: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the values of the variables that follow from keys of random numbers alone, by variable."""
    known: dict[Any, Any] = {
        variable: constant for variable, constant in zip(jaxpr.constvars, constants, strict=True) if is_key(constant)
    } | dict(operands)
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
        numbers = [atom.val if hasattr(atom, "val") else known[atom] for atom in atoms]
        bound = equation.primitive.get_bind_params(equation.params)
        subfunctions, parameters = bound if isinstance(bound, tuple) else ((), bound)
        results = equation.primitive.bind(*subfunctions, *numbers, **parameters)
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


def is_pair(atom: Any) -> bool:
    """Return True for a variable whose elements have a last axis: pairs of complex numbers, or words of keys."""
    return is_complex(atom) or is_key(atom.aval)


def part_count(atom: Any) -> int:
    """Return the size of the last axis of a variable's elements: 2, or the number of words of a key."""
    return int(atom.aval.dtype._impl.key_shape[0]) if is_key(atom.aval) else 2


def part_type(atom: Any) -> Any:
    """Return the element type of a variable, of one part if the elements are pairs."""
    if is_key(atom.aval):
        return np.dtype(np.uint32)
    return np.zeros(0, atom.aval.dtype).real.dtype


def is_complex(atom: Any) -> bool:
    """Return True for a variable that holds complex numbers."""
    return getattr(getattr(atom.aval, "dtype", None), "kind", "") == "c"


def dtype_of(atom: Any) -> Any:
    """Return the element type of a variable."""
    return np.dtype(atom.aval.dtype)
