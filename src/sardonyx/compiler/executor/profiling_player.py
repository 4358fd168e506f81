"""Profiled execution of a tape: times of launches, including fork and join, and of threads."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from sardonyx.base.call_once import once
from sardonyx.base.span_recorder import Recorder
from sardonyx.compiler.executor.float_mode import flush_denormals, read_float_mode, set_float_mode
from sardonyx.compiler.executor.fork_join import call_parallel
from sardonyx.compiler.executor.tape_player import WORDS
from sardonyx.compiler.executor.thread_pool import Pool
from sardonyx.compiler.llvm.elf_loader import Code, loaded
from sardonyx.compiler.llvm.ir_builder import Emitter
from sardonyx.compiler.llvm.object_code import compiled, module_text
from sardonyx.compiler.lower.launch import Launch
from sardonyx.compiler.target.description import Target


class _Job(IntEnum):
    """The words of the argument of a timed kernel."""

    KERNEL = 0
    ARGUMENTS = 1
    CLOCK = 2
    WHICH = 3
    STAMPS = 4  # of the kernel: two timestamps for each thread


_STAMP = 2
"""Words of a timestamp: seconds and nanoseconds, as ``clock_gettime`` writes them."""


@once
def _player(target: Target) -> Any:
    """Compile ``play_timed``: executes a tape and stores timestamps.

    Its signature is ``void (ptr tape, i64 kernels, ptr pool, ptr stamps, ptr clock, i32 which, i1 flush, ptr own,
    i64 threads)``. ``stamps`` has room for a timestamp before the first kernel and one after each kernel; ``own`` has
    room for two timestamps of each thread and kernel, initially zero: first start and last end. Threads are not timed
    if ``own`` is null.
    """
    e = Emitter()
    mode = read_float_mode(e, target)
    with e.when("%flush"):
        set_float_mode(e, target, flush_denormals(e, target, mode))
    stamp = "call i32 %clock(i32 %which, ptr {})"
    job = e.array("i64", len(_Job))
    e.store("ptr", "%clock", e.address(job, "i64", _Job.CLOCK), 8)
    e.store("i32", "%which", e.address(job, "i64", _Job.WHICH), 8)
    e.let(stamp.format("%stamps"))
    plain = e.let("icmp eq ptr %own, null")
    with e.loop(0, "%count") as i:
        entry = e.address("%tape", "i64", e.mul(i, WORDS))
        kernel, arguments = (e.load("ptr", e.address(entry, "i64", word), 8) for word in (0, 1))
        items, grain = (e.load("i64", e.address(entry, "i64", word), 8) for word in (2, 3))
        e.store("ptr", kernel, e.address(job, "i64", _Job.KERNEL), 8)
        e.store("ptr", arguments, e.address(job, "i64", _Job.ARGUMENTS), 8)
        own = e.address("%own", "i64", e.mul(e.mul(i, "%threads"), 2 * _STAMP))
        e.store("ptr", own, e.address(job, "i64", _Job.STAMPS), 8)
        callee = e.let(f"select i1 {plain}, ptr {kernel}, ptr @timed")
        argument = e.let(f"select i1 {plain}, ptr {arguments}, ptr {job}")
        call_parallel(e, "%pool", callee, argument, items, grain)
        e.let(stamp.format(e.address("%stamps", "i64", e.add(e.mul(i, _STAMP), _STAMP))))
    set_float_mode(e, target, mode)
    e.line("ret void")
    parameters = (
        "ptr %tape, i64 %count, ptr %pool, ptr %stamps, ptr %clock, i32 %which, i1 %flush, ptr %own, i64 %threads"
    )
    timed = _timed()
    bodies = [
        f"define void @timed(ptr %job, i64 %first, i64 %last, i64 %worker) nounwind {{\n{timed.text()}\n}}",
        f"define void @play_timed({parameters}) nounwind {{\n{e.text()}\n}}",
    ]
    text = module_text(target, bodies, [*e.declarations, *timed.declarations])
    code = loaded(Code([compiled(text, target)]), target)
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    signature = ctypes.CFUNCTYPE(
        None, pointer, number, pointer, pointer, pointer, ctypes.c_int32, ctypes.c_bool, pointer, number
    )
    function = signature(code.address("play_timed"))
    function.code = code  # type: ignore[attr-defined]
    return function


def _timed() -> Emitter:
    """Write a kernel that calls a job's kernel and stores each thread's first start and last end."""
    e = Emitter()
    kernel, arguments, clock = (
        e.load("ptr", e.address("%job", "i64", word), 8) for word in (_Job.KERNEL, _Job.ARGUMENTS, _Job.CLOCK)
    )
    which = e.load("i32", e.address("%job", "i64", _Job.WHICH), 8)
    stamps = e.load("ptr", e.address("%job", "i64", _Job.STAMPS), 8)
    own = e.address(stamps, "i64", e.mul("%worker", 2 * _STAMP))
    with e.when(e.let(f"icmp eq i64 {e.load('i64', own, 8)}, 0")):
        e.let(f"call i32 {clock}(i32 {which}, ptr {own})")
    e.line(f"call void {kernel}(ptr {arguments}, i64 %first, i64 %last, i64 %worker)")
    e.let(f"call i32 {clock}(i32 {which}, ptr {e.address(own, 'i64', _STAMP)})")
    e.line("ret void")
    return e


def play_timed(
    target: Target, tape: int, launches: Sequence[Launch], pool: Pool, recorder: Recorder, *, flush: bool
) -> None:
    """Execute the launches of a tape and record their times.

    Args:
        target: The processor.
        tape: Address of the tape.
        launches: The launches of the tape.
        pool: The threads.
        recorder: Receives the times.
        flush: Treat denormal numbers as zero.
    """
    kernels = len(launches)
    stamps = np.zeros((kernels + 1, _STAMP), np.int64)
    own = np.zeros((kernels, pool.threads, 2, _STAMP) if recorder.threads else (0,), np.int64)
    clock = ctypes.cast(ctypes.CDLL(None).clock_gettime, ctypes.c_void_p).value
    begin = time.perf_counter_ns()
    _player(target)(
        tape, kernels, pool.address, stamps.ctypes.data, clock, time.CLOCK_MONOTONIC, flush,
        own.ctypes.data if recorder.threads else None, pool.threads,
    )  # fmt: skip
    # The epoch of this clock may differ from the epoch of Python's clock.
    shift = begin - int(_nanoseconds(stamps[0]))
    ends = _shared_ends((_nanoseconds(stamps) + shift).tolist(), launches)
    for number, launch in enumerate(launches):
        recorder.add(launch, ends[number], ends[number + 1])
    for number, thread in np.argwhere(own[..., 0, 0]).tolist() if recorder.threads else ():
        first, last = (_nanoseconds(own[number, thread]) + shift).tolist()
        recorder.add(launches[number], first, last, thread + 1)


def _shared_ends(ends: Sequence[int], launches: Sequence[Launch]) -> list[int]:
    """Return the start of the first launch and the end of each; concurrent loops share their time equally.

    Args:
        ends: The same as read from the clock, where the first of some concurrent loops has the time of all.
        launches: The launches.
    """
    shared = list(ends)
    for first, launch in enumerate(launches):
        count = launch.concurrent_loops
        begin, end = ends[first], ends[first + count]
        for number in range(1, count):
            shared[first + number] = begin + (end - begin) * number // count
    return shared


def _nanoseconds(stamps: np.ndarray) -> np.ndarray:
    return np.asarray(stamps[..., 0] * 1_000_000_000 + stamps[..., 1])
