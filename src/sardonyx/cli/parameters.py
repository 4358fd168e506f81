"""The arguments and options of a verb, read from the signature of the function that runs the verb.

Source of ``--help`` (:mod:`.help_pages`) and of the reference page (:mod:`.reference`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from typer.models import ArgumentInfo, ParameterInfo


@dataclass(frozen=True)
class Parameter:
    """One argument or option.

    Attributes:
        spelling: Its form on the command line, ``MODEL`` or ``--sizes, --size TEXT``.
        description: The help text, with the default value.
        is_argument: True for arguments, False for options.
    """

    spelling: str
    description: str
    is_argument: bool


def parameters(command: Callable[..., Any]) -> Iterator[Parameter]:
    """Yield the arguments and options of a verb in the order of the signature."""
    hints = get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        kind, info = get_args(hints[name])[:2]
        yield Parameter(
            _spelling(name, kind, info), _description(kind, info, parameter.default), isinstance(info, ArgumentInfo)
        )


def _spelling(name: str, kind: Any, info: ParameterInfo) -> str:
    if isinstance(info, ArgumentInfo):
        return f"{name.upper()}…" if _is_list(kind) else name.upper()
    # In `Annotated`, `typer.Option` stores its first name in `default`.
    spellings = [text for text in (info.default, *(info.param_decls or ())) if isinstance(text, str)]
    names = ", ".join(spellings) or f"--{name.replace('_', '-')}"
    return names if bool in _types(kind) else f"{names} {info.metavar or _placeholder(kind)}"


def _types(kind: Any) -> list[Any]:
    """Return the types in an annotation, without None and list."""
    inner = [part for part in get_args(kind) if part is not type(None)]
    return [inner_type for part in inner for inner_type in _types(part)] if inner else [kind]


def _is_list(kind: Any) -> bool:
    return get_origin(kind) is list or any(get_origin(part) is list for part in get_args(kind))


def _placeholder(kind: Any) -> str:
    names = {int: "N", float: "X", Path: "FILE"}
    return next((names[part] for part in _types(kind) if part in names), "TEXT")


def _description(kind: Any, info: ParameterInfo, default: Any) -> str:
    text = str(info.help or "")
    if default is inspect.Parameter.empty:
        return f"{text} Required."
    if default is True:
        return f"{text} On by default."
    return f"{text} Default: `{default}`." if default not in (None, False, "") and bool not in _types(kind) else text
