"""Processor check of a C library: generated code compares ``cpuid`` with the target's features."""

from __future__ import annotations

from typing import NamedTuple

from sardonyx.compiler.llvm.ir_builder import Emitter
from sardonyx.compiler.target.description import TUNINGS, Target
from sardonyx.compiler.target.tile_permission import ARCH_PRCTL, REQUEST_STATE, TILE_DATA

_EAX, _EBX, _ECX, _EDX = 0, 1, 2, 3

_SUBLEAF = 1 << 16
"""Added to the number of a leaf for its second part."""

_BITS = {
    "fma": (1, _ECX, 12), "sse4.2": (1, _ECX, 20), "popcnt": (1, _ECX, 23), "avx": (1, _ECX, 28), "f16c": (1, _ECX, 29),
    "bmi": (7, _EBX, 3), "avx2": (7, _EBX, 5), "bmi2": (7, _EBX, 8),
    "avx512f": (7, _EBX, 16), "avx512dq": (7, _EBX, 17), "avx512bw": (7, _EBX, 30), "avx512vl": (7, _EBX, 31),
    "avx512vnni": (7, _ECX, 11), "amx-bf16": (7, _EDX, 22), "amx-tile": (7, _EDX, 24), "amx-int8": (7, _EDX, 25),
    "avx512vbmi": (7, _ECX, 1), "avx512bf16": (7 + _SUBLEAF, _EAX, 5),
}  # fmt: skip
"""Bit of each feature in ``cpuid``: leaf, index of the register, bit."""

_SAVING = (1, _ECX, 27)
"""Bit in ``cpuid`` of OSXSAVE: the system reports its saved registers."""

_SAVED = {"avx": 0x6, "avx512f": 0xE6, "amx-tile": 0x60000}
"""Register states that the system must save, as bits of ``xgetbv`` 0."""


class Needs(NamedTuple):
    """Requirements of code for a processor.

    Attributes:
        bits: Required bits of ``cpuid``, by leaf and index of the register, in the order of the checks.
        saved: Required bits of ``xgetbv`` 0.
        tiles: True if the system must permit the use of matrix tiles.
    """

    bits: dict[tuple[int, int], int]
    saved: int
    tiles: bool = False


def needs(target: Target) -> Needs:
    """Return the requirements of code for a target."""
    features = [feature[1:] for feature in target.features.split(",") if feature[0] == "+" and feature not in TUNINGS]
    saved = 0
    for feature in features:
        saved |= _SAVED.get(feature, 0)
    bits: dict[tuple[int, int], int] = {}
    for leaf, register, bit in sorted([_BITS[feature] for feature in features] + [_SAVING] * bool(saved)):
        bits[leaf, register] = bits.get((leaf, register), 0) | 1 << bit
    return Needs(bits, saved, target.has_tiles)


def emit_check(e: Emitter, requirements: Needs) -> str:
    """Emit a check of the processor; return an ``i1``, true if a requirement is missing."""
    missing = e.variable("i1", "false")

    def require(actual: str, bits: int) -> None:
        present = e.let(f"and i32 {actual}, {bits}")
        differs = e.let(f"icmp ne i32 {present}, {bits}")
        missing.set(e.let(f"or i1 {missing.get()}, {differs}"))

    # The result of cpuid is undefined beyond the last leaf.
    too_old = e.let(f"icmp ult i32 {_identify(e, 0, 0)}, {max(leaf % _SUBLEAF for leaf, _ in requirements.bits)}")
    missing.set(too_old)
    for (leaf, register), bits in requirements.bits.items():
        require(_identify(e, leaf, register), bits)
    if requirements.saved:
        with e.when(e.let(f"xor i1 {missing.get()}, true")):
            states = e.let('call { i32, i32 } asm "xgetbv", "={ax},={dx},{cx}"(i32 0) nounwind')
            require(e.let(f"extractvalue {{ i32, i32 }} {states}, 0"), requirements.saved)
    if requirements.tiles:
        with e.when(e.let(f"xor i1 {missing.get()}, true")):
            registers = '"={rax},{rax},{rdi},{rsi},~{rcx},~{r11},~{memory}"'
            numbers = f"i64 {ARCH_PRCTL}, i64 {REQUEST_STATE}, i64 {TILE_DATA}"
            refused = e.let(f'call i64 asm sideeffect "syscall", {registers}({numbers}) nounwind')
            missing.set(e.let(f"icmp ne i64 {refused}, 0"))
    return missing.get()


def _identify(e: Emitter, leaf: int, register: int) -> str:
    """Emit ``cpuid``; return one of the registers ``eax``, ``ebx``, ``ecx``, ``edx``, by index."""
    registers = '"={ax},={bx},={cx},={dx},{ax},{cx}"'
    numbers = f"i32 {leaf % _SUBLEAF}, i32 {leaf // _SUBLEAF}"
    values = e.let(f'call {{ i32, i32, i32, i32 }} asm "cpuid", {registers}({numbers}) nounwind')
    return e.let(f"extractvalue {{ i32, i32, i32, i32 }} {values}, {register}")
