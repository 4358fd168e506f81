"""Sizes as plain data in canonical form, so that reading needs no proofs.

An ``int`` is itself. A :class:`~sardonyx.core.dim.Dim` is the list of its terms, each a coefficient and its atoms; an
atom is a symbol's name, or an operation and its operands. A record must have been written by the same version:
another version may have another canonical form.
"""

from __future__ import annotations

from typing import Any

from sardonyx.core.dim.polynomial import Atom, Dim, Size, atom_dim, size_of, term_of


def record(size: Size) -> Any:
    """Return a size as lists, numbers and texts, for JSON."""
    if not isinstance(size, Dim):
        return int(size)
    return [[factor, *map(_atom_record, atoms)] for _, atoms, factor in size.terms]


def from_record(part: Any) -> Size:
    """Return the size of a :func:`record`."""
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
