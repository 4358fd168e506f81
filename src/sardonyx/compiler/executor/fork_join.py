"""Fork and join: the generated code by which threads share the work items of a kernel.

Workers wait in ``sardonyx_worker``: spinning for some microseconds, then asleep. ``sardonyx_parallel`` publishes a job
and works on it too. All state is in the pool's memory, laid out by :class:`Field`; the code has none, and needs nothing
from outside but what the pool points to.

- A job's items are cut into chunks. One word says which of them nobody has claimed: from where, and up to where.
  Whoever wants one changes that word first and only then reads what the job is: it is opened after the job is written,
  which stays until every chunk is done. A worker that wakes late finds none left.
- The caller's chunks are the first ones, in order; workers take theirs from the end. With two threads each does about
  the same part of every kernel, which its caches hold.
- A job is one cache line, and what is written at its end another: each that has to come from another core takes longer
  than a short chunk.
- The caller waits for chunks, not for workers: one that sleeps long holds nobody up.
- While a job is under way its caller has the pool; anyone else's work is done by themselves.
- Workers compute in the caller's floating-point mode (rounding, denormals), so that results do not tell who made them.
"""

from __future__ import annotations

import sys
from enum import IntEnum
from string import Template

from sardonyx.compiler.llvm.ir_builder import Emitter
from sardonyx.compiler.llvm.object_code import module_text
from sardonyx.compiler.target.description import Target

MASK_BYTES = 128
"""Room for a set of processors: 1024 of them, as in the C library."""


class Field(IntEnum):
    """Where what is in a pool's memory, in bytes. What different threads write is on different cache lines."""

    # Written at the start only.
    PARALLEL = 0  # ptr: sardonyx_parallel
    THREADS = 8  # i64: with the caller; 1 when there are no workers any more
    SPINS = 16  # i64: how often a worker looks for a job before it sleeps
    STARTED = 24  # i32: whether there are workers
    LEAVE = 28  # i32: whether workers are to return
    START = 32  # ptr: void (void), starts the workers
    PATIENCE = 40  # i64: how often a caller looks for the end of its job before it sleeps
    # Functions of the C library: for futexes, or for conditions.
    SYSCALL = 64  # ptr
    PROCESSOR = 72  # ptr: sched_getcpu
    LOCK = 64  # ptr: pthread_mutex_lock
    UNLOCK = 72  # ptr: pthread_mutex_unlock
    SLEEP = 80  # ptr: pthread_cond_wait
    ROUSE = 88  # ptr: pthread_cond_broadcast
    # A pool of its own, of one thread: of kernels whose work is shared among threads already.
    ALONE = 96  # ptr, as PARALLEL
    ALONE_THREADS = 104  # i64: 1
    # Between callers.
    BUSY = 128  # i32
    # The job.
    EPOCH = 192  # i32: changes when there is something to do
    SLEEPERS = 196  # i32: workers asleep, or about to be
    OPEN = 200  # i64: chunks that nobody has claimed: the first in the low half, one past the last in the high one
    KERNEL = 208  # ptr
    ARGUMENTS = 216  # ptr
    ITEMS = 224  # i64
    GRAIN = 232  # i64: items a chunk
    MODE = 240  # i64: the caller's floating-point mode
    # Its progress.
    LEFT = 256  # i64: chunks that are not done
    WAITING = 264  # i32: whether the caller sleeps, or is about to
    # Where workers may run.
    AVOIDED = 320  # i32: the processor that they leave to the caller
    ALLOWED = 384  # MASK_BYTES: the processors of the process
    MUTEX = 512  # 128 bytes
    CONDITION = 640  # 128 bytes
    THREAD_IDS = 768  # i32 for each thread: the system's numbers, 0 for the caller


_SYSTEM_CALLS = {"x86_64": (202, 203), "aarch64": (98, 122)}
"""Linux's numbers, by architecture: futex, sched_setaffinity."""
_FUTEX_WAIT_PRIVATE, _FUTEX_WAKE_PRIVATE = 128, 129


def architecture(target: Target) -> str:
    """The first word of the target's triple, under one name for each architecture."""
    word = target.triple.split("-")[0]
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(word, word)


def has_futex(target: Target) -> bool:
    """Whether threads wait by Linux's futex on the machine at hand; by pthread's conditions otherwise."""
    return sys.platform == "linux" and architecture(target) in _SYSTEM_CALLS


