"""Paired latency of models; see ``sardonyx.rewrite.measure``, which the gates of targets use too."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sardonyx.rewrite.measure import Latency, measure
from sardonyx.rewrite.regression_gate import ask


def paired_seconds(latency: Latency) -> tuple[float, float]:
    """Return comparable seconds of the first and the last model.

    The first is the median of the first model's runs; the second is the first times the median ratio of the pairs, so
    that drift of the machine's speed cancels and the change equals the paired change. The medians of the two models'
    runs would not have this property: drift may even reverse their order.
    """
    before = latency.seconds[0]
    return before, before * latency.ratio


def measure_in_child(
    paths: Sequence[str | os.PathLike[str]], *, feeds: Mapping[str, Any] | None = None, budget: float = 2.0
) -> Latency:
    """Measure in ONNX Runtime, in a child process: a crash of the engine ends only the child.

    Raises:
        EvaluationError: A model does not load, fails on all random inputs, or crashes the engine.
    """
    with tempfile.TemporaryDirectory(prefix="sardonyx-latency-") as folder:
        stored = Path(folder) / "feeds.pickle"
        if feeds is not None:
            stored.write_bytes(pickle.dumps(dict(feeds)))
        names = [os.fspath(path) for path in paths]
        answer = ask({"do": "measure", "paths": names, "engine": "onnxruntime", "feeds": str(stored), "budget": budget})
    return Latency.read(answer)


__all__ = ["Latency", "measure", "measure_in_child", "paired_seconds"]
