"""Fork and join: the generated code by which threads share the work items of a kernel.

Workers execute ``sardonyx_worker``: they spin for some microseconds, then sleep. ``sardonyx_parallel`` publishes a job
and executes work items too. All state is in the pool's memory, laid out by :class:`Field`; the code is stateless, and
needs nothing from outside except the functions that the pool's memory points to.

- A job's items are cut into chunks. One word holds the range of unclaimed chunks. A thread claims a chunk by changing
  the word first, and only then reads the job: the range is opened after the job is written, and the job is unchanged
  until every chunk is done. A worker that wakes late finds the range empty.
- The caller claims chunks from the start, in order; workers claim from the end. With two threads, each executes about
  the same part of every kernel, whose data are in the thread's caches.
- A job is one cache line, and the words written at its end are another: a line transferred from another core takes
  longer than a short chunk.
- The caller waits for chunks, not for workers: a worker that sleeps long delays nothing.
- During a job the caller owns the pool; other callers execute their own jobs alone.
- Workers compute in the caller's floating-point mode (rounding, denormals): results do not depend on the thread.
"""

from __future__ import annotations

import sys
from enum import IntEnum
from string import Template

from sardonyx.compiler.executor.float_mode import read_float_mode, set_float_mode
from sardonyx.compiler.executor.fork_join_templates import COMMON, CONDITION, FUTEX
from sardonyx.compiler.llvm.ir_builder import Emitter
from sardonyx.compiler.llvm.object_code import module_text
from sardonyx.compiler.target.description import Target

MASK_BYTES = 128
"""Bytes of a set of processors: 1024 bits, as in the C library."""


class Field(IntEnum):
    """Byte offsets in a pool's memory; words that different threads write are on different cache lines."""

    # Written at the start only.
    PARALLEL = 0  # ptr: sardonyx_parallel
    THREADS = 8  # i64: including the caller; 1 after the workers are dismissed
    SPINS = 16  # i64: tests for a job before a worker sleeps
    STARTED = 24  # i32: 1 if the workers are started
    LEAVE = 28  # i32: 1 if the workers must return
    START = 32  # ptr: void (void), starts the workers
    PATIENCE = 40  # i64: tests for the end of a job before the caller sleeps
    # Functions of the C library: for futexes, or for conditions.
    SYSCALL = 64  # ptr
    PROCESSOR = 72  # ptr: sched_getcpu
    LOCK = 64  # ptr: pthread_mutex_lock
    UNLOCK = 72  # ptr: pthread_mutex_unlock
    SLEEP = 80  # ptr: pthread_cond_wait
    ROUSE = 88  # ptr: pthread_cond_broadcast
    # A pool of one thread, at this offset: for kernels whose caller already shares work among threads.
    ALONE = 96  # ptr, as PARALLEL
    ALONE_THREADS = 104  # i64: 1
    # Written by callers.
    BUSY = 128  # i32: 1 while a caller owns the pool
    # The job.
    EPOCH = 192  # i32: changes with each job, and on dismissal
    SLEEPERS = 196  # i32: workers that sleep or are about to sleep
    OPEN = 200  # i64: unclaimed chunks: the first in the low half, one past the last in the high half
    KERNEL = 208  # ptr
    ARGUMENTS = 216  # ptr
    ITEMS = 224  # i64
    GRAIN = 232  # i64: items of a chunk
    MODE = 240  # i64: the caller's floating-point mode
    # Its progress.
    LEFT = 256  # i64: chunks that are not done
    WAITING = 264  # i32: 1 if the caller sleeps or is about to sleep
    # Processors of the workers.
    AVOIDED = 320  # i32: the caller's processor, which workers avoid
    ALLOWED = 384  # MASK_BYTES: the processors of the process
    MUTEX = 512  # 128 bytes
    CONDITION = 640  # 128 bytes
    THREAD_IDS = 768  # i32 for each thread: the system's thread id, 0 for the caller


_SYSTEM_CALLS = {"x86_64": (202, 203), "aarch64": (98, 122)}
"""Linux system call numbers by architecture: futex, sched_setaffinity."""
_FUTEX_WAIT_PRIVATE, _FUTEX_WAKE_PRIVATE = 128, 129


def has_futex(target: Target) -> bool:
    """Return True if threads wait on Linux futexes on this machine; otherwise they use pthread conditions."""
    return sys.platform == "linux" and target.architecture in _SYSTEM_CALLS


def call_parallel(e: Emitter, pool: str, kernel: str, arguments: str, items: str | int, grain: str | int) -> None:
    """Write a call that executes work items 0 … ``items`` on all threads and waits for the end.

    Threads claim chunks of ``grain`` items. A kernel must not make such a call to the same pool.

    Args:
        e: IR builder of the caller.
        pool: Address of a pool, a ``ptr``.
        kernel: A function ``void (ptr arguments, i64 first, i64 last, i64 worker)``, with its ``@``. ``worker`` is less
            than the pool's number of threads, and differs between threads that execute this call concurrently.
        arguments: The ``ptr`` passed to the kernel.
        items: Number of work items; the kernel is not called for 0.
        grain: Items of a chunk, at least 1.
    """
    parallel = e.load("ptr", pool, 8)
    e.line(f"call void {parallel}(ptr {pool}, ptr {kernel}, ptr {arguments}, i64 {items}, i64 {grain})")


def text(target: Target, *, futex: bool) -> str:
    """Return the module of ``sardonyx_parallel``, ``_worker``, ``_dismiss`` and ``_pauses``.

    Args:
        target: The processor.
        futex: True to wait on futexes (see :func:`has_futex`); False to wait on conditions.
    """
    words = {field: str(int(value)) for field, value in Field.__members__.items()}
    words |= {"MASK_BYTES": str(MASK_BYTES), "words": str(MASK_BYTES // 8), "processors": str(MASK_BYTES * 8)}
    words |= {"wait": str(_FUTEX_WAIT_PRIVATE), "wake": str(_FUTEX_WAKE_PRIVATE)}
    if futex:
        words |= dict(zip(("futex", "setaffinity"), map(str, _SYSTEM_CALLS[target.architecture]), strict=True))
    functions = Template(COMMON + (FUTEX if futex else CONDITION)).substitute(words)
    return module_text(target, [*_processor_functions(target), functions])


def _processor_functions(target: Target) -> list[str]:
    """Return the functions with instructions of one architecture, and their declarations."""
    pause, get, put = Emitter(), Emitter(), Emitter()
    if target.architecture == "x86_64":
        pause.call("void", "llvm.x86.sse2.pause", [])
    elif target.architecture == "aarch64":
        pause.call("void", "llvm.aarch64.hint", [("i32", "1")])
    pause.line("ret void")
    get.line(f"ret i64 {read_float_mode(get, target)}")
    set_float_mode(put, target, "%mode")
    put.line("ret void")
    return [
        *{**pause.declarations, **get.declarations, **put.declarations},
        f"define internal void @pause() alwaysinline nounwind {{\n{pause.text()}\n}}",
        f"define internal i64 @float_mode() nounwind {{\n{get.text()}\n}}",
        f"define internal void @set_float_mode(i64 %mode) nounwind {{\n{put.text()}\n}}",
    ]
