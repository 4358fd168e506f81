"""Every public model survives a round trip through text, field by field."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx
import pytest

from sardonyx.model import text, textproto

pytestmark = pytest.mark.sampled

_SUITES = os.environ.get("SARDONYX_SUITES")
_REAL = sorted(Path(_SUITES, "real").glob("*.onnx")) if _SUITES else []
_SKELETONS = sorted(Path(_SUITES, "..", "models").glob("*.onnx")) if _SUITES else []

needs_suites = pytest.mark.skipif(not _SUITES, reason="SARDONYX_SUITES does not name the folder of public models")
forms = pytest.mark.parametrize("form", [text, textproto], ids=["onnx-text", "textproto"])


def assert_returns(form: ModuleType, model: onnx.ModelProto) -> None:
    printed = form.print_model(model)
    again = form.parse(printed)
    assert again == model
    assert again.SerializeToString(deterministic=True) == model.SerializeToString(deterministic=True)
    assert text.sniff(printed) == text.sniff(printed[:200].encode()) != "binary"


@needs_suites
def test_all_public_models_are_there() -> None:
    assert (len(_REAL), len(_SKELETONS)) == (26, 26)


@needs_suites
@forms
@pytest.mark.parametrize("path", _REAL, ids=lambda path: path.stem)
def test_real_model(path: Path, form: ModuleType) -> None:
    assert text.sniff(path.read_bytes()[:500]) == "binary"
    assert_returns(form, onnx.load(path))


@needs_suites
@forms
@pytest.mark.parametrize("path", _SKELETONS, ids=lambda path: path.stem)
def test_graph_of_materialized_model(path: Path, form: ModuleType) -> None:
    assert_returns(form, onnx.load(path))


@needs_suites
@pytest.mark.long
@pytest.mark.parametrize("path", _SKELETONS, ids=lambda path: path.stem)
def test_materialized_model(path: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, path.parent / "materialize.py", tmp_path, path.stem], check=True)
    full = tmp_path / path.name
    model = onnx.load(full)
    assert_returns(text, model)
    if full.stat().st_size < 100_000_000:
        assert_returns(textproto, model)
    full.unlink()


def by_size(path: Path) -> Any:
    """Mark large models as long: onnx's own parser needs seconds for a megabyte of weights."""
    small = path.stat().st_size < 300_000
    return pytest.param(path, id=path.stem, marks=() if small else pytest.mark.long)


@needs_suites
@pytest.mark.parametrize("path", [by_size(path) for path in _REAL])
def test_text_printed_by_onnx_parses_as_with_onnx(path: Path) -> None:
    try:
        printed = onnx.printer.to_text(onnx.load(path))
        expected = onnx.parser.parse_model(printed)
    except (onnx.parser.ParseError, UnicodeDecodeError) as error:
        pytest.skip(f"onnx's own parser refuses what its printer wrote: {str(error)[-80:]}")
    assert text.parse(printed) == expected
