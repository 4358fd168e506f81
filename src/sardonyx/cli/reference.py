"""Generator of the reference page of all verbs, from the commands themselves.

``python -m sardonyx.cli.reference > docs/reference/cli.md`` writes the page.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_origin, get_type_hints

from typer.models import ArgumentInfo, ParameterInfo

from sardonyx.cli import EXIT_CODES, VERBS

_HEAD = f"""# The command line

`sardonyx VERB --help` prints the same text. {EXIT_CODES} Errors go to standard error, results to
standard output; with `--json` the output is one JSON value, and an error is `{{"error": …}}`. Long operations show
progress on terminals only.
"""


def reference_page() -> str:
    """Return the page as Markdown: every verb with its arguments, options and example."""
    parts = [_HEAD]
    for verb in VERBS:
        parts.extend(_verb(verb, importlib.import_module(f"sardonyx.cli.{verb.replace('-', '_')}")))
    return "\n".join(parts)


def _verb(verb: str, module: ModuleType) -> Iterator[str]:
    yield f"## {verb}\n"
    yield f"{' '.join((inspect.getdoc(module.command) or '').split())}\n"
    yield f"    {module.EXAMPLE}\n"
    yield "| | |\n|---|---|"
    hints = get_type_hints(module.command, include_extras=True)
    for name, parameter in inspect.signature(module.command).parameters.items():
        kind, info = _annotated(hints[name])
        yield f"| {_signature(name, kind, info)} | {_description(kind, info, parameter.default)} |"
    yield ""


def _annotated(hint: Any) -> tuple[Any, ParameterInfo]:
    kind, info = get_args(hint)[:2]
    return kind, info


def _signature(name: str, kind: Any, info: ParameterInfo) -> str:
    if isinstance(info, ArgumentInfo):
        return f"`{name.upper()}…`" if _is_list(kind) else f"`{name.upper()}`"
    # In `Annotated`, `typer.Option` stores its first name in `default`.
    spellings = [text for text in (info.default, *(info.param_decls or ())) if isinstance(text, str)]
    names = ", ".join(spellings) or f"--{name.replace('_', '-')}"
    return f"`{names}`" if bool in _types(kind) else f"`{names} {_placeholder(kind)}`"


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
    return f"{text} Default: `{default}`." if default not in (None, False) and bool not in _types(kind) else text


if __name__ == "__main__":
    sys.stdout.write(reference_page())
