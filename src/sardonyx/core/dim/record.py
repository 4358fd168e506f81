"""Sizes as plain data: their canonical form as it is, so that whoever reads it proves nothing again.

An ``int`` is itself. A :class:`~sardonyx.core.dim.Dim` is the list of its terms, each a coefficient and its atoms; an
atom is a symbol's name, or an operation and its operands. What is read must have been written by the same version:
another one may have another canonical form.
"""

from __future__ import annotations

from typing import Any

from sardonyx.core.dim.polynomial import Atom, Dim, Size, atom_dim, size_of, term_of


def record(size: Size) -> Any:
    """A size as lists, numbers and texts, which JSON can hold."""
    if not isinstance(size, Dim):
        return int(size)
    return [[factor, *map(_atom_record, atoms)] for _, atoms, factor in size.terms]


def from_record(part: Any) -> Size:
    """The size that :func:`record` wrote down."""
    if not isinstance(part, list):
        return int(part)
    return size_of(tuple([term_of(map(_atom, atoms), factor) for factor, *atoms in part]))


def _atom_record(atom: Atom) -> Any:
    return atom.name if atom.kind == "symbol" else [atom.kind, *map(record, atom.args)]


def _atom(part: Any) -> Atom:
    dim = (
        atom_dim("symbol", (), part) if isinstance(part, str) else atom_dim(part[0], tuple(map(from_record, part[1:])))
    )
    ((_, (atom,), _),) = dim.terms
    return atom
