"""The sums of convolutions stay in registers, also on processors on which no test runs."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tests.compiler.elementwise import TARGETS
from tests.performance_guards.emitted import FMAS, SPILLS, assemble, basic_blocks

from sardonyx.compiler.codegen import requantize
from sardonyx.compiler.codegen.kernel_builder import Epilogue, Index, Kernel
from sardonyx.compiler.kernels.conv import winograd
from sardonyx.compiler.kernels.conv.convolution import convolution
from sardonyx.compiler.kernels.conv.nchw import planar
from sardonyx.compiler.kernels.conv.window_sweep import Image
from sardonyx.compiler.program import Program
from sardonyx.compiler.target.description import NAMED, host
from sardonyx.compiler.tiling.convolution_tiles import choose_tile, planar_vectors
from sardonyx.compiler.tiling.windows import Windows
from sardonyx.compiler.tiling.winograd import Winograd
from sardonyx.core import language as L
from sardonyx.core.dim import Dim, Size
from sardonyx.core.eval.tensor import constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import TensorType

pytestmark = [pytest.mark.performance_guard, pytest.mark.sampled]

BATCH, ROWS, COLUMNS, OUT_ROWS, OUT_COLUMNS = map(Dim.symbol, ("n", "h", "w", "oh", "ow"))
LAYERS = {
    "3x3": (16, Windows.of((3, 3), padding=(1, 1)), (56, 56), True),
    "1x1": (24, Windows.of((1, 1)), (56, 56), True),
    "first layer": (3, Windows.of((7, 7), (2, 2), (3, 3)), (28, 28), False),
}
"""Channels, windows, sizes of the output for an image of 56 by 56, and whether the image is blocked."""


def store_blocks(kernel: Kernel, pointer: str, out: tuple[Size, ...], element: str = "float") -> Epilogue:
    e, lanes = kernel.emitter, kernel.target.lanes(32)

    def epilogue(at: tuple[Index, ...], value: str, mask: str | None) -> None:
        image, channel, y, x = (index.base for index in at)
        position = e.add(e.mul(e.add(e.mul(image, 4), e.div(channel, lanes)), kernel.size(out[0])), y)
        position = e.add(e.mul(position, kernel.size(out[1])), x)
        e.store(f"<{lanes} x {element}>", value, e.address(pointer, element, e.mul(position, lanes)), 4)

    return epilogue


@pytest.mark.parametrize("opened", (False, True), ids=("known", "open"))
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("target", FMAS)
def test_sums_of_direct_convolutions_stay_in_registers(target: str, name: str, opened: bool) -> None:
    channels, windows, known, blocked = LAYERS[name]
    kernel, sizes, out, batch = Kernel(NAMED[target]), (56, 56), known, 1
    if opened:
        sizes, out, batch = (ROWS, COLUMNS), (OUT_ROWS, OUT_COLUMNS), BATCH  # type: ignore[assignment]
    x, weights, y = kernel.buffer(), kernel.buffer(), kernel.buffer()
    taps = windows.sizes[0] * windows.sizes[1]
    tile = choose_tile(kernel.target, channels=channels, filters=32, blocked=blocked, width=out[-1], taps=taps)
    convolution(
        kernel, x=Image(x, channels, sizes, blocked), weights=weights, batch=batch, windows=windows, out=out,
        tile=tile, epilogue=store_blocks(kernel, y, out),
    )  # fmt: skip
    blocks = basic_blocks(kernel)
    most = max(block.count(FMAS[target]) for block in blocks)
    inner = [block for block in blocks if block.count(FMAS[target]) == most]
    assert most >= 24
    assert max(len(re.findall(SPILLS[target], block)) for block in inner) <= most // 5


@pytest.mark.parametrize(("size", "filters", "prefetches"), [(7, 128, True), (7, 32, False), (56, 128, False)])
def test_small_images_prefetch_the_weights_of_the_next_filters(size: int, filters: int, prefetches: bool) -> None:
    kernel, out = Kernel(NAMED["avx512vnni"]), (size, size)
    x, weights, y = kernel.buffer(), kernel.buffer(), kernel.buffer()
    tile = choose_tile(kernel.target, channels=512, filters=filters, width=size, taps=9, dot_width=4)
    convolution(
        kernel, x=Image(x, 512, out, True, t.UINT8), weights=weights, batch=1,
        windows=Windows.of((3, 3), padding=(1, 1)), out=out, tile=tile,
        epilogue=store_blocks(kernel, y, out, "i32"),
    )  # fmt: skip
    assert ("prefetcht1" in assemble(kernel)) == prefetches


@pytest.mark.parametrize("taps", (1, 3))
@pytest.mark.parametrize(("dot_width", "product", "spilled"), [(2, "vpmaddwd", 4), (4, "vpmaddubsw", 8)])
def test_sums_of_integers_stay_in_registers(dot_width: int, product: str, spilled: int, taps: int) -> None:
    """A few are spilled: the vector of ones that adds pairs of bytes takes a register too."""
    kernel, sizes = Kernel(NAMED["avx2"]), (24, 24)
    x, weights, y = kernel.buffer(), kernel.buffer(), kernel.buffer()
    tile = choose_tile(kernel.target, channels=64, filters=32, width=24, taps=taps**2, dot_width=dot_width)
    e = kernel.emitter

    def epilogue(at: tuple[Index, ...], value: str, mask: str | None) -> None:
        position = e.add(e.mul(e.add(e.mul(at[1].base, 24), at[2].base), 24), at[3].base)
        e.store("<8 x i32>", value, e.address(y, "<8 x i32>", position), 4)

    convolution(
        kernel, x=Image(x, 64, sizes, dtype=t.UINT8 if dot_width == 4 else t.INT16), weights=weights, batch=1,
        windows=Windows.of((taps,) * 2, padding=(taps // 2,) * 2), out=sizes, tile=tile,
        epilogue=epilogue,
    )  # fmt: skip
    blocks = basic_blocks(kernel)
    most = max(block.count(product) for block in blocks)
    assert most >= tile.blocks * tile.outputs
    stored = [len(re.findall(SPILLS["avx2"], block)) for block in blocks if block.count(product) == most]
    assert max(stored) <= spilled


@pytest.mark.parametrize("target", FMAS)
@pytest.mark.parametrize("share", [1, 2, 4, 8])
def test_sums_of_planar_convolutions_stay_in_registers(target: str, share: int) -> None:
    kernel, sizes = Kernel(NAMED[target]), (172, 264)
    lanes = kernel.target.lanes(32)
    filters = max(1, lanes // 2 // share)
    vectors = planar_vectors(kernel.target, filters)
    x, weights, y = kernel.buffer(), kernel.buffer(), kernel.buffer()
    e = kernel.emitter

    def epilogue(at: tuple[Index, ...], value: str, mask: str | None) -> None:
        row = e.add(e.mul(at[1].base, sizes[0]), at[2].base)
        position = e.address(y, "float", e.add(e.mul(row, sizes[1]), at[3].base))
        if mask is None:
            e.store(f"<{lanes} x float>", value, position, 4)
        else:
            e.masked_store(f"<{lanes} x float>", value, position, 4, mask, lanes)

    planar(
        kernel, x=Image(x, 2, sizes, False), weights=weights, filters=filters, batch=1,
        windows=Windows.of((3, 39), padding=(1, 19)), out=sizes, outputs=vectors * lanes, epilogue=epilogue,
    )  # fmt: skip
    blocks = basic_blocks(kernel)
    most = max(block.count(FMAS[target]) for block in blocks)
    assert most >= filters * vectors
    inner = next(block for block in blocks if block.count(FMAS[target]) == most)
    assert not re.findall(SPILLS[target], inner)


@pytest.mark.parametrize("target", TARGETS)
def test_codes_are_packed_four_vectors_at_a_time(target: str) -> None:
    same = np.eye(24, dtype=np.float32).reshape(24, 24, 1, 1)

    def body(x: L.Tensor) -> list[L.Tensor]:
        y = L.convolve(x, constant(same, t.FLOAT), strides=[1, 1], padding=[(0, 0)] * 2)
        z = L.cast(L.clip(L.round_(y), 0.0, 255.0), t.UINT8)
        w = L.cast(constant(same.astype(np.int8), t.INT8), t.INT32)
        return [L.convolve(L.cast(z, t.INT32), w, strides=[1, 1], padding=[(0, 0)] * 2)]

    function = trace("f", body, [TensorType(t.FLOAT, (1, 24, 3, 13))])
    program = Program.compile(function, target=host() if target == host().name else NAMED[target], threads=1)
    packed = [launch for launch in program.launches if ".pack" in launch.text]
    assert len(packed) == requantize.packs(program.target)


@pytest.mark.parametrize("target", [name for name in TARGETS if not NAMED.get(name, host()).saturates])
def test_gated_sums_become_codes_without_limits_of_floats(target: str) -> None:
    """A gate between sums and codes takes the short power, and packing applies the limits."""
    rng = np.random.default_rng(0)
    weights = constant(rng.integers(-127, 128, (32, 32, 1, 1)).astype(np.int8), t.INT8)
    scales, factors = rng.uniform(1e-4, 1e-3, (32, 1, 1)), 2.0 ** rng.integers(-2, 4, (32, 1, 1))

    def convolved(x: L.Tensor) -> L.Tensor:
        return L.convolve(x, weights, strides=[1, 1], padding=[(0, 0)] * 2, dtype=t.INT32)

    def body(x: L.Tensor) -> list[L.Tensor]:
        offsets = constant(np.arange(32, dtype=np.int32).reshape(32, 1, 1), t.INT32)
        y = L.cast(convolved(x) - offsets, t.FLOAT) * constant(np.float32(scales), t.FLOAT)
        z = y * (1.0 / (1.0 + L.exp(-y))) * constant(np.float32(factors), t.FLOAT) / 0.01
        return [convolved(L.cast(L.clip(L.round_(z) + 7.0, 0.0, 255.0), t.UINT8))]

    function = trace("f", body, [TensorType(t.UINT8, (1, 32, 8, 13))])
    program = Program.compile(function, target=host() if target == host().name else NAMED[target], threads=1)
    (launch,) = [launch for launch in program.launches if ".pack" in launch.text]
    assert ".scalef" in launch.text
    assert "fcmp" not in launch.text


def winograd_kernel(plan: Winograd) -> Kernel:
    kernel = Kernel(plan.target)
    x, weights, scratch = (kernel.buffer() for _ in range(3))
    stored: list[tuple[Index, ...]] = []
    image = Image(x, plan.channels, plan.out)
    winograd.convolve(kernel, plan, image, weights, scratch, lambda index, value, mask: stored.append(index))
    assert len(stored) == plan.tile[1] + 1
    return kernel


@pytest.mark.parametrize("target", ["avx2", "avx512"])
def test_products_of_winograd_stay_in_registers(target: str) -> None:
    plan = Winograd(NAMED[target], (4, 4), 1, 64, 64, (56, 56))
    blocks = assemble(winograd_kernel(plan)).split(".LBB")
    products = max(blocks, key=lambda block: block.count("vfmadd231ps"))
    assert products.count("vfmadd231ps") == 4 * plan.rows * plan.vectors
    assert "(%rsp)" not in products


def test_winograd_for_another_processor_is_assembled() -> None:
    plan = Winograd(NAMED["neon"], (4, 4), 1, 8, 8, (8, 8))
    assert assemble(winograd_kernel(plan)).count("fmla") > 4 * plan.rows * plan.vectors
