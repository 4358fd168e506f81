"""Models whose tracing depends on input values: one program per combination of values.

Examples are a branch that determines the rank of later values, a `Squeeze` without axes, and fed axes of a reduction.
Tracing then stops at a value, which a program of its own, the *question*, computes in each call. Every answer leads to
a program of the whole model, or to one more question.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sardonyx.base import background_threads
from sardonyx.compiler.call.fault import Fault
from sardonyx.compiler.program import Program
from sardonyx.core.eval.run_context import RunContext
from sardonyx.core.ir.graph import Function
from sardonyx.errors import ResourceError, SardonyxError
from sardonyx.runtime.compiled.compiled_model import NativeModel
from sardonyx.runtime.compiled.frontend import Undecided, trace_model
from sardonyx.runtime.options import SessionOptions

MAX_PROGRAMS = 16
"""Limit of the programs of a model; the interpreter computes calls with further answers."""

_Answer = tuple[tuple[int, ...], bytes]


@dataclass
class _Question:
    """A value that tracing needs.

    Attributes:
        native: The program that computes the value.
        given: The answers to the previous questions.
        answers: The next question or the program of the whole model, by answer; None while there is none.
    """

    native: NativeModel
    previous: tuple[np.ndarray, ...]
    answers: dict[_Answer, _Question | NativeModel | None] = field(default_factory=dict)


class SpecializedModel:
    """The programs of a model, by the values that tracing needs.

    Args:
        undecided: The first question.
        output_names: The names of the model's outputs.
        options: The options of the session.
    """

    def __init__(self, undecided: Undecided, output_names: Sequence[str], options: SessionOptions) -> None:
        self._model = undecided.model
        self._inputs = undecided.inputs
        self._outputs = list(output_names)
        self._options = options
        self._lock = threading.RLock()
        self._count = 0
        self._latest: NativeModel | None = None
        self._first = self._question(undecided.question, ())

    def accepts(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> bool:
        """Return True if a call feeds all inputs, and requests outputs of the model alone."""
        if output_names is not None and not set(output_names) <= set(self._outputs):
            return False
        return len(feeds) == len(self._inputs) and all(name in feeds for name in self._inputs)

    def run(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], context: RunContext
    ) -> list[Any] | None:
        """Run once; return None if no program for this call exists, or not yet.

        Args:
            output_names: Names of the requested outputs; None for all.
            feeds: All inputs, see :meth:`accepts`.
            context: The limits of this run.

        Raises:
            Fault: The data have no result.
            SardonyxError: See :meth:`.NativeModel.run`.
        """
        native = self._select(feeds, context)
        if native is None:
            return None
        self._latest = native
        return native.run(output_names, feeds, context)

    def _select(self, feeds: Mapping[str, Any], context: RunContext) -> NativeModel | None:
        """Answer the questions for a call, and return its program."""
        step: _Question | NativeModel | None = self._first
        while isinstance(step, _Question):
            try:
                (value,) = step.native.run(None, feeds, context)
            except ResourceError:
                raise
            except (Fault, SardonyxError):
                # The fault may be in a branch that this call does not execute: the interpreter decides.
                return None
            answer = value.shape, value.tobytes()
            step = step.answers[answer] if answer in step.answers else self._add_answer(step, answer, value)
        return step

    def _add_answer(self, question: _Question, answer: _Answer, value: np.ndarray) -> _Question | NativeModel | None:
        """Compile the next step after a new answer, and return the step if it is ready."""
        with self._lock:
            if answer in question.answers:
                return question.answers[answer]
            if self._count >= MAX_PROGRAMS:
                return None
            self._count += 1
            question.answers[answer] = None
            values = (*question.previous, np.array(value))
            if self._options.compile == "background":
                background_threads.start("sardonyx-compile", self._follow, question, answer, values)
            else:
                self._follow(question, answer, values)
            return question.answers[answer]

    def _follow(self, question: _Question, answer: _Answer, values: tuple[np.ndarray, ...]) -> None:
        try:
            question.answers[answer] = self._compiled(values)
        except SardonyxError as error:  # The interpreter computes the call, or raises the error of the data.
            self._options.log(logging.WARNING, "the model is not compiled for this call, numpy computes it: %s", error)

    def _compiled(self, values: tuple[np.ndarray, ...]) -> _Question | NativeModel:
        try:
            function = trace_model(self._model, values)
        except Undecided as undecided:
            self._count -= 1
            return self._question(undecided.question, values)
        return self._native(function, self._outputs)

    def _question(self, question: Function, values: tuple[np.ndarray, ...]) -> _Question:
        return _Question(self._native(question, ["answer"]), values)

    def _native(self, function: Function, names: Sequence[str]) -> NativeModel:
        options = self._options
        program = Program.compile(function, threads=options.threads, denormals=options.denormals, stores_kernels=True)
        return NativeModel(program, self._inputs, names)

    @property
    def latest(self) -> Program | None:
        """The program of the latest call."""
        return None if self._latest is None else self._latest.program

    def programs(self) -> list[tuple[str, Program, int]]:
        """Return all programs; see :data:`.memory.Programs`."""
        return [(f"case {number}", native.program, 0) for number, native in enumerate(_natives(self._first))]

    def shrink(self) -> None:
        """Free memory that no call uses."""
        for native in _natives(self._first):
            native.shrink()


def _natives(step: _Question | NativeModel | None) -> Iterator[NativeModel]:
    if isinstance(step, NativeModel):
        yield step
    elif step is not None:
        yield step.native
        for answer in list(step.answers.values()):
            yield from _natives(answer)
