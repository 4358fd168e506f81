"""CDist in the metrics that skl2onnx writes, against scipy's definitions in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.errors import InvalidModelError
from tests.ops.agreement import assert_equal, by_session, model_of, traced

A, B = np.random.default_rng(2).standard_normal((5, 4)), np.random.default_rng(3).standard_normal((6, 4))
DIFFERENCE = np.abs(A[:, None] - B[None])

METRICS: list[tuple[dict[str, Any], np.ndarray]] = [
    ({}, (DIFFERENCE**2).sum(-1)),
    ({"metric": "sqeuclidean"}, (DIFFERENCE**2).sum(-1)),
    ({"metric": "euclidean"}, np.sqrt((DIFFERENCE**2).sum(-1))),
    ({"metric": "cityblock"}, DIFFERENCE.sum(-1)),
    ({"metric": "manhattan", "p": 3.0}, DIFFERENCE.sum(-1)),
    ({"metric": "chebyshev"}, DIFFERENCE.max(-1)),
    ({"metric": "minkowski"}, np.sqrt((DIFFERENCE**2).sum(-1))),
    ({"metric": "minkowski", "p": 1.0}, DIFFERENCE.sum(-1)),
    ({"metric": "minkowski", "p": 3.0}, np.cbrt((DIFFERENCE**3).sum(-1))),
    ({"metric": "minkowski", "p": float("inf")}, DIFFERENCE.max(-1)),
]


@pytest.mark.parametrize(("attributes", "expected"), METRICS, ids=[str(attributes) for attributes, _ in METRICS])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_distances_of_rows(attributes: dict[str, Any], expected: np.ndarray, dtype: Any) -> None:
    arrays = [A.astype(dtype), B.astype(dtype)]
    proto = model_of("CDist", arrays, opset=1, outputs=1, domain="com.microsoft", **attributes)
    rtol = 1e-5 if dtype == np.float32 else 1e-12
    actual = by_session(proto, arrays)
    assert_equal(actual, [expected.astype(dtype)], rtol=rtol, atol=rtol)
    options = {"opset": 1, "outputs": 1, "domain": "com.microsoft", **attributes}
    assert_equal(traced("CDist", arrays, ["M 4", "N 4"], **options), actual, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("metric", ["chebyshev", "cityblock", "euclidean"])
def test_rows_without_elements_have_no_distance(metric: str) -> None:
    arrays = [np.zeros((2, 0), np.float32), np.zeros((3, 0), np.float32)]
    proto = model_of("CDist", arrays, opset=1, outputs=1, domain="com.microsoft", metric=metric)
    assert_equal(by_session(proto, arrays), [np.zeros((2, 3), np.float32)])


@pytest.mark.parametrize("attributes", [{"metric": "cosine"}, {"metric": "minkowski", "p": 0.0}], ids=str)
def test_other_metrics_are_refused(attributes: dict[str, Any]) -> None:
    proto = model_of("CDist", [A, B], opset=1, outputs=1, domain="com.microsoft", **attributes)
    with pytest.raises(InvalidModelError, match="CDist"):
        by_session(proto, [A, B])
