"""Resizing, grids and affine maps equal ONNX Runtime, onnx's evaluator and PyTorch, at known and at open sizes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx.reference
import pytest

from sardonyx.compiler.program import Program
from sardonyx.core.dim import Dim
from sardonyx.core.eval.tensor import constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir.types import FLOAT, INT64, TensorType
from sardonyx.errors import InvalidModelError, ShapeError, TypeMismatchError
from sardonyx.ops.registry import find
from tests.core.programs import computed
from tests.ops.agreement import assert_agrees, assert_equal, eager, model_of, traced

pytestmark = pytest.mark.sampled

RNG = np.random.default_rng(13)
X = RNG.standard_normal((1, 2, 5, 6)).astype(np.float32)


def scales(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def assert_as_reference(arrays: list[np.ndarray | None], *, opset: int = 19, **options: Any) -> None:
    """At once and traced at open sizes as onnx's own reference has it."""
    model = model_of("Resize", arrays, opset=opset, outputs=1, **options)
    feeds = {f"i{i}": array for i, array in enumerate(arrays) if array is not None}
    expected: Any = onnx.reference.ReferenceEvaluator(model).run(None, feeds)
    actual = eager("Resize", arrays, opset=opset, **options)
    assert_equal(actual, expected, rtol=1e-4, atol=1e-5)
    shapes: list[str | None] = ["A B H W", *[None] * (len(arrays) - 1)]
    assert_equal(traced("Resize", arrays, shapes, opset=opset, **options), actual)


TRANSFORMATIONS = ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"]


@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("exclude_outside", [0, 1])
@pytest.mark.parametrize("antialias", [0, 1])
def test_interpolation(transformation: str, mode: str, exclude_outside: int, antialias: int) -> None:
    options: dict[str, Any] = {
        "coordinate_transformation_mode": transformation, "mode": mode, "exclude_outside": exclude_outside,
        "antialias": antialias, "cubic_coeff_a": -0.5,
    }  # fmt: skip
    for factors in ((0.5, 2.0), (0.625, 1.625)):
        assert_as_reference([X, None, scales(1, 1, *factors)], **options)
    assert_as_reference([X, None, None, np.array([1, 2, 3, 11])], **options)


