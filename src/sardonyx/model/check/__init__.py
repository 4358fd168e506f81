"""Checks a model: onnx.checker with shapes, what it misses, lint, and what a target can run."""

from sardonyx.model.check.all_checks import check
from sardonyx.model.check.codes import CODES
from sardonyx.model.check.findings import Code, Finding, Place, Severity
from sardonyx.model.check.targets import known_targets

__all__ = ["CODES", "Code", "Finding", "Place", "Severity", "check", "known_targets"]
