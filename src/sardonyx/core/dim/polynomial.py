"""A symbolic size as a polynomial over atoms, interned: construction, printing, sum and product.

A :class:`Dim` is a sorted tuple of terms, each a product of *atoms* and a coefficient. An atom is a symbol or a form
that a polynomial cannot hold: a floor division, a minimum, a maximum, a broadcast
(:mod:`sardonyx.core.dim.canonical_forms`).
A remainder is no atom: ``a % b`` is ``a - b*(a//b)``, so that quotient and remainder cancel by themselves.

Dims are interned: equal terms are the same object, comparison and hashing are by identity, and every operation is
remembered. A term is keyed by its text, which parses back to it.
"""

from __future__ import annotations

import operator
import re
import threading
import weakref
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias, TypeVar

from sardonyx.core.dim.bounds import NON_NEGATIVE, Assumptions, Interval, as_bounds
from sardonyx.errors import ShapeError, SizeLimitError

MAX_TERMS = 256
"""Most terms of one Dim."""
MAX_TEXT = 4096
"""Most characters of a product, and of all products of a Dim of more than ``FEW_TERMS``: bounds the tree inside."""
FEW_TERMS = 8
MAX_DEPTH = 32
"""Deepest nesting of divisions, minima, maxima and broadcasts."""
MAX_COEFFICIENT = 2**128
"""Exclusive bound on the absolute value of a coefficient."""
MAX_OPERANDS = 32
"""Most operands of one minimum, maximum or broadcast."""
MAX_NAME = 512
"""Most characters of a symbol's name."""

