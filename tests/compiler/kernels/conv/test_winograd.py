"""Winograd's convolution against sums in float64, at sizes around the edges of its tiles, blocks and vectors."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from tests.compiler.kernels.compiled import CompiledKernel
from tests.compiler.kernels.images import (
    BATCH,
    IN,
    OUT,
    TARGETS,
    aligned,
    copied,
    stored,
    storing,
    symbols,
    to_blocked,
    to_plain,
)

from sardonyx.compiler.codegen.kernel_builder import Kernel
from sardonyx.compiler.kernels.conv import winograd
from sardonyx.compiler.kernels.conv.window_sweep import Image
from sardonyx.compiler.target.description import NAMED, host
from sardonyx.compiler.tiling import winograd as winograd_plan
from sardonyx.compiler.tiling.toom_cook import short_convolution
from sardonyx.compiler.tiling.winograd import Winograd
from sardonyx.core.dim import Size, evaluate
from sardonyx.errors import OptionError

pytestmark = pytest.mark.sampled

TILES = ((2, 2), (4, 4), (6, 6), (1, 4), (4, 1), (3, 5))
UNTOUCHED = 77.0


@dataclass
class Convolution:
    """A plan, compiled: its kernels in order, and whether the sizes of images are arguments."""

    plan: Winograd
    kernels: list[CompiledKernel]

    @staticmethod
    def of(plan: Winograd, sizes: tuple[Size, Size]) -> Convolution:
        """Compile for images of such sizes."""
        kernel = Kernel(plan.target)
        if plan.staged:
            x, transformed = kernel.buffer(), kernel.buffer()
            items = winograd.transform(kernel, plan, Image(x, plan.channels, sizes), transformed)
            first = [CompiledKernel(kernel, items)]
            kernel = Kernel(plan.target)
            x, transformed, weights, scratch, result = (kernel.buffer() for _ in range(5))
            epilogue = storing(kernel, result, plan.filters, plan.out, plan.lanes)
            image = Image(x, plan.channels, sizes)
            items = winograd.multiply(kernel, plan, image, transformed, weights, scratch, epilogue)
            return Convolution(plan, [*first, CompiledKernel(kernel, items)])
        x, weights, scratch, result = (kernel.buffer() for _ in range(4))
        epilogue = storing(kernel, result, plan.filters, plan.out, plan.lanes)
        image = Image(x, plan.channels, sizes)
        return Convolution(
            plan, [CompiledKernel(kernel, winograd.convolve(kernel, plan, image, weights, scratch, epilogue))]
        )

    def __call__(self, x: np.ndarray, weights: np.ndarray, out: tuple[int, int], parts: int = 1) -> np.ndarray:
        """The result as a blocked image."""
        plan, values = self.plan, symbols(len(x), x.shape[2:], out)
        image = to_blocked(x, plan.lanes)
        if plan.fresh:
            packed = copied(winograd_plan.pack_weights(weights, plan.target))
        else:
            packed = copied(winograd_plan.transform_weights(weights, plan.tile, plan.target))
        result = stored(len(x), plan.filters, out, plan.lanes)
        assert plan.scratch % 64 == 0
        scratch = aligned((plan.scratch // 4 * parts + 16,), fill=UNTOUCHED)
        if plan.staged:
            transformed = aligned((evaluate(plan.transformed, values) // 4 + 16,), fill=UNTOUCHED)
            self.kernels[0](image, transformed, parts=parts, **values)
            assert (transformed[-16:] == UNTOUCHED).all()
            self.kernels[1](image, transformed, packed, scratch, result, parts=parts, **values)
        else:
            self.kernels[0](image, packed, scratch, result, parts=parts, **values)
        assert (scratch[-16:] == UNTOUCHED).all()
        return result


@functools.cache
def convolution(
    target: str, tile: tuple[int, int], channels: int = 3, filters: int = 5, *, staged: bool = False,
    padding: tuple[int, int] = (1, 1), workers: int = 1, fresh: bool = False,
) -> Convolution:  # fmt: skip
    """A convolution whose images have any sizes."""
    plan = Winograd(TARGETS[target], tile, BATCH, channels, filters, (OUT[1], OUT[2]), padding, workers, staged, fresh)
    return Convolution.of(plan, (IN[1], IN[2]))


def random(plan: Winograd, batch: int, sizes: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """An image and weights."""
    rng = np.random.default_rng([batch, *sizes])
    window = tuple(3 if m > 1 else 1 for m in plan.tile)
    x = rng.standard_normal((batch, plan.channels, *sizes), np.float32)
    return x, rng.standard_normal((plan.filters, plan.channels, *window), np.float32)


def expected(x: np.ndarray, weights: np.ndarray, padding: tuple[int, int], out: tuple[int, int]) -> np.ndarray:
    """The convolution in float64; what lies outside the image is zero."""
    window = weights.shape[2:]
    after = (max(0, o + k - 1 - p - n) for o, k, p, n in zip(out, window, padding, x.shape[2:], strict=True))
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), *zip(padding, after, strict=True)))
    total = np.zeros((len(x), len(weights), *out))
    for i, j in itertools.product(*map(range, window)):
        seen = padded[:, :, i : i + out[0], j : j + out[1]]
        total += np.einsum("nchw,fc->nfhw", seen, weights[:, :, i, j].astype(np.float64), optimize=True)
    return total


def check(convolve: Convolution, batch: int, sizes: tuple[int, int], after: int = 1, parts: int = 1) -> None:
    """Compare on random numbers; ``after``: rows and columns of zeros below and right."""
    plan = convolve.plan
    x, weights = random(plan, batch, sizes)
    padding = evaluate(plan.padding[0], {}), evaluate(plan.padding[1], {})
    window = weights.shape[2:]
    out = tuple(max(0, n + p + after - k + 1) for n, p, k in zip(sizes, padding, window, strict=True))
    want = expected(x, weights, padding, (out[0], out[1]))
    got = to_plain(convolve(x, weights, (out[0], out[1]), parts))
    assert got.shape[0] == batch
    assert got.shape[2:] == out
    assert not got[:, plan.filters :].any()
    if want.size:
        error = np.abs(got[:, : plan.filters] - want).max() / np.abs(want).max()
        assert error <= winograd_plan.error_bound(plan.tile, plan.channels)


@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 6])
def test_matrices_give_the_correlation_exactly(m: int) -> None:
    algorithm = short_convolution(m)
    taps = algorithm.taps
    weights, inputs = [3, -5, 7][:taps], [2, -3, 5, 7, -11, 13, 17, -19][: algorithm.n]
    used = [sum(a * w for a, w in zip(row, weights, strict=True)) for row in algorithm.weight]
    transformed = [sum(a * d for a, d in zip(row, inputs, strict=True)) for row in algorithm.input]
    products = [a * b for a, b in zip(used, transformed, strict=True)]
    results = [sum(a * p for a, p in zip(row, products, strict=True)) for row in algorithm.output]
    assert results == [sum(w * d for w, d in zip(weights, inputs[k : k + taps], strict=True)) for k in range(m)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("tile", TILES)
def test_sizes_around_the_edges_of_tiles(target: str, tile: tuple[int, int]) -> None:
    convolve = convolution(target, tile)
    rows, columns = ({1, 2, m, m + 1, 2 * m + 1} for m in tile)
    for sizes in itertools.product(rows, columns):
        check(convolve, 1, sizes)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("staged", [False, True])
def test_channels_around_blocks(target: str, staged: bool) -> None:
    lanes = TARGETS[target].lanes(32)
    for channels in (1, lanes, 2 * lanes + 1):
        check(convolution(target, (4, 4), channels, staged=staged), 2, (7, 9))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("staged", [False, True])
def test_filters_around_groups_of_vectors(target: str, staged: bool) -> None:
    lanes = TARGETS[target].lanes(32)
    seen = set()
    for filters in (1, lanes + 1, 3 * lanes, 5 * lanes - 1):
        convolve = convolution(target, (2, 2), 3, filters, staged=staged)
        seen.add(convolve.plan.vectors)
        check(convolve, 2, (7, 9))
    assert seen == {1, 2, 3}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("tile", [(2, 2), (3, 5), (6, 6), (1, 4)])
def test_fresh_weights_slice_by_slice(target: str, tile: tuple[int, int], staged: bool) -> None:
    lanes = TARGETS[target].lanes(32)
    plan = Winograd(TARGETS[target], tile, BATCH, 4 * lanes + 1, lanes + 1, (OUT[1], OUT[2]), staged=staged, fresh=True)
    of_block = plan.points * lanes * plan.vectors * lanes * 4
    few = replace(plan, target=replace(plan.target, l2=2 * 8 * of_block))
    assert (few.slice_blocks, few.channel_blocks) == (2, 5)
    convolve = Convolution.of(few, (IN[1], IN[2]))
    for batch, sizes in ((1, (7, 9)), (2, (1, 4)), (0, (4, 4))):
        check(convolve, batch, sizes)


@pytest.mark.parametrize("tile", [(2, 2), (4, 4)])
def test_fresh_weights_give_the_same_bits_in_any_slices_stages_and_parts(tile: tuple[int, int]) -> None:
    whole = convolution(host().name, tile, 67, 33, fresh=True)
    x, weights = random(whole.plan, 2, (23, 18))
    bits = whole(x, weights, (23, 18)).tobytes()
    assert whole(x, weights, (23, 18), parts=3).tobytes() == bits
    assert convolution(host().name, tile, 67, 33, fresh=True, staged=True)(x, weights, (23, 18), 2).tobytes() == bits
    narrow = replace(whole.plan, target=replace(whole.plan.target, l2=1))
    assert narrow.slice_blocks == 1 < narrow.channel_blocks
    assert Convolution.of(narrow, (IN[1], IN[2]))(x, weights, (23, 18)).tobytes() == bits


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("tile", [(4, 4), (6, 6), (4, 1)])
@pytest.mark.parametrize("padding", [(0, 0), (2, 1)])
def test_paddings(target: str, tile: tuple[int, int], padding: tuple[int, int]) -> None:
    convolve = convolution(target, tile, padding=padding)
    for after in (0, 1, 3):
        check(convolve, 1, (7, 8), after)
    check(convolve, 1, (1, 2), 12)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("staged", [False, True])
def test_batches_and_images_without_elements(target: str, staged: bool) -> None:
    convolve = convolution(target, (4, 4), staged=staged)
    for batch in (0, 2, 5):
        check(convolve, batch, (9, 12))
    check(convolve, 3, (0, 3))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("workers", [1, 3])
def test_every_number_of_tiles_up_to_two_blocks(target: str, staged: bool, workers: int) -> None:
    convolve = convolution(target, (2, 2), staged=staged, workers=workers)
    for tiles in range(1, 2 * convolve.plan.block + 2):
        check(convolve, 1, (2, 2 * tiles))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("staged", [False, True])
def test_known_sizes_need_less_code_and_give_the_same(target: str, staged: bool) -> None:
    convolve = convolution(target, (4, 4), staged=staged, workers=2)
    known = Convolution.of(replace(convolve.plan, batch=2, out=(13, 15)), (13, 15))
    assert len(known.kernels[-1].text) < len(convolve.kernels[-1].text)
    x, weights = random(convolve.plan, 2, (13, 15))
    assert known(x, weights, (13, 15)).tobytes() == convolve(x, weights, (13, 15)).tobytes()
    check(known, 2, (13, 15))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("tile", [(4, 4), (6, 6)])
def test_stages_and_any_split_of_the_work_give_the_same_bits(target: str, tile: tuple[int, int]) -> None:
    whole = convolution(target, tile, 9, 33)
    x, weights = random(whole.plan, 2, (50, 41))
    bits = whole(x, weights, (50, 41)).tobytes()
    sizes = symbols(2, (50, 41), (50, 41))
    assert evaluate(whole.kernels[0].items, sizes) > 3
    assert whole(x, weights, (50, 41), parts=3).tobytes() == bits
    staged = convolution(target, tile, 9, 33, staged=True)
    for parts in (1, 5):
        assert staged(x, weights, (50, 41), parts).tobytes() == bits


@pytest.mark.parametrize("tile", [(2, 2), (3, 3), (4, 4), (5, 5), (6, 6), (4, 1), (5, 2)])
@pytest.mark.parametrize("channels", [4, 64, 512])
def test_the_error_estimate_holds_and_is_not_idle(tile: tuple[int, int], channels: int) -> None:
    convolve = convolution(host().name, tile, channels, 8)
    x, weights = random(convolve.plan, 1, (24, 24))
    want = expected(x, weights, (1, 1), (24, 24))
    error = np.abs(to_plain(convolve(x, weights, (24, 24)))[:, :8] - want).max() / np.abs(want).max()
    bound = winograd_plan.error_bound(tile, channels)
    assert bound / 10 < error < bound
    assert max(tile) > 4 or error < 1e-5


def test_costs_follow_products_weights_and_threads() -> None:
    def of(tile: tuple[int, int], channels: int, extent: int, workers: int = 1) -> float:
        sizes = (extent, extent)
        return winograd_plan.cost(
            host(), tile, batch=1, channels=channels, filters=channels, out=sizes, workers=workers
        )

    direct = 9 * 64**2 * 56**2
    assert of((4, 4), 64, 56) < of((2, 2), 64, 56) < direct
    assert of((4, 4), 64, 56, workers=2) == of((4, 4), 64, 56) / 2
    assert of((6, 6), 512, 7) > of((4, 2), 512, 7)  # Nothing but weights.


def test_the_best_tile_is_the_cheapest_that_is_exact_enough() -> None:
    def best(extent: int, channels: int, **arguments: Any) -> tuple[int, int]:
        sizes = (extent, extent)
        costs = winograd_plan.tile_costs(host(), batch=1, channels=channels, filters=channels, out=sizes, **arguments)
        return min(costs, key=costs.__getitem__)

    assert best(56, 64) == (4, 4)
    assert best(56, 64, largest_error=1e-4) == (6, 6)
    assert best(56, 64, largest_error=1.1e-6) == (2, 2)
    assert best(7, 512) == (2, 2)
    assert best(56, 64, taps=(1, 3)) in {(1, 4), (1, 5), (1, 6)}
    with pytest.raises(OptionError, match="64 channels is exact to 1e-09"):
        best(56, 64, largest_error=1e-9)


def test_weights_that_would_be_large_are_fresh_and_then_small_tiles_cost_less() -> None:
    assert not winograd_plan.has_fresh_weights(host(), (4, 4), 128, 128)
    assert winograd_plan.has_fresh_weights(host(), (2, 2), 256, 256)
    weights = np.ones((33, 20, 3, 3), np.float32)
    packed = winograd_plan.pack_weights(weights, NAMED["avx512"])
    assert packed.sum() == weights.sum()
    assert 64 * packed.nbytes == 9 * winograd_plan.transform_weights(weights, (6, 6), NAMED["avx512"]).nbytes
    sizes: dict[str, Any] = {"batch": 1, "channels": 512, "filters": 512, "out": (7, 7)}
    costs = [winograd_plan.cost(host(), tile, **sizes) for tile in ((2, 2), (4, 4))]
    assert costs == sorted(costs)


def test_few_tiles_for_a_thread_are_better_in_stages() -> None:
    plan = Winograd(host(), (4, 4), 1, 512, 512, (7, 7), workers=2)
    assert winograd_plan.prefers_stages(plan)
    assert not winograd_plan.prefers_stages(replace(plan, workers=1))
    assert not winograd_plan.prefers_stages(replace(plan, batch=8))
    assert not winograd_plan.prefers_stages(replace(plan, batch=BATCH))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("staged", "fresh"), [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("tile", [(2, 2), (4, 5), (1, 6)])
def test_an_infinite_input_reaches_only_the_results_of_its_windows(
    target: str, staged: bool, fresh: bool, tile: tuple[int, int]
) -> None:
    convolve = convolution(target, tile, 20, 19, staged=staged, fresh=fresh)
    x, weights = random(convolve.plan, 2, (9, 11))
    out = (9, 11) if tile[0] > 1 else (11, 11)
    for value, at in itertools.product((np.nan, np.inf, -np.inf, 2e38), ((0, 0, 0, 0), (1, 17, 4, 6), (1, 19, 8, 10))):
        y = x.copy()
        y[at] = value
        with np.errstate(all="ignore"):
            want = expected(y, weights * np.float32(0.1), (1, 1), out).astype(np.float32)
            got = to_plain(convolve(y, weights * np.float32(0.1), out))[:, : convolve.plan.filters]
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        finite = np.isfinite(want)
        np.testing.assert_array_equal(got[~finite], want[~finite])
        np.testing.assert_allclose(got[finite], want[finite], atol=1e-4 * max(10, np.abs(want[finite]).max()))
