"""Findings of ``sardonyx check --target`` for export targets: nodes without a form, and conversions that go wrong.

Programs of others convert some models to files that their engines do not run, or that compute another function. A
target that such a program converts to is therefore tried: the finding is that of the conversion.
"""

from __future__ import annotations

from collections.abc import Iterator

from sardonyx.errors import SardonyxError
from sardonyx.export.artifact import Options, Refusal
from sardonyx.export.exporting import loaded, proof_of, simplified_model
from sardonyx.export.targets import exporter_of, missing_packages, target_of
from sardonyx.model.check import known_targets
from sardonyx.model.check.codes import finding
from sardonyx.model.check.findings import Finding, Location
from sardonyx.model.load import Loadable


def export_findings(model: Loadable, target: str) -> Iterator[Finding]:
    """Yield a finding for each node or tensor that an export target has no form for.

    Raises:
        MissingDependencyError: A package of the target is not installed, and no table lists the target's operators.
    """
    row = target_of(target)
    if target in known_targets() and missing_packages(row):
        return  # The table of the target's operators decides alone.
    exporter = exporter_of(row)
    try:
        source, _ = loaded(model, row, {})
    except SardonyxError as error:
        yield finding("target-form", error.problem, Location(item=error.where), remedy=error.remedy)
        return
    simplified, _ = simplified_model(source)
    try:
        artifact = exporter.export(simplified, Options()) if row.is_foreign else None
    except SardonyxError:
        artifact = None
    if artifact is not None:
        verdict = proof_of(source, artifact, None, 0).verdict
        if verdict.status == "different":
            yield _finding(
                Refusal("model", "", f"the converted model does not answer as the model does: {verdict.reason}"), target
            )
        return
    for one in exporter.refusals(simplified, Options()):
        yield _finding(one, target)


def _finding(one: Refusal, target: str) -> Finding:
    where = Location(node=one.where, op_type=one.operator) if one.operator else Location(tensor=one.where)
    return finding("target-form", f"{target}: {one.rule}", where, remedy=one.remedy)
