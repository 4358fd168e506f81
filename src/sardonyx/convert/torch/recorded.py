"""A second capture of programs that torch.export refuses: with the branches of the examples, under guards.

The program's Python runs with traced tensors that carry the examples' values. A branch or loop on a value follows the
value, and the condition that was seen is asserted in the captured program; the translation makes guards of these
assertions. The model is that of all inputs that take the same branches, and fails for the others.
"""

from __future__ import annotations

import contextlib
import linecache
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch._logging.structured import INTERN_TABLE
from torch._subclasses import fake_utils, meta_utils
from torch.export._draft_export import FailureType, draft_export

from sardonyx.base.replaced_attributes import replaced
from sardonyx.convert.imported import NOT_NEEDED, Imported
from sardonyx.convert.torch import translation
from sardonyx.convert.torch.capture import Program, Runner, refusal
from sardonyx.convert.torch.capture_context import quiet
from sardonyx.convert.torch.exported_programs import input_names
from sardonyx.convert.torch.kept_assertions import kept_roundings
from sardonyx.convert.torch.size_guards import size_guards
from sardonyx.convert.torch.sources import is_users
from sardonyx.convert.torch.state import State
from sardonyx.errors import ConversionError, EvaluationError

NOTE = "the model has the branches of the examples: a guard, named after the line, fails for inputs of other branches"


def read(program: Program) -> Imported:
    """Return the model of a program with the branches that its examples take.

    Raises:
        ConversionError: torch.export captures the program without that, or no capture is sound.
    """
    try:
        openness = program.captured.openness
    except ConversionError as error:
        exported = _recorded(program, error)
    else:
        raise ConversionError(f"{NOT_NEEDED}torch.export captures the program with open sizes: {openness}")
    lines = [line for failure in exported._report.failures if (line := _line(failure.data))]
    branches = [guard for guard in size_guards(exported, input_names(exported)) if guard.is_branch]
    notes = [*program.notes, *([NOTE] if lines or branches else ())]
    recorded = replace(
        program,
        exported=exported,
        notes=notes,
        guard_lines=[*lines, *(guard.label for guard in branches)] if lines else (),
        size_guards=branches,
    )
    with _followed_values():
        imported = translation.read(recorded)
    run = _Guarded(recorded.runner, exported, imported.run)
    sizes = imported.refused
    return replace(imported, run=run, refused=lambda: [*run.refused, *(sizes() if sizes is not None else ())])


def _recorded(program: Program, error: ConversionError) -> torch.export.ExportedProgram:
    failure: Exception = error
    # Doubled examples may take other branches.
    for openness in (choice for choice in program.choices() if not choice.endswith("doubled")):
        try:
            with (
                program.capturing((program.args, program.kwargs)),
                _followed_values(),
                kept_roundings(),
            ):
                exported = draft_export(
                    program.subject,
                    program.args,
                    program.kwargs,
                    dynamic_shapes=program.dynamic_shapes(openness),
                    strict=False,
                )
        except Exception as other:  # torch.export raises exceptions of a dozen unrelated classes.
            failure = other
            continue
        _require_sound(exported)
        return exported
    raise failure if isinstance(failure, ConversionError) else refusal(failure)


@contextlib.contextmanager
def _followed_values() -> Iterator[None]:
    """Complete the values that torch's draft export follows.

    Parameters have their values: torch copies plain tensors alone, and branches would follow stray memory. The rows of
    a tensor whose number depends on data can be iterated. Views that begin at an element chosen by data are accepted.
    """
    copy, clone, compare = meta_utils._safe_copy, meta_utils._safe_clone, fake_utils._check_fake_real_tensors
    iterate = torch.Tensor.__iter__

    def plain(source: Any) -> Any:
        return source.data if type(source) is torch.nn.Parameter else source

    def rows(tensor: Any) -> Any:
        if tensor.ndim == 0 or isinstance(tensor.shape[0], int):
            return iterate(tensor)
        return iter([tensor[index] for index in range(int(tensor.shape[0]))])

    def compare_known(real: Any, traced: Any, *rest: Any, **options: Any) -> None:
        if isinstance(traced.storage_offset(), int):
            compare(real, traced, *rest, **options)

    with (
        replaced(meta_utils, "_safe_copy", lambda target, source: copy(target, plain(source))),
        replaced(meta_utils, "_safe_clone", lambda source: clone(plain(source))),
        replaced(fake_utils, "_check_fake_real_tensors", compare_known),
        replaced(torch.Tensor, "__iter__", rows),
    ):
        yield


def _require_sound(exported: Any) -> None:
    """Refuse a capture that holds values of the examples without an assertion.

    Raises:
        ConversionError: A number in floating point became a constant, or torch guessed the result of an operator.
    """
    for failure in exported._report.failures:
        kind, data = failure.failure_type, failure.data
        if kind == FailureType.GUARD_ADDED:
            continue
        if kind == FailureType.DATA_DEPENDENT_ERROR:
            expression = str(data.get("expr", ""))
            if "uf" not in expression or _can_repeat(str(data.get("result", ""))):
                continue
            raise ConversionError(
                f"the program uses a value in floating point as a Python number ({expression})",
                where=_line(data),
                remedy="Compute with the tensor in place of `item()`, `int()` or `float()` of its value.",
            )
        raise ConversionError(f"torch cannot infer the results of {data.get('op', 'an operator')}", where=_line(data))


def _can_repeat(result: str) -> bool:
    """Return True for the value of a condition or an integer, which other inputs have too, unlike a fraction."""
    return result in ("True", "False") or result.removeprefix("-").isdigit()


def _line(data: Mapping[str, Any]) -> str:
    """Return the innermost line of the user's program in a report of torch."""
    names = {number: name for name, number in INTERN_TABLE.items()}
    for frame in reversed(data.get("user_stack") or data.get("stack") or ()):
        name = str(names.get(frame["filename"], ""))
        if name and is_users(name):
            return f"{name}:{frame['line']} ({linecache.getline(name, frame['line']).strip()[:80]})"
    return ""


class _Guarded:
    """The source in PyTorch, for inputs that take the recorded branches."""

    def __init__(self, runner: Runner, exported: torch.export.ExportedProgram, run: Any) -> None:
        self._runner = runner
        self._run = run
        self._checked = exported.module()
        self._state = State(self._checked)
        self.refused: list[Mapping[str, Any]] = []

    def __call__(self, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        answers: Mapping[str, Any] = self._run(feeds)
        args, kwargs = self._runner.arguments(feeds)
        try:
            with torch.no_grad(), quiet(), self._state.unchanged():
                self._checked(*args, **kwargs)
        except Exception as error:  # Assertions raise any exception.
            if len(self.refused) < translation.MOST_REFUSED and "Runtime assertion failed" in str(error):
                self.refused.append(dict(feeds))
            raise EvaluationError(f"the inputs take other branches: {str(error)[:200]}", where="the source") from error
        return answers
