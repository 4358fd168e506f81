"""Winograd's convolution against a sum in float64, at sizes around its tiles' edges."""

from __future__ import annotations

import ctypes
import functools
import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from sardonyx.compiler.kernels import winograd
from sardonyx.compiler.kernels.kernel import Index, Kernel
from sardonyx.compiler.kernels.toom_cook import TAPS, short_convolution
from sardonyx.compiler.kernels.winograd import Image, Winograd
from sardonyx.compiler.machine_code import LoadedCode, assembly, compiled, module_text
from sardonyx.compiler.target import NAMED, host
from sardonyx.core.dim import Dim, Size, evaluate

Floats = npt.NDArray[np.float32]

TARGETS = {target.name: target for target in (host(), NAMED["avx2"]) if target.triple == host().triple}
if host().name == "avx2":
    TARGETS = {"avx2": host()}


def size(name: str) -> Dim:
    """A size known at run time."""
    found = Dim.parse(name)
    assert isinstance(found, Dim)
    return found


SYMBOLIC: dict[str, Any] = {name: size(name) for name in ("batch", "channels", "filters", "height", "width")}


class Compiled:
    """A convolution with a bias, compiled; it runs any sizes that its plan leaves open.

    Args:
        plan: The convolution; its height and width are the result's.
        image_size: Rows and columns of the image.
    """

    def __init__(self, plan: Winograd, image_size: tuple[Size, Size]) -> None:
        self.plan = plan
        kernel = Kernel(plan.target)
        image, weights, scratch, bias, result = (kernel.buffer() for _ in range(5))
        e, lanes = kernel.emitter, plan.lanes
        height, width = kernel.size(plan.height), kernel.size(plan.width)
        blocks = kernel.size(-(-plan.filters // lanes))
        type = f"<{lanes} x float>"

        def store(index: tuple[Index, ...], value: str, mask: str | None) -> None:
            n, filter, y, x = index
            assert mask is None and filter.lane == 1
            value = e.let(f"fadd {type} {value}, {e.load(type, e.address(bias, 'float', filter.base), 4)}")
            block = e.add(e.mul(n.base, blocks), e.div(filter.base, lanes))
            place = e.mul(e.add(e.mul(e.add(e.mul(block, height), y.base), width), x.base), lanes)
            e.store(type, value, e.address(result, "float", place), 4)

        self.items = plan.convolve(kernel, Image(image, plan.channels, *image_size), weights, scratch, store)
        self.kernel = kernel
        text = module_text(plan.target, [kernel.definition("convolve")], kernel.emitter.declarations)
        self._code = LoadedCode([compiled(text, plan.target)], plan.target)
        signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_int64] * 3)
        self._function = signature(self._code.address("convolve"))

    def __call__(
        self, x: Floats, weights: Floats, bias: Floats, result: tuple[int, int], workers: int = 1, pieces: int = 1
    ) -> Floats:
        """The result for plain images; memory that must not be read is not a number, memory not written stays so."""
        lanes, plan = self.plan.lanes, self.plan
        filters = weights.shape[0]
        known = {
            "batch": x.shape[0], "channels": x.shape[1], "filters": filters, "height": result[0], "width": result[1],
            "image_height": x.shape[2], "image_width": x.shape[3],
        }  # fmt: skip
        image = blocked(x, lanes)
        transformed = winograd.transform_weights(weights, plan.m, plan.target, plan.vectors)
        worker_bytes = evaluate(plan.scratch, known)
        assert worker_bytes % 64 == 0
        guard = 64
        scratch = np.full(worker_bytes * workers // 4 + guard, np.nan, np.float32)
        biases = np.zeros(-(-filters // lanes) * lanes, np.float32)
        biases[:filters] = bias
        out = np.full((x.shape[0], -(-filters // lanes), *result, lanes), np.nan, np.float32)
        buffers = [image, transformed, scratch, biases, out]
        slots = [each.ctypes.data for each in buffers] + [evaluate(each, known) for each in self.kernel.sizes]
        arguments = (ctypes.c_int64 * len(slots))(*slots)
        items = evaluate(self.items, known)
        for piece in range(pieces):
            first, last = (items * (piece + k) // pieces for k in (0, 1))
            self._function(ctypes.addressof(arguments), first, last, piece % workers)
        assert np.isnan(scratch[-guard:]).all()
        assert not out.size or not out[:, -1, :, :, (filters - 1) % lanes + 1 :].any()
        return np.moveaxis(out, 4, 2).reshape(x.shape[0], out.shape[1] * lanes, *result)[:, :filters]


def blocked(x: Floats, lanes: int) -> Floats:
    """[N, C, H, W] as [N, ceil(C / lanes), H, W, lanes]."""
    n, c, h, w = x.shape
    padded = np.zeros((n, -(-c // lanes) * lanes, h, w), np.float32)
    padded[:, :c] = x
    return np.ascontiguousarray(np.moveaxis(padded.reshape(n, padded.shape[1] // lanes, lanes, h, w), 2, 4))


def expected(
    x: Floats, weights: Floats, bias: Floats, padding: tuple[int, int], result: tuple[int, int]
) -> npt.NDArray[np.float64]:
    """The convolution in float64; what lies outside the image is zero."""
    height, width = result
    rows, columns = (max(size, at + 2 + extent) for size, at, extent in zip(x.shape[2:], padding, result, strict=True))
    padded = np.zeros((*x.shape[:2], rows + padding[0], columns + padding[1]))
    padded[:, :, padding[0] : padding[0] + x.shape[2], padding[1] : padding[1] + x.shape[3]] = x
    total = np.zeros((x.shape[0], weights.shape[0], height, width)) + bias[:, None, None]
    for i, j in itertools.product(range(TAPS), repeat=2):
        window = padded[:, :, i : i + height, j : j + width]
        total += np.einsum("nchw,fc->nfhw", window, weights[:, :, i, j].astype(np.float64), optimize=True)
    return total


@functools.cache
def open_sizes(target: str, m: int, padding: tuple[int, int]) -> Compiled:
    """A convolution whose sizes are all arguments."""
    plan = Winograd(TARGETS[target], m, **SYMBOLIC, padding=padding)
    return Compiled(plan, (size("image_height"), size("image_width")))


def check(
    convolve: Compiled, batch: int, channels: int, filters: int, image: tuple[int, int], after: int | None = None
) -> None:
    """Compare on random numbers; ``after``: rows and columns of zeros below and right, by default as many as before."""
    padding = convolve.plan.padding
    rng = np.random.default_rng([batch, channels, filters, *image])
    x = rng.standard_normal((batch, channels, *image), np.float32)
    weights = rng.standard_normal((filters, channels, TAPS, TAPS), np.float32)
    bias = rng.standard_normal(filters, np.float32)
    height, width = (
        extent + before + (before if after is None else after) - 2
        for extent, before in zip(image, padding, strict=True)
    )
    got = convolve(x, weights, bias, (height, width))
    want = expected(x, weights, bias, padding, (height, width))
    assert got.shape == want.shape
    if want.size:
        error = np.abs(got - want).max() / np.abs(want).max()
        assert error <= winograd.error_bound(convolve.plan.m, channels)


@pytest.mark.parametrize("m", [2, 4, 6])
def test_matrices_give_the_correlation_exactly(m: int) -> None:
    algorithm = short_convolution(m)
    weights, inputs = [3, -5, 7], [2, -3, 5, 7, -11, 13, 17, -19][: algorithm.n]
    taken = [sum(a * w for a, w in zip(row, weights, strict=True)) for row in algorithm.weight]
    transformed = [sum(a * d for a, d in zip(row, inputs, strict=True)) for row in algorithm.input]
    products = [a * b for a, b in zip(taken, transformed, strict=True)]
    results = [sum(a * p for a, p in zip(row, products, strict=True)) for row in algorithm.output]
    assert results == [sum(w * d for w, d in zip(weights, inputs[k : k + TAPS], strict=True)) for k in range(m)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("m", [2, 4, 6])
def test_sizes_around_the_edges_of_tiles(target: str, m: int) -> None:
    convolve = open_sizes(target, m, (1, 1))
    for height, width in itertools.product((1, m - 1, m, m + 1, 2 * m + 1), repeat=2):
        check(convolve, 1, 3, 5, (height, width))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("m", [2, 4, 6])
def test_channels_and_filters_around_blocks(target: str, m: int) -> None:
    convolve = open_sizes(target, m, (1, 1))
    lanes = convolve.plan.lanes
    for channels in (1, lanes - 1, lanes, lanes + 1, 3 * lanes + 1):
        check(convolve, 1, channels, 7, (7, 5))
    for filters in (1, lanes, lanes + 1, 2 * lanes, 2 * lanes + 1, 5 * lanes):
        check(convolve, 1, 9, filters, (5, 7))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("m", [2, 4, 6])
@pytest.mark.parametrize("padding", [(0, 0), (2, 1)])
def test_paddings(target: str, m: int, padding: tuple[int, int]) -> None:
    convolve = open_sizes(target, m, padding)
    for after in (0, 1, 3):
        check(convolve, 1, 5, 3, (m + 3, m + 4), after)
    check(convolve, 1, 5, 3, (1, 2), 2 * m)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("m", [2, 4, 6])
def test_batches_fill_blocks_of_tiles(target: str, m: int) -> None:
    convolve = open_sizes(target, m, (1, 1))
    for batch in (0, 2, 5):
        check(convolve, batch, 3, 2, (2 * m + 1, 3 * m))
    check(convolve, 3, 2, 3, (0, 3))


@pytest.mark.parametrize("target", TARGETS)
def test_every_number_of_tiles_up_to_two_blocks(target: str) -> None:
    convolve = open_sizes(target, 2, (1, 1))
    assert not isinstance(convolve.plan.channels, int)
    for tiles in range(1, 2 * convolve.plan.block + 2):
        check(convolve, 1, 2, 3, (2, 2 * tiles))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("channels", "filters"), [(5, 5), (40, 56), (256, 16)])
def test_known_sizes(target: str, channels: int, filters: int) -> None:
    plan = Winograd(TARGETS[target], 4, 2, channels, filters, 13, 15, workers=2)
    check(Compiled(plan, (13, 15)), 2, channels, filters, (13, 15))


@pytest.mark.parametrize("target", TARGETS)
def test_any_split_of_the_work_gives_the_same_bits(target: str) -> None:
    convolve = open_sizes(target, 4, (1, 1))
    rng = np.random.default_rng(0)
    x, weights = rng.standard_normal((2, 9, 50, 41), np.float32), rng.standard_normal((7, 9, 3, 3), np.float32)
    bias = np.zeros(7, np.float32)
    whole = convolve(x, weights, bias, (50, 41))
    assert evaluate(convolve.items, {"batch": 2, "height": 50, "width": 41}) > 2
    for workers, pieces in ((1, 3), (2, 2), (3, 7)):
        split = convolve(x, weights, bias, (50, 41), workers, pieces)
        assert split.tobytes() == whole.tobytes()


@pytest.mark.parametrize("m", [2, 4, 6])
@pytest.mark.parametrize("channels", [4, 64, 512])
def test_the_error_estimate_holds_and_is_not_idle(m: int, channels: int) -> None:
    rng = np.random.default_rng(channels)
    x = rng.standard_normal((1, channels, 24, 24), np.float32)
    weights = rng.standard_normal((8, channels, 3, 3), np.float32)
    bias = np.zeros(8, np.float32)
    got = open_sizes(host().name, m, (1, 1))(x, weights, bias, (24, 24))
    want = expected(x, weights, bias, (1, 1), (24, 24))
    error = np.abs(got - want).max() / np.abs(want).max()
    bound = winograd.error_bound(m, channels)
    assert bound / 20 < error < bound
    assert m == 6 or error < 1e-5


def test_kernels_for_a_foreign_processor_are_assembled() -> None:
    plan = Winograd(NAMED["neon"], 4, 1, 8, 8, 8, 8)
    kernel = Kernel(plan.target)
    image, weights, scratch = (kernel.buffer() for _ in range(3))
    stored: list[tuple[Index, ...]] = []
    plan.convolve(kernel, Image(image, 8, 8, 8), weights, scratch, lambda index, value, mask: stored.append(index))
    text = module_text(plan.target, [kernel.definition("convolve")], kernel.emitter.declarations)
    assert "fmla" in assembly(text, plan.target)
    assert len(stored) == plan.m + 1
