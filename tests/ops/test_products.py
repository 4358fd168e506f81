"""Products equal numpy and ONNX Runtime, at known and at open sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.errors import InvalidModelError, ShapeError
from tests.ops.agreement import assert_agrees, assert_equal, eager, traced

RNG = np.random.default_rng(11)


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "i8", "u4", "u8", "f2"])
@pytest.mark.parametrize(
    ("a", "b", "open_a", "open_b"),
    [
        ((3,), (3,), "K", "K"),
        ((3,), (3, 2), "K", "K N"),
        ((2, 3), (3,), "M K", "K"),
        ((4, 2, 3), (3, 5), "B M K", "K N"),
        ((2, 3), (4, 3, 5), "M K", "B K N"),
        ((4, 1, 2, 3), (5, 3, 2), "A 1 M K", "B K N"),
        ((2, 0), (0, 3), "M K", "K N"),
        ((0, 2, 3), (3, 2), "B M K", "K N"),
    ],
)
def test_matmul(a: tuple[int, ...], b: tuple[int, ...], open_a: str, open_b: str, dtype: str) -> None:
    x, y = ((RNG.random(shape) * 9).astype(dtype) for shape in (a, b))
    wide = np.float32 if dtype == "f2" else x.dtype
    expected = np.asarray(np.matmul(x.astype(wide), y.astype(wide))).astype(dtype)
    assert_equal(eager("MatMul", [x, y]), [expected], rtol=1e-6)
    assert_equal(traced("MatMul", [x, y], [open_a, open_b]), eager("MatMul", [x, y]))


@pytest.mark.parametrize("c", [None, (), (4,), (1, 4), (3, 1), (3, 4)])
@pytest.mark.parametrize(("trans_a", "trans_b"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_gemm(trans_a: int, trans_b: int, c: tuple[int, ...] | None) -> None:
    a, b = draw(*((5, 3) if trans_a else (3, 5))), draw(*((4, 5) if trans_b else (5, 4)))
    shapes = ["K M" if trans_a else "M K", "N K" if trans_b else "K N", None]
    bias = None if c is None else draw(*c)
    assert_agrees("Gemm", [a, b, bias], shapes, opset=13, transA=trans_a, transB=trans_b, alpha=0.5, beta=2.0)


def test_gemm_of_integers_scales_in_float64() -> None:
    a, b = RNG.integers(-9, 9, (2, 3)), RNG.integers(-9, 9, (3, 2))
    assert_equal(eager("Gemm", [a, b], alpha=0.5), [np.trunc((a @ b) * 0.5).astype(np.int64)])


def test_gemm_without_weight_does_not_read_its_third_operand() -> None:
    a, b = draw(2, 3), draw(3, 2)
    assert_equal(eager("Gemm", [a, b, np.full(2, np.nan, np.float32)], beta=0.0), eager("Gemm", [a, b]))


SIZES = {"a": 2, "b": 3, "c": 4, "i": 3, "j": 2, "k": 4, "A": 2, "b1": 3}


@pytest.mark.parametrize(
    ("equation", "terms"),
    [
        ("ij,jk->ik", ["ij", "jk"]), ("ij , jk", ["ij", "jk"]), ("bij,bjk->bik", ["bij", "bjk"]), ("ii->i", ["ii"]),
        ("ii", ["ii"]), ("ij->", ["ij"]), ("ij->ji", ["ij"]), ("i,i", ["i", "i"]), ("i,j->ij", ["i", "j"]),
        ("...ij,...jk->...ik", ["abij", "bjk"]), ("...ii->...i", ["abii"]), ("... -> ...", ["ab"]),
        ("b...,b...->b...", ["bij", "bij"]), ("...a,a->...", ["bca", "a"]), ("ab,bc,ck->ak", ["ab", "bc", "ck"]),
        ("aba,ac->bc", ["aba", "ac"]), ("Ab,bA", ["Ab", "bA"]), ("bA", ["bA"]), ("iij,jk->ik", ["iij", "jk"]),
        ("ij,ij,ij->", ["ij", "ij", "ij"]), ("a,b,c->abc", ["a", "b", "c"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["f4", "i8"])
def test_einsum(equation: str, terms: list[str], dtype: str) -> None:
    arrays = [(RNG.random([SIZES[c] for c in term]) * 9).astype(dtype) for term in terms]
    expected = np.asarray(np.einsum(equation, *arrays))
    actual = eager("Einsum", arrays, equation=equation)
    assert_equal(actual, [expected], rtol=1e-5)
    assert_equal(
        traced("Einsum", arrays, [" ".join("S" + c for c in term) for term in terms], equation=equation), actual
    )


def test_einsum_repeats_sizes_of_1() -> None:
    x, y = draw(1, 3), draw(4, 3)
    assert_equal(eager("Einsum", [x, y], equation="bi,bi->b"), [np.einsum("bi,bi->b", x, y)], rtol=1e-5)


@pytest.mark.parametrize("zero_b", [None, (), (4,)])
@pytest.mark.parametrize("zero_a", [None, (), (3,)])
def test_matmul_integer(zero_a: tuple[int, ...] | None, zero_b: tuple[int, ...] | None) -> None:
    a, b = RNG.integers(0, 256, (3, 50)).astype(np.uint8), RNG.integers(-128, 128, (50, 4)).astype(np.int8)
    za, zb = (None if s is None else RNG.integers(0, 100, s).astype(d) for s, d in ((zero_a, "u1"), (zero_b, "i1")))
    left = a.astype(int) - (0 if za is None else za.reshape(-1, 1))
    right = b.astype(int) - (0 if zb is None else zb)
    actual = eager("MatMulInteger", [a, b, za, zb])
    assert_equal(actual, [(left @ right).astype(np.int32)])
    assert_equal(traced("MatMulInteger", [a, b, za, zb], ["M K", "K N", None, None]), actual)


@pytest.mark.parametrize("per_column", [False, True])
def test_quantized_matmul(per_column: bool) -> None:
    # Weights are of 7 bits: without VNNI ONNX Runtime adds products in pairs, in 16 bits, and cuts them off.
    a, b = RNG.integers(0, 256, (2, 3, 20)).astype(np.uint8), RNG.integers(-64, 64, (20, 4)).astype(np.int8)
    scale = (RNG.random(4 if per_column else ()) * 0.1 + 0.01).astype(np.float32) if per_column else np.float32(0.04)
    zeros = np.zeros(4 if per_column else (), np.int8)
    arrays = [a, np.array(0.02, "f4"), np.array(100, "u1"), b, np.asarray(scale), zeros, np.array(0.3, "f4")]
    shapes = ["B M K", None, None, "K N", None, None, None, None]
    assert_agrees("QLinearMatMul", [*arrays, np.array(120, "u1")], shapes, opset=10)


@pytest.mark.parametrize("shape", [(3, 3), (2, 4, 4), (0, 2, 2), (2, 1, 1)])
def test_determinant(shape: tuple[int, ...]) -> None:
    x = draw(*shape)
    assert_equal(eager("Det", [x]), [np.asarray(np.linalg.det(x))], rtol=1e-4, atol=1e-6)
    assert_equal(traced("Det", [x], ["B N N" if len(shape) == 3 else "N N"]), eager("Det", [x]))


@pytest.mark.parametrize(
    ("name", "arrays", "options", "error"),
    [
        ("MatMul", [draw(2, 3), draw(4, 2)], {}, ShapeError),
        ("MatMul", [draw(), draw(2, 2)], {}, ShapeError),
        ("Gemm", [draw(2, 3), draw(3, 2), draw(3, 2)], {}, ShapeError),
        ("Gemm", [draw(2, 3), draw(3, 2), draw(1, 2, 2)], {}, ShapeError),
        ("Gemm", [draw(2, 3, 1), draw(3, 2)], {}, ShapeError),
        ("Einsum", [draw(2, 3)], {"equation": "ijk->i"}, ShapeError),
        ("Einsum", [draw(2, 3)], {"equation": "ii->i"}, ShapeError),
        ("Einsum", [draw(1, 3)], {"equation": "ii->i"}, ShapeError),
        ("Einsum", [draw(2, 3), draw(4, 2)], {"equation": "ij,jk->ik"}, ShapeError),
        ("Einsum", [draw(2, 3)], {"equation": "ij->k"}, ShapeError),
        ("Einsum", [draw(2, 3)], {"equation": "i1->i"}, InvalidModelError),
        ("Einsum", [draw(2, 3)], {"equation": "ij,jk->i"}, InvalidModelError),
        ("Det", [draw(2, 3)], {}, ShapeError),
    ],
)
def test_mismatched_inputs_are_refused(
    name: str, arrays: list[np.ndarray], options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        eager(name, arrays, **options)


def test_a_diagonal_of_open_sizes_is_checked_at_run_time() -> None:
    with pytest.raises(ShapeError):
        traced("Einsum", [draw(1, 3)], ["M N"], equation="ii->i")