LONG_TEXT = MAX_TEXT // 16
"""A form of a few sizes of more characters may pass the limits."""

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
    """

    __slots__ = ("__weakref__", "_symbols", "args", "depth", "kind", "name", "text")

    def __init__(self, kind: AtomKind, args: tuple[Size, ...], name: str, text: str) -> None:
        self.kind = kind
        self.args = args
        self.name = name
        self.text = text
        self.depth = 1 + max([arg.depth for arg in args if isinstance(arg, Dim)], default=0) if args else 0
        self._symbols: frozenset[str] | None = None if args else frozenset((name,))

    @property
    def symbols(self) -> frozenset[str]:
        """Names of the symbols inside."""
        if self._symbols is None:
            self._symbols = frozenset().union(*(arg.symbols() for arg in self.args if isinstance(arg, Dim)))
        return self._symbols


class Dim:
    """An integer expression over named symbols that is not a constant. Immutable and interned: compare with ``is``.

    ``==`` is identity too (same canonical form); ask :func:`equal` whether two sizes are the same for all values.
    Arithmetic takes and gives ``int | Dim`` and raises :class:`~sardonyx.errors.ShapeError` where a result passes the
    limits of this module or divides by the constant 0.
    """

    __slots__ = ("__weakref__", "_in_order", "_symbols", "_text", "terms")

    terms: tuple[Term, ...]
    _text: str
    _symbols: frozenset[str]
    _in_order: tuple[str, ...]

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
        return _remember(_SYMBOLS, name, atom_dim("symbol", (), name))

    @staticmethod
    def parse(text: str) -> Size:
        """Return the size that an ONNX ``dim_param`` names.

        The grammar stands in :mod:`sardonyx.core.dim.parse`. A text that is no integer expression names a symbol.

        Raises:
            ShapeError: The text is empty, too long, or nested too deeply.
        """
        found = _PARSED.get(text)
        if found is not None:
            return found
        from sardonyx.core.dim.parse import parse  # The parser stands on this module's arithmetic.

        return _remember(_PARSED, text, parse(text))

    def __add__(self, other: Size) -> Size:
        found = _SUMS.get((self, other))
        return _remember(_SUMS, (self, other), _sum(self, other)) if found is None else found

    __radd__ = __add__

    def __sub__(self, other: Size) -> Size:
        found = _DIFFERENCES.get((self, other))
        return _remember(_DIFFERENCES, (self, other), _sum(self, other, -1)) if found is None else found

    def __rsub__(self, other: Size) -> Size:
        return -self + other

    def __mul__(self, other: Size) -> Size:
        found = _PRODUCTS.get((self, other))
        return _remember(_PRODUCTS, (self, other), _product(self, other)) if found is None else found

    __rmul__ = __mul__

    def __neg__(self) -> Dim:
        return _intern(tuple([(text, atoms, -factor) for text, atoms, factor in self.terms]))

    def __floordiv__(self, other: Size) -> Size:
        found = _QUOTIENTS.get((self, other))
        return _remember(_QUOTIENTS, (self, other), _quotient(self, other)) if found is None else found

    def __rfloordiv__(self, other: Size) -> Size:
        return _quotient(other, self)

    def __mod__(self, other: Size) -> Size:
        return self - other * (self // other)

    def __rmod__(self, other: Size) -> Size:
        return other - self * (other // self)

    def __str__(self) -> str:
        if not hasattr(self, "_text"):
            atom = self.atom
            named = atom is not None and atom.kind == "symbol" and _names_itself(atom.name)
            self._text = atom.name if atom is not None and named else expression(self)
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

    @property
    def atom(self) -> Atom | None:
        """The atom that the whole expression is, if it is one."""
        _, atoms, factor = self.terms[0]
        return atoms[0] if len(self.terms) == len(atoms) == factor == 1 else None

    @property
    def is_long(self) -> bool:
        """Whether a form of a few sizes like this may pass the limits."""
        return sum([len(text) for text, _, _ in self.terms]) > LONG_TEXT

    def without(self, index: int) -> Size:
        """Return the sum of all terms but the one at ``index``."""
        return size_of(self.terms[:index] + self.terms[index + 1 :])

    def symbols(self) -> frozenset[str]:
        """Return the names of the symbols in the expression."""
        if not hasattr(self, "_symbols"):
            self._symbols = frozenset().union(*(atom.symbols for _, atoms, _ in self.terms for atom in atoms))
        return self._symbols

    @property
    def symbols_in_order(self) -> tuple[str, ...]:
        """The names of the symbols, shorter ones first, then by the alphabet."""
        if not hasattr(self, "_in_order"):
            self._in_order = tuple(sorted(self.symbols(), key=lambda name: (len(name), name)))
        return self._in_order

    def substitute(self, values: Mapping[str, Size], assumptions: Assumptions = None) -> Size:
        """Return the expression with symbols replaced, all at once, and simplified under ``assumptions``.

        Raises:
            ShapeError: The result divides by zero, broadcasts different sizes, or passes the limits.
        """
        from sardonyx.core.dim.canonical_forms import substituted  # The forms stand on this module's arithmetic.

        # Under assumptions of its own every part is rebuilt, as any of them may simplify.
        names = self.symbols() if assumptions is not None else frozenset(values)
        return substituted(self, values, names, as_bounds(assumptions), {})

    def evaluate(self, values: Mapping[str, int]) -> int:
        """Return the value at the given sizes.

        Raises:
            ShapeError: A symbol has no value or a negative one, a divisor is 0, or sizes do not broadcast.
        """
        from sardonyx.core.dim.canonical_forms import value_of  # The forms stand on this module's arithmetic.

        total = 0
        for _, atoms, factor in self.terms:
            for atom in atoms:
                factor *= value_of(atom, values)
            total += factor
        return total

    def bounds(self, assumptions: Assumptions = None) -> Interval:
        """Return ``(least, greatest)``: proven bounds on the value, ``None`` where there is no proof."""
        return as_bounds(assumptions).range(self)


Size: TypeAlias = int | Dim

# Keyed by identity (Dims are interned), cleared when full.
_SYMBOLS: dict[str, Dim] = {}
_PARSED: dict[str, Size] = {}
_SUMS: dict[tuple[Dim, Size], Size] = {}
_DIFFERENCES: dict[tuple[Dim, Size], Size] = {}
_PRODUCTS: dict[tuple[Dim, Size], Size] = {}
_QUOTIENTS: dict[tuple[Dim, Size], Size] = {}


def _quotient(numerator: Size, divisor: Size) -> Size:
    from sardonyx.core.dim.canonical_forms import floor_div  # The forms stand on this module's arithmetic.

    return floor_div(as_operand(numerator), as_operand(divisor), NON_NEGATIVE)


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def _remember(memo: dict[_Key, _Value], key: _Key, result: _Value) -> _Value:
    if len(memo) >= _MEMO_ENTRIES:
        memo.clear()
    memo[key] = result
    return result


def as_operand(value: Size) -> Size:
    """Return a Dim as it is and any integer (numpy's too) as an ``int``; anything else is a ``TypeError``."""
    return value if isinstance(value, Dim) else operator.index(value)


def _names_itself(name: str) -> bool:
    if IDENTIFIER.fullmatch(name):
        return True
    try:
        return Dim.parse(name) is Dim.symbol(name)
    except ShapeError:
        return False  # Nested past the parser's limit: only backticks hold it.


def expression(dim: Dim) -> str:
    """Return the text that parses back to ``dim``, with every symbol that is no identifier in backticks.

    ``str(dim)`` differs in one case: a symbol alone whose name is no expression prints as that name.
    """
    constant = dim.constant
    terms = [term for term in dim.terms if term[1]]
    if len(terms) > 1:
        terms.sort(key=_is_negative)
    parts = [f"- {_magnitude(term)}" if term[2] < 0 else f"+ {_magnitude(term)}" for term in terms]
    if constant:
        parts.append(f"+ {constant}" if constant > 0 else f"- {-constant}")
    if terms[0][2] > 0:
        return " ".join(parts)[2:]
    if constant > 0:
        return " ".join([str(constant), *parts[:-1]])
    text, _, factor = terms[0]
    # A sign in front binds to the first factor: a quotient keeps its parentheses.
    return " ".join([f"-{text}" if factor == -1 else f"{factor}*{text}", *parts[1:]])


def _is_negative(term: Term) -> bool:
    return term[2] < 0


def _magnitude(term: Term) -> str:
    text, atoms, factor = term
    if factor not in (1, -1):
        return f"{abs(factor)}*{text}"
    return text[1:-1] if len(atoms) == 1 and atoms[0].kind == "//" else text


# Interning. The lock guards the replacement of entries; re-entrant, as collecting a Dim while it is held calls _forget.


class _Entry(weakref.ref["Dim"]):
    __slots__ = ("key",)
    key: tuple[Term, ...]


_text_of = operator.attrgetter("text")
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
    if len(terms) > FEW_TERMS:
        _check_length(terms)
    found = Dim()
    found.terms = terms
    entry = _Entry(found, _forget)
    entry.key = terms
    # Atomic; where another thread was first, or a collected Dim is about to be forgotten, the lock decides.
    return found if _DIMS.setdefault(terms, entry) is entry else _intern_contended(terms, found, entry)


def _intern_contended(terms: tuple[Term, ...], dim: Dim, entry: _Entry) -> Dim:
    with _LOCK:
        present = _DIMS.get(terms)
        found = present() if present is not None else None
        if found is None:
            _DIMS[terms] = entry
            found = dim
    return found


def _check_length(terms: tuple[Term, ...]) -> None:
    characters = sum([len(text) for text, _, _ in terms])
    if len(terms) > MAX_TERMS or characters > MAX_TEXT:
        raise too_large(f"{len(terms)} terms of {characters} characters", terms)


def too_large(what: str, terms: tuple[Term, ...]) -> SizeLimitError:
    """Return the error that an expression passes the limits."""
    return SizeLimitError(
        f"a symbolic size grows past the limits ({what}).",
        where=" + ".join(text for text, _, _ in terms[:3])[:80],
        remedy="Give the size a name of its own.",
    )


def size_of(terms: tuple[Term, ...]) -> Size:
    """Return the sum of terms that are sorted by text, each text once and no coefficient 0."""
    if not terms:
        return 0
    if len(terms) == 1 and not terms[0][1]:
        return terms[0][2]
    return _intern(terms)


def _single(atom: Atom) -> tuple[Term, ...]:
    return ((atom.text, (atom,), 1),)


def atom_dim(kind: AtomKind, args: tuple[Size, ...], name: str = "") -> Dim:
    """Return the Dim that is one atom, as it is: what can be simplified must have been."""
    return _intern(_single(_atom(kind, args, name)))


def _atom(kind: AtomKind, args: tuple[Size, ...], name: str = "") -> Atom:
    key = (kind, args, name)
    found = _ATOMS.get(key)
    if found is None:
        atom = Atom(kind, args, name, _atom_text(kind, args, name))
        if atom.depth > MAX_DEPTH or len(atom.text) > MAX_TEXT:
            raise too_large(f"{len(atom.text)} characters, {atom.depth} nested operations", _single(atom))
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
        texts[1] = f"({texts[1]})" if divisor.atom is None else divisor.atom.text
    return f"({texts[0]}//{texts[1]})"


# Polynomial arithmetic.


def _sum(a: Dim, b: Size, sign: int = 1) -> Size:
    terms = a.terms
    if not isinstance(b, Dim):
        constant = sign * operator.index(b)
        if not terms[0][1]:  # The constant's text is empty: it sorts first.
            constant += terms[0][2]
            terms = terms[1:]
        if not -MAX_COEFFICIENT < constant < MAX_COEFFICIENT:
            raise too_large("a constant", terms)
        return _intern((("", (), constant), *terms) if constant else terms)
    merged = {term[0]: term for term in terms}
    for term in b.terms:
        text, atoms, factor = term
        factor *= sign
        if text in merged:
            factor += merged[text][2]
            if not -MAX_COEFFICIENT < factor < MAX_COEFFICIENT:
                raise too_large("a coefficient", terms)
        if factor:
            merged[text] = (text, atoms, factor)
        else:
            del merged[text]
    return size_of(tuple(sorted(merged.values())))


def _product(a: Dim, b: Size) -> Size:
    if not isinstance(b, Dim):
        return _scaled(a, operator.index(b))
    if len(a.terms) == len(b.terms) == 1:
        return _intern((_term_product(a.terms[0], b.terms[0]),))
    if len(a.terms) * len(b.terms) > 4 * MAX_TERMS:
        raise too_large(f"a product of {len(a.terms)} by {len(b.terms)} terms", a.terms)
    return collected([_term_product(x, y) for x in a.terms for y in b.terms])


def _scaled(dim: Dim, times: int) -> Size:
    if times == 0:
        return 0
    terms = tuple([(text, atoms, factor * times) for text, atoms, factor in dim.terms])
    for _, _, factor in terms:
        if not -MAX_COEFFICIENT < factor < MAX_COEFFICIENT:
            raise too_large("a coefficient", terms)
    return _intern(terms)


def collected(terms: Iterable[Term]) -> Size:
    """Return the sum of terms in any order, some of them alike or 0."""
    merged: dict[str, Term] = {}
    for text, atoms, factor in terms:
        factor += merged[text][2] if text in merged else 0
        if not -MAX_COEFFICIENT < factor < MAX_COEFFICIENT:
            raise too_large("a coefficient", tuple(merged.values()))
        merged[text] = (text, atoms, factor)
    return size_of(tuple(sorted([term for term in merged.values() if term[2]])))


def _term_product(x: Term, y: Term) -> Term:
    x_text, x_atoms, x_factor = x
    y_text, y_atoms, y_factor = y
    factor = x_factor * y_factor
    if not -MAX_COEFFICIENT < factor < MAX_COEFFICIENT:
        raise too_large("a coefficient", (x, y))
    if not x_atoms:
        return y_text, y_atoms, factor
    if not y_atoms:
        return x_text, x_atoms, factor
    return term_of(x_atoms + y_atoms, factor)


def term_of(atoms: Iterable[Atom], factor: int) -> Term:
    """Return the product of atoms in any order with a coefficient."""
    ordered = tuple(sorted(atoms, key=_text_of))
    text = "*".join([atom.text for atom in ordered])
    if len(text) > MAX_TEXT:
        raise too_large(f"a product of {len(text)} characters", ((text, ordered, factor),))
    return text, ordered, factor
