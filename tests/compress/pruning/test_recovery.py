"""Recovery reduces the error on samples that it does not see, and second-order masks have smaller errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sardonyx
from sardonyx import demo
from sardonyx.compress.pruning.channels import ChannelGraph
from sardonyx.compress.pruning.masks import Pattern
from sardonyx.compress.pruning.second_order import sparse_rows
from sardonyx.compress.recovery import distill
from sardonyx.errors import OptionError
from tests.compress.pruning.networks import transformer

CLASSIFIER = demo.path("digits_classifier")
TOKENS = [{"x": np.random.default_rng(seed).standard_normal((2, 5, 16)).astype(np.float32)} for seed in range(24)]


def images(first: int, count: int) -> list[dict[str, np.ndarray]]:
    with np.load(CLASSIFIER.with_suffix(".npz")) as stored:
        pixels = stored["in::image"]
    return [{"image": pixels[i : i + 4]} for i in range(first, first + count, 4)]


def worst(result: Any) -> float:
    return min(error.sqnr for error in result.report.evidence.outputs)


def test_least_squares_and_fine_tuning_recover_the_outputs() -> None:
    options: dict[str, Any] = {"channels": 0.4, "criterion": "magnitude"}
    plain, refitted, tuned = (
        sardonyx.prune(CLASSIFIER, images(0, 128), **options, recover=recover, steps=30)
        for recover in ("bias", "reconstruct", "finetune")
    )
    assert worst(refitted) > worst(plain) + 2
    assert worst(tuned) >= worst(refitted) - 0.5
    assert any("steps on the answers" in note for note in tuned.report.notes)


def test_fine_tuning_preserves_zeros_and_is_reproducible() -> None:
    source = sardonyx.load(transformer())
    masked = sardonyx.prune(source, TOKENS, sparsity=0.5, pattern="2:4", criterion="magnitude")
    first, losses = distill(masked.model, source, TOKENS, steps=12, keep_zeros=True, seed=3)
    second, _ = distill(masked.model, source, TOKENS, steps=12, keep_zeros=True, seed=3)
    assert losses[1] < losses[0]
    for name in ("up_0", "down_0"):
        before, after, again = (m.graph.initializers[name].const_value.numpy() for m in (masked.model, first, second))
        assert np.array_equal(before == 0, after == 0) and not np.array_equal(before, after)
        assert np.array_equal(after, again)
    with pytest.raises(OptionError, match="2 samples"):
        distill(masked.model, source, TOKENS[:1], steps=1)


@pytest.mark.parametrize("pattern", [None, "2:4", "1:4", "4x2"])
def test_second_order_masks_have_the_pattern_and_less_error(pattern: str | None) -> None:
    share = 0.75 if pattern == "1:4" else 0.5
    results = {
        criterion: sardonyx.prune(transformer(), TOKENS, sparsity=share, pattern=pattern, criterion=criterion)
        for criterion in ("magnitude", "wanda", "sparsegpt")
    }
    if share == 0.5:
        assert worst(results["sparsegpt"]) > worst(results["magnitude"])
    for result in results.values():
        rows = result.model.graph.initializers["up_0"].const_value.numpy().T
        assert np.count_nonzero(rows == 0) == share * rows.size
        if pattern in ("2:4", "1:4"):
            assert (np.count_nonzero(rows.reshape(-1, 4), 1) == int(pattern[0])).all()
        elif pattern is not None:
            blocks = rows.reshape(8, 4, 8, 2).transpose(0, 2, 1, 3).reshape(64, 8)
            assert set(np.count_nonzero(blocks, 1).tolist()) == {0, 8}


def test_removed_weights_are_compensated_by_correlated_ones() -> None:
    rng = np.random.default_rng(0)
    base = rng.standard_normal((200, 4))
    x = np.concatenate([base, base + 0.05 * rng.standard_normal((200, 4))], 1)
    rows = rng.standard_normal((6, 8)).astype(np.float32)
    hessian = (x.T @ x / len(x)).astype(np.float32)
    sparse = sparse_rows(rows, hessian, lambda importance: np.argsort(np.argsort(importance, 1), 1) >= 4, 8)
    assert (np.count_nonzero(sparse, 1) == 4).all()
    plain = np.where(np.argsort(np.argsort(np.abs(rows), 1), 1) >= 4, rows, 0)
    assert np.square((rows - sparse) @ x.T).sum() < 0.2 * np.square((rows - plain) @ x.T).sum()


@pytest.mark.parametrize("text", ["2x", "0:4", "4:4", "x4", "1:99999", "-2:4"])
def test_impossible_patterns_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="N:M"):
        Pattern.of_text(text)


def test_layers_lose_whole_vectors_where_that_is_less_work() -> None:
    from sardonyx.compress.pruning.channels import Cut
    from sardonyx.compress.pruning.shrink import choose_channels, free_channels

    graph = ChannelGraph()
    node = sardonyx.load(transformer()).graph.node("up_0")
    graph.cuts.append(Cut(node, 1, 1, graph.new(40), "producer"))
    scores = {channel: float(channel) for channel in range(40)}
    free = free_channels(graph, heads=False)
    assert choose_channels(graph, scores, 0.25, free) == set(range(10))
    assert choose_channels(graph, scores, 0.25, free, lanes=16) == set(range(8))
    assert choose_channels(graph, scores, 0.6, free, lanes=16) == set(range(24))
