"""Description of the processor: vector width, registers and caches as data."""

from __future__ import annotations

import functools
import itertools
import os
from dataclasses import dataclass

from sardonyx.compiler.target.tile_permission import request_tiles
from sardonyx.errors import OptionError


@dataclass(frozen=True)
class Target:
    """A processor.

    Attributes:
        name: Name for users: ``avx2``, ``avx512``, ``avx512vnni``, ``avx512bf16``, ``avx512amx``, ``neon``.
        triple: LLVM's target triple.
        cpu: LLVM's name of the processor.
        features: LLVM's feature string, such as ``+avx2,+fma``.
        vector_bits: Bits of the vector registers to use.
        vector_registers: Number of vector registers.
        l1: Bytes of L1 data cache of a core.
        l2: Bytes of L2 cache of a core.
        l3: Bytes of the last-level cache.
        fast_pairs: True if a product of pairs of bfloat16 takes as long as one FMA (AMD since Zen 4).
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
    fast_pairs: bool = False

    def lanes(self, bits: int) -> int:
        """Return the number of elements of so many bits in a vector."""
        return max(1, self.vector_bits // bits)

    @property
    def architecture(self) -> str:
        """The first word of the triple, with one name for each architecture: ``x86_64``, ``aarch64``, …."""
        word = self.triple.split("-")[0]
        return {"arm64": "aarch64", "amd64": "x86_64"}.get(word, word)

    @property
    def has_masks(self) -> bool:
        """True if masked loads and stores are as fast as whole ones."""
        return "+avx512vl" in self.features

    @property
    def counts_zeros(self) -> bool:
        """True if one instruction counts the leading zeros of integers in a vector."""
        return self.has_masks or not self.triple.startswith("x86_64")

    @property
    def converts_halves(self) -> bool:
        """True if there are conversion instructions between ``float16`` and ``float``."""
        return "+f16c" in self.features or not self.triple.startswith("x86_64")

    def together(self, bits: int) -> int:
        """Return the dot width: the products of integers of so many bits that one instruction adds in a 32-bit lane; 1
        without.

        With 8 bits, one factor is unsigned and the other signed; with 16 bits both are signed.
        """
        if not self.triple.startswith("x86_64"):
            return 1
        return {8: 4, 16: 2}.get(bits, 1)

    @property
    def saturates(self) -> bool:
        """True if 8-bit products of a lane are first added in pairs, saturating at 16 bits."""
        return "+avx512vnni" not in self.features

    @property
    def multiplies_bfloat16(self) -> bool:
        """True if one instruction multiplies and adds two pairs of bfloat16 in a float32 lane."""
        return "+avx512bf16" in self.features

    @property
    def has_tiles(self) -> bool:
        """True if instructions multiply tiles of 16 rows of 64 bytes (AMX)."""
        return "+amx-int8" in self.features


_X86 = "x86_64-unknown-linux-gnu"
_AVX2 = "+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+popcnt,+sse4.2"
_AVX512 = f"{_AVX2},+avx512f,+avx512bw,+avx512dq,+avx512vl,-prefer-256-bit"
_VNNI = f"{_AVX512},+avx512vnni,+fast-dpwssd"
TUNINGS = frozenset({"+fast-dpwssd"})
"""Features of LLVM that prefer instructions and need no processor."""

_BF16 = f"{_VNNI},+avx512vbmi,+avx512bf16"
_TILES = frozenset({"amx_tile", "amx_int8", "amx_bf16"})
"""Linux's names of the features of matrix tiles."""

NAMED = {
    "sse": Target("sse", _X86, "x86-64", "+sse4.2,+popcnt", 128, 16),
    "avx2": Target("avx2", _X86, "x86-64-v3", _AVX2, 256, 16),
    "avx512": Target("avx512", _X86, "x86-64-v4", _AVX512, 512, 32),
    "avx512vnni": Target("avx512vnni", _X86, "x86-64-v4", _VNNI, 512, 32),
    "avx512bf16": Target("avx512bf16", _X86, "x86-64-v4", _BF16, 512, 32),
    "avx512amx": Target("avx512amx", _X86, "x86-64-v4", f"{_BF16},+amx-tile,+amx-int8,+amx-bf16", 512, 32),
    "neon": Target("neon", "aarch64-unknown-linux-gnu", "generic", "+neon", 128, 32),
}
"""Targets for which code can be generated on any machine."""


