"""Model checks: onnx.checker with shapes, further errors, lint, and the limits of targets."""

from sardonyx.model.check.all_checks import check
from sardonyx.model.check.codes import CODES
from sardonyx.model.check.findings import Code, Finding, Location, Severity
from sardonyx.model.check.targets import known_targets

__all__ = ["CODES", "Code", "Finding", "Location", "Severity", "check", "known_targets"]
