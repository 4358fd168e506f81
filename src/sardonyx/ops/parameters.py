"""Parameters of a function, read from its code object.

``inspect.signature`` is slow, and the first session of a process defines about a hundred operators.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from inspect import Parameter as InspectParameter
from types import FunctionType
from typing import Any, NamedTuple


class Parameter(NamedTuple):
    """A parameter of a function; see :class:`inspect.Parameter`.

    Attributes:
        name: The name.
        kind: ``VAR_POSITIONAL``, ``KEYWORD_ONLY``, and so on, of ``inspect.Parameter``.
        default: The default value; ``empty`` of ``inspect.Parameter`` if none.
        annotation: The annotation as written, or as ``inspect`` returns it.
    """

    name: str
    kind: Any
    default: Any
    annotation: Any


def parameters(function: Callable[..., Any]) -> list[Parameter]:
    """Return the parameters of a function in the order of ``inspect.signature``.

    Raises:
        ValueError: The parameters are unknown, as for some functions written in C.
        TypeError: The object is not a function.
    """
    # A wrapper has attributes such as `__wrapped__`, which `inspect` follows.
    if isinstance(function, FunctionType) and not function.__dict__:
        return list(_read_code(function))
    described = inspect.signature(function).parameters.values()
    return [Parameter(item.name, item.kind, item.default, item.annotation) for item in described]


def _read_code(function: FunctionType) -> Iterator[Parameter]:
    code, annotations = function.__code__, function.__annotations__
    positional, keywords = code.co_argcount, code.co_kwonlyargcount
    names = code.co_varnames
    defaults = function.__defaults__ or ()
    values = (InspectParameter.empty,) * (positional - len(defaults)) + defaults
    for index, name in enumerate(names[:positional]):
        kind = (
            InspectParameter.POSITIONAL_ONLY
            if index < code.co_posonlyargcount
            else InspectParameter.POSITIONAL_OR_KEYWORD
        )
        yield Parameter(name, kind, values[index], annotations.get(name, InspectParameter.empty))
    # The names of *arguments and **keywords follow all other parameter names.
    end = positional + keywords
    if code.co_flags & inspect.CO_VARARGS:
        yield Parameter(
            names[end],
            InspectParameter.VAR_POSITIONAL,
            InspectParameter.empty,
            annotations.get(names[end], InspectParameter.empty),
        )
        end += 1
    keyword_defaults = function.__kwdefaults__ or {}
    for name in names[positional : positional + keywords]:
        yield Parameter(
            name,
            InspectParameter.KEYWORD_ONLY,
            keyword_defaults.get(name, InspectParameter.empty),
            annotations.get(name, InspectParameter.empty),
        )
    if code.co_flags & inspect.CO_VARKEYWORDS:
        yield Parameter(
            names[end],
            InspectParameter.VAR_KEYWORD,
            InspectParameter.empty,
            annotations.get(names[end], InspectParameter.empty),
        )
