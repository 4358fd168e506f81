"""Models of onnx's backend test suite: our parser and onnx's agree on the output of either printer."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import onnx
import onnx.backend.test
import pytest
from tests.random_cases import drawn

from sardonyx.model import text, textproto

_DATA = Path(onnx.backend.test.__file__).parent / "data"
_MODELS = sorted(_DATA.rglob("*.onnx"))


def without_annotations(printed: str) -> str:
    return re.sub(r"#@[^\n]*", "", printed)


def assert_shared_with_onnx(model: onnx.ModelProto) -> None:
    """Check that both parsers return the same for the output of either printer."""
    printed = text.print_model(model)
    assert text.parse(printed) == model
    assert onnx.parser.parse_model(printed) == text.parse(without_annotations(printed))
    theirs = onnx.printer.to_text(model)
    assert text.parse(theirs) == onnx.parser.parse_model(theirs)


def test_the_suite_is_there() -> None:
    assert len(_MODELS) > 100


@pytest.mark.sampled
def test_models_of_the_wheel() -> None:
    longer = []
    for path in drawn(_MODELS):
        model = onnx.load(path, load_external_data=False)
        assert textproto.parse(textproto.print_model(model)) == model, path
        try:
            assert_shared_with_onnx(model)
        except onnx.parser.ParseError:
            assert text.parse(text.print_model(model)) == model, path
            longer.append(path.parent.name)
    assert set(longer) <= {"test_operator_conv"}, "onnx's parser refuses base64 and nothing else of these"


@pytest.mark.long
def test_node_models() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        cases = collect_testcases(None)
    assert len(cases) > 1500
    for case in cases:
        assert_shared_with_onnx(case.model)
        assert textproto.parse(textproto.print_model(case.model)) == case.model, case.name
