"""Sizes as integer expressions over named symbols: ``batch``, ``2*N + 1``, ``(H + 1)//2``.

A known size is a Python ``int`` and an unknown one a :class:`Dim`; the two mix freely in arithmetic, and a result that
is constant is an ``int``. The rest of Sardonyx uses this module; its parts are ``polynomial`` (polynomials over atoms,
interned), ``canonical_forms`` (division, minimum, maximum, broadcast), ``bounds`` (assumptions and proofs), ``parse``
(``dim_param`` texts) and ``equalities`` (equations between sizes).

Canonical forms are sound for all symbols ≥ 0 (a symbol stands for a size); stronger assumptions are passed as
``assumptions``. A rewritten expression equals the original wherever the original is defined; a division whose divisor
may be zero stays.

Division rounds down, as in Python. ONNX ``Div`` on integers rounds toward zero: the two agree if both operands are
proven not to be negative (``at_least(a, 0)``), and may be exchanged only then.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import TypeGuard

from sardonyx.core.dim import canonical_forms as forms
from sardonyx.core.dim.bounds import NON_NEGATIVE, POSITIVE, Assumptions, Bounds, Interval, as_bounds
from sardonyx.core.dim.equalities import DimSystem
from sardonyx.core.dim.polynomial import MEMO_ENTRIES, Dim, Size, as_operand
from sardonyx.errors import OptionError, ShapeError

__all__ = [
    "POSITIVE",
    "Assumptions",
    "Bounds",
    "Dim",
    "DimSystem",
    "Interval",
    "Size",
    "as_dim",
    "at_least",
    "bounds",
    "broadcast",
    "ceil_div",
    "dim_max",
    "dim_min",
    "divides",
    "equal",
    "evaluate",
    "floor_div",
    "is_constant",
    "is_long",
    "linear_symbol",
    "product",
    "require_symbols",
    "simplify",
    "substitute",
    "symbols",
]


def as_dim(value: Size | str) -> Size:
    """Return a size from an integer, a ``dim_param`` text or a Dim.

    Raises:
        ShapeError: See :meth:`Dim.parse`.
    """
    if isinstance(value, str):
        return Dim.parse(value)
    return as_operand(value)


def is_constant(size: Size) -> TypeGuard[int]:
    """Return True if the size is a known number."""
    return isinstance(size, int)


def is_long(size: Size) -> TypeGuard[Dim]:
    """Return True if an expression of a few sizes like this may exceed the limits."""
    return isinstance(size, Dim) and size.is_long


def linear_symbol(size: Dim) -> tuple[str, int, int] | None:
    """Return symbol, factor and constant of ``factor * symbol + constant``; None for another expression.

    An input of such a size binds the symbol.
    """
    constant, term = 0, None
    for _, atoms, factor in size.terms:
        if not atoms:
            constant = factor
        elif len(atoms) == 1 and atoms[0].kind == "symbol" and term is None:
            term = str(atoms[0].name), factor
        else:
            return None
    return None if term is None else (*term, constant)


def symbols(size: Size) -> frozenset[str]:
    """Return the names of the symbols in the size."""
    return size.symbols() if isinstance(size, Dim) else frozenset()


def require_symbols(values: Mapping[str, int], of_inputs: Collection[str], inner: Iterable[str] = ()) -> None:
    """Check that a caller gives values to open sizes of a model alone.

    Args:
        values: The values by name.
        of_inputs: The names of open sizes of inputs, which the error lists.
        inner: Names of other open sizes.

    Raises:
        OptionError: A name is unknown.
    """
    if unknown := sorted(values.keys() - {*of_inputs, *inner}):
        raise OptionError(
            f"unknown open size '{unknown[0]}'.", where="sizes",
            remedy=f"Open sizes of the model: {', '.join(of_inputs) or 'none'}.",
        )  # fmt: skip


def substitute(size: Size, values: Mapping[str, Size], assumptions: Assumptions = None) -> Size:
    """Return the size with symbols replaced; see :meth:`Dim.substitute`."""
    return size.substitute(values, assumptions) if isinstance(size, Dim) else size


def simplify(size: Size, assumptions: Assumptions) -> Size:
    """Return the size simplified under ``assumptions``, e.g. ``a*b//b`` to ``a`` for ``b`` ≥ 1.

    Raises:
        ShapeError: Sizes that broadcast are proven different.
    """
    return substitute(size, {}, as_bounds(assumptions))


def evaluate(size: Size, values: Mapping[str, int]) -> int:
    """Return the value of the size; see :meth:`Dim.evaluate`."""
    return size.evaluate(values) if isinstance(size, Dim) else size


def bounds(size: Size, assumptions: Assumptions = None) -> Interval:
    """Return proven bounds on the size; see :meth:`Dim.bounds`."""
    return size.bounds(assumptions) if isinstance(size, Dim) else (size, size)


def product(sizes: Iterable[Size]) -> Size:
    """Return the product of the sizes; 1 for none."""
    return math.prod(sizes)


def floor_div(numerator: Size, divisor: Size, assumptions: Assumptions = None) -> Size:
    """Return the quotient rounded down.

    Raises:
        ShapeError: The divisor is the constant 0.
    """
    return _memoize("//", (numerator, divisor), assumptions)


def ceil_div(numerator: Size, divisor: Size, assumptions: Assumptions = None) -> Size:
    """Return the quotient rounded up; see :func:`floor_div`."""
    return -_memoize("//", (-numerator, divisor), assumptions)


def dim_min(first: Size, *others: Size, assumptions: Assumptions = None) -> Size:
    """Return the minimum of the sizes."""
    return _memoize("min", (first, *others), assumptions)


def dim_max(first: Size, *others: Size, assumptions: Assumptions = None) -> Size:
    """Return the maximum of the sizes."""
    return _memoize("max", (first, *others), assumptions)


def broadcast(first: Size, *others: Size, assumptions: Assumptions = None) -> Size:
    """Return the size of an axis after broadcasting these sizes (ONNX *Broadcasting*, multidirectional).

    The result is not a maximum: 0 with 1 gives 0. If one size is proven not to be 1, the result is this size, provided
    every other size is equal or 1; the caller must check this condition at run time. :meth:`Dim.evaluate` checks the
    condition of a broadcast inside an expression.

    Raises:
        ShapeError: Two of the sizes are proven different and neither is 1.
    """
    return _memoize("broadcast", (first, *others), assumptions)


def _memoize(operation: forms.Operation, sizes: tuple[Size, ...], assumptions: Assumptions) -> Size:
    proof = NON_NEGATIVE if assumptions is None else as_bounds(assumptions)
    key = operation, sizes
    result = proof.results.get(key)
    if result is None:
        if len(proof.results) >= MEMO_ENTRIES:
            proof.results.clear()
        result = proof.results[key] = forms.operation(operation, [as_operand(size) for size in sizes], proof)
    return result


def equal(a: Size, b: Size, assumptions: Assumptions = None) -> bool | None:
    """Return True if the sizes are equal for all values, False if different for all, else None."""
    return a is b or as_bounds(assumptions).equal(a, b)


def at_least(a: Size, b: Size, assumptions: Assumptions = None) -> bool | None:
    """Return True if ``a >= b`` for all values, False if for no values, else None."""
    least, greatest = as_bounds(assumptions).difference(a, b)
    if least is not None and least >= 0:
        return True
    return False if greatest is not None and greatest < 0 else None


def divides(divisor: Size, size: Size, assumptions: Assumptions = None) -> bool | None:
    """Return True if ``size`` is a multiple of ``divisor`` for all values, False if for none, else None.

    Raises:
        ShapeError: The divisor is the constant 0.
    """
    if divisor == 0:
        raise ShapeError(f"cannot decide whether 0 divides {size}.", remedy="Give a divisor that is not 0.")
    try:
        multiple = divisor * floor_div(size, divisor, assumptions)
    except ShapeError:
        return None  # The product exceeds the limits on the size of an expression: no proof.
    return equal(size, multiple, assumptions)
