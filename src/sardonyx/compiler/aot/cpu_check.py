"""Whether an x86-64 processor has what code was compiled for, as generated code asks it."""

from __future__ import annotations

from typing import NamedTuple

from sardonyx.compiler.llvm.ir_builder import Emitter
from sardonyx.compiler.target.description import Target

_EBX, _ECX = 1, 2

_BITS = {
    "fma": (1, _ECX, 12), "sse4.2": (1, _ECX, 20), "popcnt": (1, _ECX, 23), "avx": (1, _ECX, 28), "f16c": (1, _ECX, 29),
    "bmi": (7, _EBX, 3), "avx2": (7, _EBX, 5), "bmi2": (7, _EBX, 8),
    "avx512f": (7, _EBX, 16), "avx512dq": (7, _EBX, 17), "avx512bw": (7, _EBX, 30), "avx512vl": (7, _EBX, 31),
    "avx512vnni": (7, _ECX, 11),
}  # fmt: skip
"""Where ``cpuid`` tells of a feature: the leaf, the number of the register, the bit."""

_SAVING = (1, _ECX, 27)
"""Where it tells whether the system says which registers it saves."""

_SAVED = {"avx": 0x6, "avx512f": 0xE6}
"""What the system must save (``xgetbv`` 0)."""


class Needs(NamedTuple):
    """What code needs of a processor.

    Attributes:
        bits: Of ``cpuid``, by the leaf and the number of the register; in the order in which to ask.
        saved: Of what the system saves.
    """

    bits: dict[tuple[int, int], int]
    saved: int


def needs(target: Target) -> Needs:
    """What code for a target needs of a processor."""
    features = [each[1:] for each in target.features.split(",") if each.startswith("+")]
    saved = 0
    for each in features:
        saved |= _SAVED.get(each, 0)
    bits: dict[tuple[int, int], int] = {}
    for leaf, register, bit in sorted([_BITS[each] for each in features] + [_SAVING] * bool(saved)):
        bits[leaf, register] = bits.get((leaf, register), 0) | 1 << bit
    return Needs(bits, saved)


def lacks(e: Emitter, needed: Needs) -> str:
    """Write code that asks the processor; gives whether it lacks something, an ``i1``."""
    missing = e.variable("i1", "false")

    def look(has: str, wanted: int) -> None:
        found = e.let(f"and i32 {has}, {wanted}")
        less = e.let(f"icmp ne i32 {found}, {wanted}")
        missing.set(e.let(f"or i1 {missing.get()}, {less}"))

    # Of a leaf that is none the processor tells what it likes.
    too_old = e.let(f"icmp ult i32 {_identify(e, 0, 0)}, {max(leaf for leaf, _ in needed.bits)}")
    missing.set(too_old)
    for (leaf, register), wanted in needed.bits.items():
        look(_identify(e, leaf, register), wanted)
    if needed.saved:
        with e.when(e.let(f"xor i1 {missing.get()}, true")):
            found = e.let('call { i32, i32 } asm "xgetbv", "={ax},={dx},{cx}"(i32 0) nounwind')
            look(e.let(f"extractvalue {{ i32, i32 }} {found}, 0"), needed.saved)
    return missing.get()


def _identify(e: Emitter, leaf: int, register: int) -> str:
    """What ``cpuid`` leaves in a register: ``eax``, ``ebx``, ``ecx``, ``edx``."""
    registers = '"={ax},={bx},={cx},={dx},{ax},{cx}"'
    found = e.let(f'call {{ i32, i32, i32, i32 }} asm "cpuid", {registers}(i32 {leaf}, i32 0) nounwind')
    return e.let(f"extractvalue {{ i32, i32, i32, i32 }} {found}, {register}")
