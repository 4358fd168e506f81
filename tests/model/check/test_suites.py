"""Public suites: models that must be refused, and models that must be accepted."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path

import onnx
import pytest
from tests.suites.archives import unpacked

from sardonyx.model import load
from sardonyx.model.check import check

SUITES = os.environ.get("SARDONYX_SUITES", "")
needs_suites = pytest.mark.skipif(not SUITES, reason="SARDONYX_SUITES does not name the folder of the public suites")

# Files that are valid under another reading, with the reason why they are accepted.
ACCEPTED = {
    "checker_test.py.TestChecker.test_check_model_protobuf_size_over_limit_raises__0.onnx": (
        "a valid, small model: its test lowers the size limit of 2 GB to a few bytes; test_external.py covers files "
        "beyond the true limit"
    ),
}
# Public models that break the specification, with their errors.
BROKEN = {"squeezenet_coreml.onnx": {("type-mismatch", "node LabelLoader (Constant)")}}


@functools.cache
def negatives(folder: Path) -> list[dict[str, str]]:
    unpacked(Path(SUITES) / "negative.tar.xz", folder)
    (index,) = folder.rglob("_index.json")
    entries: list[dict[str, str]] = json.loads(index.read_text())
    return [{**entry, "path": str(index.parent / entry["file"])} for entry in entries]


@needs_suites
def test_models_that_must_be_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    entries = negatives(tmp_path_factory.mktemp("negative"))
    checked = [entry for entry in entries if "version_converter" not in entry["api"]]
    assert (len(entries), len(checked)) == (281, 230)
    for entry in checked:
        errors = [item for item in check(entry["path"]) if item.severity == "error"]
        if entry["file"] in ACCEPTED:
            assert errors == []
            continue
        assert errors, entry
        assert all(str(item.where) != "model" for item in errors), [str(item) for item in errors]


@needs_suites
def test_the_location_names_the_same_operator_as_the_suite(tmp_path_factory: pytest.TempPathFactory) -> None:
    for entry in negatives(tmp_path_factory.mktemp("negative")):
        operator = entry["err"].partition("Inference error(s): (op_type:")[2].partition(")")[0].partition(",")[0]
        if "infer_shapes" not in entry["api"] or not operator:
            continue
        errors = [item for item in check(entry["path"]) if item.severity == "error"]
        locations = [f"{item.where.graph} {item.where.op_type}" for item in errors]
        assert any(operator in location for location in locations), (entry["file"], locations)


@needs_suites
def test_public_models_are_valid() -> None:
    paths = sorted((Path(SUITES) / "real").glob("*.onnx"))
    assert len(paths) == 26
    for path in paths:
        errors = {(item.code, str(item.where)) for item in check(path) if item.severity == "error"}
        assert errors == BROKEN.get(path.name, set()), path.name


@needs_suites
def test_public_models_give_equal_findings_from_path_message_and_model() -> None:
    for path in sorted((Path(SUITES) / "real").glob("*.onnx"))[::4]:
        seen = [[item.as_dict() for item in check(source, lint=True)] for source in (path, load(path), onnx.load(path))]
        for findings in seen:
            for item in findings:
                item["command"] = ""
        assert seen[0] == seen[1] == seen[2], path.name
