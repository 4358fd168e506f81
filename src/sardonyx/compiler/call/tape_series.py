"""Series: two tapes that native code executes in turn, once for each row of arrays.

An iteration copies a row of each array to the arguments of the first tape, executes the tape, and checks that some of
its results are finite. It then copies results to rows, executes the second tape, and copies results once more. A series
ends ahead of the second tape if a result is not finite, or if the first tape has no result.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from enum import IntEnum
from string import Template
from typing import NamedTuple

import numpy as np

from sardonyx.base.artifact_store import store
from sardonyx.base.call_once import once
from sardonyx.compiler.call.native_entry import Entry, Word
from sardonyx.compiler.executor.tape_planner import PlanWord
from sardonyx.compiler.executor.tape_player import copy_bytes
from sardonyx.compiler.llvm.elf_loader import Code, MappedCode, loaded
from sardonyx.compiler.llvm.ir_builder import Emitter
from sardonyx.compiler.llvm.object_code import LoadedCode, module_text
from sardonyx.compiler.llvm.parallel_build import objects
from sardonyx.compiler.target.description import Target

_COPY_WORDS = 5
"""Words of a copy: destination, bytes between destinations, source, bytes between sources, bytes."""


class Copy(NamedTuple):
    """A copy of each iteration.

    Attributes:
        to: The destination.
        source: The source.
        by_rows: The array of which an iteration reads or writes one row; None for none.
    """

    to: np.ndarray
    source: np.ndarray
    by_rows: np.ndarray | None = None

    def words(self) -> list[int]:
        """Return the words of the copy.

        The words hold addresses: the caller keeps the arrays alive.
        """
        to, source = (
            (array.ctypes.data, array.nbytes // len(array) if array is self.by_rows else 0)
            for array in (self.to, self.source)
        )
        return [*to, *source, (self.source if self.by_rows is self.to else self.to).nbytes]


class _SeriesWord(IntEnum):
    """Words of the table of a series; two sets of :class:`_TapeWord` follow."""

    BEFORE = 0  # ptr: copies ahead of the first tape
    CHECKS = 1  # ptr: numbers that must be finite
    BETWEEN = 2  # ptr: copies after the first tape
    AFTER = 3  # ptr: copies after the second tape
    TAPES = 4


class _TapeWord(IntEnum):
    PLAY = 0
    TAPE = 1
    KERNELS = 2
    POOL = 3
    FAULT = 4


_TAPE_WORDS = {
    _TapeWord.PLAY: Word.PLAY, _TapeWord.TAPE: Word.TAPE, _TapeWord.KERNELS: Word.KERNELS,
    _TapeWord.POOL: Word.POOL, _TapeWord.FAULT: Word.FAULT,
}  # fmt: skip


class Series:
    """A native loop over two tapes.

    Args:
        target: The processor.
        first: The entry of the first tape, of fixed arrays.
        second: The entry of the second tape.
        checked: Results of the first tape, float32 or float64 scalars, that must be finite.
    """

    def __init__(self, target: Target, first: Entry, second: Entry, checked: Sequence[np.ndarray]) -> None:
        self._alive = (first, second, checked)
        self._function = _function(target)
        self._tapes = [
            entry.words[word] for entry in (first, second) for word in (_TAPE_WORDS[one] for one in _TapeWord)
        ]
        self._checks = _list([[array.ctypes.data, array.dtype.itemsize] for array in checked])

    @staticmethod
    def accepts(entry: Entry) -> bool:
        """Return True if the arena of an entry belongs to the entry alone: blocks are claimed for every call."""
        return not ctypes.c_int64.from_address(entry.words[Word.PLAN] + 8 * PlanWord.BLOCK).value

    def run(self, before: Sequence[Copy], between: Sequence[Copy], after: Sequence[Copy], first: int, end: int) -> int:
        """Execute iterations, without the interpreter lock; return the number of the first that is not complete.

        Args:
            before: Copies ahead of the first tape.
            between: Copies after the first tape.
            after: Copies after the second tape.
            first: The number of the first iteration, which is the row of arrays that are copied by rows.
            end: The number after that of the last iteration.

        Returns:
            ``end`` if all iterations are complete. If the second tape had no result, the complement of the number.
        """
        lists = [_list([copy.words() for copy in copies]) for copies in (before, between, after)]
        addresses = [lists[0], self._checks, lists[1], lists[2]]
        table = np.array([*(array.ctypes.data for array in addresses), *self._tapes], np.int64)
        return self._function(table.ctypes.data, first, end)


def _list(records: Sequence[Sequence[int]]) -> np.ndarray:
    return np.array([len(records), *(word for record in records for word in record)], np.int64)


@once
def _code(target: Target) -> MappedCode | LoadedCode:
    copy = _copy()
    words = {
        "tapes": int(_SeriesWord.TAPES),
        "second": int(_SeriesWord.TAPES) + len(_TapeWord),
        **{f"at_{word.name}": int(word) for layout in (_SeriesWord, _TapeWord) for word in layout},
    }
    texts = [
        f"define internal void @copy_rows(ptr %list, i64 %i) nounwind {{\n{copy.text()}\n  ret void\n}}",
        _SERIES.substitute(words),
    ]
    return loaded(Code(objects([module_text(target, texts, copy.declarations)], target, store(), jobs=1)), target)


@once
def _function(target: Target) -> Callable[[int, int, int], int]:
    signature = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    return signature(_code(target).address("series"))


def _copy() -> Emitter:
    e = Emitter()
    with e.loop(0, e.load("i64", "%list", 8)) as number:
        record = e.address("%list", "i64", e.add(e.mul(number, _COPY_WORDS), 1))
        to, source = (e.load("ptr", e.address(record, "i64", word), 8) for word in (0, 2))
        to_step, source_step, count = (e.load("i64", e.address(record, "i64", word), 8) for word in (1, 3, 4))
        to = e.address(to, "i8", e.mul(to_step, "%i"))
        source = e.address(source, "i8", e.mul(source_step, "%i"))
        copy_bytes(e, to, source, count)
    return e


_SERIES = Template("""
define internal i1 @play_tape(ptr %words) alwaysinline nounwind {
  %play.at = getelementptr i64, ptr %words, i64 $at_PLAY
  %play = load ptr, ptr %play.at
  %tape.at = getelementptr i64, ptr %words, i64 $at_TAPE
  %tape = load ptr, ptr %tape.at
  %kernels.at = getelementptr i64, ptr %words, i64 $at_KERNELS
  %kernels = load i64, ptr %kernels.at
  %pool.at = getelementptr i64, ptr %words, i64 $at_POOL
  %pool = load ptr, ptr %pool.at
  call void %play(ptr %tape, i64 %kernels, ptr %pool)
  %fault.at = getelementptr i64, ptr %words, i64 $at_FAULT
  %fault = load ptr, ptr %fault.at
  %value = load i32, ptr %fault
  store i32 0, ptr %fault
  %good = icmp eq i32 %value, 0
  ret i1 %good
}

