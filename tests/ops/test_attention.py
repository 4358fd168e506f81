"""Attention: traced results equal eager ones; masks, caches and windows select the specified keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from sardonyx.errors import InvalidModelError, SardonyxError, ShapeError
from tests.ops.agreement import assert_equal, eager, model_of, traced


def draw(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(dtype)


Q, K, V = draw(2, 4, 3, 8), draw(2, 2, 5, 8), draw(2, 2, 5, 6)
PAST_K, PAST_V = draw(2, 2, 4, 8, seed=1), draw(2, 2, 4, 6, seed=1)
MASK = np.random.default_rng(3).random((2, 1, 3, 5)) < 0.6
ENDS = np.array([2, 5], np.int64)
OPEN: list[str | None] = ["B 4 S 8", "B 2 T 8", "B 2 T 6"]

CASES: list[tuple[list[np.ndarray | None], list[str | None], dict[str, Any]]] = [
    ([Q, K, V], OPEN, {}),
    ([Q, K, V], OPEN, {"is_causal": 1, "softcap": 2.0, "qk_matmul_output_mode": 1}),
    ([Q, K, V, MASK], [*OPEN, "B 1 S T"], {"qk_matmul_output_mode": 3, "scale": 0.5}),
    ([Q, K, V, draw(3, 5)], [*OPEN, "S T"], {"is_causal": 1, "qk_matmul_output_mode": 2}),
    ([Q, K, V, draw(3, 5)[:, :2]], [*OPEN, "S M"], {}),
    ([Q, K, V, None, PAST_K, PAST_V], [*OPEN, None, "B 2 P 8", "B 2 P 6"], {"is_causal": 1}),
    ([Q, K, V, None, None, None, ENDS], [*OPEN, None, None, None, "B"], {"is_causal": 1, "qk_matmul_output_mode": 3}),
    ([Q, K, V], OPEN, {"left_window_size": 1, "right_window_size": 1, "softmax_precision": 11}),
    (
        [draw(2, 3, 32), draw(2, 5, 16), draw(2, 5, 12)],
        ["B S 32", "B T 16", "B T 12"],
        {"q_num_heads": 4, "kv_num_heads": 2},
    ),
    ([Q, K[:, :, :0], V[:, :, :0]], OPEN, {}),
]


@pytest.mark.parametrize(("arrays", "shapes", "attributes"), CASES)
def test_traced_equals_eager(
    arrays: list[np.ndarray | None], shapes: list[str | None], attributes: dict[str, Any]
) -> None:
    actual = eager("Attention", arrays, opset=25, outputs=4, **attributes)
    assert_equal(traced("Attention", arrays, shapes, opset=25, outputs=4, **attributes), actual)


@pytest.mark.parametrize("case", [0, 1, 2, 3, 5, 8])
def test_equals_onnx_runtime(case: int) -> None:
    arrays, _, attributes = CASES[case]
    if attributes.get("is_causal") and arrays[0] is not None and len(arrays) < 6:
        arrays = [arrays[0], K[:, :, :3], V[:, :, :3], *(a if a is None else a[:, :3] for a in arrays[3:])]
    attributes = {k: v for k, v in attributes.items() if k != "qk_matmul_output_mode"}
    model = model_of("Attention", arrays, opset=23, outputs=3, **attributes)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, {f"i{i}": a for i, a in enumerate(arrays) if a is not None})
    assert_equal(eager("Attention", arrays, opset=23, outputs=3, **attributes), expected, 1e-4, 1e-5)


def test_a_query_without_keys_gives_zeros() -> None:
    mask = np.array([[True] * 5, [False] * 5, [True] * 5])
    y, _, _, weights = eager("Attention", [Q, K, V, mask], outputs=4, opset=25, qk_matmul_output_mode=3)
    assert not y[:, :, 1].any() and not weights[:, :, 1].any()
    np.testing.assert_allclose(weights[:, :, 0].sum(-1), 1, rtol=1e-6)


def test_queries_before_the_cache_attend_no_key() -> None:
    (weights,) = eager("Attention", [Q, K, V, None, None, None, ENDS], outputs=4, opset=25, is_causal=1,
                       qk_matmul_output_mode=3)[3:]  # fmt: skip
    seen = weights[:, 0] > 0
    np.testing.assert_array_equal(seen[0].sum(-1), [0, 1, 2])
    np.testing.assert_array_equal(seen[1].sum(-1), [3, 4, 5])


def test_a_cache_continues_earlier_steps() -> None:
    q, k, v = draw(1, 2, 6, 8), draw(1, 2, 6, 8, seed=2), draw(1, 2, 6, 8, seed=3)
    (whole,) = eager("Attention", [q, k, v], opset=23, is_causal=1)
    parts = [q[:, :, 4:], k[:, :, 4:], v[:, :, 4:], None, k[:, :, :4], v[:, :, :4]]
    y, keys, _ = eager("Attention", parts, opset=23, outputs=3, is_causal=1)
    np.testing.assert_allclose(y, whole[:, :, 4:], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(keys, k)


@pytest.mark.parametrize(
    ("arrays", "attributes", "error"),
    [
        ([draw(2, 3, 32), draw(2, 5, 16), draw(2, 5, 12)], {}, InvalidModelError),
        ([draw(2, 3, 32), draw(2, 5, 16), draw(2, 5, 12)], {"q_num_heads": 5, "kv_num_heads": 2}, ShapeError),
        ([Q, K, V, None, PAST_K], {}, InvalidModelError),
        ([Q, K, V, None, PAST_K, PAST_V, ENDS], {}, InvalidModelError),
        ([Q[:, :3], K, V], {}, ShapeError),
        ([Q, K[..., :7], V], {}, SardonyxError),
        ([Q, K, V, draw(3, 6)], {}, ShapeError),
        ([Q, K, V], {"qk_matmul_output_mode": 4}, InvalidModelError),
        ([Q, K, V], {"left_window_size": -2}, InvalidModelError),
        ([Q, K, V], {"q_num_heads": 4}, InvalidModelError),
    ],
)
def test_mismatched_inputs_are_refused(
    arrays: list[np.ndarray | None], attributes: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        eager("Attention", arrays, opset=25, **attributes)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("rotated_size", [0, 4])
@pytest.mark.parametrize("packed", [False, True])
def test_rotary_embedding_preserves_norms(interleaved: int, rotated_size: int, packed: bool) -> None:
    x = draw(2, 3, 16) if packed else draw(2, 2, 3, 8)
    angles = np.arange(7)[:, None] * 0.1 ** np.arange((rotated_size or 8) // 2)
    caches = [np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)]
    positions = np.array([[0, 3, 6], [2, 2, 5]], np.int64)
    options: dict[str, Any] = {"interleaved": interleaved, "rotary_embedding_dim": rotated_size, "opset": 23}
    if packed:
        options["num_heads"] = 2
    actual = eager("RotaryEmbedding", [x, *caches, positions], **options)
    shapes = [
        "B S 16" if packed else "B 2 S 8",
        f"M {(rotated_size or 8) // 2}",
        f"M {(rotated_size or 8) // 2}",
        "B S",
    ]
    assert_equal(traced("RotaryEmbedding", [x, *caches, positions], shapes, **options), actual)
    (direct,) = eager("RotaryEmbedding", [x, *(c[positions] for c in caches)], **options)
    np.testing.assert_array_equal(direct, actual[0])
    np.testing.assert_allclose(np.linalg.norm(actual[0]), np.linalg.norm(x), rtol=1e-5)
    at_zero = (actual[0] if packed else actual[0].swapaxes(1, 2))[0, 0]
    np.testing.assert_array_equal(at_zero, (x if packed else x.swapaxes(1, 2))[0, 0])


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize("per_key", [False, True])
def test_linear_attention_resumes_from_its_state(rule: str, per_key: bool) -> None:
    q, k, v = draw(2, 5, 4 * 3), draw(2, 5, 2 * 3), draw(2, 5, 2 * 4)
    decay = -np.abs(draw(2, 5, 6 if per_key else 2)) if "gated" in rule else None
    beta = np.abs(draw(2, 5, 2)) if "delta" in rule else None
    options: dict[str, Any] = {"q_num_heads": 4, "kv_num_heads": 2, "update_rule": rule, "opset": 27, "outputs": 2}
    arrays = [q, k, v, draw(2, 2, 3, 4), decay, beta]
    y, state = eager("LinearAttention", arrays, **options)
    shapes = ["B T 12", "B T 6", "B T 8", "B 2 3 4", "B T 6" if per_key else "B T 2", "B T 2"]
    assert_equal(traced("LinearAttention", arrays, shapes, **options), [y, state])
    first = [a if a is None or i == 3 else a[:, :2] for i, a in enumerate(arrays)]
    y1, between = eager("LinearAttention", first, **options)
    rest = [between if i == 3 else a if a is None else a[:, 2:] for i, a in enumerate(arrays)]
    y2, after = eager("LinearAttention", rest, **options)
    assert_equal([np.concatenate([y1, y2], 1), after], [y, state], 1e-5, 1e-6)
