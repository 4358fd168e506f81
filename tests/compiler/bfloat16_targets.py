"""Targets of tests that multiply bfloat16."""

from __future__ import annotations

from dataclasses import replace

from tests.compiler.elementwise import TARGETS

from sardonyx.compiler.target.description import NAMED, Target, host

FAST = "avx512bf16, fast pairs"
"""The name of a target on which pairs multiply any number of rows."""

WITH_BFLOAT16 = [name for name in TARGETS if NAMED[name].multiplies_bfloat16]
if "avx512bf16" in WITH_BFLOAT16:
    WITH_BFLOAT16.append(FAST)
KINDS = WITH_BFLOAT16 + [name for name in TARGETS if name not in WITH_BFLOAT16][:1]


def processor(name: str) -> Target:
    """Return a target by name; pairs multiply any number of rows only where the name says so."""
    named = name.removesuffix(", fast pairs")
    return replace(host() if named == host().name else NAMED[named], fast_pairs=named != name)
