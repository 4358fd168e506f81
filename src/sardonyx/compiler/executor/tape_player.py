"""Execution of a tape: native functions that execute launches, loops and choices.

A tape is an array of machine words, four for each launch: the kernel's address, its arguments, its work items, and the
items of a chunk. A loop is a launch whose function repeatedly executes the tape of the loop's body; a choice is a
launch whose function executes the tape of one of two branches. Arguments have the order of :class:`LoopWord` and
:class:`ChoiceWord`. Lists in memory begin with their length.

An iteration reads the state from one set of buffers and writes it to another: even and odd iterations have a tape each,
with the two sets exchanged.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from enum import IntEnum
from string import Template
from typing import NamedTuple

from sardonyx.base.artifact_store import store
from sardonyx.base.call_once import once
from sardonyx.compiler.executor import tape_planner
from sardonyx.compiler.executor.float_mode import flush_denormals, read_float_mode, set_float_mode
from sardonyx.compiler.executor.fork_join import call_parallel
from sardonyx.compiler.llvm.elf_loader import Code, MappedCode, loaded
from sardonyx.compiler.llvm.ir_builder import Emitter
from sardonyx.compiler.llvm.object_code import LoadedCode, module_text
from sardonyx.compiler.llvm.parallel_build import objects
from sardonyx.compiler.target.description import Target

WORDS = 4
"""Words of the tape for a launch: kernel, arguments, work items, items of a chunk."""

COPY_WORDS = 4
"""Words of a copy: destination, source, bytes, bytes between destinations of two iterations."""

PATCH_WORDS = 3
"""Words of a patch of a word in each iteration: address, first value, increment."""


class Ended(IntEnum):
    """Reasons to end a run early, in the fault word that loops read after each iteration."""

    FAULT = 1  # data without a result, or a loop at the limit of iterations
    STOPPED = 2  # by another thread


class LoopWord(IntEnum):
    """Arguments of a loop, followed by two sets of :class:`IterationWord`: even and odd iterations."""

    POOL = 0
    COUNT = 1  # ptr to i64: maximum number of iterations
    GO = 2  # ptr to i8: initial condition
    NUMBER = 3  # ptr to i64: the iteration's number for the body; after the loop, the number of iterations
    FAULT = 4  # ptr to i32, see Ended; read after each iteration
    LIMIT = 5  # ptr to i64: limit of iterations; to exceed it is a fault
    BEFORE = 6  # ptr: copies before the first iteration
    ITERATION = 7


class IterationWord(IntEnum):
    """Arguments of an iteration."""

    TAPE = 0
    KERNELS = 1
    AGAIN = 2  # ptr to i8: condition of the next iteration
    PATCHES = 3  # ptr: patches before the tape is executed
    COPIES = 4  # ptr: copies afterwards
    AFTER = 5  # ptr: copies at the end of the loop, if this would have been the next iteration


class ChoiceWord(IntEnum):
    """Arguments of a choice, followed by two sets of :class:`BranchWord`: true, then false."""

    POOL = 0
    CONDITION = 1  # ptr to i8
    FAULT = 2  # ptr to i32: set if the sizes of the selected branch do not match
    BRANCH = 3


class BranchWord(IntEnum):
    """Arguments of a branch."""

    TAPE = 0
    KERNELS = 1
    COPIES = 2
    MISFITS = 3  # number of pairs of sizes that must be equal and differ


class Player(NamedTuple):
    """The loaded functions.

    Attributes:
        play: ``void (ptr tape, i64 kernels, ptr pool)``.
        play_flushing: As ``play``, with denormal numbers flushed to zero in all threads until the function returns.
        loop: Address of the function of loops, a kernel of one work item.
        loops: Address of the function of concurrent loops, one work item each.
        choice: Address of the function of choices, a kernel of one work item.
        measure: ``i64 (ptr table)``, see :mod:`.tape_planner`.
        fill: ``void (ptr table)``.
        hold: ``i64 (ptr table)``.
        seize: ``i64 (ptr words)``.
        code: The loaded code.
        target: The processor that the code is compiled for.
    """

    play: Callable[[int, int, int], None]
    play_flushing: Callable[[int, int, int], None]
    loop: int
    loops: int
    choice: int
    measure: Callable[[int], int]
    fill: Callable[[int], None]
    hold: Callable[[int], int]
    seize: Callable[[int], int]
    code: MappedCode | LoadedCode
    target: Target


@once
def player(target: Target) -> Player:
    """Compile or load the functions for a target."""
    code = loaded(Code(objects([text(target)], target, store(), jobs=1)), target)
    pointer = ctypes.c_void_p
    signature = ctypes.CFUNCTYPE(None, pointer, ctypes.c_int64, pointer)
    return Player(
        signature(code.address("play")),
        signature(code.address("play_flushing")),
        code.address("loop"),
        code.address("loops"),
        code.address("choice"),
        ctypes.PYFUNCTYPE(ctypes.c_int64, pointer)(code.address("measure")),
        ctypes.PYFUNCTYPE(None, pointer)(code.address("fill")),
        ctypes.PYFUNCTYPE(ctypes.c_int64, pointer)(code.address("hold")),
        ctypes.PYFUNCTYPE(ctypes.c_int64, pointer)(code.address("seize")),
        code,
        target,
    )


def text(target: Target) -> str:
    """Return the LLVM module of all functions."""
    play, flushed, copy, patch = _play(), _play_flushing(target), _copy(), _patch()
    texts = [
        f"define void @play(ptr %tape, i64 %count, ptr %pool) nounwind {{\n{play.text()}\n  ret void\n}}",
        f"define void @play_flushing(ptr %tape, i64 %count, ptr %pool) nounwind {{\n{flushed.text()}\n  ret void\n}}",
        f"define internal void @copy(ptr %list, i64 %i) nounwind {{\n{copy.text()}\n  ret void\n}}",
        f"define internal void @patch(ptr %list, i64 %i) nounwind {{\n{patch.text()}\n  ret void\n}}",
        _CONTROL.substitute(
            {f"{layout.__name__}_{word.name}": int(word) for layout in _LAYOUTS for word in layout},
            iteration_words=len(IterationWord), branch_words=len(BranchWord),
        ),
    ]  # fmt: skip
    planning_texts, declarations = tape_planner.definitions()
    texts += planning_texts
    declarations += [line for function in (play, flushed, copy, patch) for line in function.declarations]
    return module_text(target, texts, declarations)


def _play() -> Emitter:
    e = Emitter()
    with e.loop(0, "%count") as i:
        entry = e.address("%tape", "i64", e.mul(i, WORDS))
        kernel, arguments = (e.load("ptr", e.address(entry, "i64", word), 8) for word in (0, 1))
        items, grain = (e.load("i64", e.address(entry, "i64", word), 8) for word in (2, 3))
        call_parallel(e, "%pool", kernel, arguments, items, grain)
    return e


def _play_flushing(target: Target) -> Emitter:
    e = Emitter()
    mode = read_float_mode(e, target)
    set_float_mode(e, target, flush_denormals(e, target, mode))
    e.line("call void @play(ptr %tape, i64 %count, ptr %pool)")
    set_float_mode(e, target, mode)
    return e


def _copy() -> Emitter:
    """Write the copies of a list; destinations are advanced by ``i`` strides."""
    e = Emitter()
    with e.loop(0, e.load("i64", "%list", 8)) as number:
        record = e.address("%list", "i64", e.add(e.mul(number, COPY_WORDS), 1))
        to, source = (e.load("ptr", e.address(record, "i64", word), 8) for word in (0, 1))
        count, step = (e.load("i64", e.address(record, "i64", word), 8) for word in (2, 3))
        to = e.address(to, "i8", e.mul(step, "%i"))
        copy_bytes(e, to, source, count)
    return e


def copy_bytes(e: Emitter, to: str, source: str, count: str) -> None:
    """Emit a copy of bytes; destination and source do not overlap."""
    start: str | int = 0
    for width, type in ((64, "<64 x i8>"), (8, "i64"), (1, "i8")):
        end = e.let(f"and i64 {count}, {-width}")
        with e.loop(start, end, width) as at:
            e.store(type, e.load(type, e.address(source, "i8", at), 1), e.address(to, "i8", at), 1)
        start = end


def _patch() -> Emitter:
    e = Emitter()
    with e.loop(0, e.load("i64", "%list", 8)) as number:
        record = e.address("%list", "i64", e.add(e.mul(number, PATCH_WORDS), 1))
        word = e.load("ptr", record, 8)
        first, step = (e.load("i64", e.address(record, "i64", at), 8) for at in (1, 2))
        e.store("i64", str(e.add(first, e.mul(step, "%i"))), word, 8)
    return e


_LAYOUTS = (LoopWord, IterationWord, ChoiceWord, BranchWord)

_CONTROL = Template("""
define internal ptr @word(ptr %words, i64 %at) alwaysinline nounwind {
  %address = getelementptr i64, ptr %words, i64 %at
  %value = load ptr, ptr %address
  ret ptr %value
}

