"""Symbolic sizes as interned polynomials over atoms: construction, printing, sum and product.

A :class:`Dim` is a sorted tuple of terms, each a product of *atoms* and a coefficient. An atom is a symbol or an
operation that no polynomial expresses: a floor division, a minimum, a maximum, a broadcast
(:mod:`sardonyx.core.dim.canonical_forms`).
A remainder is not an atom: ``a % b`` is ``a - b*(a//b)``, so that quotient and remainder cancel by themselves.

Dims are interned: equal terms are the same object, comparison and hashing are by identity, and every operation is
memoized. The key of a term is its text, which parses back to the term.
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
"""Maximum number of terms of one Dim."""
MAX_TEXT = 4096
"""Maximum characters of a product, and of all products of a Dim of more than ``FEW_TERMS`` terms."""
FEW_TERMS = 8
MAX_DEPTH = 32
"""Maximum nesting of divisions, minima, maxima and broadcasts."""
MAX_COEFFICIENT = 2**128
"""Exclusive bound on the absolute value of a coefficient."""
MAX_OPERANDS = 32
"""Maximum number of operands of one minimum, maximum or broadcast."""
MAX_NAME = 512
"""Maximum number of characters of a symbol's name."""

LONG_TEXT = MAX_TEXT // 16
"""Number of characters above which an expression of a few such sizes may exceed the limits."""

IDENTIFIER = re.compile(r"[^\W\d][\w.]*")
"""A symbol's name that an expression contains verbatim; any other name is written in backticks."""

MEMO_ENTRIES = 1 << 17
"""Number of results at which a memo is cleared."""

AtomKind = Literal["symbol", "//", "min", "max", "broadcast"]
Term: TypeAlias = "tuple[str, tuple[Atom, ...], int]"
"""A product: text (unique, the sort key), atoms in the order of their texts, coefficient (never 0)."""


