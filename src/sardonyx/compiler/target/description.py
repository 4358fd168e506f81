"""What the code is generated for: vector width, registers and caches are data, not code."""

from __future__ import annotations

import functools
import itertools
import os
from dataclasses import dataclass

import llvmlite.binding as llvm

from sardonyx.errors import OptionError


@dataclass(frozen=True)
class Target:
    """A processor.

    Attributes:
        name: What users call it: ``avx2``, ``avx512``, ``avx512vnni``, ``neon``.
        triple: LLVM's target triple.
        cpu: LLVM's name of the processor.
        features: LLVM's feature text, such as ``+avx2,+fma``.
        vector_bits: Bits of a vector register that are worth using.
        vector_registers: How many of them there are.
        l1: Bytes of first-level data cache a core.
        l2: Bytes of second-level cache a core.
        l3: Bytes of last-level cache.
    """

    name: str
    triple: str
    cpu: str
    features: str
    vector_bits: int
    vector_registers: int
    l1: int = 32 << 10
    l2: int = 512 << 10
    l3: int = 16 << 20

    def lanes(self, bits: int) -> int:
        """How many elements of so many bits a vector holds."""
        return max(1, self.vector_bits // bits)

    @property
    def has_masks(self) -> bool:
        """Whether loads and stores of some lanes cost what whole ones do."""
        return "+avx512vl" in self.features

    @property
    def counts_zeros(self) -> bool:
        """Whether one instruction counts the leading zeros of integers in a vector."""
        return self.has_masks or not self.triple.startswith("x86_64")

    @property
    def converts_halves(self) -> bool:
        """Whether it has instructions between ``float16`` and ``float``."""
        return "+f16c" in self.features or not self.triple.startswith("x86_64")

    def together(self, bits: int) -> int:
        """How many products of integers of so many bits one instruction adds up in each lane of 32 bits; 1 for none.

        With 8 bits one factor has no sign and the other has one; with 16 bits both have.
        """
        if not self.triple.startswith("x86_64"):
            return 1
        return {8: 4, 16: 2}.get(bits, 1)

    @property
    def saturates(self) -> bool:
        """Whether products of 8 bits that are added up in a lane are added in pairs first, in no more than 16 bits."""
        return "+avx512vnni" not in self.features


_X86 = "x86_64-unknown-linux-gnu"
_AVX2 = "+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+popcnt,+sse4.2"
_AVX512 = f"{_AVX2},+avx512f,+avx512bw,+avx512dq,+avx512vl,-prefer-256-bit"
NAMED = {
    "sse": Target("sse", _X86, "x86-64", "+sse4.2,+popcnt", 128, 16),
    "avx2": Target("avx2", _X86, "x86-64-v3", _AVX2, 256, 16),
    "avx512": Target("avx512", _X86, "x86-64-v4", _AVX512, 512, 32),
    "avx512vnni": Target("avx512vnni", _X86, "x86-64-v4", f"{_AVX512},+avx512vnni", 512, 32),
    "neon": Target("neon", "aarch64-unknown-linux-gnu", "generic", "+neon", 128, 32),
}
"""Targets that code can be generated for, wherever this runs."""


@functools.cache
def host() -> Target:
    """The machine at hand; ``SARDONYX_TARGET`` names a smaller one of its kind.

    Raises:
        OptionError: ``SARDONYX_TARGET`` names no target.
    """
    wanted = os.environ.get("SARDONYX_TARGET")
    if wanted is not None and wanted not in NAMED:
        raise OptionError(
            f"there is no target {wanted!r}.", where="SARDONYX_TARGET", remedy=f"There are: {', '.join(NAMED)}."
        )
    name = wanted or _detected()
    known = NAMED[name]
    caches = _caches()
    l1, l2, l3 = (caches.get(level, 0) for level in (1, 2, 3))
    return Target(
        name, _triple(), known.cpu, known.features, known.vector_bits, known.vector_registers,
        l1 or known.l1, l2 or known.l2, l3 or known.l3,
    )  # fmt: skip


@functools.cache
def _triple() -> str:
    return str(llvm.get_default_triple())


def _detected() -> str:
    if not _triple().startswith("x86_64"):
        return "neon"
    features = llvm.get_host_cpu_features()
    if all(features.get(name) for name in ("avx512f", "avx512bw", "avx512dq", "avx512vl")):
        return "avx512vnni" if features.get("avx512vnni") else "avx512"
    return "avx2" if features.get("avx2") and features.get("fma") else "sse"


def _caches() -> dict[int, int]:
    """Bytes of a core's caches by level, from Linux's description of the first processor; empty without one."""
    found: dict[int, int] = {}
    try:
        for number in itertools.count():
            entry = f"/sys/devices/system/cpu/cpu0/cache/index{number}"
            kind, level, size = (_word(f"{entry}/{name}") for name in ("type", "level", "size"))
            if kind != "Instruction":
                found.setdefault(int(level), int(size.rstrip("KM")) << (20 if size.endswith("M") else 10))
    except OSError:  # There are no more.
        return found
    return found


def _word(path: str) -> str:
    """What a small file says; the system's own calls, since the first load of every process waits for a dozen."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, 64).decode().strip()
    finally:
        os.close(file)
