"""The reference page of all finding codes and targets.

``python -m sardonyx.model.check.reference > docs/reference/check.md`` generates the page.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from sardonyx.model.check.codes import CODES
from sardonyx.model.check.targets import find_target, known_targets

_HEAD = """# Findings of `sardonyx check`

`sardonyx check model.onnx` runs `onnx.checker` with strict shape inference, and checks for errors that these miss. A
path is checked as stored on disk, with its external data; weights are read only for `--lint`. Each finding has a
severity, a code, a location (graph path, node, tensor), a reason, a remedy and, if a command can repair the problem,
the command line. In Python: `sardonyx.check(model, target=None, version=None, lint=False)` returns a list of `Finding`;
`Finding.as_dict()` has the fields that `--json` prints.

Structure is checked first and without recursion: cycles, recursive functions, calls or bodies nested too deep. After
one of the last three, the C++ checks do not run at all; after undefined names, unsorted nodes or attributes that
inference does not survive, types are not inferred. A first finding may therefore hide later ones: repair the model and
check again.

An **error** means that the model breaks the ONNX specification, or that the named target cannot run the model (exit
code 1). A **warning** is legal and likely to be refused or misread by some tools. **Lint** (`--lint`) is legal, but
wasteful or risky.
"""

_TITLES = {"error": "Errors", "warning": "Warnings", "lint": "Lint"}


def reference_page() -> str:
    """Return the page as Markdown: all codes with meaning and repair, all targets with version and source."""
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

`--target NAME [--version V]` reports nodes, types, opset and IR version that the target cannot run. Without `--version`
the newest known version applies. Limits and types that the source does not name are not checked (`–`).

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
