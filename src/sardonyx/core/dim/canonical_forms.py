"""Canonical forms of the operations on sizes that no polynomial expresses; each rewrite is sound.

Floor division by a constant ``k``: multiples of ``k`` move outside, common factors cancel, nested divisions merge
(``((x + 1)//2 + 1)//2`` is ``(x + 3)//4``), and the first term inside is positive (``-((-a)//k)`` is
``(a + k - 1)//k``). By a symbolic divisor: the same through polynomial division, but only if the divisor is proven
to be ≥ 1. Minima and maxima: flat, sorted, without the operands that others bound. Every function receives the
assumptions for its proofs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import gcd
from operator import attrgetter, index
from typing import Literal

from sardonyx.core.dim.bounds import Bounds
from sardonyx.core.dim.polynomial import (
    MAX_OPERANDS,
    Atom,
    AtomKind,
    Dim,
    Size,
    Term,
    as_operand,
    atom_dim,
    collect_terms,
    size_limit_error,
    size_of,
    term_of,
)
from sardonyx.errors import ShapeError

Operation = Literal["//", "min", "max", "broadcast"]


def operation(kind: Operation, sizes: list[Size], proof: Bounds) -> Size:
    """Return the canonical form of an operation on these operands."""
    if kind == "//":
        return floor_div(sizes[0], sizes[1], proof)
    return broadcast(sizes, proof) if kind == "broadcast" else extremum(kind, sizes, proof)


# Floor division.


def floor_div(n: Size, d: Size, proof: Bounds) -> Size:
    """Return ``n//d``, rounded down, simplified as far as ``proof`` allows.

    Raises:
        ShapeError: ``d`` is the constant 0.
    """
    if isinstance(d, int):
        if d == 0:
            raise ShapeError("a size is divided by 0.", where=str(n), remedy="Give a divisor that is not 0.")
        if isinstance(n, int):
            return n // d
        return _divide_by_constant(n, d, proof) if d > 0 else floor_div(-n, -d, proof)
    least = proof.lower(d)
    if least is None or least < 1:
        return _quotient(*_cancel_common_scale(n, d))
    return _divide_by_positive(n, d, proof)


def _quotient(n: Size, d: Size) -> Dim:
    return atom_dim("//", (n, d))


def _cancel_common_scale(n: Size, d: Dim) -> tuple[Size, Size]:
    """Divide both by the common divisor of their coefficients: sound for every divisor, as ``g >= 1``."""
    return _reduce_terms(_terms(n), d.terms, ())


def _terms(size: Size) -> tuple[Term, ...]:
    return size.terms if isinstance(size, Dim) else (("", (), size),)


def _reduce_terms(n: tuple[Term, ...], d: tuple[Term, ...], shared: Iterable[Atom]) -> tuple[Size, Size]:
    """Divide both sums by the common divisor of all coefficients and by the ``shared`` atoms of all terms."""
    scale = gcd(*(factor for _, _, factor in n + d))
    reduced = [term_of(_remove_atoms(atoms, shared), factor // scale) for _, atoms, factor in n + d]
    return collect_terms(reduced[: len(n)]), collect_terms(reduced[len(n) :])


def _divide_by_constant(n: Dim, k: int, proof: Bounds) -> Size:
    """Return ``n//k`` for ``k >= 1``.

    Multiples of k move outside; the rest is reduced, led by a positive term and un-nested.
    """
    if k == 1:
        return n
    outside, inside = _split(n, k)
    if isinstance(inside, int):
        return outside  # The remainder is in 0..k-1.
    common = gcd(k, *(factor for _, atoms, factor in inside.terms if atoms))
    if common > 1:
        # floor((g*m + c)/(g*k)) = floor((m + floor(c/g))/k)
        reduced = [(text, atoms, factor // common) for text, atoms, factor in inside.terms]
        return outside + floor_div(collect_terms(reduced), k // common, proof)
    if inside.terms[bool(inside.constant)][2] < 0:
        return outside - floor_div(k - 1 - inside, k, proof)
    least, greatest = proof.interval(inside)
    if least is not None and greatest is not None and least // k == greatest // k:
        return outside + least // k
    nested = _unnest(inside, k, proof)
    quotient = _quotient(inside, k) if nested is None else nested
    return quotient + outside if outside else quotient


def _split(n: Dim, k: int) -> tuple[Size, Size]:
    """Return ``(q, r)`` with ``n == k*q + r``.

    Coefficients are rounded toward zero, and the constant of ``r`` is in ``0..k-1``.
    """
    outside: list[Term] = []
    inside: list[Term] = []
    for term in n.terms:
        text, atoms, factor = term
        if 0 < factor < k:
            inside.append(term)
            continue
        whole = -(-factor // k) if atoms and factor < 0 else factor // k
        if whole:
            outside.append((text, atoms, whole))
        if factor != whole * k:
            inside.append((text, atoms, factor - whole * k))
    return size_of(tuple(outside)), size_of(tuple(inside)) if outside else n


def _unnest(n: Dim, d: Size, proof: Bounds) -> Size | None:
    """Return ``(x//a + m)//d`` as ``(x + a*m)//(a*d)`` for ``a, d >= 1``.

    None unless ``n`` contains exactly one division.
    """
    quotients = [(i, term) for i, term in enumerate(n.terms) if any(atom.kind == "//" for atom in term[1])]
    if len(quotients) != 1:
        return None
    position, (_, atoms, factor) = quotients[0]
    if len(atoms) > 1 or factor != 1:
        return None
    numerator, divisor = atoms[0].args
    least = proof.lower(divisor)
    if least is None or least < 1:
        return None
    return floor_div(numerator + divisor * n.without(position), divisor * d, proof)


def _divide_by_positive(n: Size, d: Dim, proof: Bounds) -> Size:
    """Return ``n//d`` for a symbolic ``d >= 1``."""
    n, divisor = _cancel_common_factor(n, d, proof)
    if isinstance(divisor, int):
        return floor_div(n, divisor, proof)
    d = divisor
    if isinstance(n, Dim):
        whole, left = _divide_polynomials(n, d)
        shorter = isinstance(left, int) or len(left.terms) < len(n.terms)
        if whole != 0 and (shorter or len(d.terms) == 1):
            return whole + floor_div(left, d, proof)
        nested = _unnest(n, d, proof)
        if nested is not None:
            return nested
    least, (gap, _) = proof.lower(n), proof.difference(d, n)
    if least is not None and least >= 0 and gap is not None and gap >= 1:
        return 0
    return _quotient(n, d)


def _cancel_common_factor(n: Size, d: Dim, proof: Bounds) -> tuple[Size, Size]:
    """Divide both by their shared monomial, which is positive.

    ``d`` is positive, and no factor of the monomial is negative.
    """
    terms = _terms(n) + d.terms
    shared: list[Atom] = []
    for atom in dict.fromkeys(terms[0][1]):
        least = proof.lower(size_of(((atom.text, (atom,), 1),)))
        if least is not None and least >= 0:
            shared += [atom] * min(atoms.count(atom) for _, atoms, _ in terms)
    return _reduce_terms(_terms(n), d.terms, shared)


def _remove_atoms(atoms: tuple[Atom, ...], divisor: Iterable[Atom]) -> list[Atom]:
    left = list(atoms)
    for atom in divisor:
        left.remove(atom)
    return left


def _order(term: Term) -> tuple[int, list[str]]:
    """Return the key of a monomial order (graded, then lexicographic).

    Products preserve this order, as division by leading terms requires.
    """
    return len(term[1]), [atom.text for atom in term[1]]


def _divide_polynomials(n: Dim, d: Dim) -> tuple[Size, Size]:
    """Return integer polynomials ``(q, r)`` with ``n == q*d + r``.

    No term of ``r`` is divisible by the leading term of ``d``.
    """
    _, lead_atoms, lead_factor = max(d.terms, key=_order)
    whole: Size = 0
    left: Size = 0
    rest: Size = n
    while isinstance(rest, Dim):
        term = max(rest.terms, key=_order)
        _, atoms, factor = term
        times = abs(factor) // abs(lead_factor)
        if times and all(atoms.count(atom) >= lead_atoms.count(atom) for atom in lead_atoms):
            sign = 1 if (factor > 0) == (lead_factor > 0) else -1
            part = collect_terms([term_of(_remove_atoms(atoms, lead_atoms), sign * times)])
            whole += part
            rest -= part * d
        else:
            monomial = size_of((term,))
            left += monomial
            rest -= monomial
    return whole, left + rest


# Minima, maxima and broadcasts.


def extremum(kind: Literal["min", "max"], sizes: Iterable[Size], proof: Bounds) -> Size:
    """Return the minimum or maximum of the sizes, without operands that others bound."""
    operands: list[Size] = []
    for size in _operands(kind, sizes):
        ranges = [proof.difference(*((size, other) if kind == "min" else (other, size))) for other in operands]
        if not any(least is not None and least >= 0 for least, _ in ranges):
            bounded = [greatest is not None and greatest <= 0 for _, greatest in ranges]
            operands = [other for other, is_bounded in zip(operands, bounded, strict=True) if not is_bounded]
            operands.append(size)
    if len(operands) == 1:
        return operands[0]
    if kind == "min" and len(operands) == 2 and operands[0] == 0:
        # The sum of the parts above and below 0 cancels to the size: see ``collect_terms``.
        return -atom_dim("max", (0, -operands[1]))
    dims = [size for size in operands if isinstance(size, Dim)]
    offset = min(dim.constant for dim in dims)
    if offset and len(dims) == len(operands):
        return offset + extremum(kind, [dim - offset for dim in dims], proof)
    return atom_dim(kind, tuple(operands))


def _operands(kind: AtomKind, sizes: Iterable[Size]) -> list[Size]:
    """Return the distinct operands, nested operations of this kind flattened; constants first."""
    flat: dict[Size, None] = {}
    for size in sizes:
        atom = size.atom if isinstance(size, Dim) else None
        flat.update(dict.fromkeys(atom.args if atom is not None and atom.kind == kind else [size]))
    dims = sorted((size for size in flat if isinstance(size, Dim)), key=attrgetter("terms"))
    if len(dims) > MAX_OPERANDS:
        raise size_limit_error(f"{len(dims)} operands of {kind}", dims[0].terms)
    return [*sorted(size for size in flat if isinstance(size, int)), *dims]


def broadcast(sizes: Iterable[Size], proof: Bounds) -> Size:
    """Return the first size proven not to be 1, else the broadcast of all sizes that may differ from 1.

    Raises:
        ShapeError: Two of the sizes are proven different and neither is 1.
    """
    operands = [size for size in _operands("broadcast", sizes) if size != 1]
    decided = [size for size in operands if proof.equal(size, 1) is False]
    for i, size in enumerate(decided):
        for other in decided[:i]:
            if proof.equal(size, other) is False:
                raise ShapeError(
                    f"sizes {other} and {size} do not broadcast together.",
                    remedy="Make them equal, or one of them 1.",
                )
    if decided:
        return decided[0]
    remaining: list[Size] = []
    for size in operands:
        if not any(_covers(other, size, proof) for other in remaining):
            remaining = [other for other in remaining if not _covers(size, other, proof)] + [size]
    if len(remaining) < 2:
        return remaining[0] if remaining else 1
    return atom_dim("broadcast", tuple(remaining))


def _covers(size: Size, other: Size, proof: Bounds) -> bool:
    """Return True if ``other`` is redundant: broadcast sizes must be equal, and ``size`` is simpler.

    ``min(n, 512)`` is 1 exactly if ``n`` is; otherwise the two broadcast only if equal.
    """
    if not isinstance(size, Dim) or not isinstance(other, Dim):
        return False
    atom = other.atom
    if atom is not None and atom.kind == "min" and size in atom.args:
        return all(arg is size or (proof.lower(arg) or 0) >= 2 for arg in atom.args)
    return size.depth <= other.depth and _agree(size, other, proof)


def _agree(a: Dim, b: Dim, proof: Bounds) -> bool:
    """Return True if the sizes are equal: in general, or at 0 and at positive values of their one symbol."""
    if proof.equal(a, b) is True:
        return True
    names = a.symbols() | b.symbols()
    if len(names) != 1:
        return False
    (name,) = names
    try:
        at_zero = [substitute_symbols(dim, {name: 0}, names, proof, {}) for dim in (a, b)]
    except ShapeError:  # One of the sizes is undefined at 0.
        return False
    positive = Bounds({name: (1, None)})
    return (
        at_zero[0] == at_zero[1]
        and positive.equal(*(substitute_symbols(dim, {}, names, positive, {}) for dim in (a, b))) is True
    )


# Substitution and evaluation.


def substitute_symbols(
    dim: Dim, values: Mapping[str, Size], names: frozenset[str], proof: Bounds, rebuilt: dict[Atom, Size]
) -> Size:
    """Return ``dim`` with ``values`` for symbols.

    Every atom that contains one of ``names`` is rebuilt under ``proof``.
    """
    total: Size = 0
    for text, atoms, factor in dim.terms:
        if not any(names & atom.symbols for atom in atoms):
            total += size_of(((text, atoms, factor),))
            continue
        product: Size = factor
        for atom in atoms:
            if atom not in rebuilt:
                rebuilt[atom] = _rebuild_atom(atom, values, names, proof, rebuilt)
            product *= rebuilt[atom]
        total += product
    return total


def _rebuild_atom(
    atom: Atom, values: Mapping[str, Size], names: frozenset[str], proof: Bounds, rebuilt: dict[Atom, Size]
) -> Size:
    if atom.kind == "symbol":
        return as_operand(values[atom.name]) if atom.name in values else size_of(((atom.text, (atom,), 1),))
    args = [
        substitute_symbols(arg, values, names, proof, rebuilt) if isinstance(arg, Dim) else arg for arg in atom.args
    ]
    return operation(atom.kind, args, proof)


def evaluate_atom(atom: Atom, values: Mapping[str, int]) -> int:
    """Return the value of an atom; see :meth:`Dim.evaluate`."""
    if atom.kind == "symbol":
        return _symbol_value(atom.name, values)
    args = [arg.evaluate(values) if isinstance(arg, Dim) else arg for arg in atom.args]
    if atom.kind == "//":
        if args[1] == 0:
            raise ShapeError(
                "a size is divided by 0.", where=atom.text, remedy="Give sizes that make the divisor positive."
            )
        return args[0] // args[1]
    if atom.kind == "broadcast":
        return _broadcast_value(atom, args)
    return max(args) if atom.kind == "max" else min(args)


def _broadcast_value(atom: Atom, args: list[int]) -> int:
    sizes = {arg for arg in args if arg != 1}
    if len(sizes) > 1:
        raise ShapeError(
            f"sizes {' and '.join(map(str, sorted(sizes)))} do not broadcast together.",
            where=atom.text,
            remedy="Make them equal, or one of them 1.",
        )
    return sizes.pop() if sizes else 1


def _symbol_value(name: str, values: Mapping[str, int]) -> int:
    value = values.get(name)
    if value is None:
        raise ShapeError("the size has no value.", where=name, remedy="Give a value for this symbol.")
    if value < 0:
        raise ShapeError(f"expected a size ≥ 0, got {value}.", where=name, remedy="Give a value that is not negative.")
    return index(value)
