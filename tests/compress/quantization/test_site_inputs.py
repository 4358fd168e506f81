"""Rows of a site's input times its matrix are the results of the node; statistics do not depend on the order."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import sardonyx
from sardonyx.compress.quantization.calibration import Observation
from sardonyx.compress.quantization.placement import find_placement
from sardonyx.compress.quantization.site_inputs import Needs, SiteInput

CASES = {
    "convolution": ("Conv", [6, 4, 3, 2], {"pads": [1, 0, 2, 1], "strides": [2, 1]}, [2, 4, 9, 8]),
    "groups": ("Conv", [6, 2, 3, 3], {"group": 2, "dilations": [2, 1]}, [1, 4, 9, 8]),
    "depthwise, same": ("Conv", [4, 1, 3, 3], {"group": 4, "auto_pad": "SAME_UPPER", "strides": [2, 2]}, [1, 4, 7, 8]),
    "pixels": ("Conv", [6, 4, 1, 1], {"pads": [0, 0, 0, 0]}, [2, 4, 3, 5]),
    "pixels of groups, same": ("Conv", [6, 2, 1, 1], {"group": 2, "auto_pad": "SAME_LOWER"}, [1, 4, 3, 5]),
    "some pixels, with borders": ("Conv", [6, 4, 1, 1], {"strides": [2, 1], "pads": [0, 1, 0, 0]}, [1, 4, 7, 5]),
    "one axis": ("Conv", [5, 3, 4], {"auto_pad": "SAME_LOWER"}, [2, 3, 11]),
    "product": ("MatMul", [5, 7], {}, [2, 3, 5]),
    "transposed weight": ("Gemm", [7, 5], {"transB": 1}, [3, 5]),
}


def model_of(operator: str, weight: list[int], attributes: dict[str, object], shape: list[int]) -> ir.Model:
    rng = np.random.default_rng(3)
    tensor = helper.make_tensor("w", TensorProto.FLOAT, weight, rng.standard_normal(weight).astype(np.float32).ravel())
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node(operator, ["x", "w"], ["y"], "node", **attributes)
    graph = helper.make_graph([node], "net", [x], [y], [tensor])
    return sardonyx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))


@pytest.mark.parametrize("case", CASES)
def test_rows_times_the_matrix_are_the_results(case: str) -> None:
    operator, weight, attributes, shape = CASES[case]
    model = model_of(operator, weight, attributes, shape)
    (site,) = find_placement(model).sites
    x = np.random.default_rng(4).standard_normal(shape).astype(np.float32)
    needs = Needs(maxima=True, row_means=True, second_moments=True, rows=1 << 20, rows_per_sample=1 << 20)
    seen = Observation(model, (), [{"x": x}], [site], needs).inputs["node"]
    assert seen.rows is not None and seen.second_moment is not None and seen.squares is not None
    y = sardonyx.run(model, {"x": x})["y"]
    results = np.matmul(seen.rows, site.matrix().transpose(0, 2, 1))  # [groups, rows, outputs]
    outputs = np.moveaxis(y, 1, -1) if operator == "Conv" else y
    expected = outputs.reshape(-1, site.groups, site.channels // site.groups).transpose(1, 0, 2)
    order = np.lexsort(results[0].T), np.lexsort(expected[0].T)
    np.testing.assert_allclose(results[:, order[0]], expected[:, order[1]], rtol=1e-4, atol=1e-4)
    moment = np.matmul(seen.rows.transpose(0, 2, 1), seen.rows) / seen.rows.shape[1]
    np.testing.assert_allclose(seen.second_moment, moment, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(seen.squares, np.diagonal(moment, axis1=1, axis2=2), rtol=1e-4, atol=1e-5)
    assert seen.row_means is not None
    np.testing.assert_allclose(seen.row_means, seen.rows.mean(1), atol=1e-5)
    axis = 1 if operator == "Conv" else x.ndim - 1
    others = tuple(number for number in range(x.ndim) if number != axis)
    assert seen.maxima is not None and seen.means is not None
    np.testing.assert_array_equal(seen.maxima, np.abs(x).max(others))
    np.testing.assert_allclose(seen.means, x.mean(others), atol=1e-5)
    np.testing.assert_array_equal(site.from_matrix(site.matrix()), site.weight)


def test_rows_are_drawn_evenly_and_bounded() -> None:
    model = model_of("MatMul", [2, 3], {}, [1000, 2])
    (site,) = find_placement(model).sites
    samples = [{"x": np.full((1000, 2), number, np.float32)} for number in range(20)]
    seen = Observation(model, (), samples, [site], Needs(rows=400)).inputs["node"]
    assert seen.rows is not None and seen.rows.shape == (1, 400, 2) and seen.count == 20000
    counts = np.bincount(seen.rows[0, :, 0].astype(int), minlength=20)
    assert counts.min() >= 5 and counts.max() <= 45


def test_second_moments_have_a_limit_and_squares_remain() -> None:
    model = model_of("MatMul", [64, 3], {}, [10, 64])
    (site,) = find_placement(model).sites
    x = np.ones((10, 64), np.float32)
    needs = Needs(second_moments=True, most_bytes=1000)
    seen = Observation(model, (), [{"x": x}], [site], needs).inputs["node"]
    assert seen.second_moment is None and seen.squares is not None and seen.squares.tolist() == [[1.0] * 64]


def test_equal_inputs_share_statistics() -> None:
    text = """<ir_version: 9, opset_import: ["": 17]> n (float[4, 8] x) => (float[4, 2] y, float[4, 2] z)
        <float[8, 2] a = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16},
         float[8, 2] b = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}>
        { y = MatMul(x, a) z = MatMul(x, b) }"""
    model = sardonyx.load(onnx.parser.parse_model(text))
    sites = find_placement(model).sites
    inputs = Observation(model, (), [{"x": np.ones((4, 8), np.float32)}], sites, Needs(rows=2)).inputs
    assert len(inputs) == 2 and len({id(one) for one in inputs.values()}) == 1


@pytest.mark.parametrize("offset", [0.0, 100.0, 1000.0])
def test_covariances_of_drawn_rows_are_positive_and_exact_beside_large_means(offset: float) -> None:
    (site,) = find_placement(model_of("MatMul", [16, 3], {}, [500, 16])).sites
    rng = np.random.default_rng(2)
    common = offset * (1 + rng.random(16))
    samples = [(common + rng.standard_normal((500, 16))).astype(np.float32) for _ in range(8)]
    for one in samples:
        one[:, 3] = common[3]
    needs = Needs(row_means=True, second_moments=True, rows_per_sample=100, rows=100)
    seen = SiteInput(site, needs, True, 0)
    for one in samples:
        seen.add(one)
    assert seen.covariance is not None and seen.second_moment is not None and seen.squares is not None
    (covariance,) = seen.covariance
    assert np.linalg.eigvalsh(covariance.astype(np.float64)).min() > -1e-4
    others = np.arange(16) != 3
    np.testing.assert_allclose(np.diag(covariance)[others], 1, atol=0.25)
    assert not covariance[3].any() and not covariance[:, 3].any()
    expected = np.outer(common, common) + np.diag(others)
    np.testing.assert_allclose(seen.second_moment[0], expected, atol=max(offset, 1) * 0.6)
    np.testing.assert_allclose(seen.squares[0], np.diag(seen.second_moment[0]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", ["product", "convolution"])
@pytest.mark.parametrize("number", [-1e9, 3e38, np.inf])
def test_rows_with_elements_that_stand_for_infinity_are_left_out(case: str, number: float) -> None:
    operator, weight, attributes, shape = CASES[case]
    (site,) = find_placement(model_of(operator, weight, attributes, shape)).sites
    ordinary, masked = (np.random.default_rng(0).standard_normal((4, *shape)).astype(np.float32) for _ in range(2))
    masked[2].flat[1] = number
    needs = Needs(maxima=True, row_means=True, second_moments=True)
    plain, seen = SiteInput(site, needs, True, 0), SiteInput(site, needs, True, 0)
    for one, other in zip(ordinary, masked, strict=True):
        plain.add(one)
        seen.add(other)
    for attribute in ("maxima", "means", "squares", "row_means", "second_moment", "covariance"):
        expected, result = getattr(plain, attribute), getattr(seen, attribute)
        assert np.isfinite(result).all() and np.abs(result - expected).max() < 1.2, attribute
    seen = SiteInput(site, needs, True, 0)
    seen.add(np.full(shape, number, np.float32))
    assert seen.squares is None and seen.second_moment is None and seen.row_means is None and seen.covariance is None
