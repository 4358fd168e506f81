"""Generators of random cases, one for every deterministic operator, one module per family."""

from __future__ import annotations

from tests.ops.generators import (
    attention,
    elementwise,
    indexing,
    movement,
    normalization,
    quantization,
    recurrent,
    reductions,
    resampling,
    sequences,
    signal,
    strings,
    windows,
)
from tests.ops.generators.table import GENERATORS

__all__ = [
    "GENERATORS",
    "attention",
    "elementwise",
    "indexing",
    "movement",
    "normalization",
    "quantization",
    "recurrent",
    "reductions",
    "resampling",
    "sequences",
    "signal",
    "strings",
    "windows",
]
