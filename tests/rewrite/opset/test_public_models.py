"""Trained public models, up and down: equal answers, or a refusal that names the node."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from sardonyx import model as model_io
from sardonyx.errors import OpsetConversionError
from sardonyx.rewrite.evaluate import runner
from sardonyx.rewrite.opset import convert_opset

_SUITES = os.environ.get("SARDONYX_SUITES", "")
pytestmark = [
    pytest.mark.sampled,
    pytest.mark.skipif(not _SUITES, reason="SARDONYX_SUITES does not name the folder of public models"),
]

_QUICK_BYTES = 1_000_000
TARGETS = (21, 26, 13, 11, 9, 7)


def _models() -> list[Path]:
    return sorted(Path(_SUITES, "real").glob("*.onnx")) if _SUITES else []


def _cases() -> list[Any]:
    marks = {path: () if path.stat().st_size < _QUICK_BYTES else (pytest.mark.long,) for path in _models()}
    return [pytest.param(path, id=path.stem, marks=marks[path]) for path in marks]


def _feeds(path: Path) -> dict[str, np.ndarray]:
    with np.load(path.with_suffix(".npz"), allow_pickle=True) as stored:
        return {name.removeprefix("in::"): stored[name] for name in stored.files if name.startswith("in::")}


def _close(got: Any, expected: Any) -> bool:
    if not isinstance(expected, np.ndarray) or expected.dtype.kind not in "fiub":
        return str(got) == str(expected)
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    if expected.dtype.kind in "iub":
        return bool((got == expected).all())
    scale = float(np.abs(expected).max(initial=0.0))
    return np.allclose(got, expected, rtol=1e-3, atol=1e-4 * scale, equal_nan=True)


def _version(proto: onnx.ModelProto) -> int | None:
    return next((entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), None)


@pytest.mark.parametrize("path", _cases())
def test_outputs_are_preserved(path: Path) -> None:
    proto = onnx.load(path)
    version = _version(proto)
    if version is None:
        pytest.skip("the model uses no operator of the default domain")
    feeds = _feeds(path)
    expected = runner(proto).run(feeds)
    model = model_io.load(path)
    for target in TARGETS:
        try:
            converted = model_io.to_proto(convert_opset(model, target))
        except OpsetConversionError as refusal:
            assert refusal.where, refusal
            assert target < version, f"{path.stem} to {target}: {refusal}"
            continue
        converted.ir_version = min(converted.ir_version, 11)
        got = runner(converted).run(feeds)
        assert [v.name for v in converted.graph.output] == [v.name for v in proto.graph.output]
        for name, value in expected.items():
            assert _close(got[name], value), f"{path.stem} to {target}: {name}"


def test_every_listed_model_exists() -> None:
    listed = json.loads(Path(_SUITES, "real", "index.json").read_text())
    assert len(_models()) == len(listed)
