"""The text of ``--help``: plain, in two columns, without the import of a rendering library."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from sardonyx.errors import OptionError, ResourceError, SardonyxError

_UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""The base class of errors of the command line."""

MOST_COLUMNS = 100
"""Width of the text on wider terminals."""

_PARAMETER = re.compile(
    r"""`(?P<quoted>\w+)=?`|\b(?P<name>[a-z_]+)=(?:(?P<quote>['"])(?P<text>[^'"]*)(?P=quote)|(?P<number>\d+(?:\.\d+)?))"""
)
"""A parameter in the text of an error: `name`, name='value' or name=0.5."""

MOST_INDENT = 28
"""Columns up to which descriptions start on the line of their term."""


class VerbCommand(TyperCommand):
    """A verb; ``sardonyx VERB --help`` prints the docstring, the parameters and the example of its module."""

    def get_usage(self, ctx: Any) -> str:
        """Return the line of usage, which errors begin with too."""
        names = "".join(f" {str(p.name).upper()}" for p in self.get_params(ctx) if p.param_type_name == "argument")
        output = " [OUTPUT]" if self._accepts_output(ctx) else ""
        return f"Usage: {ctx.command_path}{names}{output} [OPTIONS]"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line; an argument after the model is the output if there is no ``--output``."""
        if not self._accepts_output(ctx) or "--" in args:
            return super().parse_args(ctx, args)
        try:
            options, words = self._parsed(ctx, args)
        except _UsageError:
            return super().parse_args(ctx, args)  # Raises the same error, with the text of the verb.
        if extra := words[1 if "output" in options else 2 :]:
            raise _UsageError(f"Got unexpected extra argument(s) ({' '.join(extra)})", ctx)
        if len(words) == 2 and "output" not in options:
            for at in (i for i, word in enumerate(args) if word == words[1]):
                named = [*args[:at], "--output", words[1], *args[at + 1 :]]
                with contextlib.suppress(_UsageError):
                    if self._parsed(ctx, named) == ({**options, "output": words[1]}, words[:1]):
                        return super().parse_args(ctx, named)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the verb; errors name options as the command line spells them.

        Raises:
            SardonyxError: The verb failed.
        """
        try:
            return super().invoke(ctx)
        except SardonyxError as error:
            spellings = self._spellings(ctx)
            problem, where = error.problem, error.where
            if isinstance(error, (OptionError, ResourceError)):
                arguments = {str(p.name): str(p.name).upper() for p in self.get_params(ctx)}
                where = ", ".join((arguments | spellings).get(name, name) for name in where.split(", "))
                problem = _as_options(problem, spellings)
            error.reword(problem, where=where, remedy=_as_options(error.remedy, spellings))
            raise

    def _spellings(self, ctx: Any) -> dict[str, str]:
        """Return the options by parameter: of the verb, and of the functions of the package that the verb calls."""
        listed = (p for p in self.get_params(ctx) if p.param_type_name == "option")
        own = {str(p.name): next((o for o in p.opts if o.startswith("--")), p.opts[0]) for p in listed}
        return own | getattr(self._module(), "OPTIONS_OF_PARAMETERS", {})

    def _module(self) -> ModuleType:
        return importlib.import_module(f"sardonyx.cli.{str(self.name).replace('-', '_')}")

    def _parsed(self, ctx: Any, args: list[str]) -> tuple[dict[str, Any], list[str]]:
        """Return the values of options, and the arguments in order."""
        argument = next(p.name for p in self.get_params(ctx) if p.param_type_name == "argument" and p.name)
        options, rest, _ = self.make_parser(ctx).parse_args(list(args))
        return options, [options[argument], *rest] if options.get(argument) is not None else rest

    def _accepts_output(self, ctx: Any) -> bool:
        """Return True for verbs of one model with an option ``--output``."""
        parameters = self.get_params(ctx)
        arguments = [p for p in parameters if p.param_type_name == "argument"]
        return len(arguments) == 1 and arguments[0].nargs == 1 and any(p.name == "output" for p in parameters)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help page of the verb."""
        from sardonyx.cli.parameters import parameters

        module = self._module()
        listed = list(parameters(module.command))
        arguments = [(p.spelling, p.description) for p in listed if p.is_argument]
        options = [(p.spelling, p.description) for p in listed if not p.is_argument]
        formatter.write(f"{self.get_usage(ctx)}\n\n")
        for paragraph in (inspect.getdoc(module.command) or "").split("\n\n"):
            formatter.write("\n".join(_wrapped(paragraph)) + "\n\n")
        for title, rows in (
            ("Arguments", arguments),
            ("Options", [*options, ("-h, --help", "Show this text and exit.")]),
        ):
            if rows:
                formatter.write(_section(title, rows))
        # On one line, to copy.
        formatter.write(f"{_bold('Example')}\n  {module.EXAMPLE}\n")


class VerbGroup(TyperGroup):
    """The command ``sardonyx``; ``--help`` lists the verbs by section.

    Attributes:
        sections: Title → verb → help line.
        options: Spelling and description of the options of the program itself.
    """

    sections: Mapping[str, Mapping[str, str]] = {}
    options: tuple[tuple[str, str], ...] = ()

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the list of verbs."""
        formatter.write(f"Usage: {ctx.command_path} VERB [ARGUMENTS] [OPTIONS]\n\n")
        for text in (self.help or "", f"`{ctx.command_path} VERB --help` describes a verb, with an example."):
            formatter.write("\n".join(_wrapped(text)) + "\n")
        formatter.write("\n")
        for title, verbs in self.sections.items():
            formatter.write(_section(title, verbs.items()))
        formatter.write(_section("Options", self.options))
        formatter.write("\n".join(_wrapped(self.epilog or "")) + "\n")


def _as_options(text: str, spellings: Mapping[str, str]) -> str:
    """Return `text` with the parameters that are options of a verb, `name` and name='value', as options."""

    def spelled(match: re.Match[str]) -> str:
        spelling = spellings.get(match["quoted"] or match["name"])
        if spelling is None:
            return match[0]
        return f"`{spelling}`" if match["quoted"] else f"{spelling} {match['text'] or match['number']}"

    return _PARAMETER.sub(spelled, text)


def _section(title: str, rows: Iterable[tuple[str, str]]) -> str:
    rows = list(rows)
    indent = min(max(len(term) for term, _ in rows) + 4, MOST_INDENT)
    lines = [line for term, text in rows for line in _row(term, text, indent)]
    return "\n".join([_bold(title), *lines]) + "\n\n"


def _row(term: str, text: str, indent: int) -> Iterator[str]:
    margin = " " * indent
    head = f"  {term}"
    if len(head) + 2 > indent:
        yield head
        yield from _wrapped(text, margin, margin)
    else:
        yield from _wrapped(text, head.ljust(indent), margin) or [head]


def _wrapped(text: str, first: str = "", rest: str = "") -> list[str]:
    columns = min(shutil.get_terminal_size().columns, MOST_COLUMNS)
    plain = " ".join(text.split())
    return textwrap.wrap(
        plain, columns, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False, break_long_words=False
    )


def _bold(text: str) -> str:
    """Return text in bold; output to files and pipes drops the style."""
    return typer.style(text, bold=True)
