"""Linear algebra of matrices with open sizes: the model is equal at other numbers of rows and of columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.convert.torch.conversions import converted, drawn  # noqa: E402


def symmetric(x: Any) -> Any:
    values, vectors = torch.linalg.eigh(x @ x.mT)
    return values, (vectors * values[..., None, :]) @ vectors.mT


def product_of_factors(x: Any) -> Any:
    u, s, v = torch.linalg.svd(x, full_matrices=False)
    return s, (u * s[..., None, :]) @ v


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "eigenvalues and vectors": (symmetric, ((2, 5, 5),)),
    "singular values and vectors": (product_of_factors, ((2, 6, 4),)),
    "singular values of wide matrices": (lambda x: torch.linalg.svdvals(x), ((2, 4, 7),)),
    "pseudo-inverse": (lambda x: torch.linalg.pinv(x), ((6, 4),)),
    "least squares": (lambda x, y: torch.linalg.lstsq(x, y).solution, ((7, 4), (7, 2))),
    "rank": (lambda x: torch.linalg.matrix_rank(x), ((6, 4),)),
    "nuclear norm": (lambda x: torch.linalg.norm(x, "nuc"), ((6, 4),)),
    "spectral norm": (lambda x: torch.linalg.matrix_norm(x, 2), ((6, 4),)),
    "least singular value": (lambda x: torch.linalg.matrix_norm(x, -2, (0, 2), keepdim=True), ((4, 2, 3),)),
    "largest sum of columns": (lambda x: torch.linalg.norm(x, 1), ((6, 4),)),
    "smallest sum of rows": (lambda x: torch.linalg.matrix_norm(x, -torch.inf, keepdim=True), ((2, 6, 4),)),
    "condition": (lambda x: torch.linalg.cond(x), ((6, 4),)),
    "product of several": (lambda x, y, z: torch.linalg.multi_dot([x, y, z]), ((4, 5), (5, 3), (3, 6))),
    "product with a vector": (lambda x, y, z: torch.linalg.multi_dot([x, y, z]), ((4, 5), (5, 3), (3,))),
    "filled diagonal": (lambda x: x.clone().fill_diagonal_(0.5), ((5, 6),)),
    "sizes as numbers": (lambda x: x.mean() * x.new_tensor(x.shape), ((3, 4),)),
    "sizes in a list": (lambda x: x.sum(0) * torch.as_tensor([x.shape[0]]), ((3, 4),)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_sizes_of_matrices_remain_open(name: str) -> None:
    function, shapes = FUNCTIONS[name]
    result = converted(function, *(drawn(*shape) for shape in shapes))
    assert result.report.verdict.status == "proved", result.report.verdict.reason
    assert all(not isinstance(size, int) for value in result.model.graph.inputs for size in value.shape)
    assert all(len(values) > 1 for values in result.report.sizes.values())


def test_condition_number_of_an_open_square() -> None:
    result = converted(lambda x: torch.linalg.cond(x + 3 * torch.eye(x.shape[0]), 1), drawn(4, 4))
    assert result.report.verdict.status == "proved"
    assert [len(values) > 1 for values in result.report.sizes.values()] == [True]


def test_a_diagonal_that_wraps_around_is_converted_for_the_size_of_the_example() -> None:
    result = converted(lambda x: x.clone().fill_diagonal_(1.0, wrap=True), drawn(7, 3))
    assert result.report.verdict.status == "proved"
