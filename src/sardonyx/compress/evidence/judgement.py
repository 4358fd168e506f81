"""The judgement of a result that no search chose: errors of the outputs and the metric, on samples held out."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.compress.evidence.change import compare_metrics
from sardonyx.compress.evidence.measurement import Evaluate
from sardonyx.compress.evidence.outputs import output_errors
from sardonyx.compress.evidence.record import HELD_OUT, ON_FITTED, WITHOUT_DATA, Evidence
from sardonyx.compress.samples import Split


def judged_by(split: Split | None) -> str:
    """Return the samples that judge, in words."""
    return WITHOUT_DATA if split is None else HELD_OUT if split.is_held_out else ON_FITTED


def judge(
    source: ir.Model, result: ir.Model, split: Split | None, evaluate: Evaluate | None, drop: float | None
) -> Evidence:
    """Return the evidence of a changed model.

    Args:
        source: The original.
        result: The changed model.
        split: The samples, of which all that are not judged were read; None without data.
        evaluate: The metric; None for the outputs alone.
        drop: The largest permitted loss of the metric.

    Raises:
        EvaluationError: The evaluate function raised, or an output of the original is not finite.
        SardonyxError: A model does not run.
    """
    outputs = () if split is None else output_errors(source, result, split.judged)
    change = None if evaluate is None else compare_metrics(source, result, evaluate, drop)
    return Evidence(0 if split is None else split.count, judged_by(split), outputs, change)
