"""Convolutions equal ONNX Runtime at random attributes, at known and at open sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.errors import InvalidModelError, ShapeError
from tests.ops.agreement import assert_agrees, assert_equal, eager, traced


class Draw:
    """Random numbers of one case."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def ints(self, low: int, high: int, count: int) -> list[int]:
        return [int(i) for i in self.rng.integers(low, high, count)]

    def one(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high))

    def floats(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal(shape).astype(np.float32)

    def maybe(self) -> bool:
        return bool(self.rng.random() < 0.5)


def open_image(channels: int, n: int) -> str:
    return f"N {channels} " + " ".join("HWD"[:n])


@pytest.mark.parametrize("seed", range(40))
def test_conv(seed: int) -> None:
    d = Draw(seed)
    n, group = d.one(1, 4), d.one(1, 4)
    channels, features, kernel = d.one(1, 3) * group, d.one(1, 4) * group, d.ints(1, 4, n)
    auto_pad = ["NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"][seed % 5]
    # ONNX Runtime refuses dilations with SAME.
    dilations = [1] * n if auto_pad.startswith("SAME") else d.ints(1, 3, n)
    sizes = [(k - 1) * s + 1 + d.one(0, 5) for k, s in zip(kernel, dilations, strict=True)]
    options: dict[str, Any] = {"strides": d.ints(1, 4, n), "dilations": dilations, "group": group}
    options |= {"pads": d.ints(0, 3, 2 * n)} if auto_pad == "NOTSET" else {"auto_pad": auto_pad}
    if d.maybe():
        options["kernel_shape"] = kernel
    arrays = [d.floats(2, channels, *sizes), d.floats(features, channels // group, *kernel)]
    bias = d.floats(features) if d.maybe() else None
    shapes = [open_image(channels, n), None if d.maybe() else " ".join(map(str, arrays[1].shape)), None]
    assert_agrees("Conv", [*arrays, bias], shapes, opset=[1, 11, 22][seed % 3], **options)


@pytest.mark.parametrize("seed", range(40))
def test_conv_transpose(seed: int) -> None:
    d = Draw(seed)
    n, group = d.one(1, 4), d.one(1, 3)
    channels, features, kernel, strides = d.one(1, 3) * group, d.one(1, 3), d.ints(1, 4, n), d.ints(1, 4, n)
    dilations, sizes = d.ints(1, 3, n), d.ints(1, 5, n)
    options: dict[str, Any] = {"strides": strides, "dilations": dilations, "group": group}
    extra = [d.one(0, stride) for stride in strides]
    reach = [(k - 1) * s + 1 for k, s in zip(kernel, dilations, strict=True)]
    full = [(i - 1) * s + r for i, s, r in zip(sizes, strides, reach, strict=True)]
    match seed % 4:
        case 0:
            options |= {"output_padding": extra, "pads": [min(1, (f - 1) // 2) for f in full] * 2}
        case 1:
            options |= {"output_shape": [max(1, f - d.one(0, 3)) for f in full]}
        case 2:
            options |= {"auto_pad": "VALID"}
        case 3 if all(r >= s for r, s in zip(reach, strides, strict=True)):
            options |= {"auto_pad": ["SAME_UPPER", "SAME_LOWER"][seed % 8 // 4]}
    arrays = [d.floats(2, channels, *sizes), d.floats(channels, features, *kernel)]
    bias = d.floats(features * group) if d.maybe() else None
    shapes = [open_image(channels, n), None, None]
    assert_agrees("ConvTranspose", [*arrays, bias], shapes, opset=[1, 11, 22][seed % 3], **options)


@pytest.mark.parametrize(
    ("auto_pad", "stride", "expected"),
    [
        ("SAME_UPPER", 3, [0, 1, 1, 0, 1, 1]),
        ("SAME_LOWER", 3, [1, 1, 0, 1, 1, 0]),
        ("SAME_UPPER", 4, [0, 1, 1, 0, 0, 1, 1, 0]),
    ],
)
def test_same_padding_of_a_transposed_convolution_may_be_negative(
    auto_pad: str, stride: int, expected: list[int]
) -> None:
    """Padding is negative for strides larger than the kernel; the larger part is at the end for UPPER."""
    x, w = np.ones((1, 1, 2), np.float32), np.ones((1, 1, 2), np.float32)
    (y,) = eager("ConvTranspose", [x, w], strides=[stride], auto_pad=auto_pad)
    assert y.tolist() == [[expected]]


@pytest.mark.parametrize("seed", range(8))
def test_deformable_conv(seed: int) -> None:
    d = Draw(seed)
    offset_group, group = d.one(1, 3), d.one(1, 3)
    channels, features, kernel = 2 * d.one(1, 3), 2 * d.one(1, 3), d.ints(1, 4, 2)
    strides, dilations, pads, sizes = d.ints(1, 3, 2), d.ints(1, 3, 2), d.ints(0, 2, 4), d.ints(6, 9, 2)
    out = [(sizes[i] + pads[i] + pads[i + 2] - (kernel[i] - 1) * dilations[i] - 1) // strides[i] + 1 for i in range(2)]
    taps = offset_group * kernel[0] * kernel[1]
    arrays = [d.floats(2, channels, *sizes), d.floats(features, channels // group, *kernel)]
    arrays += [2 * d.floats(2, 2 * taps, *out)]
    rest = [d.floats(features) if d.maybe() else None, d.floats(2, taps, *out) if d.maybe() else None]
    shapes = [open_image(channels, 2), None, None, None, None]
    shapes[0] = "2 " + " ".join(map(str, arrays[0].shape[1:]))
    options: dict[str, Any] = {
        "strides": strides,
        "dilations": dilations,
        "pads": pads,
        "group": group,
        "offset_group": offset_group,
    }
    assert_agrees("DeformConv", [*arrays, *rest], shapes, opset=19, **options)


def test_deformable_conv_of_open_sizes() -> None:
    d = Draw(0)
    arrays = [d.floats(2, 2, 6, 7), d.floats(4, 2, 3, 3), d.floats(2, 18, 4, 5)]
    actual = eager("DeformConv", arrays)
    assert_equal(traced("DeformConv", arrays, ["N 2 H W", None, "N 18 H-2 W-2"]), actual)


@pytest.mark.parametrize(
    ("name", "weights", "group"),
    [("Conv", (4, 2, 3, 3), 2), ("Conv", (3, 4, 3, 3), 1), ("ConvTranspose", (4, 3, 3, 3), 2)],
)
def test_weights_of_open_sizes(name: str, weights: tuple[int, ...], group: int) -> None:
    d = Draw(2)
    x, w = d.floats(2, 4, 6, 7), d.floats(*weights)
    assert_equal(traced(name, [x, w], ["N C H W", "A B K K"], group=group), eager(name, [x, w], group=group))
    with pytest.raises(ShapeError):
        traced(name, [d.floats(2, 5, 6, 7), w], ["N C H W", "A B K K"], group=group)


@pytest.mark.parametrize("zeros", [(None, None), ((), None), ((), ()), ((), (3,))])
def test_conv_integer(zeros: tuple[tuple[int, ...] | None, ...]) -> None:
    d = Draw(1)
    x, w = d.rng.integers(0, 256, (2, 2, 6, 7)).astype(np.uint8), d.rng.integers(0, 256, (3, 2, 3, 2)).astype(np.uint8)
    zero = [None if s is None else d.rng.integers(0, 99, s).astype(np.uint8) for s in zeros]
    x_wide = x.astype(np.float64) - (0 if zero[0] is None else float(zero[0]))
    w_wide = w.astype(np.float64) - (0 if zero[1] is None else zero[1].astype(float).reshape(-1, 1, 1, 1))
    options: dict[str, Any] = {"pads": [1, 0, 0, 1], "strides": [1, 2]}
    actual = eager("ConvInteger", [x, w, *map(as_array, zero)], **options)
    assert_equal(actual, [y.astype(np.int32) for y in eager("Conv", [x_wide, w_wide], **options)])
    shapes = ["N 2 H W", None, None, None]
    assert_equal(traced("ConvInteger", [x, w, *map(as_array, zero)], shapes, **options), actual)


def as_array(x: Any) -> np.ndarray | None:
    return None if x is None else np.asarray(x)


@pytest.mark.parametrize("per_feature", [False, True])
def test_quantized_conv(per_feature: bool) -> None:
    d = Draw(2)
    x, w = d.rng.integers(0, 256, (2, 2, 6, 7)).astype(np.uint8), d.rng.integers(-99, 99, (3, 2, 3, 2)).astype(np.int8)
    scale = np.array([0.05, 0.02, 0.1] if per_feature else 0.05, np.float32)
    arrays = [x, np.array(0.1, "f4"), np.array(9, "u1"), w, scale, np.zeros(scale.shape, np.int8)]
    arrays += [np.array(0.7, "f4"), np.array(3, "u1"), d.rng.integers(-500, 500, 3).astype(np.int32)]
    assert_agrees("QLinearConv", arrays, ["N 2 H W", *[None] * 8], opset=10, pads=[1, 0, 0, 1])


def test_causal_conv_resumes_from_its_state() -> None:
    d = Draw(3)
    x, w, b = d.floats(2, 3, 8), d.floats(3, 1, 4), d.floats(3)
    whole, _ = eager("CausalConvWithState", [x, w, b], outputs=2, activation="silu")
    first, state = eager("CausalConvWithState", [x[..., :3], w, b], outputs=2, activation="silu")
    second = traced("CausalConvWithState", [x[..., 3:], w, b, state], ["N 3 L", None, None, "N 3 3"], activation="silu")
    assert_equal([np.concatenate([first, second[0]], -1)], [whole], rtol=1e-6)


IMAGE, WEIGHTS = np.zeros((1, 4, 5, 5), np.float32), np.zeros((6, 4, 3, 3), np.float32)


@pytest.mark.parametrize(
    ("name", "arrays", "options", "error"),
    [
        ("Conv", [IMAGE, WEIGHTS[:, :3]], {}, ShapeError),
        ("Conv", [IMAGE, WEIGHTS[:, 0]], {}, ShapeError),
        ("Conv", [IMAGE[..., 0, 0], WEIGHTS[..., 0, 0]], {}, ShapeError),
        ("Conv", [IMAGE, WEIGHTS], {"pads": [1, 1]}, InvalidModelError),
        ("Conv", [IMAGE, WEIGHTS], {"group": 2}, ShapeError),
        ("Conv", [IMAGE, WEIGHTS], {"group": 0}, ShapeError),
        ("Conv", [IMAGE, WEIGHTS], {"strides": [0, 1]}, InvalidModelError),
        ("Conv", [IMAGE, WEIGHTS], {"kernel_shape": [3, 2]}, ShapeError),
        ("Conv", [IMAGE, WEIGHTS], {"auto_pad": "SOME"}, InvalidModelError),
        ("Conv", [IMAGE, WEIGHTS, np.zeros(5, np.float32)], {}, ShapeError),
        ("Conv", [IMAGE[..., :1, :1], WEIGHTS], {}, ShapeError),
        ("ConvTranspose", [IMAGE, WEIGHTS], {}, ShapeError),
        ("ConvTranspose", [IMAGE, WEIGHTS[:4]], {"group": 3}, ShapeError),
        ("ConvTranspose", [IMAGE, WEIGHTS[:4]], {"output_padding": [1]}, InvalidModelError),
        ("ConvTranspose", [IMAGE, WEIGHTS[:4]], {"output_shape": [9]}, InvalidModelError),
        ("DeformConv", [IMAGE, WEIGHTS, np.zeros((1, 18, 4, 4), np.float32)], {}, ShapeError),
        ("CausalConvWithState", [IMAGE[0], WEIGHTS[:4, :1, 0]], {}, ShapeError),
        ("CausalConvWithState", [IMAGE[0], WEIGHTS[:5, :1, 0]], {"activation": "relu"}, InvalidModelError),
    ],
)
def test_mismatched_inputs_are_refused(
    name: str, arrays: list[np.ndarray], options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        eager(name, arrays, **options)
