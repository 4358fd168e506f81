"""Conditions of functions through rewrites: rebuilt values define new symbols, which conditions then mention."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import cast

from sardonyx.core.dim import Size, symbols
from sardonyx.core.eval.run_context import tracing
from sardonyx.core.eval.tensor import size_tensor, sizes_of
from sardonyx.core.ir.graph import Function, function


def rewritten_with_conditions(
    inner: Function, conditions: Iterable[tuple[Size, Size]], rewrite: Callable[[Function], Function]
) -> Function:
    """Return the rewritten function, whose conditions mention the symbols that its values define.

    The sizes of the conditions are further results during the rewrite. A condition of a size that no other result needs
    mentions a symbol without a definition afterwards.

    Args:
        inner: The function.
        conditions: Pairs of sizes that must be equal in a run.
        rewrite: Returns a function with the same results.
    """
    pairs = tuple(conditions)
    own = inner.defined_symbols
    moved = [pair for pair in pairs if not own.isdisjoint(symbols(pair[0]) | symbols(pair[1]))]
    with tracing():
        sizes = [size_tensor(pair) for pair in moved]
    rewritten = rewrite(function(inner.name, inner.inputs, [*inner.results, *sizes], inner.level, inner.node))
    count = len(inner.results)
    result = function(rewritten.name, rewritten.inputs, rewritten.results[:count], rewritten.level, rewritten.node)
    renamed = dict(zip(moved, map(sizes_of, rewritten.results[count:]), strict=True))
    result.conditions = tuple(cast("tuple[Size, Size]", renamed.get(pair, pair)) for pair in pairs)
    return result