; All exponent bits are set in numbers that are infinite or NaN.
define internal i1 @are_finite(ptr %list) nounwind {
entry:
  %count = load i64, ptr %list
  br label %check

check:
  %i = phi i64 [ 0, %entry ], [ %next, %tested ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %test, label %finite

test:
  %twice = mul i64 %i, 2
  %at = add i64 %twice, 1
  %record = getelementptr i64, ptr %list, i64 %at
  %number = load ptr, ptr %record
  %bytes.at = getelementptr i64, ptr %record, i64 1
  %bytes = load i64, ptr %bytes.at
  %is.double = icmp eq i64 %bytes, 8
  br i1 %is.double, label %double, label %single

double:
  %bits = load i64, ptr %number
  %exponent = and i64 %bits, 9218868437227405312
  %is.finite = icmp ne i64 %exponent, 9218868437227405312
  br label %tested

single:
  %short.bits = load i32, ptr %number
  %short.exponent = and i32 %short.bits, 2139095040
  %is.short.finite = icmp ne i32 %short.exponent, 2139095040
  br label %tested

tested:
  %good = phi i1 [ %is.finite, %double ], [ %is.short.finite, %single ]
  %next = add i64 %i, 1
  br i1 %good, label %check, label %infinite

finite:
  ret i1 true

infinite:
  ret i1 false
}

define i64 @series(ptr %table, i64 %first, i64 %end) nounwind {
entry:
  %before = load ptr, ptr %table
  %checks.at = getelementptr i64, ptr %table, i64 $at_CHECKS
  %checks = load ptr, ptr %checks.at
  %between.at = getelementptr i64, ptr %table, i64 $at_BETWEEN
  %between = load ptr, ptr %between.at
  %after.at = getelementptr i64, ptr %table, i64 $at_AFTER
  %after = load ptr, ptr %after.at
  %first.tape = getelementptr i64, ptr %table, i64 $tapes
  %second.tape = getelementptr i64, ptr %table, i64 $second
  br label %check

check:
  %i = phi i64 [ %first, %entry ], [ %next, %complete ]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %iterate, label %done

iterate:
  call void @copy_rows(ptr %before, i64 %i)
  %has.results = call i1 @play_tape(ptr %first.tape)
  br i1 %has.results, label %test, label %done

test:
  %finite = call i1 @are_finite(ptr %checks)
  br i1 %finite, label %update, label %done

update:
  call void @copy_rows(ptr %between, i64 %i)
  %is.updated = call i1 @play_tape(ptr %second.tape)
  br i1 %is.updated, label %complete, label %failed

complete:
  call void @copy_rows(ptr %after, i64 %i)
  %next = add i64 %i, 1
  br label %check

failed:
  %complement = xor i64 %i, -1
  ret i64 %complement

done:
  ret i64 %i
}
""")
