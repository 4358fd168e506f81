"""LLVM IR of fork and join: templates over the layout of a pool's memory (:class:`.Field`)."""

from __future__ import annotations

COMMON = """
define void @sardonyx_parallel(ptr %pool, ptr %kernel, ptr %arguments, i64 %items, i64 %grain) nounwind {
entry:
  %done = alloca i64
  %threads.at = getelementptr i8, ptr %pool, i64 $THREADS
  %threads = load i64, ptr %threads.at
  %workers = icmp sgt i64 %threads, 1
  %several = icmp sgt i64 %items, %grain
  %shareable = and i1 %workers, %several
  br i1 %shareable, label %enter, label %alone

enter:
  %busy = getelementptr i8, ptr %pool, i64 $BUSY
  %claimed = cmpxchg ptr %busy, i32 0, i32 1 acquire monotonic
  %owned = extractvalue { i32, i1 } %claimed, 1
  br i1 %owned, label %check, label %alone

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
  ; Workers may start from here on. The first chunk is the caller's.
  %chunks.high = shl i64 %chunks, 32
  %opened = or i64 %chunks.high, 1
  store atomic i64 %opened, ptr %open.at release, align 8
  atomicrmw add ptr %epoch.at, i32 1 seq_cst
  %sleepers = load atomic i32, ptr %sleepers.at seq_cst, align 4
  %awake = icmp eq i32 %sleepers, 0
  store i64 0, ptr %done
  br i1 %awake, label %work, label %rouse

rouse:
  call void @leave_processor(ptr %pool)
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
  ; Only the caller claims from the start: a successful claim is the next chunk.
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
  ; The caller sleeps on the low half of the count.
  %low = trunc i64 %now to i32
  call void @doze(ptr %pool, ptr %left.at, i32 %low)
  br label %look

awake:
  store atomic i32 0, ptr %waiting.at monotonic, align 4
  br label %out

out:
  ret void
}

; Return true if there are unclaimed chunks.
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
  ; The epoch is read before the test for work: a job published after the test changes the epoch.
  %seen = load atomic i32, ptr %epoch.at acquire, align 4
  %leave = load atomic i32, ptr %leave.at monotonic, align 4
  %dismissed = icmp ne i32 %leave, 0
  store i64 0, ptr %done
  br i1 %dismissed, label %out, label %ask

out:
  ret void

ask:
  %open = load atomic i64, ptr %open.at monotonic, align 8
  %has_work = call i1 @is_open(i64 %open)
  br i1 %has_work, label %claim, label %report

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
  ; If the range was empty after the claim, another test is needless.
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
  ; The caller changes the epoch, then reads the sleepers; here the order is reversed: one sees the other's write.
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

; End the workers. Later jobs are executed by their callers alone.
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

; Spin a number of times, to measure the time of a spin.
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

FUTEX = """
; Sleep while a word is unchanged; spurious wake-ups are possible.
define internal void @doze(ptr %pool, ptr %word, i32 %was) nounwind {
  %syscall.at = getelementptr i8, ptr %pool, i64 $SYSCALL
  %syscall = load ptr, ptr %syscall.at
  %value = zext i32 %was to i64
  call i64 (i64, ...) %syscall(i64 $futex, ptr %word, i64 $wait, i64 %value, ptr null, ptr null, i64 0)
  ret void
}

; Wake up to a number of the threads that sleep on a word.
define internal void @wake(ptr %pool, ptr %word, i64 %count) nounwind {
  %syscall.at = getelementptr i8, ptr %pool, i64 $SYSCALL
  %syscall = load ptr, ptr %syscall.at
  %most = call i64 @llvm.smin.i64(i64 %count, i64 1000000)
  call i64 (i64, ...) %syscall(i64 $futex, ptr %word, i64 $wake, i64 %most, ptr null, ptr null, i64 0)
  ret void
}

; Exclude the caller's processor from the workers' affinity. The system prefers to wake a thread on the waker's
; processor, where the worker would wait for the end of the caller.
define internal void @leave_processor(ptr %pool) nounwind {
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
  %bits = load i64, ptr %word
  %remaining = and i64 %bits, %others
  store i64 %remaining, ptr %word
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
  ; The system refuses an empty set: the process has a single processor then.
  call i64 (i64, ...) %syscall(i64 $setaffinity, i64 %number.wide, i64 $MASK_BYTES, ptr %mask)
  %following = add i64 %worker, 1
  store i64 %following, ptr %index
  br label %next

out:
  ret void
}

declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""

CONDITION = """
; Sleep while a word is unchanged; spurious wake-ups are possible.
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

; Wake all sleeping threads, on any word.
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

define internal void @leave_processor(ptr %pool) nounwind {
  ret void
}
"""
