"""Reads and writes at indices and masks, sorting, and search."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

from tests.convert.torch.programs import require_equal  # noqa: E402


def x(*shape: int) -> Any:
    return torch.randn(*(shape or (5, 6, 7)))


def index(limit: int, *shape: int) -> Any:
    return torch.randint(0, limit, shape)


def written(function: Any) -> Any:
    """Return a function that writes into a copy of its first argument."""

    def program(x: Any, *rest: Any) -> Any:
        y = x.clone()
        function(y, *rest)
        return y

    return program


def set_rows(y: Any, i: Any, v: Any) -> None:
    y[i] = v


def set_positive(y: Any) -> None:
    y[y > 0] = 1.5


def set_apart(y: Any, i: Any, j: Any, v: Any) -> None:
    y[i, :, j] = v


def set_columns(y: Any, mask: Any, v: Any) -> None:
    y[:, mask] = v


def without_large(y: Any) -> Any:
    return torch.where(y > 0.8, torch.nan, y)


def change_views(y: Any) -> None:
    y[:, 1:3] += 1
    y[0].zero_()
    y[..., -1] = 7


READS = {
    "index_select": (lambda x, i: torch.index_select(x, 1, i), (x(), index(6, 3)), (x(4, 6, 7), index(6, 5))),
    "gather": (lambda x, i: torch.gather(x, 1, i), (x(), index(6, 5, 3, 7))),
    "take": (torch.take, (x(), index(200, 3, 4))),
    "put": (lambda x, i: torch.put(x, i, i * 0.5), (x(), torch.randperm(24).reshape(4, 6))),
    "accumulated put": (lambda x, i: torch.put(x, i, i * 0.5, accumulate=True), (x(), index(200, 3, 4))),
    "take_along_dim": (lambda x, i: torch.take_along_dim(x, i, 1), (x(), index(6, 1, 3, 7))),
    "nonzero": (lambda x: torch.nonzero(x > 0), (x(),), (x(2, 3, 4),)),
    "mask": (lambda x: x[x > 0], (x(),), (x(2, 3, 4),)),
    "masked_select": (lambda x: torch.masked_select(x, x[0] > 0), (x(),)),
    "rows": (lambda x, i: x[i], (x(), index(5, 3)), (x(9, 6, 7), index(5, 4))),
    "two indices": (lambda x, i, j: x[:, i, j], (x(), index(6, 3), index(7, 3))),
    "indices apart": (lambda x, i, j: x[i, :, j], (x(), index(5, 3), index(7, 3))),
    "indices that broadcast": (lambda x, i, j: x[i[:, None], j], (x(), index(5, 3), index(6, 4))),
    "mask of rows": (lambda x, m: x[m], (x(), torch.rand(5) > 0.5)),
    "mask of two axes": (lambda x, m: x[m], (x(), torch.rand(5, 6) > 0.5)),
    "mask of an inner axis": (lambda x, m: x[:, m], (x(), torch.rand(6) > 0.5)),
    "repeat_interleave": (lambda x, r: torch.repeat_interleave(x, r, 0), (x(), torch.tensor([1, 0, 2, 3, 1]))),
    "embedding_bag": (torch.nn.EmbeddingBag(10, 4, mode="mean"), (index(10, 8), torch.tensor([0, 3, 5]))),
}
WRITES = {
    "rows": (written(set_rows), (x(), torch.tensor([0, 3, 1]), x(3, 6, 7))),
    "positive": (written(set_positive), (x(),)),
    "indices apart": (written(set_apart), (x(), torch.tensor([0, 1]), torch.tensor([2, 3]), x(2, 6))),
    "mask of an inner axis": (written(set_columns), (x(5, 3, 7), torch.tensor([True, False, True]), x(5, 2, 7))),
    "views": (written(change_views), (x(),), (x(3, 6, 7),)),
    "accumulate": (
        lambda x, i, v: x.index_put((i,), v, accumulate=True),
        (x(), torch.tensor([0, 0, 1]), x(3, 6, 7)),
    ),
    "scatter": (lambda x, i, s: x.scatter(1, i, s), (x(), torch.rand(5, 6, 7).argsort(1)[:, :3], x(5, 4, 7))),
    "scatter a number": (lambda x, i: x.scatter(1, i, 2.0), (x(), index(6, 5, 3, 7))),
    "scatter_add": (lambda x, i, s: x.scatter_add(1, i, s), (x(), index(6, 5, 3, 7), x(5, 4, 7))),
    "index_add": (lambda x, i, s: x.index_add(1, i, s, alpha=2), (x(), index(6, 4), x(5, 4, 7))),
    "index_copy": (lambda x, i, s: x.index_copy(1, i, s), (x(), torch.tensor([1, 4]), x(5, 2, 7))),
    "index_fill": (lambda x, i: x.index_fill(1, i, 3.0), (x(), torch.tensor([1, 4]))),
    "index_reduce": (
        lambda x, i, s: x.index_reduce(1, i, s, "amax", include_self=False),
        (x(), index(6, 4), x(5, 4, 7)),
    ),
    "masked_fill": (lambda x: x.masked_fill(x > 0, -1), (x(),)),
    "masked_scatter": (lambda x, s: x.masked_scatter(x > 0, s), (x(), x(210))),
    "select_scatter": (lambda x, s: torch.select_scatter(x, s, 1, 2), (x(), x(5, 7)), (x(3, 6, 7), x(3, 7))),
    "slice_scatter": (lambda x, s: torch.slice_scatter(x, s, 1, 1, 5), (x(), x(5, 4, 7))),
    "slice_scatter with a step": (lambda x, s: torch.slice_scatter(x, s, 1, 1, 5, 2), (x(), x(5, 2, 7))),
    "diagonal_scatter": (lambda x, s: torch.diagonal_scatter(x, s, 1, 0, 2), (x(), x(6, 5))),
}
ORDER = {
    "sort": (lambda x: torch.sort(x, 1), (x(),), (x(2, 4, 3),)),
    "stable, descending": (lambda x: torch.sort(x, dim=1, descending=True, stable=True), (index(3, 5, 6),)),
    "argsort": (lambda x: torch.argsort(x, dim=-1, stable=True), (index(3, 5, 6),)),
    "topk": (lambda x: torch.topk(x, 3, 1), (x(),), (x(2, 6, 7),)),
    "smallest": (lambda x: torch.topk(x, 3, 1, False), (x(),)),
    "kthvalue": (lambda x: torch.kthvalue(x, 2, 1), (x(),)),
    "median": (lambda x: torch.median(x, 1), (x(),)),
    "median of all": (torch.median, (x(),)),
    "median of missing numbers": (lambda x: torch.median(without_large(x), 1), (x(),)),
    "median of known numbers": (lambda x: torch.nanmedian(without_large(x), 1)[0], (x(),), (x(2, 4, 3),)),
    "median of known infinite numbers": (
        lambda x: torch.nanmedian(torch.where(x > 0.8, torch.nan, torch.where(x > -0.4, torch.inf, x)), 1)[0],
        (x(),),
    ),
    "median of all known numbers": (lambda x: torch.nanmedian(without_large(x)), (x(),)),
    "mode": (lambda x: torch.mode(x, 1)[0], (index(3, 5, 6, 7),)),
    "cummax": (lambda x: torch.cummax(x, 1), (index(3, 5, 6, 7).float(),)),
    "cummin": (lambda x: torch.cummin(x, 1), (x(),)),
    "unique": (lambda x: torch.unique(x, return_inverse=True, return_counts=True), (index(4, 5, 6),)),
    "unique alone": (torch.unique, (index(4, 5, 6),)),
    "unique rows": (lambda x: torch.unique(x, dim=0, return_inverse=True, return_counts=True), (index(2, 5, 2),)),
    "runs of rows": (
        lambda x: torch.unique_consecutive(x, dim=0, return_inverse=True, return_counts=True),
        (index(2, 9, 2),),
    ),
    "unique_consecutive": (
        lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True),
        (index(3, 20),),
    ),
    "searchsorted by row": (torch.searchsorted, (x(4, 9).sort(1)[0], x(4, 3))),
    "searchsorted": (lambda a, b: torch.searchsorted(a, b, right=True), (x(9).sort()[0], x(4, 3))),
    "bucketize": (lambda b, a: torch.bucketize(a, b), (x(9).sort()[0], x(4, 3))),
    "bincount": (lambda x: torch.bincount(x, minlength=3), (index(6, 20),)),
    "histc": (lambda x: torch.histc(x, 10, -1, 1), (x(),)),
}


@pytest.mark.parametrize("name", READS)
def test_reads(name: str) -> None:
    require_equal(*READS[name])


@pytest.mark.parametrize("name", WRITES)
def test_writes(name: str) -> None:
    require_equal(*WRITES[name])


@pytest.mark.parametrize("name", ORDER)
def test_order(name: str) -> None:
    require_equal(*ORDER[name])


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_reduce(reduce: str, include_self: bool) -> None:
    require_equal(
        lambda x, i, s: x.scatter_reduce(1, i, s, reduce, include_self=include_self),
        (x(), index(6, 5, 9, 7), x(5, 9, 7)),
    )


@pytest.mark.parametrize("initial", [None, 1.5])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "max", "min"])
def test_segments_of_rows(reduce: str, initial: float | None) -> None:
    lengths = torch.tensor([2, 0, 3])
    require_equal(lambda x: torch.segment_reduce(x, reduce, lengths=lengths, initial=initial), (x(),))
    offsets = torch.tensor([0, 2, 5])
    require_equal(lambda x: torch.segment_reduce(x, reduce, offsets=offsets, initial=initial), (x(),))


def test_a_table_with_a_largest_norm_is_normed_at_the_indices() -> None:
    table = torch.nn.Embedding(9, 4, max_norm=1.0)
    require_equal(table, (index(9, 3, 4),))
