"""Conversions refused by the tests of onnx: a correct model, or an error naming the node."""

from __future__ import annotations

import ast
import json
import os
import tarfile
from pathlib import Path

import numpy as np
import onnx
import pytest

from sardonyx import model as model_io
from sardonyx.errors import EvaluationError, SardonyxError
from sardonyx.rewrite.opset import convert_opset
from tests.rewrite.opset.running import answers, difference, draw

_SUITES = os.environ.get("SARDONYX_SUITES", "")
pytestmark = pytest.mark.skipif(not _SUITES, reason="SARDONYX_SUITES does not name the folder of public models")


def _entries(archive: Path) -> list[tuple[str, bytes, int]]:
    """Name, model and target of every conversion in the archive."""
    with tarfile.open(archive) as files:
        contents = {Path(member.name).name: member for member in files.getmembers() if member.isfile()}

        def read(name: str) -> bytes:
            stream = files.extractfile(contents[name])
            assert stream is not None
            return stream.read()

        index = json.loads(read("_index.json"))
        return [
            (entry["test"].rpartition(".")[2], read(entry["file"]), _target(entry["args"]))
            for entry in index
            if "convert_version" in entry["api"]
        ]


def _target(arguments: list[str] | str) -> int:
    listed = ast.literal_eval(arguments) if isinstance(arguments, str) else arguments
    return int(listed[0])


def test_each_conversion_is_correct_or_refused_by_name() -> None:
    entries = _entries(Path(_SUITES) / "negative.tar.xz")
    assert len(entries) == 51
    wrong: list[str] = []
    converted = 0
    for name, content, target in entries:
        proto = onnx.ModelProto.FromString(content)
        try:
            result = model_io.to_proto(convert_opset(model_io.load(content), target))
        except SardonyxError as error:
            if not error.where:
                wrong.append(f"{name}: the error names no place: {error}")
            continue
        converted += 1
        fault = _fault(proto, result)
        if fault is not None:
            wrong.append(f"{name}: {fault}")
    assert not wrong, "\n".join(wrong)
    assert converted >= 15


def _fault(before: onnx.ModelProto, after: onnx.ModelProto) -> str | None:
    onnx.checker.check_model(after, full_check=True)
    feeds = {name: np.zeros_like(value) if value.dtype.kind in "iu" else value for name, value in draw(before).items()}
    try:
        expected = answers(before, feeds)
    except EvaluationError:
        return None if _cannot_run(after, feeds) else "runs, though the original does not"
    got = answers(after, feeds)
    return next((f for name in expected if (f := difference(got[name], expected[name])) is not None), None)


def _cannot_run(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> bool:
    try:
        answers(proto, feeds)
    except EvaluationError:
        return True
    return False
