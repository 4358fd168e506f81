"""Models that can only be traced when a value is known: compiled for what that was in calls.

Which of two branches gives the rank of what follows, which sizes a Squeeze without axes takes away, the axes of a
reduction that are fed: tracing asks for such a value, and it is computed in each call by a program of its own, a
*question*. For every answer there is a program of the whole, or one more question.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sardonyx.base import background_threads
from sardonyx.compiler.call.call_context import Fault
from sardonyx.compiler.program import Program
from sardonyx.core.eval.run_context import RunContext
from sardonyx.core.ir.graph import Function
from sardonyx.errors import ResourceError, SardonyxError, UnsupportedError
from sardonyx.runtime.compiled.compiled_model import NativeModel
from sardonyx.runtime.compiled.frontend import Undecided, traced
from sardonyx.runtime.options import SessionOptions

_MOST = 16
"""Programs of a model: where more answers are given, numpy computes what the others ask for."""

_Answer = tuple[tuple[int, ...], bytes]


@dataclass
class _Question:
    """A value that must be known.

    Attributes:
        native: Computes it.
        given: The answers to the questions before.
        answers: What follows: one more question, a program of the whole, or None while there is none.
    """

    native: NativeModel
    given: tuple[np.ndarray, ...]
    answers: dict[_Answer, _Question | NativeModel | None] = field(default_factory=dict)


class SpecializedModel:
    """What a model is compiled to, by what must be known of a call.

    Args:
        undecided: What must be known first.
        output_names: The names of the model's outputs.
        options: What is asked of the session.
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
        """Run once; None where numpy is to compute it: there is no program for this call, or not yet.

        Args:
            output_names: What is asked for; None for all outputs.
            feeds: All inputs, see :meth:`accepts`.
            context: The limits of this run.

        Raises:
            Fault: Data have no result.
            SardonyxError: As :meth:`.NativeModel.run` does.
        """
        native = self._found(feeds, context)
        if native is None:
            return None
        self._latest = native
        return native.run(output_names, feeds, context)

    def _found(self, feeds: Mapping[str, Any], context: RunContext) -> NativeModel | None:
        """The program for a call."""
        step: _Question | NativeModel | None = self._first
        while isinstance(step, _Question):
            try:
                (value,) = step.native.run(None, feeds, context)
            except ResourceError:
                raise
            except (Fault, SardonyxError):
                # Maybe of a branch that this call does not take: numpy computes it, or says what is wrong.
                return None
            answer = value.shape, value.tobytes()
            step = step.answers[answer] if answer in step.answers else self._answered(step, answer, value)
        return step

    def _answered(self, question: _Question, answer: _Answer, value: np.ndarray) -> _Question | NativeModel | None:
        """See to what follows an answer that was not given before."""
        with self._lock:
            if answer in question.answers:
                return question.answers[answer]
            if self._count >= _MOST:
                return None
            self._count += 1
            question.answers[answer] = None
            given = (*question.given, np.array(value))
            if self._options.compile == "background":
                background_threads.start("sardonyx-compile", self._follow, question, answer, given)
            else:
                self._follow(question, answer, given)
            return question.answers[answer]

    def _follow(self, question: _Question, answer: _Answer, given: tuple[np.ndarray, ...]) -> None:
        try:
            question.answers[answer] = self._compiled(given)
        except UnsupportedError as error:
            self._options.log(logging.WARNING, "the model is not compiled for this call, numpy computes it: %s", error)

    def _compiled(self, given: tuple[np.ndarray, ...]) -> _Question | NativeModel:
        try:
            function = traced(self._model, given)
        except Undecided as undecided:
            self._count -= 1
            return self._question(undecided.question, given)
        return self._native(function, self._outputs)

    def _question(self, question: Function, given: tuple[np.ndarray, ...]) -> _Question:
        return _Question(self._native(question, ["answer"]), given)

    def _native(self, function: Function, names: Sequence[str]) -> NativeModel:
        program = Program.compile(function, threads=self._options.threads, denormals=self._options.denormals)
        return NativeModel(program, self._inputs, names)

    @property
    def latest(self) -> Program | None:
        """The program of the latest call."""
        return None if self._latest is None else self._latest.program

    def programs(self) -> list[tuple[str, Program, int]]:
        """All programs, see :data:`.memory.Programs`."""
        return [(f"case {number}", each.program, 0) for number, each in enumerate(_natives(self._first))]

    def shrink(self) -> None:
        """Let go of memory that no call uses."""
        for each in _natives(self._first):
            each.shrink()


def _natives(step: _Question | NativeModel | None) -> Iterator[NativeModel]:
    if isinstance(step, NativeModel):
        yield step
    elif step is not None:
        yield step.native
        for each in list(step.answers.values()):
            yield from _natives(each)
