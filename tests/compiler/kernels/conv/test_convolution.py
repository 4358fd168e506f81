"""Direct convolutions equal numpy's over sizes around the edges of tiles, and touch nothing outside."""

from __future__ import annotations

import math
from typing import NamedTuple

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
    out_sizes,
    stored,
    storing,
    symbols,
    to_blocked,
    to_plain,
)

from sardonyx.compiler.codegen.kernel_builder import Kernel
from sardonyx.compiler.kernels.conv.convolution import convolution, pack_weights
from sardonyx.compiler.kernels.conv.runtime_packing import pack, packed_size
from sardonyx.compiler.kernels.conv.window_sweep import Image
from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling.convolution_tiles import choose_tile, grouped_outputs
from sardonyx.compiler.tiling.windows import Windows
from sardonyx.core.dim import Dim, Size
from sardonyx.core.rules.numpy_windows import convolve
from sardonyx.errors import UnsupportedError

pytestmark = pytest.mark.sampled


class Case(NamedTuple):
    channels: int
    filters: int
    windows: Windows
    high: tuple[int, ...]
    sizes: tuple[tuple[int, ...], ...]
    groups: int = 1
    blocked: bool = True


W = Windows.of
ROWS = ((1, 1), (2, 3), (3, 5), (4, 6), (5, 7), (2, 13), (3, 14), (1, 15), (2, 29), (4, 31))

CASES = {
    "1x1": Case(24, 40, W((1, 1)), (0, 0), (*ROWS, (0, 5), (5, 0))),
    "1x1 strided": Case(16, 16, W((1, 1), (2, 2)), (0, 0), ROWS),
    "3x3": Case(16, 32, W((3, 3), padding=(1, 1)), (1, 1), ROWS),
    "3x3 unpadded": Case(8, 48, W((3, 3)), (0, 0), ROWS[2:]),
    "3x3 strided": Case(17, 33, W((3, 3), (2, 2), (1, 1)), (1, 1), ROWS),
    "3x3 dilated": Case(16, 16, W((3, 3), padding=(3, 3), dilations=(3, 3)), (3, 3), ROWS),
    "uneven": Case(5, 7, W((2, 4), (2, 1), (0, 3), (1, 2)), (1, 2), ROWS[2:]),
    "cropped": Case(8, 8, W((3, 3), padding=(-1, -1)), (0, -1), ((7, 9), (9, 23))),
    "large padding": Case(8, 8, W((3, 3), padding=(5, 6)), (4, 7), ROWS),
    "no channels": Case(0, 8, W((3, 3)), (0, 0), ((5, 5),)),
    "first layer": Case(3, 32, W((7, 7), (2, 2), (3, 3)), (3, 3), ROWS, blocked=False),
    "first layer, one channel": Case(1, 20, W((5, 5), padding=(2, 2)), (2, 2), ROWS, blocked=False),
    "plain, many channels": Case(10, 24, W((3, 3), padding=(1, 1)), (1, 1), ROWS, blocked=False),
    "plain, far taps": Case(
        3, 8, W((1, 3), (1, 1), (0, 150), (1, 150)), (0, 150), ((1, 7), (2, 40), (1, 301)), blocked=False
    ),
    "plain, transposed": Case(3, 16, W((4, 4), padding=(2, 2), base_dilations=(2, 2)), (2, 2), ROWS, blocked=False),
    "half a block of channels": Case(24, 24, W((3, 3), padding=(1, 1)), (1, 1), ROWS),
    "half a block of filters": Case(16, 8, W((3, 3), padding=(1, 1)), (1, 1), ROWS),
    "blocks and a few filters": Case(8, 49, W((3, 3), (2, 1), (1, 1)), (1, 1), ROWS),
    "a channel more than a block": Case(17, 17, W((1, 1)), (0, 0), ROWS),
    "one axis": Case(20, 24, W((5,), padding=(2,)), (2,), ((1,), (4,), (13,), (30,), (101,), (301,), (420,))),
    "one axis, strided": Case(33, 49, W((3,), (2,), (1,)), (1,), ((1,), (40,), (500,), (801,))),
    "one axis, few filters": Case(20, 1, W((3,), padding=(1,)), (1,), ((1,), (40,), (700,))),
    "one row": Case(20, 40, W((1, 3), padding=(0, 1)), (0, 1), ((1, 1), (1, 300), (1, 453))),
    "three axes": Case(9, 16, W((3, 2, 3), (1, 2, 1), (1, 0, 1)), (1, 1, 1), ((1, 2, 3), (4, 5, 16))),
    "groups of blocks": Case(64, 96, W((3, 3), padding=(1, 1)), (1, 1), ROWS[3:7], groups=2),
    "groups within blocks": Case(32, 32, W((3, 3), padding=(1, 1)), (1, 1), ROWS[3:7], groups=8),
    "groups across blocks": Case(30, 42, W((1, 1)), (0, 0), ROWS[3:7], groups=3),
    "groups of one channel": Case(20, 40, W((3, 3), padding=(1, 1)), (1, 1), ROWS[3:7], groups=20),
    "groups of two": Case(20, 20, W((3, 3), padding=(1, 1)), (1, 1), ROWS, groups=10),
    "groups of four": Case(32, 32, W((3, 3), (2, 2), (1, 1)), (1, 1), ROWS, groups=8),
    "few filters": Case(24, 3, W((3, 3), padding=(1, 1)), (1, 1), ROWS),
    "one filter": Case(40, 1, W((1, 1)), (0, 0), ROWS),
    "few filters, strided": Case(16, 2, W((5, 2), (1, 2), (2, 3), (1, 3)), (2, 3), ROWS),
    "few filters, transposed": Case(16, 2, W((4, 4), padding=(2, 2), base_dilations=(2, 2)), (2, 2), ROWS),
    "few filters, three axes": Case(9, 2, W((3, 2, 3), (1, 2, 1), (1, 0, 1)), (1, 1, 1), ((1, 2, 3), (4, 5, 16))),
    "groups, plain": Case(6, 24, W((3, 3), padding=(1, 1)), (1, 1), ROWS[3:7], groups=3, blocked=False),
    "transposed": Case(16, 24, W((3, 3), padding=(1, 1), base_dilations=(2, 2)), (2, 2), ROWS),
    "transposed, few taps": Case(8, 8, W((2, 2), padding=(1, 1), base_dilations=(3, 3)), (1, 1), ROWS),
    "transposed, dilated": Case(
        8, 16, W((3, 4), (1, 1), (3, 2), dilations=(2, 3), base_dilations=(2, 3)), (2, 5), ROWS[1:6]
    ),
    "dilated base, strided": Case(8, 8, W((3,), (3,), (2,), base_dilations=(2,)), (1,), ((1,), (5,), (40,))),
}


