"""Evidence of a lossy change: errors of outputs, metrics with paired intervals, verdicts, the record in the file."""

from sardonyx.compress.evidence.change import (
    MetricChange,
    Verdict,
    compare_metrics,
    metric_change,
    require_metric,
    standard_error,
)
from sardonyx.compress.evidence.judgement import judge, judged_by
from sardonyx.compress.evidence.labels import read_labels, stored_metric
from sardonyx.compress.evidence.layers import LayerError, layers_that_hurt
from sardonyx.compress.evidence.measurement import Evaluate, Measurement, measure
from sardonyx.compress.evidence.metrics import METRICS, metric
from sardonyx.compress.evidence.outputs import (
    OutputError,
    RecordedOutputs,
    output_errors,
    record_outputs,
    record_stacked,
)
from sardonyx.compress.evidence.record import HELD_OUT, ON_FITTED, WITHOUT_DATA, Evidence, plain, store
from sardonyx.compress.evidence.result import CompressionResult

__all__ = [
    "HELD_OUT",
    "METRICS",
    "ON_FITTED",
    "WITHOUT_DATA",
    "CompressionResult",
    "Evaluate",
    "Evidence",
    "LayerError",
    "Measurement",
    "MetricChange",
    "OutputError",
    "RecordedOutputs",
    "Verdict",
    "compare_metrics",
    "judge",
    "judged_by",
    "layers_that_hurt",
    "measure",
    "metric",
    "metric_change",
    "output_errors",
    "plain",
    "read_labels",
    "record_outputs",
    "record_stacked",
    "require_metric",
    "standard_error",
    "store",
    "stored_metric",
]
