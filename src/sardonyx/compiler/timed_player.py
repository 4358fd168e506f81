"""Playing a tape with a clock: what each kernel takes, the threads' fork and join among it."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import numpy as np

from sardonyx.compiler.emitter import Emitter
from sardonyx.compiler.machine_code import LoadedCode, compiled, module_text
from sardonyx.compiler.once import once
from sardonyx.compiler.player import WORDS
from sardonyx.compiler.target import Target
from sardonyx.compiler.worker_loop import call_parallel, float_mode, flushing, set_float_mode


@once
def _player(target: Target) -> Any:
    """``void (ptr tape, i64 kernels, ptr pool, ptr stamps, ptr clock, i32 which, i1 flush)``.

    ``stamps`` has two words, seconds and nanoseconds, for the begin and for the end of each kernel: what
    ``clock_gettime`` at ``clock`` writes.
    """
    e = Emitter()
    mode = float_mode(e, target)
    with e.when("%flush"):
        set_float_mode(e, target, flushing(e, target, mode))
    stamp = "call i32 %clock(i32 %which, ptr {})"
    e.let(stamp.format("%stamps"))
    with e.loop(0, "%count") as i:
        entry = e.address("%tape", "i64", e.mul(i, WORDS))
        kernel, arguments = (e.load("ptr", e.address(entry, "i64", word), 8) for word in (0, 1))
        items, grain = (e.load("i64", e.address(entry, "i64", word), 8) for word in (2, 3))
        call_parallel(e, "%pool", kernel, arguments, items, grain)
        e.let(stamp.format(e.address("%stamps", "i64", e.add(e.mul(i, 2), 2))))
    set_float_mode(e, target, mode)
    e.line("ret void")
    parameters = "ptr %tape, i64 %count, ptr %pool, ptr %stamps, ptr %clock, i32 %which, i1 %flush"
    body = f"define void @play_timed({parameters}) {{\n{e.text()}\n}}"
    code = LoadedCode([compiled(module_text(target, [body], e.declarations), target)], target)
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    signature = ctypes.CFUNCTYPE(None, pointer, number, pointer, pointer, pointer, ctypes.c_int32, ctypes.c_bool)
    function = signature(code.address("play_timed"))
    function.code = code  # type: ignore[attr-defined]
    return function


def play_timed(target: Target, tape: int, kernels: int, pool: int, *, flush: bool) -> list[float]:
    """Run so many kernels of a tape.

    Args:
        target: What they are compiled for.
        tape: The address of the tape.
        kernels: How many there are.
        pool: The address of the pool of threads.
        flush: Whether denormal numbers are taken for zero.

    Returns:
        The seconds of each kernel.
    """
    stamps = np.zeros((kernels + 1, 2), np.int64)
    clock = ctypes.cast(ctypes.CDLL(None).clock_gettime, ctypes.c_void_p).value
    _player(target)(tape, kernels, pool, stamps.ctypes.data, clock, time.CLOCK_MONOTONIC, flush)
    seconds, nanoseconds = np.diff(stamps, axis=0).T
    return list((seconds + nanoseconds * 1e-9).tolist())
