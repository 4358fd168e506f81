"""Playing a tape: the native functions that run kernels one after the other, repeat them, and choose between them.

A tape is an array of machine words, four for each kernel: its address, its arguments, its work items, items a chunk.
A loop is an entry of a tape like any other, whose function plays the tape of the loop's body again and again; a choice
is one that plays the tape of one of two branches. What they need is written in their arguments, in the order of
:class:`LoopWord` and :class:`ChoiceWord`. Lists in memory begin with their length.

An iteration reads the state from one set of buffers and writes it to another; even and odd ones have a tape each, in
which the sets have changed places.
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
from sardonyx.compiler.executor.fork_join import call_parallel, float_mode, flushing, set_float_mode
from sardonyx.compiler.llvm.elf_loader import Code, MappedCode, loaded
from sardonyx.compiler.llvm.ir_builder import Emitter
from sardonyx.compiler.llvm.object_code import LoadedCode, module_text
from sardonyx.compiler.llvm.parallel_build import objects
from sardonyx.compiler.target.description import Target

WORDS = 4
"""Words of the tape for a kernel: address, arguments, work items, items a chunk."""

COPY_WORDS = 4
"""Words of a copy: to, from, bytes, and how much further to it goes with each iteration."""

PATCH_WORDS = 3
"""Words of a patch, a word that changes with each iteration: its address, its first value, how much it grows."""


class Ended(IntEnum):
    """Why a run ended before its end, in the word that loops read after each iteration."""

    FAULT = 1  # data have no result, or a loop would pass the limit of iterations
    STOPPED = 2  # another thread said so


class LoopWord(IntEnum):
    """The arguments of a loop. Those of an iteration are there twice, for even and for odd ones."""

    POOL = 0
    COUNT = 1  # ptr to i64: most iterations
    GO = 2  # ptr to i8: whether to begin
    NUMBER = 3  # ptr to i64: where the body reads the iteration's number; after the loop, how many there were
    FAULT = 4  # ptr to i32, see Ended; read after each iteration
    LIMIT = 5  # ptr to i64: iterations that are allowed; more are a fault
    BEFORE = 6  # ptr: copies before the first iteration
    ITERATION = 7


class IterationWord(IntEnum):
    """What an iteration does."""

    TAPE = 0
    KERNELS = 1
    AGAIN = 2  # ptr to i8: whether to go on after it
    PATCHES = 3  # ptr: before the tape is played
    COPIES = 4  # ptr: afterwards
    AFTER = 5  # ptr: copies at the end of the loop, where this would have been the next iteration


class ChoiceWord(IntEnum):
    """The arguments of a choice; those of a branch are there twice, where the condition holds first."""

    POOL = 0
    CONDITION = 1  # ptr to i8
    FAULT = 2  # ptr to i32: set where the sizes of the branch that is taken do not fit
    BRANCH = 3


class BranchWord(IntEnum):
    """What a branch does."""

    TAPE = 0
    KERNELS = 1
    COPIES = 2
    MISFITS = 3  # how many sizes differ that must be equal


class Player(NamedTuple):
    """The functions, loaded.

    Attributes:
        play: ``void (ptr tape, i64 kernels, ptr pool)``.
        play_flushing: The same with denormal numbers taken for zero, by all threads, until it returns.
        loop: The address of the function of loops, a kernel of one item.
        loops: The address of the function of several that are played at the same time, each a work item.
        choice: The address of the function of choices, a kernel of one item.
        measure: ``i64 (ptr table)``, see :mod:`.planning`.
        fill: ``void (ptr table)``.
        hold: ``i64 (ptr table)``.
        seize: ``i64 (ptr words)``.
        code: Where they are.
        target: What they are compiled for.
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
    """The functions for a target."""
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
    """The module of all these functions."""
    play, flushed, copy, patch = _play(), _play_flushing(target), _copy(), _patch()
    texts = [
        f"define void @play(ptr %tape, i64 %count, ptr %pool) nounwind {{\n{play.text()}\n  ret void\n}}",
        f"define void @play_flushing(ptr %tape, i64 %count, ptr %pool) nounwind {{\n{flushed.text()}\n  ret void\n}}",
        f"define internal void @copy(ptr %list, i64 %i) nounwind {{\n{copy.text()}\n  ret void\n}}",
        f"define internal void @patch(ptr %list, i64 %i) nounwind {{\n{patch.text()}\n  ret void\n}}",
        _CONTROL.substitute(
            {f"{each.__name__}_{word.name}": int(word) for each in _LAYOUTS for word in each},
            iteration_words=len(IterationWord), branch_words=len(BranchWord),
        ),
    ]  # fmt: skip
    planning_texts, declarations = tape_planner.definitions()
    texts += planning_texts
    declarations += [line for each in (play, flushed, copy, patch) for line in each.declarations]
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
    mode = float_mode(e, target)
    set_float_mode(e, target, flushing(e, target, mode))
    e.line("call void @play(ptr %tape, i64 %count, ptr %pool)")
    set_float_mode(e, target, mode)
    return e


def _copy() -> Emitter:
    """Copies of a list; what they copy to begins ``i`` steps further on."""
    e = Emitter()
    with e.loop(0, e.load("i64", "%list", 8)) as number:
        record = e.address("%list", "i64", e.add(e.mul(number, COPY_WORDS), 1))
        to, source = (e.load("ptr", e.address(record, "i64", word), 8) for word in (0, 1))
        count, step = (e.load("i64", e.address(record, "i64", word), 8) for word in (2, 3))
        to = e.address(to, "i8", e.mul(step, "%i"))
        start: str | int = 0
        for width, type in ((64, "<64 x i8>"), (8, "i64"), (1, "i8")):
            end = e.let(f"and i64 {count}, {-width}")
            with e.loop(start, end, width) as at:
                e.store(type, e.load(type, e.address(source, "i8", at), 1), e.address(to, "i8", at), 1)
            start = end
    return e


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
  %place = getelementptr i64, ptr %words, i64 %at
  %found = load ptr, ptr %place
  ret ptr %found
}

define internal i64 @number(ptr %words, i64 %at) alwaysinline nounwind {
  %place = getelementptr i64, ptr %words, i64 %at
  %found = load i64, ptr %place
  ret i64 %found
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
  %asked = icmp ne i8 %again, 0
  %failed = load i32, ptr %fault
  %good = icmp eq i32 %failed, 0
  %goes.on = and i1 %asked, %good
  %next = add i64 %i, 1
  br label %check

done:
  %after = call ptr @word(ptr %iteration, i64 $IterationWord_AFTER)
  call void @copy(ptr %after, i64 0)
  ret void
}

; Loops side by side: the addresses of their arguments are a list.
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
  %fits = icmp eq i64 %misfits, 0
  br i1 %fits, label %taken, label %refused

refused:
  %fault = call ptr @word(ptr %words, i64 $ChoiceWord_FAULT)
  store i32 1, ptr %fault
  ret void

taken:
  %tape = call ptr @word(ptr %branch, i64 $BranchWord_TAPE)
  %kernels = call i64 @number(ptr %branch, i64 $BranchWord_KERNELS)
  call void @play(ptr %tape, i64 %kernels, ptr %pool)
  %copies = call ptr @word(ptr %branch, i64 $BranchWord_COPIES)
  call void @copy(ptr %copies, i64 0)
  ret void
}
""")