@functools.cache
def host() -> Target:
    """Return the processor of this machine; ``SARDONYX_TARGET`` names a lesser one of the same architecture.

    Raises:
        OptionError: ``SARDONYX_TARGET`` names an unknown target, or one that the system does not permit.
    """
    requested = os.environ.get("SARDONYX_TARGET")
    if requested is not None and requested not in NAMED:
        raise OptionError(
            f"unknown target {requested!r}.", where="SARDONYX_TARGET", remedy=f"Use one of {', '.join(NAMED)}."
        )
    name = requested or _detected()
    if NAMED[name].has_tiles and not request_tiles():
        if requested is not None:
            raise OptionError(
                "the system does not permit the use of matrix tiles.", where="SARDONYX_TARGET",
                remedy="Use avx512bf16, or a Linux kernel of version 5.16 or later.",
            )  # fmt: skip
        name = "avx512bf16"
    known = NAMED[name]
    caches = _caches()
    l1, l2, l3 = (caches.get(level, 0) for level in (1, 2, 3))
    return Target(
        name, _triple(), known.cpu, known.features, known.vector_bits, known.vector_registers,
        l1 or known.l1, l2 or known.l2, l3 or known.l3, known.multiplies_bfloat16 and _vendor() == "AuthenticAMD",
    )  # fmt: skip


@functools.cache
def _triple() -> str:
    if hasattr(os, "uname") and os.uname().sysname == "Linux":
        return f"{os.uname().machine}-unknown-linux-gnu"
    import llvmlite.binding as llvm

    return str(llvm.get_default_triple())


def _detected() -> str:
    if not _triple().startswith("x86_64"):
        return "neon"
    features = _flags() or _llvm_features()
    if features >= {"avx512f", "avx512bw", "avx512dq", "avx512vl"}:
        # Cooper Lake alone multiplies bfloat16 and has no permutations of bytes.
        if features >= {"avx512vnni", "avx512vbmi", "avx512bf16"}:
            return "avx512amx" if features >= _TILES else "avx512bf16"
        return "avx512vnni" if "avx512vnni" in features else "avx512"
    return "avx2" if features >= {"avx2", "fma"} else "sse"


def _flags() -> frozenset[str]:
    """Return the features that Linux lists for the first processor, by LLVM's names; empty elsewhere.

    A warm start asks Linux and not LLVM, whose import takes longer than the rest of the start.
    """
    return frozenset(_cpuinfo("flags").replace("avx512_", "avx512").split())


def _vendor() -> str:
    """Return the name of the first processor's vendor; empty where Linux does not list it."""
    return _cpuinfo("vendor_id").strip()


def _cpuinfo(name: str) -> str:
    try:
        text = _word("/proc/cpuinfo", 1 << 14)
    except OSError:
        return ""
    line = next((line for line in text.splitlines() if line.startswith(name)), "")
    return line.partition(":")[2]


def _llvm_features() -> frozenset[str]:
    import llvmlite.binding as llvm

    return frozenset(name for name, is_available in llvm.get_host_cpu_features().items() if is_available)


def _caches() -> dict[int, int]:
    """Return bytes of a core's caches by level, from Linux's description of the first processor."""
    sizes: dict[int, int] = {}
    try:
        for number in itertools.count():
            entry = f"/sys/devices/system/cpu/cpu0/cache/index{number}"
            kind, level, size = (_word(f"{entry}/{name}") for name in ("type", "level", "size"))
            if kind != "Instruction":
                sizes.setdefault(int(level), int(size.rstrip("KM")) << (20 if size.endswith("M") else 10))
    except OSError:  # The last cache was read.
        return sizes
    return sizes


def _word(path: str, size: int = 64) -> str:
    """Read the first bytes of a file by system calls: a dozen reads delay the first load of every process."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, size).decode(errors="replace").strip()
    finally:
        os.close(file)
