"""The reference page of all finding codes and targets.

``python -m sardonyx.model.check.reference > docs/reference/check.md`` writes it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from sardonyx.model.check.codes import CODES
from sardonyx.model.check.targets import find_target, known_targets

_HEAD = """# What `sardonyx check` finds

`sardonyx check model.onnx` runs `onnx.checker` with strict shape inference, and checks of its own for what those miss.
A path is checked as it lies on disk, with its external data; weights are read only for `--lint`. Each finding has a
severity, a code, a place (graph path, node, tensor), a reason, a remedy and, where one can repair it, the command line.
In Python: `sardonyx.check(model, target=None, version=None, lint=False)` gives a list of `Finding`, and
`Finding.as_dict()` what `--json` prints.

Structure is checked first and without recursion: cycles, recursive functions, calls or bodies nested too deep. Where
one of the last three is found, the model is not given to the C++ checks at all; where names are undefined or nodes out
of order, types are not inferred. So a first finding may hide later ones: repair it and check again.

An **error** means that the model breaks the ONNX specification, or that the target named cannot run it (exit code 1).
A **warning** is legal and likely to be refused or misread somewhere. **Lint** (`--lint`) is legal, and worse than it
need be.
"""

_TITLES = {"error": "Errors", "warning": "Warnings", "lint": "Lint"}


def reference_page() -> str:
    """The page as Markdown: all codes with meaning and repair, all targets with version and source."""
    return "\n".join([_HEAD, *_codes(), *_targets()])


def _codes() -> Iterator[str]:
    for severity, title in _TITLES.items():
        yield f"## {title}\n\n| code | meaning | repair |\n|---|---|---|"
        for code in CODES.values():
            if code.severity == severity:
                yield f"| `{code.name}` | {code.meaning} | {code.repair} |"
        yield ""


def _targets() -> Iterator[str]:
    yield """## Targets

`--target NAME [--version V]` says which nodes, types, opset and IR version the target cannot run. Without `--version`
the newest known one is taken. A limit that the source does not name is not checked (`–`), nor are types that it does
not name.

| target | version | opset | IR | operators | source |
|---|---|---|---|---|---|"""
    for name, versions in known_targets().items():
        for version in versions:
            target = find_target(name, version)
            assert target is not None
            opset, ir = target.opsets.get("", (None, None)), target.ir
            cells = [name, version, _range(opset), _range(ir), str(len(target.operators)), target.source]
            yield f"| {' | '.join(cells)} |"
    yield ""


def _range(limits: tuple[int | None, int | None]) -> str:
    low, high = limits
    if low is None and high is None:
        return "–"
    return f"{'' if low is None else low}–{'' if high is None else high}"


if __name__ == "__main__":
    sys.stdout.write(reference_page())
