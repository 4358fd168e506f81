"""What a function takes, told by its code: ``inspect`` is slow, and a first session defines a hundred operators."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from inspect import Parameter as Told
from types import FunctionType
from typing import Any, NamedTuple


class Parameter(NamedTuple):
    """A parameter of a function; see :class:`inspect.Parameter`.

    Attributes:
        name: Its name.
        kind: ``VAR_POSITIONAL``, ``KEYWORD_ONLY``, and so on, of ``inspect.Parameter``.
        default: Its value where it is not given; ``empty`` of ``inspect.Parameter`` for none.
        annotation: As it is written, or as ``inspect`` has it.
    """

    name: str
    kind: Any
    default: Any
    annotation: Any


def parameters(function: Callable[..., Any]) -> list[Parameter]:
    """The parameters of a function, in the order in which they are written, as ``inspect.signature`` tells them.

    Raises:
        ValueError: They are not known, as of some functions that are written in C.
        TypeError: It is no function.
    """
    # What wraps another has attributes that say so.
    if isinstance(function, FunctionType) and not function.__dict__:
        return list(_of_code(function))
    told = inspect.signature(function).parameters.values()
    return [Parameter(each.name, each.kind, each.default, each.annotation) for each in told]


def _of_code(function: FunctionType) -> Iterator[Parameter]:
    code, notes = function.__code__, function.__annotations__
    positional, keywords = code.co_argcount, code.co_kwonlyargcount
    names = code.co_varnames
    defaults = function.__defaults__ or ()
    values = (Told.empty,) * (positional - len(defaults)) + defaults
    for number, name in enumerate(names[:positional]):
        kind = Told.POSITIONAL_ONLY if number < code.co_posonlyargcount else Told.POSITIONAL_OR_KEYWORD
        yield Parameter(name, kind, values[number], notes.get(name, Told.empty))
    # The names of *arguments and **keywords stand behind those of all others.
    end = positional + keywords
    if code.co_flags & inspect.CO_VARARGS:
        yield Parameter(names[end], Told.VAR_POSITIONAL, Told.empty, notes.get(names[end], Told.empty))
        end += 1
    given = function.__kwdefaults__ or {}
    for name in names[positional : positional + keywords]:
        yield Parameter(name, Told.KEYWORD_ONLY, given.get(name, Told.empty), notes.get(name, Told.empty))
    if code.co_flags & inspect.CO_VARKEYWORDS:
        yield Parameter(names[end], Told.VAR_KEYWORD, Told.empty, notes.get(names[end], Told.empty))
