"""The sequence of all checks: a check runs only on models that earlier checks found safe for its code."""

from __future__ import annotations

from collections.abc import Iterator

from sardonyx.base.hooks import hook
from sardonyx.errors import OptionError
from sardonyx.model.check.attribute_ranges import check_attribute_ranges
from sardonyx.model.check.commands import Commands
from sardonyx.model.check.encoding import check_encoding
from sardonyx.model.check.findings import Finding
from sardonyx.model.check.functions import check_functions
from sardonyx.model.check.imports import check_imports
from sardonyx.model.check.lint import lint_model
from sardonyx.model.check.onnx_checker import check_with_onnx
from sardonyx.model.check.onnx_inference import check_types
from sardonyx.model.check.recurrent import check_recurrent
from sardonyx.model.check.source import Source, open_source
from sardonyx.model.check.structure import check_values
from sardonyx.model.check.target_check import check_target
from sardonyx.model.check.targets import Target, find_target, known_targets
from sardonyx.model.check.tensors import check_tensors
from sardonyx.model.check.values import check_declarations
from sardonyx.model.load import Loadable

_UNSAFE_FOR_CPP = frozenset({"nesting-too-deep", "function-recursive", "function-depth", "function-expansion"})
_NOT_INFERABLE = _UNSAFE_FOR_CPP | {
    "graph-cycle",
    "graph-unsorted",
    "value-undefined",
    "function-duplicate",
    "attribute-range",
}
_UNREADABLE = frozenset(
    {
        "dimension-invalid",
        "dimension-overflow",
        "external-file",
        "external-range",
        "tensor-content",
        "tensor-size",
        "tensor-type",
    }
)
_ORDER = {"error": 0, "warning": 1, "lint": 2}


def check(
    model_or_path: Loadable,
    *,
    target: str | None = None,
    version: str | None = None,
    lint: bool = False,
) -> list[Finding]:
    """Check a model: onnx.checker with shapes, and errors that onnx.checker misses.

    Args:
        model_or_path: Anything that ``sardonyx.model.load`` accepts. A path is checked as stored on disk, with its
            external data; the contents of weights are not read (except for ``lint``).
        target: A target whose limits are checked too: a name in ``known_targets()``, or a target of
            ``sardonyx.convert_to``, which names the nodes without a form there.
        version: The target's version; None for the newest known.
        lint: True to report legal but wasteful or risky parts too. Lint reads all weights.

    Returns:
        The findings: errors first, then warnings, then lint, each in the order of the model.

    Raises:
        ModelFileError: The path or the bytes do not contain an ONNX model.
        OptionError: The target or its version is unknown.
    """
    exported = hook("export_targets")()
    exports, has_table = target in exported, target in known_targets()
    if target is not None and not exports and not has_table:
        names = ", ".join(sorted({*known_targets(), *exported}))
        raise OptionError(f"unknown target {target!r}; expected one of {names}.", where="target")
    if exports and not has_table and version is not None:
        raise OptionError(f"the target {target} has no versions.", where="version", remedy="Omit `version`.")
    chosen = None if exports and not has_table else find_target(target, version)
    source = open_source(model_or_path)
    findings = list(source.findings)
    if source.proto.HasField("graph") or not findings:
        findings += _findings(source, chosen, lint)
    if exports and not any(item.severity == "error" for item in findings):
        findings += hook("export_findings")(model_or_path, target)
    return sorted(dict.fromkeys(findings), key=lambda item: _ORDER[item.severity])


def _findings(source: Source, target: Target | None, lint: bool) -> Iterator[Finding]:
    model, commands = source.proto, Commands(source.name)
    unreadable = list(check_encoding(model))
    if unreadable:
        yield from unreadable
        return
    findings: list[Finding] = []
    findings += check_imports(model, commands)
    findings += check_functions(model)
    findings += check_values(model)
    findings += check_declarations(model, commands)
    findings += check_tensors(source)
    findings += check_attribute_ranges(model)
    codes = frozenset(item.code for item in findings if item.severity == "error")
    if not codes & _UNSAFE_FOR_CPP:
        findings += check_with_onnx(model, codes)
    if not codes & _NOT_INFERABLE:
        missing = {item.where for item in findings if item.code == "opset-missing"}
        typed = [item for item in check_types(model) if item.code != "opset-missing" or item.where not in missing]
        reasons = {(item.code, item.where): item.reason for item in typed}
        # Inference repeats findings of the checker, with the types of the inputs.
        findings = [x for x in findings if not reasons.get((x.code, x.where), "").startswith(x.reason)]
        findings += typed
        findings += check_recurrent(model)
    yield from findings
    if target is not None:
        yield from check_target(model, target, commands, inferable=not codes & _NOT_INFERABLE)
    if lint and not codes & _NOT_INFERABLE:
        broken = frozenset(item.where for item in findings if item.code in _UNREADABLE)
        yield from lint_model(source, commands, broken)