@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
@pytest.mark.parametrize("nearest", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_nearest(transformation: str, nearest: str) -> None:
    options: dict[str, Any] = {"coordinate_transformation_mode": transformation, "nearest_mode": nearest}
    for factors in ((0.5, 2.0), (2.0, 1.5), (3.0, 7.0), (2.02, 3.03), (0.5, 0.5)):
        assert_as_reference([X, None, scales(1, 1, *factors)], **options)
    assert_as_reference([X, None, None, np.array([1, 2, 7, 4])], **options)


def test_one_pixel_is_the_first_by_pytorch_half_pixel() -> None:
    options: dict[str, Any] = {"coordinate_transformation_mode": "pytorch_half_pixel", "mode": "cubic"}
    assert_equal(eager("Resize", [X, None, scales(1, 1, 0.375, 1)], **options), [X[:, :, :1]], rtol=1e-6)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_region(mode: str) -> None:
    options: dict[str, Any] = {
        "coordinate_transformation_mode": "tf_crop_and_resize",
        "mode": mode,
        "extrapolation_value": 9.0,
    }
    region = scales(0, 0, 0.1, 0.2, 1, 1, 0.8, 1.3)
    assert_as_reference([X, region, None, np.array([1, 2, 4, 9])], **options)
    assert_as_reference([X, region, scales(1, 1, 2, 2)], **options)


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
@pytest.mark.parametrize("sizes", [(8, 4), (3, 9), (5, 6)])
def test_aspect_ratio(policy: str, sizes: tuple[int, int]) -> None:
    options: dict[str, Any] = {"axes": [3, 2], "keep_aspect_ratio_policy": policy, "mode": "linear"}
    assert_as_reference([X, None, None, np.array(sizes)], **options)


@pytest.mark.parametrize("opset", [10, 11, 13, 18])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_versions(opset: int, mode: str) -> None:
    for factors in ((0.5, 2.0), (1.0, 0.625)):
        inputs = [scales(1, 1, *factors)] if opset == 10 else [scales(), scales(1, 1, *factors)]
        assert_agrees("Resize", [X, *inputs], ["A B H W", *[None] * len(inputs)], opset=opset, mode=mode)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_upsample(mode: str) -> None:
    assert_agrees("Upsample", [X, scales(1, 1, 2, 1.5)], ["A B H W", None], opset=9, mode=mode)
    (expected,) = eager("Upsample", [X, scales(1, 1, 2, 3)], opset=9, mode=mode)
    assert_equal(eager("Upsample", [X], opset=7, mode=mode, scales=[1.0, 1.0, 2.0, 3.0]), [expected])
    assert_equal(eager("Upsample", [X], opset=1, mode=mode, height_scale=2.0, width_scale=3.0), [expected])


def test_sizes_are_expressions_of_sizes() -> None:
    h, w = Dim.symbol("H"), Dim.symbol("W")
    resize = find("", "Resize", 19)
    assert resize is not None

    def by_scales(x: Any) -> Any:
        return resize([x, None, constant(scales(1, 1, 2, 1.5))], {}, opset=19)

    def by_sizes(x: Any, like: Any) -> Any:
        expected = find("", "Shape", 19)([like], {}, opset=19)[0]  # type: ignore[misc]
        return resize([x, None, None, expected], {}, opset=19)

    image = TensorType(FLOAT, (1, 2, h, w))
    assert trace("resize", by_scales, [image]).results[0].type == TensorType(FLOAT, (1, 2, 2 * h, 3 * w // 2))
    other = TensorType(INT64, (1, 2, 3 * h, w))
    assert trace("resize", by_sizes, [image, other]).results[0].type == TensorType(FLOAT, (1, 2, 3 * h, w))


def test_the_number_of_scales_may_be_open_and_is_checked_at_run_time() -> None:
    arrays = [X, None, scales(1, 1, 2, 1.5)]
    assert_equal(traced("Resize", arrays, ["N C H W", None, "K"], opset=19), eager("Resize", arrays, opset=19))
    with pytest.raises(ShapeError):
        traced("Resize", [X, None, scales(1, 1, 2, 1.5, 7)], ["N C H W", None, "K"], opset=19)


def test_integers_are_interpolated_in_float32() -> None:
    x = (X * 100).astype(np.int32)
    (expected,) = eager("Resize", [x.astype(np.float32), None, scales(1, 1, 2, 2)], mode="linear")
    assert_equal(eager("Resize", [x, None, scales(1, 1, 2, 2)], mode="linear"), [expected.astype(np.int32)])


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_complex_numbers_are_interpolated_by_parts(mode: str) -> None:
    z = (X + 1j * X[..., ::-1]).astype(np.complex64)
    grid = (RNG.random((X.shape[0], 3, 4, 2)) * 2 - 1).astype(np.float32)
    for name, rest in (("Resize", [None, scales(1, 1, 2, 1.5)]), ("GridSample", [grid])):
        (actual,) = eager(name, [z, *rest], opset=20, mode=mode)
        real, imaginary = (eager(name, [part, *rest], opset=20, mode=mode)[0] for part in (z.real, z.imag))
        assert_equal([actual], [real + 1j * imaginary], rtol=1e-6)


def test_strings_need_the_nearest_mode() -> None:
    words = np.array([["a", "b"], ["c", "d"]], object)[None, None]
    assert eager("Resize", [words, None, scales(1, 1, 1, 2)])[0].tolist() == [[[list("aabb"), list("ccdd")]]]
    grid = np.array([[[[-1, -1], [1, 1]]]], np.float32)
    assert eager("GridSample", [words, grid], mode="nearest", align_corners=1)[0].tolist() == [[[["a", "d"]]]]
    with pytest.raises(TypeMismatchError, match="strings cannot be interpolated"):
        eager("Resize", [words, None, scales(1, 1, 1, 2)], mode="linear")
    with pytest.raises(TypeMismatchError, match="strings cannot be interpolated"):
        eager("GridSample", [words, grid])


MODES = ("nearest", "linear", "cubic")


@pytest.mark.parametrize(
    ("mode", "padding", "align"), list(itertools.product(MODES, ("zeros", "border", "reflection"), (0, 1)))
)
@pytest.mark.parametrize("n", [2, 3])
def test_grid_sample(n: int, mode: str, padding: str, align: int) -> None:
    torch = pytest.importorskip("torch")
    x = RNG.standard_normal((2, 3, *(4, 5, 3)[:n])).astype(np.float32)
    grid = (RNG.random((2, *(3, 4, 2)[:n], n)) * 4 - 2).astype(np.float32)
    options: dict[str, Any] = {"mode": mode, "padding_mode": padding, "align_corners": align}
    shapes = ["N C " + " ".join("HWD"[:n]), "N " + " ".join("PQR"[:n]) + f" {n}"]
    actual = eager("GridSample", [x, grid], opset=20, **options)
    assert_equal(traced("GridSample", [x, grid], shapes, opset=20, **options), actual)
    if n == 2:
        names = {"nearest": "nearest", "linear": "bilinear", "cubic": "bicubic"}
        assert_equal(eager("GridSample", [x, grid], opset=16, **(options | {"mode": names[mode]})), actual)
    if not (n == 3 and mode == "cubic"):
        names = {"nearest": "nearest", "linear": "bilinear", "cubic": "bicubic"}
        expected = torch.nn.functional.grid_sample(
            torch.from_numpy(x), torch.from_numpy(grid), names[mode], padding, bool(align)
        )
        assert_equal(actual, [expected.numpy()], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [(2, 1, 3, 4), (2, 1, 1, 2), (2, 1, 2, 3, 4)])
@pytest.mark.parametrize("align", [0, 1])
def test_affine_grid(size: tuple[int, ...], align: int) -> None:
    torch = pytest.importorskip("torch")
    n = len(size) - 2
    theta = RNG.standard_normal((2, n, n + 1)).astype(np.float32)
    expected = torch.nn.functional.affine_grid(torch.from_numpy(theta), size, align_corners=bool(align)).numpy()
    actual = eager("AffineGrid", [theta, np.array(size)], align_corners=align)
    assert_equal(actual, [expected], rtol=1e-5, atol=1e-6)
    for shape in (None, str(len(size))):
        arrays = [theta, np.array(size)]
        assert_equal(traced("AffineGrid", arrays, [f"N {n} {n + 1}", shape], align_corners=align), actual)


@pytest.mark.parametrize(
    ("arrays", "options", "error"),
    [
        ([X, None, scales(1, 1, 0, 2)], {}, ShapeError),
        ([X, None, scales(1, 1, -1, 2)], {}, ShapeError),
        ([X, None, scales(1, 1, np.nan, 2)], {}, ShapeError),
        ([X, None, scales(1, 2)], {}, ShapeError),
        ([X, None, None, np.array([1, 2, 3])], {}, ShapeError),
        ([X, None, None, np.array([1, 2, -3, 4])], {}, ShapeError),
        ([X], {}, InvalidModelError),
        ([X, None, scales(1, 1, 2, 2), np.array([1, 2, 3, 4])], {}, InvalidModelError),
        ([X, None, scales(1, 1, 2, 2)], {"mode": "box"}, InvalidModelError),
        ([X, None, scales(1, 1, 2, 2)], {"nearest_mode": "up"}, InvalidModelError),
        ([X, None, scales(1, 1, 2, 2)], {"coordinate_transformation_mode": "half"}, InvalidModelError),
        ([X, None, scales(1, 1, 2, 2)], {"coordinate_transformation_mode": "tf_crop_and_resize"}, InvalidModelError),
        ([X, None, scales(1, 1, 2, 2)], {"antialias": 1}, InvalidModelError),
        ([X, None, None, np.array([3, 4])], {"axes": [2, 4]}, ShapeError),
        ([X, None, None, np.array([3, 4])], {"axes": [2, 3], "keep_aspect_ratio_policy": "any"}, InvalidModelError),
    ],
)
def test_mismatched_inputs_are_refused(
    arrays: list[np.ndarray | None], options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        eager("Resize", arrays, **options)


def test_mismatched_grids_are_refused() -> None:
    grid = np.zeros((1, 3, 3, 2), np.float32)
    for bad in (grid[..., :1], grid[0], np.zeros((2, 3, 3, 2), np.float32)):
        with pytest.raises(ShapeError):
            eager("GridSample", [X, bad])
    with pytest.raises(InvalidModelError):
        eager("GridSample", [X, grid], mode="box")
    with pytest.raises(InvalidModelError):
        eager("GridSample", [X, grid], padding_mode="wrap")
    theta = np.zeros((2, 2, 3), np.float32)
    for size in ([2, 1, 4], [3, 1, 4, 4], [2, 1, -4, 4]):
        with pytest.raises(ShapeError):
            eager("AffineGrid", [theta, np.array(size)])


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_positions_and_weights_are_computed_once_for_all_rows(mode: str) -> None:
    """Kernels over the image read them from memory."""
    resize = find("", "Resize", 18)
    assert resize is not None

    def body(x: Any) -> Any:
        return resize([x, None, constant(scales(1, 1, 2, 2))], {"mode": mode}, opset=18)

    function = trace("resize", body, [TensorType(FLOAT, (1, 8, 64, 64))])
    program = Program.compile(function)
    image = RNG.standard_normal((1, 8, 64, 64)).astype(np.float32)
    assert_equal(program.run([image]), computed(function, [image]), rtol=1e-5, atol=1e-5)
    over_images = [launch for launch in program.launches if launch.writes.type.shape[1:2] == (8,)]
    assert over_images
    assert not any("llvm.floor" in launch.text for launch in over_images)