define internal i64 @number(ptr %words, i64 %at) alwaysinline nounwind {
  %address = getelementptr i64, ptr %words, i64 %at
  %value = load i64, ptr %address
  ret i64 %value
}

define void @loop(ptr %words, i64 %first, i64 %last, i64 %worker) nounwind {
entry:
  %pool = call ptr @word(ptr %words, i64 $LoopWord_POOL)
  %count.at = call ptr @word(ptr %words, i64 $LoopWord_COUNT)
  %count = load i64, ptr %count.at
  %go.at = call ptr @word(ptr %words, i64 $LoopWord_GO)
  %go = load i8, ptr %go.at
  %begins = icmp ne i8 %go, 0
  %number = call ptr @word(ptr %words, i64 $LoopWord_NUMBER)
  %fault = call ptr @word(ptr %words, i64 $LoopWord_FAULT)
  %limit.at = call ptr @word(ptr %words, i64 $LoopWord_LIMIT)
  %limit = load i64, ptr %limit.at
  %before = call ptr @word(ptr %words, i64 $LoopWord_BEFORE)
  call void @copy(ptr %before, i64 0)
  br label %check

check:
  %i = phi i64 [ 0, %entry ], [ %next, %iterate ]
  %on = phi i1 [ %begins, %entry ], [ %goes.on, %iterate ]
  store i64 %i, ptr %number
  %odd = and i64 %i, 1
  %skipped = mul i64 %odd, $iteration_words
  %from = add i64 %skipped, $LoopWord_ITERATION
  %iteration = getelementptr i64, ptr %words, i64 %from
  %below = icmp slt i64 %i, %count
  %more = and i1 %on, %below
  br i1 %more, label %bounded, label %done

bounded:
  %allowed = icmp slt i64 %i, %limit
  br i1 %allowed, label %iterate, label %stop

stop:
  store i32 1, ptr %fault
  br label %done

iterate:
  %patches = call ptr @word(ptr %iteration, i64 $IterationWord_PATCHES)
  call void @patch(ptr %patches, i64 %i)
  %tape = call ptr @word(ptr %iteration, i64 $IterationWord_TAPE)
  %kernels = call i64 @number(ptr %iteration, i64 $IterationWord_KERNELS)
  call void @play(ptr %tape, i64 %kernels, ptr %pool)
  %copies = call ptr @word(ptr %iteration, i64 $IterationWord_COPIES)
  call void @copy(ptr %copies, i64 %i)
  %again.at = call ptr @word(ptr %iteration, i64 $IterationWord_AGAIN)
  %again = load i8, ptr %again.at
  %continues = icmp ne i8 %again, 0
  %failed = load i32, ptr %fault
  %good = icmp eq i32 %failed, 0
  %goes.on = and i1 %continues, %good
  %next = add i64 %i, 1
  br label %check

done:
  %after = call ptr @word(ptr %iteration, i64 $IterationWord_AFTER)
  call void @copy(ptr %after, i64 0)
  ret void
}

