"""Detection: boxes are suppressed by overlap, in order of score; equal to ONNX Runtime on random boxes."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from sardonyx.errors import ExecutionError, ShapeError
from tests.ops.agreement import assert_equal, eager, model_of, traced

BOXES = np.array([[[0, 0, 2, 2], [2, 2, 0, 0], [0, 1, 2, 3], [5, 5, 6, 6]]], np.float32)
SCORES = np.array([[[0.5, 0.9, 0.8, 0.1]]], np.float32)


def chosen(most: int | None, overlap: float | None, score: float | None, centered: int = 0) -> list[int]:
    arrays = [
        BOXES,
        SCORES,
        None if most is None else np.array([most]),
        None if overlap is None else np.array([overlap], np.float32),
        None if score is None else np.array(score, np.float32),
    ]
    (actual,) = eager("NonMaxSuppression", arrays, center_point_box=centered)
    assert actual.shape == (len(actual), 3) and actual.dtype == np.int64 and not actual[:, :2].any()
    return actual[:, 2].tolist()  # type: ignore[no-any-return]


def test_boxes_are_suppressed_by_overlap_score_and_index() -> None:
    assert chosen(9, 0.5, None) == [1, 2, 3]
    assert chosen(9, 0.2, None) == [1, 3]
    assert chosen(9, 1.0, None) == [1, 2, 0, 3]
    assert chosen(9, 0.5, 0.1) == [1, 2]
    assert chosen(1, 0.5, None) == [1]
    assert chosen(None, 0.5, None) == []


@pytest.mark.parametrize("seed", range(12))
def test_equals_onnx_runtime(seed: int) -> None:
    rng = np.random.default_rng(seed)
    batch, classes, count = (int(n) for n in rng.integers(1, (3, 3, 12)))
    boxes = (rng.integers(0, 6, (batch, count, 4)) / 4).astype(np.float32)
    scores = (rng.integers(0, 6, (batch, classes, count)) / 5).astype(np.float32)
    overlap, score = (np.array([v], np.float32) for v in (rng.choice([0, 0.25, 0.5]), rng.choice([0, 0.4])))
    arrays = [boxes, scores, np.array([rng.integers(1, 6)]), overlap, score]
    model = model_of("NonMaxSuppression", arrays, opset=11, outputs=1, center_point_box=seed % 2)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, {f"i{i}": a for i, a in enumerate(arrays)})
    actual = eager("NonMaxSuppression", arrays, center_point_box=seed % 2)
    assert_equal(actual, expected)
    shapes = ["B N 4", "B C N", "1", "1", "1"]
    assert_equal(traced("NonMaxSuppression", arrays, shapes, center_point_box=seed % 2), actual)


def test_mismatched_inputs_are_refused() -> None:
    with pytest.raises(ShapeError):
        eager("NonMaxSuppression", [BOXES, SCORES[..., :3]])
    with pytest.raises(ExecutionError):
        chosen(9, 1.5, None)
