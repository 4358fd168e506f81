"""Latency of models side by side; see ``sardonyx.rewrite.measure``, which the gates of targets use too."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sardonyx.rewrite.measure import Latency, measure
from sardonyx.rewrite.regression_gate import ask


def measure_apart(
    paths: Sequence[str | os.PathLike[str]], *, feeds: Mapping[str, Any] | None = None, budget: float = 2.0
) -> Latency:
    """As ``measure`` in ONNX Runtime, in a process of its own: where the engine crashes, it takes nothing with it.

    Raises:
        EvaluationError: a model does not load, runs on none of the inputs drawn, or crashes the engine.
    """
    with tempfile.TemporaryDirectory(prefix="sardonyx-latency-") as folder:
        stored = Path(folder) / "feeds.pickle"
        if feeds is not None:
            stored.write_bytes(pickle.dumps(dict(feeds)))
        names = [os.fspath(path) for path in paths]
        answer = ask({"do": "measure", "paths": names, "engine": "onnxruntime", "feeds": str(stored), "budget": budget})
    return Latency.read(answer)


__all__ = ["Latency", "measure", "measure_apart"]