def write(kernel: Kernel, case: Case, batch: Size, sizes: tuple[Size, ...], out: tuple[Size, ...]) -> Size:
    x, weights, y = kernel.buffer(), kernel.buffer(), kernel.buffer()
    taps = math.prod(case.windows.sizes)
    tile = choose_tile(
        kernel.target, channels=case.channels, filters=case.filters, groups=case.groups, blocked=case.blocked,
        width=out[-1], taps=taps,
    )  # fmt: skip
    return convolution(
        kernel,
        x=Image(x, case.channels, sizes, case.blocked),
        weights=weights,
        batch=batch,
        windows=case.windows,
        out=out,
        tile=tile,
        outputs=grouped_outputs(kernel.target, case.channels // case.groups, case.windows.sizes[-1]),
        epilogue=storing(kernel, y, case.filters, out, tile.lanes),
    )


def built(target: Target, case: Case, batch: Size, sizes: tuple[Size, ...], out: tuple[Size, ...]) -> CompiledKernel:
    kernel = Kernel(target)
    return CompiledKernel(kernel, write(kernel, case, batch, sizes, out))


def check(
    run: CompiledKernel, target: Target, case: Case, batch: int, sizes: tuple[int, ...], width: Size, parts: int
) -> None:
    rng = np.random.default_rng(3)
    lanes = target.lanes(32)
    out = out_sizes(sizes, case.windows, case.high)
    x = rng.standard_normal((batch, case.channels, *sizes)).astype(np.float32)
    groups, group_channels = case.groups, case.channels // case.groups
    weights = rng.standard_normal((groups, case.filters // groups, group_channels, *case.windows.sizes)).astype(
        np.float32
    )
    windows = case.windows
    expected = convolve(
        np.moveaxis(x.reshape(batch, groups, group_channels, *sizes), 1, 0).astype(np.float64),
        weights.astype(np.float64),
        out,
        windows.strides,
        tuple(zip(windows.padding, case.high, strict=True)),  # type: ignore[arg-type]
        windows.base_dilations,
        windows.dilations,
    )
    expected = np.moveaxis(expected, 0, 1).reshape(batch, case.filters, *out)
    tile = choose_tile(
        target,
        channels=case.channels,
        filters=case.filters,
        groups=groups,
        blocked=case.blocked,
        width=width,
        taps=math.prod(windows.sizes),
    )
    y = stored(batch, case.filters, out, lanes)
    run(
        to_blocked(x, lanes) if case.blocked else copied(x),
        copied(pack_weights(weights, tile)),
        y,
        parts=parts,
        **symbols(batch, sizes, out),
    )
    actual = to_plain(y)
    bound = 2e-6 * np.abs(expected).max(initial=0)
    np.testing.assert_allclose(actual[:, : case.filters], expected, rtol=0, atol=bound)
    assert not actual[:, case.filters :].any()


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_sizes_as_arguments(case: Case, target: Target) -> None:
    rank = len(case.windows.sizes)
    run = built(target, case, BATCH, IN[3 - rank :], OUT[3 - rank :])
    for number, sizes in enumerate(case.sizes):
        check(run, target, case, 1 + number % 2, sizes, OUT[2], parts=1 + number % 3)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_sizes_in_the_code(case: Case, target: Target) -> None:
    for sizes in case.sizes[len(case.sizes) // 2 :: 3]:
        out = out_sizes(sizes, case.windows, case.high)
        check(built(target, case, 2, sizes, out), target, case, 2, sizes, out[-1], parts=2)


def test_padding_as_an_argument() -> None:
    target = TARGETS["avx2"]
    case = CASES["3x3"]
    sized = case._replace(windows=W((3, 3), padding=(Dim.symbol("low"), Dim.symbol("low"))))
    run = built(target, sized, BATCH, IN[1:], OUT[1:])
    for low in (0, 1, 4):
        padded = case._replace(windows=W((3, 3), padding=(low, low)))

        def with_padding(*buffers: np.ndarray, parts: int, low: int = low, **sizes: int) -> None:
            run(*buffers, parts=parts, low=low, **sizes)

        check(with_padding, target, padded, 1, (6, 17), OUT[2], parts=1)  # type: ignore[arg-type]


def test_padding_of_a_dilated_input_has_to_be_known() -> None:
    with pytest.raises(UnsupportedError, match="dilated input"):
        W((3,), padding=(Dim.symbol("low"),), base_dilations=(2,))


def test_nothing_outside_of_the_image_is_read() -> None:
    """NaN around the image would show in the results."""
    target, case = TARGETS["avx2"], CASES["3x3"]
    run = built(target, case, BATCH, IN[1:], OUT[1:])
    lanes = target.lanes(32)
    tile = choose_tile(target, channels=16, filters=32)
    room = aligned((4, 2, 5, 9, lanes), fill=np.nan)
    room[1] = 1
    y = stored(1, 32, (5, 9), lanes)
    run(room[1], copied(pack_weights(np.ones((1, 32, 16, 3, 3)), tile)), y, **symbols(1, (5, 9), (5, 9)))
    counts = np.outer([2, 3, 3, 3, 2], [2, *[3] * 7, 2])
    np.testing.assert_array_equal(to_plain(y), np.broadcast_to(16 * counts, (1, 32, 5, 9)))


def test_any_split_of_the_work_gives_the_same_bits() -> None:
    target, case = TARGETS["avx2"], CASES["3x3 strided"]
    run = built(target, case, BATCH, IN[1:], OUT[1:])
    rng = np.random.default_rng(5)
    tile = choose_tile(target, channels=17, filters=33)
    weights = copied(pack_weights(rng.standard_normal((1, 33, 17, 3, 3)), tile))
    x = to_blocked(rng.standard_normal((2, 17, 11, 30)).astype(np.float32), 8)
    actual = []
    for parts in (1, 2, 7):
        y = stored(2, 33, (6, 15), 8)
        run(x, weights, y, parts=parts, **symbols(2, (11, 30), (6, 15)))
        actual.append(y.tobytes())
    assert actual[0] == actual[1] == actual[2]


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_weights_packed_at_run_time(case: Case, target: Target) -> None:
    taps = math.prod(case.windows.sizes)
    tile = choose_tile(
        target, channels=case.channels, filters=case.filters, groups=case.groups, blocked=case.blocked, taps=taps
    )
    kernel = Kernel(target)
    source, packed = kernel.buffer(), kernel.buffer()
    e, group_channels = kernel.emitter, case.channels // case.groups

    def weight(filter: str | int, channel: str | int, tap: str | int) -> str:
        at = e.add(e.mul(e.add(e.mul(filter, group_channels), channel), taps), tap)
        return e.load("float", e.address(source, "float", at), 4)

    run = CompiledKernel(kernel, pack(kernel, tile, weight=weight, packed=packed, taps=taps))
    shape = (case.groups, case.filters // case.groups, case.channels // case.groups, *case.windows.sizes)
    weights = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    actual = aligned((packed_size(tile, taps),), fill=99)
    run(copied(weights), actual, parts=2)
    np.testing.assert_array_equal(actual, pack_weights(weights, tile))