def call_parallel(e: Emitter, pool: str, kernel: str, arguments: str, items: str | int, grain: str | int) -> None:
    """Write a call that does work items 0 … ``items`` of a kernel on all threads and returns when they are done.

    Chunks of ``grain`` items are the units that threads take. A kernel must not make such a call itself.

    Args:
        e: Writes the caller.
        pool: A pool's address, a ``ptr``.
        kernel: A function ``void (ptr arguments, i64 first, i64 last, i64 worker)``, with its ``@``. ``worker`` is
            below the pool's count of threads, and no two that run at once for this call have the same.
        arguments: The ``ptr`` that the kernel is given.
        items: How many work items there are; for 0 the kernel is not called.
        grain: Items a chunk, at least 1.
    """
    parallel = e.load("ptr", pool, 8)
    e.line(f"call void {parallel}(ptr {pool}, ptr {kernel}, ptr {arguments}, i64 {items}, i64 {grain})")


def float_mode(e: Emitter, target: Target) -> str:
    """Write code that reads the thread's floating-point mode, an ``i64`` for :func:`set_float_mode`."""
    if architecture(target) == "aarch64":
        return e.call("i64", "llvm.aarch64.get.fpcr", [])
    if architecture(target) != "x86_64":
        return "0"
    room = e.array("i32", 1, 4)
    e.call("void", "llvm.x86.sse.stmxcsr", [("ptr", room)])
    state = e.load("i32", room, 4)
    # The low six bits are no mode: they tell what happened.
    return e.let(f"zext i32 {e.let(f'and i32 {state}, -64')} to i64")


def set_float_mode(e: Emitter, target: Target, mode: str) -> None:
    """Write code that gives the thread a floating-point mode."""
    if architecture(target) == "aarch64":
        e.call("void", "llvm.aarch64.set.fpcr", [("i64", mode)])
    elif architecture(target) == "x86_64":
        room = e.array("i32", 1, 4)
        e.store("i32", e.let(f"trunc i64 {mode} to i32"), room, 4)
        e.call("void", "llvm.x86.sse.ldmxcsr", [("ptr", room)])


def flushing(e: Emitter, target: Target, mode: str) -> str:
    """Write code that turns a floating-point mode into one that takes denormal numbers for zero, and gives zero."""
    bits = {"x86_64": 0x8040, "aarch64": 1 << 24}.get(architecture(target), 0)
    return e.let(f"or i64 {mode}, {bits}")


