"""Generator of the reference page of all verbs, from the commands themselves.

``python -m sardonyx.cli.reference > docs/reference/cli.md`` writes the page.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from types import ModuleType

from sardonyx.cli import EXIT_CODES, SECTIONS
from sardonyx.cli.parameters import parameters

_HEAD = f"""# The command line

`sardonyx VERB --help` prints the same text. {EXIT_CODES} Errors go to standard error, results to
standard output; with `--json` the output is one JSON value, and an error is `{{"error": …}}`. Long operations show
progress on terminals; elsewhere one line on standard error, after 5 s, says that the work goes on.
"""


def reference_page() -> str:
    """Return the page as Markdown: every verb with its arguments, options and example."""
    parts = [_HEAD]
    for verbs in SECTIONS.values():
        for verb in verbs:
            parts.extend(_verb(verb, importlib.import_module(f"sardonyx.cli.{verb.replace('-', '_')}")))
    return "\n".join(parts)


def _verb(verb: str, module: ModuleType) -> Iterator[str]:
    yield f"## {verb}\n"
    yield f"{' '.join((inspect.getdoc(module.command) or '').split())}\n"
    yield f"    {module.EXAMPLE}\n"
    yield "| | |\n|---|---|"
    for parameter in parameters(module.command):
        yield f"| `{parameter.spelling}` | {parameter.description} |"
    yield ""


if __name__ == "__main__":
    sys.stdout.write(reference_page())
