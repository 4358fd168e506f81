"""Table of adapters: rewrites of operators whose definition changes between two operator sets.

An adapter belongs to a *boundary*: the operator set in which the newer definition of an operator
appeared. ``@up("Pad", 11)`` rewrites a ``Pad`` of an older set for set 11 and later; ``@down("Pad", 11)``
rewrites a newer one for sets before 11. A boundary without an adapter is crossed if the two schemas prove
an equal meaning of the node on both sides (see ``align``).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache

from sardonyx.rewrite.opset.site import Site

Adapter = Callable[[Site], None]

_UP: dict[tuple[str, str, int], Adapter] = {}
_DOWN: dict[tuple[str, str, int], Adapter] = {}

_FAMILIES = (
    "arithmetic",
    "axes",
    "bits",
    "broadcasting",
    "casting",
    "contraction",
    "drawing",
    "indexing",
    "labels",
    "normalization",
    "optionals",
    "padding",
    "pooling",
    "quantization",
    "recurrent",
    "resizing",
    "shaping",
    "softmax",
    "spectral",
)


def up(*op_types: str, version: int, domain: str = "") -> Callable[[Adapter], Adapter]:
    """Register an adapter to rewrite nodes for the definition new in ``version``."""

    def register(adapter: Adapter) -> Adapter:
        for op_type in op_types:
            _UP[domain, op_type, version] = adapter
        return adapter

    return register


def down(*op_types: str, version: int, domain: str = "") -> Callable[[Adapter], Adapter]:
    """Register an adapter to rewrite nodes of the definition new in ``version`` for older sets."""

    def register(adapter: Adapter) -> Adapter:
        for op_type in op_types:
            _DOWN[domain, op_type, version] = adapter
        return adapter

    return register


@cache
def _load_families() -> None:
    for family in _FAMILIES:
        importlib.import_module(f"sardonyx.rewrite.opset.{family}")


def adapter_for(domain: str, op_type: str, version: int, *, upward: bool) -> Adapter | None:
    """Return the adapter of one operator at one boundary, if any."""
    _load_families()
    return (_UP if upward else _DOWN).get((domain, op_type, version))


def boundaries() -> dict[str, frozenset[tuple[str, str, int]]]:
    """Return every (domain, operator, version) with an adapter, by direction: ``up`` and ``down``."""
    _load_families()
    return {"up": frozenset(_UP), "down": frozenset(_DOWN)}