def text(target: Target, *, futex: bool) -> str:
    """The module: ``sardonyx_parallel``, ``sardonyx_worker``, ``sardonyx_dismiss``, ``sardonyx_pauses``.

    Args:
        target: What it is for.
        futex: Whether to wait by futex (see :func:`has_futex`).
    """
    words = {field: str(int(value)) for field, value in Field.__members__.items()}
    words |= {"MASK_BYTES": str(MASK_BYTES), "words": str(MASK_BYTES // 8), "processors": str(MASK_BYTES * 8)}
    words |= {"wait": str(_FUTEX_WAIT_PRIVATE), "rouse": str(_FUTEX_WAKE_PRIVATE)}
    if futex:
        words |= dict(zip(("futex", "setaffinity"), map(str, _SYSTEM_CALLS[architecture(target)]), strict=True))
    written = Template(_COMMON + (_FUTEX if futex else _CONDITION)).substitute(words)
    return module_text(target, [*_for_processor(target), written])


def _for_processor(target: Target) -> list[str]:
    """The functions that each architecture has its own instructions for, and their declarations."""
    pause, get, put = Emitter(), Emitter(), Emitter()
    if architecture(target) == "x86_64":
        pause.call("void", "llvm.x86.sse2.pause", [])
    elif architecture(target) == "aarch64":
        pause.call("void", "llvm.aarch64.hint", [("i32", "1")])
    pause.line("ret void")
    get.line(f"ret i64 {float_mode(get, target)}")
    set_float_mode(put, target, "%mode")
    put.line("ret void")
    return [
        *{**pause.declarations, **get.declarations, **put.declarations},
        f"define internal void @pause() alwaysinline nounwind {{\n{pause.text()}\n}}",
        f"define internal i64 @float_mode() nounwind {{\n{get.text()}\n}}",
        f"define internal void @set_float_mode(i64 %mode) nounwind {{\n{put.text()}\n}}",
    ]


_COMMON = """
define void @sardonyx_parallel(ptr %pool, ptr %kernel, ptr %arguments, i64 %items, i64 %grain) nounwind {
entry:
  %done = alloca i64
  %threads.at = getelementptr i8, ptr %pool, i64 $THREADS
  %threads = load i64, ptr %threads.at
  %workers = icmp sgt i64 %threads, 1
  %several = icmp sgt i64 %items, %grain
  %shareable = and i1 %workers, %several
  br i1 %shareable, label %take, label %alone

take:
  %busy = getelementptr i8, ptr %pool, i64 $BUSY
  %taken = cmpxchg ptr %busy, i32 0, i32 1 acquire monotonic
  %ours = extractvalue { i32, i1 } %taken, 1
  br i1 %ours, label %check, label %alone

alone:
  %any = icmp sgt i64 %items, 0
  br i1 %any, label %all, label %out

all:
  call void %kernel(ptr %arguments, i64 0, i64 %items, i64 0)
  br label %out

out:
  ret void

check:
  %started.at = getelementptr i8, ptr %pool, i64 $STARTED
  %started = load i32, ptr %started.at
  %idle = icmp eq i32 %started, 0
  br i1 %idle, label %start, label %publish

start:
  %start.at = getelementptr i8, ptr %pool, i64 $START
  %start.code = load ptr, ptr %start.at
  call void %start.code()
  br label %publish

publish:
  %kernel.at = getelementptr i8, ptr %pool, i64 $KERNEL
  %arguments.at = getelementptr i8, ptr %pool, i64 $ARGUMENTS
  %items.at = getelementptr i8, ptr %pool, i64 $ITEMS
  %grain.at = getelementptr i8, ptr %pool, i64 $GRAIN
  %mode.at = getelementptr i8, ptr %pool, i64 $MODE
  %left.at = getelementptr i8, ptr %pool, i64 $LEFT
  %open.at = getelementptr i8, ptr %pool, i64 $OPEN
  %epoch.at = getelementptr i8, ptr %pool, i64 $EPOCH
  %sleepers.at = getelementptr i8, ptr %pool, i64 $SLEEPERS
  %items.less = sub i64 %items, 1
  %chunks.less = udiv i64 %items.less, %grain
  %chunks = add i64 %chunks.less, 1
  %mode = call i64 @float_mode()
  store ptr %kernel, ptr %kernel.at
  store ptr %arguments, ptr %arguments.at
  store i64 %items, ptr %items.at
  store i64 %grain, ptr %grain.at
  store i64 %mode, ptr %mode.at
  store atomic i64 %chunks, ptr %left.at monotonic, align 8
  ; From here on workers may begin. The first chunk is the caller's.
  %chunks.high = shl i64 %chunks, 32
  %opened = or i64 %chunks.high, 1
  store atomic i64 %opened, ptr %open.at release, align 8
  atomicrmw add ptr %epoch.at, i32 1 seq_cst
  %sleepers = load atomic i32, ptr %sleepers.at seq_cst, align 4
  %awake = icmp eq i32 %sleepers, 0
  store i64 0, ptr %done
  br i1 %awake, label %work, label %rouse

rouse:
  call void @place(ptr %pool)
  call void @wake(ptr %pool, ptr %epoch.at, i64 %chunks.less)
  br label %work

work:
  %chunk = load i64, ptr %done
  %first = mul i64 %chunk, %grain
  %end = add i64 %first, %grain
  %last = call i64 @llvm.smin.i64(i64 %end, i64 %items)
  call void %kernel(ptr %arguments, i64 %first, i64 %last, i64 0)
  %more = add i64 %chunk, 1
  store i64 %more, ptr %done
  ; Nobody else takes from the front: what is granted is the next chunk.
  %claim = atomicrmw add ptr %open.at, i64 1 acquire
  %granted = call i1 @is_open(i64 %claim)
  br i1 %granted, label %work, label %join

join:
  %before = atomicrmw sub ptr %left.at, i64 %more acq_rel
  %complete = icmp eq i64 %before, %more
  br i1 %complete, label %release, label %wait

wait:
  call void @wait_for_others(ptr %pool)
  br label %release

release:
  store atomic i32 0, ptr %busy release, align 4
  ret void
}

define internal void @wait_for_others(ptr %pool) nounwind {
entry:
  %looks = alloca i64
  %left.at = getelementptr i8, ptr %pool, i64 $LEFT
  %waiting.at = getelementptr i8, ptr %pool, i64 $WAITING
  %patience.at = getelementptr i8, ptr %pool, i64 $PATIENCE
  %patience = load i64, ptr %patience.at
  store i64 %patience, ptr %looks
  br label %spin

spin:
  %left = load atomic i64, ptr %left.at acquire, align 8
  %complete = icmp eq i64 %left, 0
  br i1 %complete, label %out, label %again

again:
  call void @pause()
  %before = load i64, ptr %looks
  %after = sub i64 %before, 1
  store i64 %after, ptr %looks
  %patient = icmp sgt i64 %after, 0
  br i1 %patient, label %spin, label %tired

tired:
  store atomic i32 1, ptr %waiting.at seq_cst, align 4
  br label %look

look:
  %now = load atomic i64, ptr %left.at seq_cst, align 8
  %finished = icmp eq i64 %now, 0
  br i1 %finished, label %awake, label %doze

doze:
  ; The low half of the count is the word to sleep on.
  %low = trunc i64 %now to i32
  call void @doze(ptr %pool, ptr %left.at, i32 %low)
  br label %look

awake:
  store atomic i32 0, ptr %waiting.at monotonic, align 4
  br label %out

out:
  ret void
}

; Whether there are chunks that nobody has claimed.
define internal i1 @is_open(i64 %word) alwaysinline nounwind {
  %first = trunc i64 %word to i32
  %high = lshr i64 %word, 32
  %end = trunc i64 %high to i32
  %open = icmp slt i32 %first, %end
  ret i1 %open
}

define void @sardonyx_worker(ptr %pool, i64 %worker) nounwind {
entry:
  %done = alloca i64
  %looks = alloca i64
  %mode.now = alloca i64
  %open.at = getelementptr i8, ptr %pool, i64 $OPEN
  %epoch.at = getelementptr i8, ptr %pool, i64 $EPOCH
  %sleepers.at = getelementptr i8, ptr %pool, i64 $SLEEPERS
  %leave.at = getelementptr i8, ptr %pool, i64 $LEAVE
  %kernel.at = getelementptr i8, ptr %pool, i64 $KERNEL
  %arguments.at = getelementptr i8, ptr %pool, i64 $ARGUMENTS
  %items.at = getelementptr i8, ptr %pool, i64 $ITEMS
  %grain.at = getelementptr i8, ptr %pool, i64 $GRAIN
  %mode.at = getelementptr i8, ptr %pool, i64 $MODE
  %left.at = getelementptr i8, ptr %pool, i64 $LEFT
  %waiting.at = getelementptr i8, ptr %pool, i64 $WAITING
  %spins.at = getelementptr i8, ptr %pool, i64 $SPINS
  %spins = load i64, ptr %spins.at
  store i64 -1, ptr %mode.now
  br label %look

look:
  ; Read before looking for work: a job that comes after the look changes it.
  %seen = load atomic i32, ptr %epoch.at acquire, align 4
  %leave = load atomic i32, ptr %leave.at monotonic, align 4
  %dismissed = icmp ne i32 %leave, 0
  store i64 0, ptr %done
  br i1 %dismissed, label %out, label %ask

out:
  ret void

ask:
  %open = load atomic i64, ptr %open.at monotonic, align 8
  %worth = call i1 @is_open(i64 %open)
  br i1 %worth, label %claim, label %report

claim:
  %claimed = atomicrmw sub ptr %open.at, i64 4294967296 acquire
  %granted = call i1 @is_open(i64 %claimed)
  br i1 %granted, label %work, label %report

work:
  %mode = load i64, ptr %mode.at
  %mode.had = load i64, ptr %mode.now
  %mode.same = icmp eq i64 %mode, %mode.had
  br i1 %mode.same, label %compute, label %change

change:
  call void @set_float_mode(i64 %mode)
  store i64 %mode, ptr %mode.now
  br label %compute

compute:
  %kernel = load ptr, ptr %kernel.at
  %arguments = load ptr, ptr %arguments.at
  %items = load i64, ptr %items.at
  %grain = load i64, ptr %grain.at
  %behind = lshr i64 %claimed, 32
  %chunk = sub i64 %behind, 1
  %first = mul i64 %chunk, %grain
  %end = add i64 %first, %grain
  %last = call i64 @llvm.smin.i64(i64 %end, i64 %items)
  call void %kernel(ptr %arguments, i64 %first, i64 %last, i64 %worker)
  %count = load i64, ptr %done
  %more = add i64 %count, 1
  store i64 %more, ptr %done
  ; What was not open after the claim is not any more: no need to look.
  %remaining = sub i64 %claimed, 4294967296
  %others = call i1 @is_open(i64 %remaining)
  br i1 %others, label %ask, label %report

report:
  %total = load i64, ptr %done
  %none = icmp eq i64 %total, 0
  br i1 %none, label %rest, label %tell

tell:
  %before = atomicrmw sub ptr %left.at, i64 %total seq_cst
  %complete = icmp eq i64 %before, %total
  br i1 %complete, label %rouse, label %rest

rouse:
  %waiting = load atomic i32, ptr %waiting.at seq_cst, align 4
  %awaited = icmp ne i32 %waiting, 0
  br i1 %awaited, label %wake, label %rest

wake:
  call void @wake(ptr %pool, ptr %left.at, i64 1)
  br label %rest

rest:
  store i64 %spins, ptr %looks
  br label %spin

spin:
  %now = load atomic i32, ptr %epoch.at acquire, align 4
  %quiet = icmp eq i32 %now, %seen
  br i1 %quiet, label %again, label %look

again:
  call void @pause()
  %patience = load i64, ptr %looks
  %less = sub i64 %patience, 1
  store i64 %less, ptr %looks
  %patient = icmp sgt i64 %less, 0
  br i1 %patient, label %spin, label %tired

tired:
  ; The caller changes the epoch, then looks at the sleepers; here it is the other way round: one sees the other.
  atomicrmw add ptr %sleepers.at, i32 1 seq_cst
  br label %listen

listen:
  %still = load atomic i32, ptr %epoch.at seq_cst, align 4
  %same = icmp eq i32 %still, %seen
  br i1 %same, label %doze, label %woken

doze:
  call void @doze(ptr %pool, ptr %epoch.at, i32 %seen)
  br label %listen

woken:
  atomicrmw sub ptr %sleepers.at, i32 1 seq_cst
  br label %look
}

; Send the workers home. Jobs after this are done by their callers alone.
define void @sardonyx_dismiss(ptr %pool) nounwind {
  %threads.at = getelementptr i8, ptr %pool, i64 $THREADS
  %leave.at = getelementptr i8, ptr %pool, i64 $LEAVE
  %epoch.at = getelementptr i8, ptr %pool, i64 $EPOCH
  store i64 1, ptr %threads.at
  store atomic i32 1, ptr %leave.at monotonic, align 4
  atomicrmw add ptr %epoch.at, i32 1 seq_cst
  call void @wake(ptr %pool, ptr %epoch.at, i64 1000000)
  ret void
}

; So many spins, to be timed.
define void @sardonyx_pauses(i64 %count) nounwind {
entry:
  %looks = alloca i64
  store i64 %count, ptr %looks
  br label %spin

spin:
  call void @pause()
  %before = load i64, ptr %looks
  %after = sub i64 %before, 1
  store i64 %after, ptr %looks
  %patient = icmp sgt i64 %after, 0
  br i1 %patient, label %spin, label %out

out:
  ret void
}

declare i64 @llvm.smin.i64(i64, i64)
"""

_FUTEX = """
; Sleep for as long as a word is what it was; may wake for nothing.
define internal void @doze(ptr %pool, ptr %word, i32 %was) nounwind {
  %syscall.at = getelementptr i8, ptr %pool, i64 $SYSCALL
  %syscall = load ptr, ptr %syscall.at
  %value = zext i32 %was to i64
  call i64 (i64, ...) %syscall(i64 $futex, ptr %word, i64 $wait, i64 %value, ptr null, ptr null, i64 0)
  ret void
}

; Wake up to so many of those who sleep on a word.
define internal void @wake(ptr %pool, ptr %word, i64 %count) nounwind {
  %syscall.at = getelementptr i8, ptr %pool, i64 $SYSCALL
  %syscall = load ptr, ptr %syscall.at
  %most = call i64 @llvm.smin.i64(i64 %count, i64 1000000)
  call i64 (i64, ...) %syscall(i64 $futex, ptr %word, i64 $rouse, i64 %most, ptr null, ptr null, i64 0)
  ret void
}

; Let workers run anywhere but on the caller's processor. The system likes to wake a thread where it was woken from;
; there it would wait until the caller is done.
define internal void @place(ptr %pool) nounwind {
entry:
  %mask = alloca [$words x i64]
  %index = alloca i64
  %threads.at = getelementptr i8, ptr %pool, i64 $THREADS
  %syscall.at = getelementptr i8, ptr %pool, i64 $SYSCALL
  %processor.at = getelementptr i8, ptr %pool, i64 $PROCESSOR
  %avoided.at = getelementptr i8, ptr %pool, i64 $AVOIDED
  %allowed = getelementptr i8, ptr %pool, i64 $ALLOWED
  %numbers = getelementptr i8, ptr %pool, i64 $THREAD_IDS
  %syscall = load ptr, ptr %syscall.at
  %processor = load ptr, ptr %processor.at
  %here = call i32 %processor()
  %avoided = load i32, ptr %avoided.at
  %moved = icmp ne i32 %here, %avoided
  %known = icmp ult i32 %here, $processors
  %new = and i1 %moved, %known
  br i1 %new, label %copy, label %out

copy:
  store i32 %here, ptr %avoided.at
  call void @llvm.memcpy.p0.p0.i64(ptr %mask, ptr %allowed, i64 $MASK_BYTES, i1 false)
  %word.at = lshr i32 %here, 6
  %bit.at = and i32 %here, 63
  %bit.wide = zext i32 %bit.at to i64
  %bit = shl i64 1, %bit.wide
  %others = xor i64 %bit, -1
  %word = getelementptr i64, ptr %mask, i32 %word.at
  %had = load i64, ptr %word
  %kept = and i64 %had, %others
  store i64 %kept, ptr %word
  store i64 1, ptr %index
  br label %next

next:
  %worker = load i64, ptr %index
  %threads = load i64, ptr %threads.at
  %exists = icmp slt i64 %worker, %threads
  br i1 %exists, label %move, label %out

move:
  %number.at = getelementptr i32, ptr %numbers, i64 %worker
  %number = load i32, ptr %number.at
  %number.wide = zext i32 %number to i64
  ; The system refuses an empty set: then there is nowhere else to be.
  call i64 (i64, ...) %syscall(i64 $setaffinity, i64 %number.wide, i64 $MASK_BYTES, ptr %mask)
  %following = add i64 %worker, 1
  store i64 %following, ptr %index
  br label %next

out:
  ret void
}

declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""

_CONDITION = """
; Sleep for as long as a word is what it was; may wake for nothing.
define internal void @doze(ptr %pool, ptr %word, i32 %was) nounwind {
entry:
  %lock.at = getelementptr i8, ptr %pool, i64 $LOCK
  %unlock.at = getelementptr i8, ptr %pool, i64 $UNLOCK
  %sleep.at = getelementptr i8, ptr %pool, i64 $SLEEP
  %mutex = getelementptr i8, ptr %pool, i64 $MUTEX
  %condition = getelementptr i8, ptr %pool, i64 $CONDITION
  %lock = load ptr, ptr %lock.at
  %unlock = load ptr, ptr %unlock.at
  %sleep = load ptr, ptr %sleep.at
  call i32 %lock(ptr %mutex)
  %now = load atomic i32, ptr %word seq_cst, align 4
  %same = icmp eq i32 %now, %was
  br i1 %same, label %doze, label %out

doze:
  call i32 %sleep(ptr %condition, ptr %mutex)
  br label %out

out:
  call i32 %unlock(ptr %mutex)
  ret void
}

; Wake all who sleep, on whatever word.
define internal void @wake(ptr %pool, ptr %word, i64 %count) nounwind {
  %lock.at = getelementptr i8, ptr %pool, i64 $LOCK
  %unlock.at = getelementptr i8, ptr %pool, i64 $UNLOCK
  %rouse.at = getelementptr i8, ptr %pool, i64 $ROUSE
  %mutex = getelementptr i8, ptr %pool, i64 $MUTEX
  %condition = getelementptr i8, ptr %pool, i64 $CONDITION
  %lock = load ptr, ptr %lock.at
  %unlock = load ptr, ptr %unlock.at
  %rouse = load ptr, ptr %rouse.at
  call i32 %lock(ptr %mutex)
  call i32 %rouse(ptr %condition)
  call i32 %unlock(ptr %mutex)
  ret void
}

define internal void @place(ptr %pool) nounwind {
  ret void
}
"""
