"""The evidence of a compression, and its place in the metadata of a model."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import onnx_ir as ir

from sardonyx.compress.evidence.change import MetricChange, Verdict
from sardonyx.compress.evidence.outputs import OutputError

HELD_OUT, ON_FITTED, WITHOUT_DATA = "held out", "calibration samples", "not judged (no data)"
"""The samples that judge: none of them learned from, too few to hold back, or no samples."""


@dataclass(frozen=True)
class Evidence:
    """The evidence of a compression.

    Attributes:
        samples: The number of samples of the data.
        judged: The samples that judge the errors of outputs: ``"held out"``, ``"calibration samples"`` or
            ``"not judged (no data)"``.
        outputs: The errors of the float outputs.
        metric: The metric before and after; None without an evaluate function.
        least_sqnr: The smallest permitted SQNR of an output in dB; None without such a budget.
    """

    samples: int
    judged: str
    outputs: tuple[OutputError, ...] = ()
    metric: MetricChange | None = None
    least_sqnr: float | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict: the worse of the metric's and the outputs'."""
        verdicts: list[Verdict] = []
        if self.metric is not None and self.metric.drop is not None:
            verdicts.append(self.metric.verdict)
        if self.least_sqnr is not None:
            worst = min((error.sqnr for error in self.outputs), default=None)
            if worst is not None and worst < self.least_sqnr:
                verdicts.append("not kept")
            else:
                verdicts.append("kept" if worst is not None and self.judged == HELD_OUT else "not judged")
        order: tuple[Verdict, ...] = ("not kept", "not judged", "kept")
        return min(verdicts, key=order.index, default="not judged")

    @property
    def reason(self) -> str:
        """The verdict in words."""
        if self.metric is not None and self.metric.drop is not None and self.metric.verdict == self.verdict:
            return self.metric.reason
        if self.least_sqnr is not None:
            worst = min((error.sqnr for error in self.outputs), default=None)
            if worst is None:
                return "no output was measured"
            return f"the worst output has {worst:.1f} dB ({self.judged}), the budget is {self.least_sqnr:g} dB"
        if not self.outputs and self.judged != WITHOUT_DATA:
            return "no output has elements in the judged samples"
        return "no budget of accuracy was stated" if self.outputs else self.judged


def store(model: ir.Model, verb: str, report: Any) -> None:
    """Write a report into the metadata of a model, as JSON under ``sardonyx.<verb>``.

    Args:
        model: The model, which is changed.
        verb: The verb that made the report.
        report: A data class.
    """
    model.metadata_props[f"sardonyx.{verb}"] = json.dumps(plain(report), allow_nan=False)


def plain(report: Any) -> Any:
    """Return a report as data that JSON can hold; infinities and NaN become texts."""
    if is_dataclass(report) and not isinstance(report, type):
        data = {field.name: plain(getattr(report, field.name)) for field in fields(report)}
        if isinstance(report, Evidence):
            data |= {"verdict": report.verdict, "reason": report.reason}
        return data
    if isinstance(report, Mapping):
        return {str(name): plain(value) for name, value in report.items()}
    if isinstance(report, (list, tuple, set, frozenset)):
        return [plain(value) for value in report]
    if isinstance(report, float) and not math.isfinite(report):
        return str(report)
    return report if isinstance(report, (str, int, float, bool, type(None))) else str(report)
