"""Convolutions along the rows of plain images equal numpy's over sizes around the edges of tiles."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from tests.compiler.kernels.compiled import CompiledKernel
from tests.compiler.kernels.images import BATCH, IN, OUT, TARGETS, aligned, copied, out_sizes, symbols

from sardonyx.compiler.codegen.kernel_builder import Epilogue, Index, Kernel
from sardonyx.compiler.kernels.conv.nchw import pack_planar_weights, planar
from sardonyx.compiler.kernels.conv.window_sweep import Image
from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling.convolution_tiles import planar_vectors
from sardonyx.compiler.tiling.windows import Windows
from sardonyx.core.dim import Size
from sardonyx.core.rules.numpy_windows import convolve

pytestmark = pytest.mark.sampled


class Case(NamedTuple):
    channels: int
    filters: int
    windows: Windows
    high: tuple[int, ...]
    sizes: tuple[tuple[int, ...], ...]


W = Windows.of
ROWS = ((1, 1), (2, 3), (3, 7), (4, 16), (5, 17), (2, 47), (3, 48), (1, 49), (4, 95), (3, 130), (2, 300))
LINES = ((1,), (4,), (13,), (64,), (101,), (383,), (385,), (2001,))

CASES = {
    "3x3": Case(8, 8, W((3, 3), padding=(1, 1)), (1, 1), ROWS),
    "3x3, one filter": Case(3, 1, W((3, 3), padding=(1, 1)), (1, 1), ROWS),
    "1x1": Case(5, 2, W((1, 1)), (0, 0), (*ROWS, (0, 5), (5, 0))),
    "unpadded": Case(2, 3, W((3, 5)), (0, 0), ROWS[2:]),
    "many taps": Case(2, 8, W((3, 39), padding=(1, 19)), (1, 19), ROWS),
    "strided": Case(3, 4, W((3, 3), (2, 2), (1, 1)), (1, 1), ROWS),
    "strided rows": Case(3, 4, W((3, 3), (3, 1), (1, 1)), (1, 1), ROWS),
    "dilated": Case(4, 2, W((3, 3), padding=(3, 3), dilations=(3, 3)), (3, 3), ROWS),
    "strided and dilated": Case(2, 2, W((2, 4), (1, 2), (1, 5), dilations=(1, 3)), (0, 4), ROWS),
    "cropped": Case(3, 3, W((3, 3), padding=(-1, -1)), (0, -1), ((7, 9), (9, 53))),
    "large padding": Case(2, 2, W((3, 3), padding=(5, 60)), (4, 70), ROWS),
    "transposed along rows": Case(3, 2, W((4, 3), padding=(2, 1), base_dilations=(2, 1)), (2, 1), ROWS),
    "one axis": Case(2, 3, W((5,), padding=(2,)), (2,), LINES),
    "one axis, many taps, strided": Case(1, 1, W((256,), (2,), (127,)), (127,), LINES),
    "one row": Case(4, 4, W((1, 3), padding=(0, 1)), (0, 1), ((1, 1), (1, 300), (1, 1453))),
    "three axes": Case(3, 2, W((3, 2, 3), (1, 2, 1), (1, 0, 1)), (1, 1, 1), ((1, 2, 3), (4, 5, 60))),
    "no channels": Case(0, 2, W((3, 3)), (0, 0), ((5, 25),)),
}


def storing(kernel: Kernel, pointer: str, filters: int, out: tuple[Size, ...]) -> Epilogue:
    """Stores results as a plain image."""
    e, lanes = kernel.emitter, kernel.target.lanes(32)

    def epilogue(index: tuple[Index, ...], value: str, mask: str | None) -> None:
        image, channel, *positions = index
        assert [item.lane for item in index] == [0] * (len(index) - 1) + [1]
        at = e.add(e.mul(image.base, filters), channel.base)
        for size, position in zip(out, positions, strict=True):
            at = e.add(e.mul(at, kernel.size(size)), position.base)
        there, type = e.address(pointer, "float", at), f"<{lanes} x float>"
        if mask is None:
            e.store(type, value, there, 4)
        else:
            e.masked_store(type, value, there, 4, mask, lanes)

    return epilogue


def write(kernel: Kernel, case: Case, batch: Size, sizes: tuple[Size, ...], out: tuple[Size, ...]) -> Size:
    x, weights, y = kernel.buffer(), kernel.buffer(), kernel.buffer()
    return planar(
        kernel, x=Image(x, case.channels, sizes, False), weights=weights, filters=case.filters, batch=batch,
        windows=case.windows, out=out,
        outputs=planar_vectors(kernel.target, case.filters) * kernel.target.lanes(32),
        epilogue=storing(kernel, y, case.filters, out),
    )  # fmt: skip


def check(run: CompiledKernel, case: Case, batch: int, sizes: tuple[int, ...], parts: int) -> None:
    rng = np.random.default_rng(3)
    out, windows = out_sizes(sizes, case.windows, case.high), case.windows
    # What lies around the image and its results is not touched.
    room = aligned((batch + 2, case.channels, *sizes), fill=np.nan)
    x = room[1 : batch + 1]
    x[...] = rng.standard_normal(x.shape)
    weights = rng.standard_normal((1, case.filters, case.channels, *windows.sizes)).astype(np.float32)
    expected = convolve(
        x[None].astype(np.float64), weights.astype(np.float64), out, windows.strides,
        tuple(zip(windows.padding, case.high, strict=True)), windows.base_dilations, windows.dilations,  # type: ignore[arg-type]
    )[0]  # fmt: skip
    y = aligned((batch + 2, case.filters, *out), fill=99)
    run(x, copied(pack_planar_weights(weights)), y[1 : batch + 1], parts=parts, **symbols(batch, sizes, out))
    np.testing.assert_allclose(y[1 : batch + 1], expected, rtol=0, atol=4e-6 * np.abs(expected).max(initial=0))
    assert (y[0] == 99).all() and (y[-1] == 99).all()


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_sizes_as_arguments(case: Case, target: Target) -> None:
    rank, kernel = len(case.windows.sizes), Kernel(target)
    run = CompiledKernel(kernel, write(kernel, case, BATCH, IN[3 - rank :], OUT[3 - rank :]))
    for number, sizes in enumerate(case.sizes):
        check(run, case, 1 + number % 2, sizes, parts=1 + number % 3)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_sizes_in_the_code(case: Case, target: Target) -> None:
    for sizes in case.sizes[len(case.sizes) // 2 :: 2]:
        kernel = Kernel(target)
        run = CompiledKernel(kernel, write(kernel, case, 2, sizes, out_sizes(sizes, case.windows, case.high)))
        check(run, case, 2, sizes, parts=2)


def test_any_split_of_the_work_gives_the_same_bits() -> None:
    case, kernel = CASES["one axis, many taps, strided"], Kernel(TARGETS["avx2"])
    run = CompiledKernel(kernel, write(kernel, case, BATCH, IN[2:], OUT[2:]))
    rng = np.random.default_rng(5)
    x = copied(rng.standard_normal((2, 1, 4001)).astype(np.float32))
    weights = copied(pack_planar_weights(rng.standard_normal((1, 1, 1, 256))))
    (width,) = out_sizes((4001,), case.windows, case.high)
    actual = []
    for parts in (1, 2, 7):
        y = aligned((2, 1, width))
        run(x, weights, y, parts=parts, **symbols(2, (4001,), (width,)))
        actual.append(y.tobytes())
    assert actual[0] == actual[1] == actual[2]
