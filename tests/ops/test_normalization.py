"""Normalizations equal ONNX Runtime, or their formula where it has none, at known and at open sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import sardonyx
from sardonyx.errors import InvalidModelError, SardonyxError, ShapeError
from tests.ops.agreement import assert_agrees, assert_equal, eager, traced

RNG = np.random.default_rng(5)


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def image(n: int, channels: int | str = "C") -> str:
    return f"N {channels} " + " ".join("HWD"[:n])


@pytest.mark.parametrize("n", [0, 1, 2, 3])
@pytest.mark.parametrize(("opset", "training"), [(7, 0), (9, 0), (14, 0), (14, 1), (15, 1)])
def test_batch_normalization(n: int, opset: int, training: int) -> None:
    arrays = [draw(2, 3, *(4, 2, 3)[:n]), draw(3), draw(3), draw(3), np.abs(draw(3)) + 0.1]
    options: dict[str, Any] = {"epsilon": 1e-3, "momentum": 0.7, **({"training_mode": 1} if training else {})}
    shapes = [image(n), None, None, None, None]
    assert_agrees("BatchNormalization", arrays, shapes, opset=opset, outputs=3 if training else 1, **options)


@pytest.mark.parametrize(
    ("opset", "options", "outputs", "spatial"),
    [
        *[(6, {}, 5, spatial) for spatial in (0, 1)],
        *[(6, {"is_test": 1}, 1, spatial) for spatial in (0, 1)],
        *[(7, {}, outputs, spatial) for outputs in (1, 5) for spatial in (0, 1)],
        (9, {}, 5, 1),
    ],
)
def test_batch_normalization_before_it_had_a_training_mode(
    opset: int, options: dict[str, Any], outputs: int, spatial: int
) -> None:
    x, per = draw(5, 3, 4, 2), (3,) if spatial else (3, 4, 2)
    scale, b, mean, var = draw(*per), draw(*per), draw(*per), np.abs(draw(*per)) + 0.1
    options = options | ({"spatial": 0} if not spatial else {})
    actual = eager("BatchNormalization", [x, scale, b, mean, var], opset=opset, outputs=outputs, **options)
    axes = (0, 2, 3) if spatial else (0,)
    now_mean, now_var = x.mean(axes), x.var(axes)
    used = (mean, var) if outputs == 1 else (now_mean, now_var)
    form = (1, 3, 1, 1) if spatial else (1, 3, 4, 2)
    shift, spread, s, o = (v.reshape(form) for v in (*used, scale, b))
    expected = [(x - shift) / np.sqrt(spread + 1e-5) * s + o]
    if outputs == 5:
        expected += [mean * 0.9 + now_mean * 0.1, var * 0.9 + now_var * 0.1, now_mean, now_var]
    assert_equal(actual, [w.astype(np.float32) for w in expected], rtol=1e-4, atol=1e-5)


def test_batch_normalization_of_one_axis_has_one_channel() -> None:
    arrays = [draw(4), draw(1), draw(1), draw(1), np.abs(draw(1))]
    x, s, b, m, v = arrays
    assert_equal(eager("BatchNormalization", arrays), [(x - m) / np.sqrt(v + 1e-5) * s + b], rtol=1e-5)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_instance_normalization(n: int) -> None:
    assert_agrees(
        "InstanceNormalization", [draw(2, 3, *(4, 2, 3)[:n]), draw(3), draw(3)], [image(n), None, None], opset=6
    )


@pytest.mark.parametrize("axis", [-1, 0, 1, -2])
@pytest.mark.parametrize("biased", [True, False])
def test_layer_normalization(axis: int, biased: bool) -> None:
    x = draw(2, 3, 4)
    arrays = [x, draw(*x.shape[axis:]), draw(*x.shape[axis:]) if biased else None]
    assert_agrees("LayerNormalization", arrays, ["A B C", None, None], opset=17, outputs=3, axis=axis, epsilon=1e-3)


def test_layer_normalization_is_defined_for_early_versions() -> None:
    """ONNX Runtime's optimizer puts its own into models of any version."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 12]>
        g (float[N, 8] x, float[8] scale, float[8] b) => (float[N, 8] y) {
            y = LayerNormalization<axis = -1>(x, scale, b)
        }"""
    )
    rng = np.random.default_rng(3)
    feeds = {"x": rng.standard_normal((3, 8)), "scale": rng.standard_normal(8), "b": rng.standard_normal(8)}
    feeds = {name: value.astype(np.float32) for name, value in feeds.items()}
    (expected,) = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
    np.testing.assert_allclose(sardonyx.Session(model).run(None, feeds)[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("stash", [1, 11])
def test_layer_normalization_computes_in_the_stash_type(stash: int) -> None:
    x = (draw(3, 8) * 100).astype(np.float16)
    y, mean, inverse = eager("LayerNormalization", [x, np.ones(8, np.float16)], outputs=3, stash_type=stash)
    wide = x.astype(np.float64)
    assert [v.dtype.name for v in (y, mean, inverse)] == ["float16", *["float32" if stash == 1 else "float64"] * 2]
    np.testing.assert_allclose(mean[:, 0], wide.mean(1), rtol=1e-6)
    np.testing.assert_allclose(inverse[:, 0], 1 / np.sqrt(wide.var(1) + 1e-5), rtol=1e-6)


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_rms_normalization(axis: int) -> None:
    x = draw(2, 3, 4)
    assert_agrees("RMSNormalization", [x, draw(*x.shape[axis:])], ["A B C", None], opset=23, axis=axis)


@pytest.mark.parametrize("opset", [18, 21])
@pytest.mark.parametrize("n", [0, 2])
def test_group_normalization(opset: int, n: int) -> None:
    parameters = draw(2 if opset == 18 else 6), draw(2 if opset == 18 else 6)
    arrays = [draw(2, 6, *(4, 3)[:n]), *parameters]
    assert_agrees("GroupNormalization", arrays, [image(n, 6), None, None], opset=opset, num_groups=2, epsilon=1e-3)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_local_response_normalization(size: int) -> None:
    options: dict[str, Any] = {"alpha": 0.3, "bias": 1.2, "beta": 0.6, "size": size}
    x = draw(2, 6, 3, 4)
    squares = np.zeros_like(x)
    for c in range(6):
        low, high = max(0, c - (size - 1) // 2), min(5, c + size // 2)
        squares[:, c] = (x[:, low : high + 1] ** 2).sum(1)
    actual = eager("LRN", [x], **options)
    assert_equal(actual, [(x / (1.2 + np.float32(0.3 / size) * squares) ** np.float32(0.6)).astype("f4")], rtol=1e-5)
    assert_equal(traced("LRN", [x], ["N C H W"], **options), actual)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [0, -1])
def test_lp_normalization_of_zeros_is_zero(p: int, axis: int) -> None:
    x = draw(3, 4)
    x[1], x[:, 2] = 0, 0
    assert_agrees("LpNormalization", [x], ["A B"], opset=1, p=p, axis=axis)


@pytest.mark.parametrize("axes", [None, [0], [1, 3]])
def test_mean_variance_normalization(axes: list[int] | None) -> None:
    options: dict[str, Any] = {} if axes is None else {"axes": axes}
    assert_agrees("MeanVarianceNormalization", [draw(2, 3, 4, 5)], ["A B C D"], opset=13, **options)


X, ONES = np.zeros((2, 4, 3), np.float32), np.ones(4, np.float32)


@pytest.mark.parametrize(
    ("name", "arrays", "options", "error"),
    [
        ("BatchNormalization", [X, *[ONES[:3]] * 4], {}, ShapeError),
        ("BatchNormalization", [X, *[ONES] * 4], {"outputs": 3}, InvalidModelError),
        ("LayerNormalization", [X, ONES], {}, ShapeError),
        ("LayerNormalization", [X[0, 0], X[0]], {}, ShapeError),
        ("LayerNormalization", [X, ONES], {"axis": 3}, ShapeError),
        ("GroupNormalization", [X, ONES, ONES], {"num_groups": 3}, ShapeError),
        ("GroupNormalization", [X, ONES, ONES], {"num_groups": 0}, ShapeError),
        ("InstanceNormalization", [X, X[0], ONES], {}, ShapeError),
        ("InstanceNormalization", [ONES, ONES, ONES], {}, ShapeError),
        ("LRN", [X], {"size": 0}, InvalidModelError),
        ("LpNormalization", [X], {"p": 3}, InvalidModelError),
        ("LpNormalization", [X], {"axis": 3}, ShapeError),
        ("MeanVarianceNormalization", [X], {}, ShapeError),
    ],
)
def test_mismatched_inputs_are_refused(
    name: str, arrays: list[np.ndarray], options: dict[str, Any], error: type[SardonyxError]
) -> None:
    with pytest.raises(error):
        eager(name, arrays, **options)


@pytest.mark.parametrize("number", [onnx.TensorProto.FLOAT8E4M3FNUZ, onnx.TensorProto.INT32])
@pytest.mark.parametrize(
    ("name", "parameters", "options"),
    [
        ("LayerNormalization", [ONES[:3]], {}),
        ("RMSNormalization", [ONES[:3]], {}),
        ("SimplifiedLayerNormalization", [ONES[:3]], {}),
        ("GroupNormalization", [ONES, ONES], {"num_groups": 2}),
    ],
)
def test_a_precision_without_arithmetic_is_refused(
    name: str, parameters: list[np.ndarray], options: dict[str, Any], number: int
) -> None:
    with pytest.raises(InvalidModelError, match="expected a float type of 16 bits or more as `stash_type`"):
        eager(name, [X, *parameters], stash_type=number, **options)
