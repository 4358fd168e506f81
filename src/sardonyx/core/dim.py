"""Sizes as integer expressions over named symbols: ``batch``, ``2*N + 1``, ``(H + 1)//2``.

A size is a Python ``int`` where it is known and a :class:`Dim` where it is not; the two mix freely in
arithmetic, and whatever turns out constant comes back as an ``int``. A Dim is a polynomial with integer
coefficients: a sorted tuple of terms, each a product of *atoms* and a coefficient. An atom is a symbol or one
of the forms that a polynomial cannot hold: a floor division, a minimum, a maximum, a broadcast. A remainder is
no atom: ``a % b`` is ``a - b*(a//b)``, so that quotient and remainder cancel by themselves.

Dims are interned: equal terms are the same object, comparison and hashing are by identity, and every operation
is remembered. Rewriting on construction is sound for all symbols ≥ 0 (a symbol stands for a size); what needs
more than that is asked for with an ``assumptions`` argument (:class:`~sardonyx.core.dim_bounds.Bounds`). A rewritten
expression equals the original wherever the original is defined; a division whose divisor may be zero stays.

Division rounds down, as in Python. ONNX ``Div`` on integers rounds toward zero: the two agree where both operands
are known not to be negative (``at_least(a, 0)``), and only there may one stand for the other.
"""

from __future__ import annotations

import operator
import re
import threading
import weakref
from collections.abc import Iterable, Mapping
from math import gcd
from typing import Literal, TypeAlias, TypeGuard, TypeVar

from sardonyx.core.dim_bounds import NON_NEGATIVE, Assumptions, Bounds, Interval, as_bounds
from sardonyx.errors import ShapeError

MAX_TERMS = 256
"""Most terms of one Dim."""
MAX_TEXT = 2048
"""Most characters of all the products of one Dim as printed, which bounds the nodes of its tree."""
MAX_DEPTH = 32
"""Deepest nesting of divisions, minima, maxima and broadcasts."""
MAX_COEFFICIENT = 2**128
"""Exclusive bound on the absolute value of a coefficient."""
MAX_NAME = 512
"""Most characters of a symbol's name."""

IDENTIFIER = re.compile(r"[^\W\d][\w.]*")
"""A symbol's name that stands in an expression as it is; any other stands there in backticks."""

_MEMO_ENTRIES = 1 << 17

AtomKind = Literal["symbol", "//", "min", "max", "broadcast"]
Term: TypeAlias = "tuple[str, tuple[Atom, ...], int]"
"""A product: its text (unique, the sort key), its atoms in the order of their texts, its coefficient (never 0)."""


class Atom:
    """A symbol, or an operation that a polynomial cannot hold. Interned, immutable; built by this module only.

    Attributes:
        kind: ``"symbol"`` or the operation.
        args: The operands (numerator and denominator of ``//``); empty for a symbol.
        text: The expression that parses back to the atom, closed: it can stand as a factor.
        name: The name of a symbol, else empty.
        depth: Nesting of operations; 0 for a symbol.
        symbols: Names of the symbols inside.
    """

    __slots__ = ("__weakref__", "args", "depth", "kind", "name", "symbols", "text")

    def __init__(self, kind: AtomKind, args: tuple[Size, ...], name: str, text: str) -> None:
        dims = [arg for arg in args if isinstance(arg, Dim)]
        self.kind = kind
        self.args = args
        self.name = name
        self.text = text
        self.depth = 1 + max((dim.depth for dim in dims), default=0) if args else 0
        self.symbols: frozenset[str] = frozenset((name,)) if not args else frozenset().union(*map(Dim.symbols, dims))


