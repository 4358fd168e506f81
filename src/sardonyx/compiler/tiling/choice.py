"""Schedules as values: a problem, the chosen schedule, and the rejected candidates with costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, Self, TypeVar

from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling import overrides
from sardonyx.errors import OptionError


class Problem(Protocol):
    """Sizes, element types and layouts of a kernel; ``str()`` is the key of overrides."""

    def __str__(self) -> str: ...


class Schedule(Protocol):
    """The choices for one kernel: a frozen value; ``str()`` is one line."""

    def to_dict(self) -> dict[str, Any]:
        """Return the schedule as plain data."""
        ...

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the schedule of :meth:`to_dict`.

        Raises:
            OptionError: A field is missing, unknown or of another type.
        """
        ...

    def validate(self, problem: Any, target: Target) -> None:
        """Refuse a schedule that is impossible for the problem.

        Raises:
            OptionError: A field has a value that is impossible for the problem on the target.
        """
        ...


S = TypeVar("S", bound=Schedule)


@dataclass(frozen=True)
class Candidate(Generic[S]):
    """A schedule that was considered and not chosen.

    Attributes:
        schedule: The schedule.
        reason: The reason for the rejection.
        cost: Estimated cost in the unit of :attr:`Choice.cost`; None if sizes are open.
    """

    schedule: S
    reason: str
    cost: float | None = None


@dataclass(frozen=True)
class Choice(Generic[S]):
    """The schedule of one kernel.

    Attributes:
        problem: The problem that the kernel computes.
        schedule: The chosen schedule.
        reason: The rule that chose the schedule.
        cost: Estimated cost of the schedule; see "Schedules and costs" in ``docs/design/engine.md``.
        candidates: The rejected alternatives.
    """

    problem: Problem
    schedule: S
    reason: str
    cost: float | None = None
    candidates: tuple[Candidate[S], ...] = ()


def apply_override(choice: Choice[S], target: Target) -> Choice[S]:
    """Return the choice, or the user's schedule with the chosen one among the rejected candidates.

    Raises:
        OptionError: The user's schedule is invalid for the problem.
    """
    data = overrides.find(str(choice.problem), target.name)
    if data is None:
        return choice
    try:
        schedule = type(choice.schedule).from_dict(data)
        schedule.validate(choice.problem, target)
    except OptionError as error:
        raise OptionError(
            error.problem, where=f"schedule of {choice.problem}",
            remedy=error.remedy or "Change the schedule, or remove its entry from the overrides.",
        ) from error  # fmt: skip
    if schedule == choice.schedule:
        return choice
    rejected = Candidate(choice.schedule, "overridden", choice.cost)
    return replace(choice, schedule=schedule, reason="override", cost=None, candidates=(rejected, *choice.candidates))


def take_fields(kind: str, data: Mapping[str, Any], fields: Mapping[str, type | tuple[type, ...]]) -> dict[str, Any]:
    """Return the fields of a schedule's plain data.

    Args:
        kind: Name of the kind of schedule, the value of the field ``kind``.
        data: The plain data.
        fields: The types of the other fields.

    Raises:
        OptionError: A field is missing, unknown or of another type.
    """
    if data.get("kind") != kind:
        raise OptionError(f"expected a schedule of kind {kind!r}, got {data.get('kind')!r}.")
    unknown, missing = data.keys() - fields.keys() - {"kind"}, fields.keys() - data.keys()
    if unknown or missing:
        names = ", ".join(sorted(unknown or missing))
        raise OptionError(f"the schedule has {'unknown' if unknown else 'missing'} fields: {names}.")
    for name, types in fields.items():
        value, allowed = data[name], types if isinstance(types, tuple) else (types,)
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            raise OptionError(f"expected {name} to be {' or '.join(type.__name__ for type in allowed)}, got {value!r}.")
    return {name: data[name] for name in fields}


def require(condition: bool, problem: str) -> None:
    """Refuse an invalid schedule.

    Raises:
        OptionError: The condition is false.
    """
    if not condition:
        raise OptionError(problem)