class Atom:
    """A symbol, or an operation that no polynomial expresses; interned, immutable.

    Attributes:
        kind: ``"symbol"`` or the operation.
        args: The operands (numerator and denominator of ``//``); empty for a symbol.
        text: The expression of the atom, parenthesized as a factor; parses back to the atom.
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
    """An integer expression over named symbols; never a constant. Immutable and interned.

    ``==`` is identity (same canonical form); :func:`equal` proves whether two sizes are the same for all values.
    Arithmetic accepts and returns ``int | Dim`` and raises :class:`~sardonyx.errors.ShapeError` if a result exceeds the
    limits of this module or the divisor is the constant 0.
    """

    __slots__ = ("__weakref__", "_in_order", "_symbols", "_text", "terms")

    terms: tuple[Term, ...]
    _text: str
    _symbols: frozenset[str]
    _in_order: tuple[str, ...]

    @staticmethod
    def symbol(name: str) -> Dim:
        """Return the symbol of this name (any text, also one that is not an identifier).

        Raises:
            ShapeError: The name is empty or longer than ``MAX_NAME``.
        """
        dim = _SYMBOLS.get(name)
        if dim is not None:
            return dim
        if not name or len(name) > MAX_NAME:
            raise ShapeError(
                f"a symbolic size has a name of {len(name)} characters.",
                where=repr(name[:40]),
                remedy=f"Use 1 to {MAX_NAME} characters.",
            )
        return _memoize(_SYMBOLS, name, atom_dim("symbol", (), name))

    @staticmethod
    def parse(text: str) -> Size:
        """Return the size that an ONNX ``dim_param`` names.

        See :mod:`sardonyx.core.dim.parse` for the grammar. Any other text names a symbol.

        Raises:
            ShapeError: The text is empty, too long, or nested too deeply.
        """
        size = _PARSED.get(text)
        if size is not None:
            return size
        from sardonyx.core.dim.parse import parse  # The parser imports this module.

        return _memoize(_PARSED, text, parse(text))

    def __add__(self, other: Size) -> Size:
        result = _SUMS.get((self, other))
        return _memoize(_SUMS, (self, other), _add(self, other)) if result is None else result

    __radd__ = __add__

    def __sub__(self, other: Size) -> Size:
        result = _DIFFERENCES.get((self, other))
        return _memoize(_DIFFERENCES, (self, other), _add(self, other, -1)) if result is None else result

    def __rsub__(self, other: Size) -> Size:
        return -self + other

    def __mul__(self, other: Size) -> Size:
        result = _PRODUCTS.get((self, other))
        return _memoize(_PRODUCTS, (self, other), _multiply(self, other)) if result is None else result

    __rmul__ = __mul__

    def __neg__(self) -> Dim:
        return _intern(tuple([(text, atoms, -factor) for text, atoms, factor in self.terms]))

    def __floordiv__(self, other: Size) -> Size:
        result = _QUOTIENTS.get((self, other))
        return _memoize(_QUOTIENTS, (self, other), _quotient(self, other)) if result is None else result

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
        """The atom that the whole expression consists of; None if there is more than one."""
        _, atoms, factor = self.terms[0]
        return atoms[0] if len(self.terms) == len(atoms) == factor == 1 else None

    @property
    def is_long(self) -> bool:
        """True if an expression of a few sizes like this may exceed the limits."""
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
        """The names of the symbols, by length, then alphabetically."""
        if not hasattr(self, "_in_order"):
            self._in_order = tuple(sorted(self.symbols(), key=lambda name: (len(name), name)))
        return self._in_order

    def substitute(self, values: Mapping[str, Size], assumptions: Assumptions = None) -> Size:
        """Return the expression with symbols replaced simultaneously, simplified under ``assumptions``.

        Raises:
            ShapeError: The result divides by zero, broadcasts different sizes, or exceeds the limits.
        """
        from sardonyx.core.dim.canonical_forms import substitute_symbols  # That module imports this one.

        # Under explicit assumptions every part is rebuilt, as any of the parts may simplify.
        names = self.symbols() if assumptions is not None else frozenset(values)
        return substitute_symbols(self, values, names, as_bounds(assumptions), {})

    def evaluate(self, values: Mapping[str, int]) -> int:
        """Return the value for these sizes.

        Raises:
            ShapeError: A symbol has no value or a negative one, a divisor is 0, or sizes do not broadcast.
        """
        from sardonyx.core.dim.canonical_forms import evaluate_atom  # That module imports this one.

        total = 0
        for _, atoms, factor in self.terms:
            for atom in atoms:
                factor *= evaluate_atom(atom, values)
            total += factor
        return total

    def bounds(self, assumptions: Assumptions = None) -> Interval:
        """Return ``(least, greatest)``: proven bounds on the value, ``None`` without proof."""
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
    from sardonyx.core.dim.canonical_forms import floor_div  # That module imports this one.

    return floor_div(as_operand(numerator), as_operand(divisor), NON_NEGATIVE)


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def _memoize(memo: dict[_Key, _Value], key: _Key, result: _Value) -> _Value:
    if len(memo) >= MEMO_ENTRIES:
        memo.clear()
    memo[key] = result
    return result


def as_operand(value: Size) -> Size:
    """Return a Dim unchanged and any integer (numpy's too) as an ``int``; else raise ``TypeError``."""
    return value if isinstance(value, Dim) else operator.index(value)


def _names_itself(name: str) -> bool:
    if IDENTIFIER.fullmatch(name):
        return True
    try:
        return Dim.parse(name) is Dim.symbol(name)
    except ShapeError:
        return False  # Nested beyond the parser's limit: the name needs backticks.


def expression(dim: Dim) -> str:
    """Return the text that parses back to ``dim``; any symbol but an identifier is in backticks.

    ``str(dim)`` differs in one case: a lone symbol prints as its plain name.
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
    # A leading sign binds to the first factor: a quotient keeps its parentheses.
    return " ".join([f"-{text}" if factor == -1 else f"{factor}*{text}", *parts[1:]])


def _is_negative(term: Term) -> bool:
    return term[2] < 0


def _magnitude(term: Term) -> str:
    text, atoms, factor = term
    if factor not in (1, -1):
        return f"{abs(factor)}*{text}"
    return text[1:-1] if len(atoms) == 1 and atoms[0].kind == "//" else text


# Interning. The lock guards the replacement of entries; re-entrant, as collecting a Dim under the lock calls _forget.


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
    dim = entry() if entry is not None else None
    if dim is not None:
        return dim
    if len(terms) > FEW_TERMS:
        _check_length(terms)
    dim = Dim()
    dim.terms = terms
    entry = _Entry(dim, _forget)
    entry.key = terms
    # Atomic; if another thread was first, or a collect_terms Dim awaits removal, the lock decides.
    return dim if _DIMS.setdefault(terms, entry) is entry else _intern_contended(terms, dim, entry)


def _intern_contended(terms: tuple[Term, ...], dim: Dim, entry: _Entry) -> Dim:
    with _LOCK:
        present = _DIMS.get(terms)
        winner = present() if present is not None else None
        if winner is None:
            _DIMS[terms] = entry
            winner = dim
    return winner


def _check_length(terms: tuple[Term, ...]) -> None:
    characters = sum([len(text) for text, _, _ in terms])
    if len(terms) > MAX_TERMS or characters > MAX_TEXT:
        raise size_limit_error(f"{len(terms)} terms of {characters} characters", terms)


def size_limit_error(excess: str, terms: tuple[Term, ...]) -> SizeLimitError:
    """Return the error for an expression that exceeds the limits."""
    return SizeLimitError(
        f"a symbolic size exceeds the limits ({excess}).",
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
    """Return the Dim of one atom, which must already be in canonical form."""
    return _intern(_single(_atom(kind, args, name)))


def _atom(kind: AtomKind, args: tuple[Size, ...], name: str = "") -> Atom:
    key = (kind, args, name)
    interned = _ATOMS.get(key)
    if interned is None:
        atom = Atom(kind, args, name, _atom_text(kind, args, name))
        if atom.depth > MAX_DEPTH or len(atom.text) > MAX_TEXT:
            raise size_limit_error(f"{len(atom.text)} characters, {atom.depth} nested operations", _single(atom))
        with _LOCK:
            interned = _ATOMS.setdefault(key, atom)
    return interned


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

_PART = "max(0, "
"""Text of an atom that may be the part of a size above 0."""


def _add(a: Dim, b: Size, sign: int = 1) -> Size:
    terms = a.terms
    if not isinstance(b, Dim):
        constant = sign * operator.index(b)
        if not terms[0][1]:  # The constant's text is empty: it sorts first.
            constant += terms[0][2]
            terms = terms[1:]
        if not -MAX_COEFFICIENT < constant < MAX_COEFFICIENT:
            raise size_limit_error("a constant", terms)
        return _intern((("", (), constant), *terms) if constant else terms)
    merged = {term[0]: term for term in terms}
    for term in b.terms:
        text, atoms, factor = term
        factor *= sign
        if text in merged:
            factor += merged[text][2]
            if not -MAX_COEFFICIENT < factor < MAX_COEFFICIENT:
                raise size_limit_error("a coefficient", terms)
        if factor:
            merged[text] = (text, atoms, factor)
        else:
            del merged[text]
    return _sum_of(merged)


def _multiply(a: Dim, b: Size) -> Size:
    if not isinstance(b, Dim):
        return _scale(a, operator.index(b))
    if len(a.terms) == len(b.terms) == 1:
        return _intern((_multiply_terms(a.terms[0], b.terms[0]),))
    if len(a.terms) * len(b.terms) > 4 * MAX_TERMS:
        raise size_limit_error(f"a product of {len(a.terms)} by {len(b.terms)} terms", a.terms)
    return collect_terms([_multiply_terms(x, y) for x in a.terms for y in b.terms])


def _scale(dim: Dim, times: int) -> Size:
    if times == 0:
        return 0
    terms = tuple([(text, atoms, factor * times) for text, atoms, factor in dim.terms])
    for _, _, factor in terms:
        if not -MAX_COEFFICIENT < factor < MAX_COEFFICIENT:
            raise size_limit_error("a coefficient", terms)
    return _intern(terms)


def collect_terms(terms: Iterable[Term]) -> Size:
    """Return the sum of terms in any order, with like terms or coefficients 0."""
    merged: dict[str, Term] = {}
    for text, atoms, factor in terms:
        factor += merged[text][2] if text in merged else 0
        if not -MAX_COEFFICIENT < factor < MAX_COEFFICIENT:
            raise size_limit_error("a coefficient", tuple(merged.values()))
        merged[text] = (text, atoms, factor)
    return _sum_of({text: term for text, term in merged.items() if term[2]})


def _sum_of(terms: Mapping[str, Term]) -> Size:
    """Return the sum of unlike terms by text, in which ``max(0, x) - max(0, -x)`` is ``x``."""
    parts = [(text, atom) for text, (_, atoms, _) in terms.items() if _PART in text for atom in atoms if _is_part(atom)]
    for text, atom in parts:
        _, atoms, factor = terms[text]
        rest, size = list(atoms), atom.args[1]
        rest.remove(atom)
        opposite, opposite_atoms, _ = term_of([*rest, _atom("max", (0, -size))], 1)
        times = min(factor, -terms[opposite][2]) if opposite in terms else 0
        if times > 0:
            assert isinstance(size, Dim)
            whole = [_multiply_terms(term_of(rest, times), term) for term in size.terms]
            return collect_terms([*terms.values(), (text, atoms, -times), (opposite, opposite_atoms, times), *whole])
    return size_of(tuple(sorted(terms.values())))


def _is_part(atom: Atom) -> bool:
    """Return True for ``max(0, x)``."""
    return atom.kind == "max" and len(atom.args) == 2 and atom.args[0] == 0


def _multiply_terms(x: Term, y: Term) -> Term:
    x_text, x_atoms, x_factor = x
    y_text, y_atoms, y_factor = y
    factor = x_factor * y_factor
    if not -MAX_COEFFICIENT < factor < MAX_COEFFICIENT:
        raise size_limit_error("a coefficient", (x, y))
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
        raise size_limit_error(f"a product of {len(text)} characters", ((text, ordered, factor),))
    return text, ordered, factor
