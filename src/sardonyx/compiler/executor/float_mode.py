"""Floating-point mode of a thread: generated code that reads and sets rounding and denormal handling."""

from __future__ import annotations

from sardonyx.compiler.llvm.ir_builder import Emitter
from sardonyx.compiler.target.description import Target


def read_float_mode(e: Emitter, target: Target) -> str:
    """Write code that reads the thread's floating-point mode, an ``i64`` for :func:`set_float_mode`."""
    if target.architecture == "aarch64":
        return e.call("i64", "llvm.aarch64.get.fpcr", [])
    if target.architecture != "x86_64":
        return "0"
    room = e.array("i32", 1, 4)
    e.call("void", "llvm.x86.sse.stmxcsr", [("ptr", room)])
    state = e.load("i32", room, 4)
    # The low six bits are not part of the mode: they record exceptions.
    return e.let(f"zext i32 {e.let(f'and i32 {state}, -64')} to i64")


def set_float_mode(e: Emitter, target: Target, mode: str) -> None:
    """Write code that sets the thread's floating-point mode."""
    if target.architecture == "aarch64":
        e.call("void", "llvm.aarch64.set.fpcr", [("i64", mode)])
    elif target.architecture == "x86_64":
        room = e.array("i32", 1, 4)
        e.store("i32", e.let(f"trunc i64 {mode} to i32"), room, 4)
        e.call("void", "llvm.x86.sse.ldmxcsr", [("ptr", room)])


def flush_denormals(e: Emitter, target: Target, mode: str) -> str:
    """Write code that adds flushing of denormal operands and results to a floating-point mode."""
    bits = {"x86_64": 0x8040, "aarch64": 1 << 24}.get(target.architecture, 0)
    return e.let(f"or i64 {mode}, {bits}")