class Dim:
    """An integer expression over named symbols that is not a constant. Immutable and interned: compare with ``is``.

    ``==`` is identity too (same canonical form); ask :func:`equal` whether two sizes are the same for all values.
    Arithmetic takes and gives ``int | Dim`` and raises :class:`~sardonyx.errors.ShapeError` where a result passes the limits
    of this module or divides by the constant 0.
    """

    __slots__ = ("__weakref__", "_text", "terms")

    terms: tuple[Term, ...]

    def __init__(self, terms: tuple[Term, ...]) -> None:
        self.terms = terms
        self._text: str | None = None

    @staticmethod
    def symbol(name: str) -> Dim:
        """Return the symbol of that name (any text; it need not look like an identifier).

        Raises:
            ShapeError: The name is empty or longer than ``MAX_NAME``.
        """
        found = _SYMBOLS.get(name)
        if found is not None:
            return found
        if not name or len(name) > MAX_NAME:
            raise ShapeError(
                f"a symbolic size has a name of {len(name)} characters.",
                where=repr(name[:40]),
                remedy=f"Use 1 to {MAX_NAME} characters.",
            )
        return _remember(_SYMBOLS, name, _intern(_single(_atom("symbol", (), name))))

    @staticmethod
    def parse(text: str) -> Size:
        """Return the size that an ONNX ``dim_param`` names.

        The grammar stands in :mod:`sardonyx.core.dim_parse`. A text that is no integer expression is the name of a symbol.

        Raises:
            ShapeError: The text is empty, too long, or nested too deeply.
        """
        # The parser stands on this module's arithmetic.
        from sardonyx.core.dim_parse import parse

        return parse(text)

    def __add__(self, other: Size) -> Size:
        found = _SUMS.get((self, other))
        return _remember(_SUMS, (self, other), _sum(self, _operand(other))) if found is None else found

    __radd__ = __add__

    def __sub__(self, other: Size) -> Size:
        found = _DIFFERENCES.get((self, other))
        return _remember(_DIFFERENCES, (self, other), _sum(self, _operand(other), -1)) if found is None else found

    def __rsub__(self, other: Size) -> Size:
        return -self + other

    def __mul__(self, other: Size) -> Size:
        found = _PRODUCTS.get((self, other))
        return _remember(_PRODUCTS, (self, other), _product(self, _operand(other))) if found is None else found

    __rmul__ = __mul__

    def __neg__(self) -> Dim:
        return _intern(tuple([(text, atoms, -factor) for text, atoms, factor in self.terms]))

    def __floordiv__(self, other: Size) -> Size:
        found = _QUOTIENTS.get((self, other))
        return _remember(_QUOTIENTS, (self, other), _floor_div(self, _operand(other))) if found is None else found

    def __rfloordiv__(self, other: Size) -> Size:
        return _floor_div(_operand(other), self)

    def __mod__(self, other: Size) -> Size:
        return self - other * (self // other)

    def __rmod__(self, other: Size) -> Size:
        return other - self * (other // self)

    def __str__(self) -> str:
        if self._text is None:
            atoms = self.terms[0][1]
            name = atoms[0].name if len(self.terms) == len(atoms) == self.terms[0][2] == 1 else ""
            self._text = name if name and Dim.parse(name) is self else expression(self)
        return self._text

    def __repr__(self) -> str:
        return f"Dim({str(self)!r})"

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Dim.parse, (expression(self),)

    @property
    def depth(self) -> int:
        """Nesting of divisions, minima, maxima and broadcasts."""
        return max([atom.depth for _, atoms, _ in self.terms for atom in atoms], default=0)

    @property
    def constant(self) -> int:
        """The constant term."""
        first = self.terms[0]
        return 0 if first[1] else first[2]

    @property
    def is_constant(self) -> bool:
        """``False``: a constant is an ``int``, never a Dim."""
        return False

    def without(self, index: int) -> Size:
        """Return the sum of all terms but the one at ``index``."""
        return _size_of(self.terms[:index] + self.terms[index + 1 :])

    def symbols(self) -> frozenset[str]:
        """Return the names of the symbols in the expression."""
        return frozenset().union(*(atom.symbols for _, atoms, _ in self.terms for atom in atoms))

    def substitute(self, values: Mapping[str, Size], assumptions: Assumptions = None) -> Size:
        """Return the expression with symbols replaced, all at once, and simplified under ``assumptions``.

        Raises:
            ShapeError: The result divides by zero, broadcasts different sizes, or passes the limits.
        """
        rebuilt: dict[Atom, Size] = {}
        names = self.symbols() if assumptions is not None else frozenset(values)
        return _substituted(self, values, names, as_bounds(assumptions), rebuilt)

    def evaluate(self, values: Mapping[str, int]) -> int:
        """Return the value at the given sizes.

        Raises:
            ShapeError: A symbol has no value or a negative one, a divisor is 0, or sizes do not broadcast.
        """
        total = 0
        for _, atoms, factor in self.terms:
            for atom in atoms:
                factor *= _value(atom, values)
            total += factor
        return total

    def bounds(self, assumptions: Assumptions = None) -> Interval:
        """Return ``(least, greatest)``: proven bounds on the value, ``None`` where there is no proof."""
        proof = as_bounds(assumptions)
        return proof.lower(self), proof.upper(self)


Size: TypeAlias = int | Dim

# Keyed by identity (Dims are interned), cleared when full.
_SYMBOLS: dict[str, Dim] = {}
_SUMS: dict[tuple[Dim, Size], Size] = {}
_DIFFERENCES: dict[tuple[Dim, Size], Size] = {}
_PRODUCTS: dict[tuple[Dim, Size], Size] = {}
_QUOTIENTS: dict[tuple[Dim, Size], Size] = {}


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def _remember(memo: dict[_Key, _Value], key: _Key, result: _Value) -> _Value:
    if len(memo) >= _MEMO_ENTRIES:
        memo.clear()
    memo[key] = result
    return result


def _operand(value: Size) -> Size:
    return value if isinstance(value, Dim) else operator.index(value)


def as_dim(value: Size | str) -> Size:
    """Return a size from an integer, a ``dim_param`` text or a Dim.

    Raises:
        ShapeError: See :meth:`Dim.parse`.
    """
    if isinstance(value, str):
        return Dim.parse(value)
    return value if isinstance(value, Dim) else operator.index(value)


def is_constant(size: Size) -> TypeGuard[int]:
    """Return whether the size is a known number."""
    return isinstance(size, int)


def symbols(size: Size) -> frozenset[str]:
    """Return the names of the symbols in the size."""
    return size.symbols() if isinstance(size, Dim) else frozenset()


def substitute(size: Size, values: Mapping[str, Size], assumptions: Assumptions = None) -> Size:
    """Return the size with symbols replaced; see :meth:`Dim.substitute`."""
    return size.substitute(values, assumptions) if isinstance(size, Dim) else size


def simplify(size: Size, assumptions: Assumptions) -> Size:
    """Return the size rewritten with what ``assumptions`` allow, such as ``a*b//b`` to ``a`` where ``b`` is ≥ 1.

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


def floor_div(numerator: Size, divisor: Size, assumptions: Assumptions = None) -> Size:
    """Return the quotient rounded down.

    Raises:
        ShapeError: The divisor is the constant 0.
    """
    return _floor_div(numerator, divisor, as_bounds(assumptions))


def ceil_div(numerator: Size, divisor: Size, assumptions: Assumptions = None) -> Size:
    """Return the quotient rounded up; see :func:`floor_div`."""
    return -_floor_div(-numerator, divisor, as_bounds(assumptions))


def dim_min(first: Size, *others: Size, assumptions: Assumptions = None) -> Size:
    """Return the least of the sizes."""
    return _extremum("min", (first, *others), as_bounds(assumptions))


def dim_max(first: Size, *others: Size, assumptions: Assumptions = None) -> Size:
    """Return the greatest of the sizes."""
    return _extremum("max", (first, *others), as_bounds(assumptions))


def broadcast(first: Size, *others: Size, assumptions: Assumptions = None) -> Size:
    """Return the size that an axis has after broadcasting these sizes together (ONNX *Broadcasting*, multidirectional).

    It is not a maximum: 0 with 1 gives 0. One size known not to be 1 is the answer, provided that every other is equal
    or 1; that proviso is the caller's to check at run time, and :meth:`Dim.evaluate` checks it for a broadcast that stays.

    Raises:
        ShapeError: Two of the sizes are proven different and neither is 1.
    """
    return _broadcast((first, *others), as_bounds(assumptions))


def equal(a: Size, b: Size, assumptions: Assumptions = None) -> bool | None:
    """Return ``True`` where the sizes are equal, ``False`` where they differ, for all values; ``None`` where not known."""
    if a is b:
        return True
    difference = a - b
    if isinstance(difference, int):
        return difference == 0
    common = gcd(*(factor for _, atoms, factor in difference.terms if atoms))
    if difference.constant % common:
        return False
    least, greatest = difference.bounds(assumptions)
    if (least is not None and least > 0) or (greatest is not None and greatest < 0):
        return False
    return True if least == greatest == 0 else None


def at_least(a: Size, b: Size, assumptions: Assumptions = None) -> bool | None:
    """Return whether ``a >= b``: ``True`` or ``False`` for all values, ``None`` where it depends or is not known."""
    least, greatest = bounds(a - b, assumptions)
    if least is not None and least >= 0:
        return True
    return False if greatest is not None and greatest < 0 else None


def divides(divisor: Size, size: Size, assumptions: Assumptions = None) -> bool | None:
    """Return whether ``size`` is a multiple of ``divisor``: for all values, for none (``False``), or not known (``None``).

    Raises:
        ShapeError: The divisor is the constant 0.
    """
    return equal(size, divisor * floor_div(size, divisor, assumptions), assumptions)


def expression(dim: Dim) -> str:
    """Return the text that parses back to ``dim``, with every symbol that is no identifier in backticks.

    ``str(dim)`` differs in one case: a symbol alone whose name is no expression prints as that name.
    """
    terms = sorted((term for term in dim.terms if term[1]), key=lambda term: term[2] < 0)
    parts = [_term_text(term, alone=True) for term in terms] + ([str(dim.constant)] if dim.constant else [])
    if parts[0].startswith("-") and dim.constant > 0:
        parts.insert(0, parts.pop())
    return parts[0] + "".join(f" - {part[1:]}" if part.startswith("-") else f" + {part}" for part in parts[1:])


def _term_text(term: Term, *, alone: bool) -> str:
    text, atoms, factor = term
    if factor == 1:
        is_quotient = alone and len(atoms) == 1 and atoms[0].kind == "//"
        return text[1:-1] if is_quotient else text
    return f"-{text}" if factor == -1 else f"{factor}*{text}"


# Interning. One lock guards insertion; it is re-entrant because collecting a Dim while it is held calls _forget.


class _Entry(weakref.ref["Dim"]):
    __slots__ = ("key",)
    key: tuple[Term, ...]


_LOCK = threading.RLock()
_DIMS: dict[tuple[Term, ...], _Entry] = {}
_ATOMS: weakref.WeakValueDictionary[tuple[str, tuple[Size, ...], str], Atom] = weakref.WeakValueDictionary()


def _forget(entry: weakref.ref[Dim]) -> None:
    assert isinstance(entry, _Entry)
    with _LOCK:
        if _DIMS.get(entry.key) is entry:
            del _DIMS[entry.key]


def _intern(terms: tuple[Term, ...]) -> Dim:
    entry = _DIMS.get(terms)
    found = entry() if entry is not None else None
    if found is not None:
        return found
    _check_limits(terms)
    with _LOCK:
        entry = _DIMS.get(terms)
        found = entry() if entry is not None else None
        if found is None:
            found = Dim(terms)
            entry = _Entry(found, _forget)
            entry.key = terms
            _DIMS[terms] = entry
    return found


def _check_limits(terms: tuple[Term, ...]) -> None:
    characters = 0
    for text, _, factor in terms:
        characters += len(text)
        if not -MAX_COEFFICIENT < factor < MAX_COEFFICIENT:
            raise _too_large("a coefficient", terms)
    if len(terms) > MAX_TERMS:
        raise _too_large(f"{len(terms)} terms", terms)
    if characters > MAX_TEXT:
        raise _too_large(f"{characters} characters", terms)


def _too_large(what: str, terms: tuple[Term, ...]) -> ShapeError:
    return ShapeError(
        f"a symbolic size grows past the limits ({what}).",
        where=" + ".join(text for text, _, _ in terms[:3])[:80],
        remedy="Give the size a name of its own.",
    )


def _size_of(terms: tuple[Term, ...]) -> Size:
    if not terms:
        return 0
    if len(terms) == 1 and not terms[0][1]:
        return terms[0][2]
    return _intern(terms)


def _single(atom: Atom) -> tuple[Term, ...]:
    return ((atom.text, (atom,), 1),)


def _atom(kind: AtomKind, args: tuple[Size, ...], name: str = "") -> Atom:
    key = (kind, args, name)
    found = _ATOMS.get(key)
    if found is None:
        atom = Atom(kind, args, name, _atom_text(kind, args, name))
        if atom.depth > MAX_DEPTH:
            raise _too_large(f"{atom.depth} nested operations", _single(atom))
        with _LOCK:
            found = _ATOMS.setdefault(key, atom)
    return found


def _atom_text(kind: AtomKind, args: tuple[Size, ...], name: str) -> str:
    if kind == "symbol":
        return name if IDENTIFIER.fullmatch(name) else "`" + name.replace("`", "``") + "`"
    texts = [expression(arg) if isinstance(arg, Dim) else str(arg) for arg in args]
    if kind != "//":
        return f"{kind}({', '.join(texts)})"
    numerator, divisor = args
    if isinstance(numerator, Dim) and len(numerator.terms) > 1:
        texts[0] = f"({texts[0]})"
    if isinstance(divisor, Dim):
        is_factor = len(divisor.terms) == len(divisor.terms[0][1]) == divisor.terms[0][2] == 1
        texts[1] = divisor.terms[0][0] if is_factor else f"({texts[1]})"
    return f"({texts[0]}//{texts[1]})"


# Polynomial arithmetic.


def _sum(a: Dim, b: Size, sign: int = 1) -> Size:
    terms = a.terms
    if isinstance(b, int):
        if not terms[0][1]:  # The constant's text is empty: it sorts first.
            b = terms[0][2] + sign * b
            terms = terms[1:]
        else:
            b *= sign
        return _size_of((("", (), b), *terms) if b else terms)
    merged = {term[0]: term for term in terms}
    for term in b.terms:
        text, atoms, factor = term
        factor *= sign
        if text in merged:
            factor += merged[text][2]
        if factor:
            merged[text] = (text, atoms, factor)
        else:
            del merged[text]
    return _size_of(tuple(sorted(merged.values())))


def _product(a: Dim, b: Size) -> Size:
    if isinstance(b, int):
        return _intern(tuple([(text, atoms, factor * b) for text, atoms, factor in a.terms])) if b else 0
    if len(a.terms) * len(b.terms) > 4 * MAX_TERMS:
        raise _too_large(f"a product of {len(a.terms)} by {len(b.terms)} terms", a.terms)
    return _collected([_term_product(x, y) for x in a.terms for y in b.terms])


def _collected(terms: Iterable[Term]) -> Size:
    """The sum of terms in any order, some of them alike or 0."""
    merged: dict[str, Term] = {}
    for text, atoms, factor in terms:
        factor += merged[text][2] if text in merged else 0
        merged[text] = (text, atoms, factor)
    return _size_of(tuple(sorted([term for term in merged.values() if term[2]])))


def _term_product(x: Term, y: Term) -> Term:
    if not x[1]:
        return y[0], y[1], x[2] * y[2]
    if not y[1]:
        return x[0], x[1], x[2] * y[2]
    return _term(x[1] + y[1], x[2] * y[2])


def _text_of(atom: Atom) -> str:
    return atom.text


def _term(atoms: Iterable[Atom], factor: int) -> Term:
    ordered = tuple(sorted(atoms, key=_text_of))
    return "*".join([atom.text for atom in ordered]), ordered, factor


# Floor division.


def _floor_div(n: Size, d: Size, proof: Bounds = NON_NEGATIVE) -> Size:
    if isinstance(d, int):
        if d == 0:
            raise ShapeError("a size is divided by 0.", where=str(n), remedy="Give a divisor that is not 0.")
        if isinstance(n, int):
            return n // d
        return _divide_by_constant(n, d, proof) if d > 0 else _floor_div(-n, -d, proof)
    least = proof.lower(d)
    if least is None or least < 1:
        return _quotient(n, d)
    return _divide_by_positive(n, d, proof)


def _quotient(n: Size, d: Size) -> Dim:
    return _intern(_single(_atom("//", (n, d))))


def _divide_by_constant(n: Dim, k: int, proof: Bounds) -> Size:
    """``n//k`` for ``k >= 1``: multiples of k go outside, the rest is reduced, led by a positive term, un-nested."""
    if k == 1:
        return n
    split = [(text, atoms, *_split_factor(factor, k, atoms)) for text, atoms, factor in n.terms]
    outside = _size_of(tuple([(text, atoms, whole) for text, atoms, whole, _ in split if whole]))
    inside = _size_of(tuple([(text, atoms, left) for text, atoms, _, left in split if left]))
    if isinstance(inside, int):
        return outside  # The constant left over is in 0..k-1.
    common = gcd(k, *(factor for _, atoms, factor in inside.terms if atoms))
    if common > 1:
        # floor((g*m + c)/(g*k)) = floor((m + floor(c/g))/k)
        reduced = [(text, atoms, factor // common) for text, atoms, factor in inside.terms]
        return outside + _floor_div(_collected(reduced), k // common, proof)
    if inside.terms[bool(inside.constant)][2] < 0:
        return outside - _floor_div(k - 1 - inside, k, proof)
    least, greatest = proof.interval(inside)
    if least is not None and greatest is not None and least // k == greatest // k:
        return outside + least // k
    nested = _unnested(inside, k, proof)
    return outside + (_quotient(inside, k) if nested is None else nested)


def _split_factor(factor: int, k: int, atoms: tuple[Atom, ...]) -> tuple[int, int]:
    """Parts of a coefficient outside and inside ``//k``: toward zero for a term, into ``0..k-1`` for the constant."""
    if not atoms:
        return divmod(factor, k)
    whole, left = divmod(abs(factor), k)
    return (whole, left) if factor > 0 else (-whole, -left)


def _unnested(n: Dim, d: Size, proof: Bounds) -> Size | None:
    """``(x//a + m)//d`` as ``(x + a*m)//(a*d)`` for ``a, d >= 1``, where that is the one division in ``n``."""
    quotients = [(i, term) for i, term in enumerate(n.terms) if any(atom.kind == "//" for atom in term[1])]
    if len(quotients) != 1:
        return None
    index, (_, atoms, factor) = quotients[0]
    if len(atoms) > 1 or factor != 1:
        return None
    numerator, divisor = atoms[0].args
    least = proof.lower(divisor)
    if least is None or least < 1:
        return None
    return _floor_div(numerator + divisor * n.without(index), divisor * d, proof)


def _divide_by_positive(n: Size, d: Dim, proof: Bounds) -> Size:
    """``n//d`` for a symbolic ``d >= 1``."""
    if isinstance(n, Dim):
        n, divisor = _without_common_factor(n, d, proof)
        if isinstance(n, int) or isinstance(divisor, int):
            return _floor_div(n, divisor, proof)
        d = divisor
        whole, left = _polynomial_division(n, d)
        shorter = left == 0 or (isinstance(left, Dim) and len(left.terms) < len(n.terms)) or isinstance(left, int)
        if whole != 0 and (shorter or len(d.terms) == 1):
            return whole + _floor_div(left, d, proof)
        nested = _unnested(n, d, proof)
        if nested is not None:
            return nested
    least, gap = proof.lower(n), proof.lower(d - n)
    if least is not None and least >= 0 and gap is not None and gap >= 1:
        return 0
    return _quotient(n, d)


def _without_common_factor(n: Dim, d: Dim, proof: Bounds) -> tuple[Size, Size]:
    """Divide both by the monomial they share; it is positive because ``d`` is and no factor of it is negative."""
    terms = n.terms + d.terms
    scale = gcd(*(factor for _, _, factor in terms))
    shared: list[Atom] = []
    for atom in dict.fromkeys(terms[0][1]):
        least = proof.lower(_intern(_single(atom)))
        if least is not None and least >= 0:
            shared += [atom] * min(atoms.count(atom) for _, atoms, _ in terms)
    if scale == 1 and not shared:
        return n, d
    reduced = [_term(_removed(atoms, shared), factor // scale) for _, atoms, factor in terms]
    return _collected(reduced[: len(n.terms)]), _collected(reduced[len(n.terms) :])


def _removed(atoms: tuple[Atom, ...], divisor: Iterable[Atom]) -> list[Atom]:
    left = list(atoms)
    for atom in divisor:
        left.remove(atom)
    return left


def _order(term: Term) -> tuple[int, list[str]]:
    """A monomial order (graded, then lexicographic): products keep it, as division by leading terms needs."""
    return len(term[1]), [atom.text for atom in term[1]]


def _polynomial_division(n: Dim, d: Dim) -> tuple[Size, Size]:
    """Integer polynomials ``(q, r)`` with ``n == q*d + r``, no term of ``r`` divisible by the leading term of ``d``."""
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
            part = _collected([_term(_removed(atoms, lead_atoms), sign * times)])
            whole += part
            rest -= part * d
        else:
            monomial = _size_of((term,))
            left += monomial
            rest -= monomial
    return whole, left + rest


# Minima, maxima and broadcasts.


def _extremum(kind: Literal["min", "max"], sizes: Iterable[Size], proof: Bounds) -> Size:
    kept: list[Size] = []
    for size in _operands(kind, sizes):
        if not any(_bounded_by(kind, size, other, proof) for other in kept):
            kept = [other for other in kept if not _bounded_by(kind, other, size, proof)]
            kept.append(size)
    if len(kept) == 1:
        return kept[0]
    dims = [size for size in kept if isinstance(size, Dim)]
    offset = min(dim.constant for dim in dims)
    if offset and len(dims) == len(kept):
        return offset + _extremum(kind, [dim - offset for dim in dims], proof)
    return _intern(_single(_atom(kind, tuple(kept))))


def _bounded_by(kind: Literal["min", "max"], size: Size, other: Size, proof: Bounds) -> bool:
    """Whether ``size`` never decides the extremum where ``other`` stands beside it."""
    least = proof.lower(other - size if kind == "max" else size - other)
    return least is not None and least >= 0


def _operands(kind: AtomKind, sizes: Iterable[Size]) -> list[Size]:
    """The different operands in the order of their texts, constants first, with operations of this kind flattened."""
    flat: dict[Size, None] = {}
    for size in sizes:
        atoms = size.terms[0][1] if isinstance(size, Dim) and len(size.terms) == 1 else ()
        nested = len(atoms) == 1 and atoms[0].kind == kind and isinstance(size, Dim) and size.terms[0][2] == 1
        flat.update(dict.fromkeys(atoms[0].args if nested else [size]))
    return sorted(flat, key=lambda size: (isinstance(size, Dim), expression(size) if isinstance(size, Dim) else ""))


def _broadcast(sizes: Iterable[Size], proof: Bounds) -> Size:
    operands = [size for size in _operands("broadcast", sizes) if size != 1]
    decided = [size for size in operands if equal(size, 1, proof) is False]
    for i, size in enumerate(decided):
        for other in decided[:i]:
            if equal(size, other, proof) is False:
                raise ShapeError(
                    f"sizes {other} and {size} do not broadcast together.",
                    remedy="Make them equal, or one of them 1.",
                )
    if decided:
        return decided[0]
    if len(operands) < 2:
        return operands[0] if operands else 1
    return _intern(_single(_atom("broadcast", tuple(operands))))


# Walking.


def _substituted(
    dim: Dim, values: Mapping[str, Size], names: frozenset[str], proof: Bounds, rebuilt: dict[Atom, Size]
) -> Size:
    total: Size = 0
    for text, atoms, factor in dim.terms:
        if not any(names & atom.symbols for atom in atoms):
            total += _size_of(((text, atoms, factor),))
            continue
        product: Size = factor
        for atom in atoms:
            if atom not in rebuilt:
                rebuilt[atom] = _rebuilt(atom, values, names, proof, rebuilt)
            product *= rebuilt[atom]
        total += product
    return total


def _rebuilt(
    atom: Atom, values: Mapping[str, Size], names: frozenset[str], proof: Bounds, rebuilt: dict[Atom, Size]
) -> Size:
    if atom.kind == "symbol":
        return _operand(values[atom.name]) if atom.name in values else _intern(_single(atom))
    args = [_substituted(arg, values, names, proof, rebuilt) if isinstance(arg, Dim) else arg for arg in atom.args]
    if atom.kind == "//":
        return _floor_div(args[0], args[1], proof)
    return _broadcast(args, proof) if atom.kind == "broadcast" else _extremum(atom.kind, args, proof)


def _value(atom: Atom, values: Mapping[str, int]) -> int:
    if atom.kind == "symbol":
        return _symbol_value(atom.name, values)
    args = [arg.evaluate(values) if isinstance(arg, Dim) else arg for arg in atom.args]
    if atom.kind == "//":
        return int(_floor_div(args[0], args[1]))
    if atom.kind == "broadcast":
        return int(_broadcast(args, NON_NEGATIVE))
    return max(args) if atom.kind == "max" else min(args)


def _symbol_value(name: str, values: Mapping[str, int]) -> int:
    value = values.get(name)
    if value is None:
        raise ShapeError("the size has no value.", where=name, remedy="Give one.")
    if value < 0:
        raise ShapeError(f"the size is {value}.", where=name, remedy="Give a value that is not negative.")
    return operator.index(value)
