"""Attention, experts, embeddings and control flow of PyTorch."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.convert.torch.conversions import converted, drawn  # noqa: E402

attend = torch.nn.functional.scaled_dot_product_attention


@pytest.mark.parametrize(
    ("options", "heads"),
    [({"is_causal": True}, 2), ({"scale": 0.3}, 2), ({"enable_gqa": True}, 4)],
)
def test_attention_with_open_sizes(options: dict[str, Any], heads: int) -> None:
    query, key = drawn(2, heads, 5, 4), drawn(2, 2, 7, 4, seed=1)
    names = {"q": {0: "batch", 2: "queries"}, "k": {0: "batch", 2: "keys"}}

    def program(q: Any, k: Any) -> Any:
        return attend(q, k, k, **options)

    report = converted(program, query, key, dynamic=names).report
    assert report.verdict.status == "proved", report
    assert all(len(values) > 1 for values in report.sizes.values())


def test_a_row_that_is_masked_as_a_whole_is_zero() -> None:
    x = drawn(1, 2, 3, 4)

    def program(x: Any) -> Any:
        mask = torch.arange(3)[:, None] > torch.arange(x.shape[2])[None]
        return attend(x, x, x, attn_mask=mask)

    result = converted(program, x, dynamic=False)
    assert result.report.verdict.status == "proved", result.report


def test_a_branch_on_data_becomes_an_if_node() -> None:
    def program(x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x,))

    result = converted(program, drawn(3, 4))
    assert result.report.verdict.status == "proved", result.report
    assert "If" in {node.op_type for node in result.model.graph}


def test_a_scan_becomes_a_loop_over_an_open_axis() -> None:
    from torch._higher_order_ops.scan import scan

    def program(x: Any) -> Any:
        return scan(lambda c, y: (c + y, c * y), torch.zeros(3), x, dim=0)

    report = converted(program, drawn(5, 3), dynamic={"x": {0: "steps"}}).report
    assert report.verdict.status == "proved", report
    assert len(report.sizes["steps"]) > 1


def test_products_of_groups_of_rows() -> None:
    weights = torch.from_numpy(drawn(3, 8, 16).numpy()).bfloat16()

    def program(x: Any) -> Any:
        positive = (x[:, 0] > 0).sum()
        ends = torch.stack([positive // 2, positive, positive * 0 + x.shape[0]]).int()
        return torch.nn.functional.grouped_mm(x.bfloat16(), weights, offs=ends).float()

    report = converted(program, drawn(6, 8), dynamic=False).report
    assert report.verdict.status == "proved", report


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_rows(mode: str) -> None:
    bag = torch.nn.EmbeddingBag(10, 6, mode=mode)
    tokens = torch.tensor([[1, 2, 4, 5], [4, 3, 2, 9]])
    report = converted(bag, tokens).report
    assert report.verdict.status == "proved", report


def test_flexible_attention_without_a_compiler_is_captured() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    bias = drawn(2, seed=4)

    def causal(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
        return torch.where(query >= key, score + bias[head], -float("inf"))

    inputs = [drawn(2, 2, 6, 8, seed=seed) for seed in range(3)]
    result = converted(lambda q, k, v: flex_attention(q, k, v, score_mod=causal), *inputs)
    assert result.report.verdict.status == "proved" and len(result.report.sizes["batch"]) > 1


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("nn.attention", "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"),
        ("nn.attention", "flex_attention_hop"),
        ("_higher_order_ops", "math_attention"),
    ],
)
def test_other_programs_are_captured_where_torch_lacks_names_of_flexible_attention(
    package: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    importlib.import_module("torch.nn.attention.flex_attention")
    monkeypatch.delattr(importlib.import_module(f"torch.{package}.flex_attention"), name)
    assert converted(lambda x: x * 2, drawn(2, 3)).report.verdict.status == "proved"


def test_lengths_of_cached_keys_and_values_are_one_size() -> None:
    class Step(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.qkv = torch.nn.Linear(4, 24)

        def forward(self, x: Any, keys: Any, values: Any) -> Any:
            q, k, v = self.qkv(x).view(x.shape[0], 3, 2, 1, 4).unbind(1)
            keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
            return torch.nn.functional.scaled_dot_product_attention(q, keys, values).flatten(1), keys, values

    result = converted(Step(), drawn(1, 4), drawn(1, 2, 3, 4), drawn(1, 2, 3, 4, seed=1))
    assert result.report.verdict.status == "proved"
    assert {name for name, values in result.report.sizes.items() if len(values) > 1} == {"batch", "keys_2"}
