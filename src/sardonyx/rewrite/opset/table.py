"""The table of adapters: what to do with an operator where its definition changes between two operator sets.

An adapter stands at a *boundary*: the operator set in which the newer definition of an operator
appeared. ``@up("Pad", 11)`` rewrites a ``Pad`` of an older set for set 11 and later; ``@down("Pad", 11)``
rewrites it for sets before 11. A boundary without an adapter is crossed when the two schemas show that
the node means the same on both sides (see ``align``).
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
    """Registers an adapter that rewrites nodes for the definition new in ``version``."""

    def register(adapter: Adapter) -> Adapter:
        for op_type in op_types:
            _UP[domain, op_type, version] = adapter
        return adapter

    return register


def down(*op_types: str, version: int, domain: str = "") -> Callable[[Adapter], Adapter]:
    """Registers an adapter that rewrites nodes of the definition new in ``version`` for older sets."""

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
    """The adapter of one operator at one boundary, if it needs one."""
    _load_families()
    return (_UP if upward else _DOWN).get((domain, op_type, version))


def boundaries() -> dict[str, frozenset[tuple[str, str, int]]]:
    """Every (domain, operator, version) that has an adapter, by direction: ``up`` and ``down``."""
    _load_families()
    return {"up": frozenset(_UP), "down": frozenset(_DOWN)}
