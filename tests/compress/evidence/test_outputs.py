"""Errors of outputs where numbers are not finite."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import sardonyx
from sardonyx.compress.evidence import output_errors
from sardonyx.errors import EvaluationError

HEAD = '<ir_version: 9, opset_import: ["": 17]> n (float[N] x) => (float[N] y)'
DIFFERENCE = HEAD + " { y = Sub(x, x) }"
LIMITED = HEAD + " <float low = {-9}, float high = {9}> { a = Clip(x, low, high) y = Sub(a, a) }"
ROOT = HEAD + " { y = Log(x) }"


def model_of(text: str) -> ir.Model:
    return sardonyx.load(onnx.parser.parse_model(text))


def test_nan_of_the_original_judges_no_result() -> None:
    samples = [{"x": np.ones(2, np.float32)}, {"x": np.array([1, np.inf], np.float32)}]
    with pytest.raises(EvaluationError, match="sample 1, x: the sample holds infinity"):
        output_errors(model_of(DIFFERENCE), model_of(LIMITED), samples)
    negative = [{"x": np.ones(2, np.float32)}, {"x": np.array([1, -1], np.float32)}]
    with pytest.raises(EvaluationError, match="y, sample 1: the original computes NaN"):
        output_errors(model_of(ROOT), model_of(LIMITED), negative)


def test_nan_of_the_result_alone_is_an_error_of_infinite_size() -> None:
    samples = [{"x": np.array([1, np.inf], np.float32)}]
    (error,) = output_errors(model_of(LIMITED), model_of(DIFFERENCE), samples)
    assert error.sqnr == -math.inf


def test_equal_nan_is_no_error() -> None:
    (error,) = output_errors(model_of(ROOT), model_of(ROOT), [{"x": np.array([2, -1, 0], np.float32)}])
    assert error.sqnr == math.inf