; Concurrent loops: the arguments are a list of the addresses of the loops' arguments.
define void @loops(ptr %words, i64 %first, i64 %last, i64 %worker) nounwind {
entry:
  br label %check

check:
  %i = phi i64 [ %first, %entry ], [ %next, %play ]
  %more = icmp slt i64 %i, %last
  br i1 %more, label %play, label %done

play:
  %of.loop = call ptr @word(ptr %words, i64 %i)
  call void @loop(ptr %of.loop, i64 0, i64 1, i64 %worker)
  %next = add i64 %i, 1
  br label %check

done:
  ret void
}

define void @choice(ptr %words, i64 %first, i64 %last, i64 %worker) nounwind {
  %pool = call ptr @word(ptr %words, i64 $ChoiceWord_POOL)
  %condition.at = call ptr @word(ptr %words, i64 $ChoiceWord_CONDITION)
  %condition = load i8, ptr %condition.at
  %holds = icmp ne i8 %condition, 0
  %skipped = select i1 %holds, i64 0, i64 $branch_words
  %from = add i64 %skipped, $ChoiceWord_BRANCH
  %branch = getelementptr i64, ptr %words, i64 %from
  %misfits = call i64 @number(ptr %branch, i64 $BranchWord_MISFITS)
  %matches = icmp eq i64 %misfits, 0
  br i1 %matches, label %selected, label %refused

refused:
  %fault = call ptr @word(ptr %words, i64 $ChoiceWord_FAULT)
  store i32 1, ptr %fault
  ret void

selected:
  %tape = call ptr @word(ptr %branch, i64 $BranchWord_TAPE)
  %kernels = call i64 @number(ptr %branch, i64 $BranchWord_KERNELS)
  call void @play(ptr %tape, i64 %kernels, ptr %pool)
  %copies = call ptr @word(ptr %branch, i64 $BranchWord_COPIES)
  call void @copy(ptr %copies, i64 0)
  ret void
}
""")
