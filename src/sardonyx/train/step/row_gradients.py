"""Gradients of embeddings as the rows that a batch reads, so that a step leaves all other rows alone.

The gradient of a table that is read by ``Gather`` alone is a sum of rows over zeros. A step computes these rows, adds
rows of equal index, and updates the rows of the table and of the optimizer's state; the zeros are never computed.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

import numpy as np

from sardonyx.core import language as L
from sardonyx.core.dim import product
from sardonyx.core.eval.tensor import apply
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import TensorType
from sardonyx.core.language import Tensor
from sardonyx.errors import OptionError
from sardonyx.train.trainable.parameters import Parameter

EMBEDDINGS = "embeddings"
"""The selection of all trained embeddings, beside patterns of names."""


class RowGradient(NamedTuple):
    """Rows of a gradient; all others are zero.

    Attributes:
        indices: The index of each row in the table, int64 [rows], sorted.
        rows: The gradient [rows, ...]; rows of equal index are equal.
        sums: The rows with zeros in place of all but one row of each index, for sums over the gradient.
    """

    indices: Tensor
    rows: Tensor
    sums: Tensor


def select_tables(parameters: Iterable[Parameter], selected: Sequence[str], patterns: str | Sequence[str]) -> list[int]:
    """Return the positions of the trained parameters whose rows are updated alone.

    Args:
        parameters: See :func:`.find_parameters`.
        selected: The names of the trained parameters.
        patterns: ``"embeddings"``, or patterns of names; none for no parameter.

    Raises:
        OptionError: A pattern matches no trained parameter.
    """
    listed = [patterns] if isinstance(patterns, str) else list(patterns) if isinstance(patterns, Iterable) else [None]
    if not all(isinstance(pattern, str) for pattern in listed):
        raise OptionError(f"expected patterns of names, got {patterns!r}.", where="sparse")
    tables = {one.name for one in parameters if one.kind == "embedding"}
    chosen: set[str] = set()
    for pattern in listed:
        names = [
            name
            for name in selected
            if (name in tables if pattern == EMBEDDINGS else fnmatch.fnmatchcase(name, pattern))
        ]
        if not names:
            if pattern == EMBEDDINGS:
                raise OptionError(
                    "no trained parameter is a table that `Gather` reads.", where="sparse", remedy="Leave out `sparse`."
                )
            near = difflib.get_close_matches(pattern.strip("*"), selected, n=3) or list(selected[:5])
            raise OptionError(
                f"no trained parameter matches {pattern!r}.",
                where="sparse",
                remedy=f"Use {EMBEDDINGS!r}, or a pattern of names such as {', '.join(map(repr, near))}.",
            )
        chosen.update(names)
    return [position for position, name in enumerate(selected) if name in chosen]


def row_gradient(gradient: Value, name: str) -> RowGradient:
    """Return the rows of a gradient, while tracing.

    Args:
        gradient: The gradient of a table.
        name: The name of the table.

    Raises:
        OptionError: The gradient has more than rows of known indices.
    """
    parts = _scattered(gradient)
    if not parts:
        raise OptionError(
            "the gradient has more than the rows that a batch reads." if parts is None else "the loss reads no row.",
            where=f"sparse, {name}",
            remedy="Sparse steps need a table that `Gather` alone reads, along axis 0 and outside of loops.",
        )
    assert isinstance(gradient.type, TensorType) and gradient.type.shape is not None
    shape = gradient.type.shape[1:]
    counts = [product(at.shape[:-1]) for at, _ in parts]
    indices = L.concat([L.cast(L.reshape(at, (n,)), t.INT64) for n, (at, _) in zip(counts, parts, strict=True)], 0)
    rows = L.concat([L.reshape(own, (n, *shape)) for n, (_, own) in zip(counts, parts, strict=True)], 0)
    order = L.sort(indices, 0)
    indices, rows = rows_at(indices, order), rows_at(rows, order)
    is_first = L.logical_not(L.equal(indices, L.pad(indices, [1], [-1], -1)))
    number = L.cumulative("add", L.cast(is_first, t.INT64), 0) - 1
    sums = apply("scatter", L.zeros_like(rows), _column(number), rows, kind="add", batch=0)
    return RowGradient(indices, rows_at(sums, number), sums)


def rows_at(table: Tensor, indices: Tensor) -> Tensor:
    """Return rows of a table; no index is negative."""
    return apply("gather", table, _column(indices), batch=0)


def with_rows(table: Tensor, indices: Tensor, rows: Tensor) -> Tensor:
    """Return a table with other rows; rows of equal index are equal."""
    return apply("scatter", table, _column(indices), rows, kind="set", batch=0)


def _column(indices: Tensor) -> Tensor:
    return L.reshape(indices, (*indices.shape, 1))


def _scattered(gradient: Value) -> list[tuple[Tensor, Tensor]] | None:
    """Return the index vectors and rows of which a gradient is the sum; None if the gradient is more."""
    if _is_zero(gradient):
        return []
    if gradient.op == "convert":
        parts = _scattered(gradient.operands[0])
        return parts and [(at, L.cast(rows, gradient.type.dtype)) for at, rows in parts]  # type: ignore[union-attr]
    if gradient.op == "add":
        first, second = (_scattered(operand) for operand in gradient.operands)
        return None if first is None or second is None else first + second
    if gradient.op != "scatter" or gradient.params["kind"] != "add" or gradient.params["batch"]:
        return None
    base, at, rows = cast("tuple[Tensor, Tensor, Tensor]", gradient.operands)
    before = _scattered(base) if at.shape[-1] == 1 else None
    return None if before is None else [*before, (at, rows)]


def _is_zero(value: Value) -> bool:
    while value.op in ("broadcast", "convert", "reshape"):
        value = value.operands[0]
    return value.is_constant and not np.any(np.asarray(value.known))
