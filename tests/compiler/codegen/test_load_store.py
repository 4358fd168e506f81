"""Loads and stores equal numpy's results, for every element type, stride and mask."""

from __future__ import annotations

import ctypes

import ml_dtypes
import numpy as np
import pytest
from tests.compiler.elementwise import TARGETS, Elementwise

from sardonyx.compiler.analysis.element_types import DTYPES
from sardonyx.compiler.codegen import load_store
from sardonyx.compiler.codegen.kernel_builder import Index, Kernel
from sardonyx.compiler.llvm.object_code import LoadedCode, compiled, module_text
from sardonyx.compiler.target.description import NAMED
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import DType, numpy_dtype
from sardonyx.errors import UnsupportedError

pytestmark = pytest.mark.sampled

LANES = 8
ROOM = 64


def moved(
    dtype: DType, target: str, steps: list[tuple[int, int]], masked: bool, lanes: int = LANES
) -> list[np.ndarray]:
    """Return the arrays, initially 1 (or True), after a kernel that loads and stores with each pair of strides."""
    kernel = Kernel(NAMED[target])
    e = kernel.emitter
    source, results = kernel.buffer(), [kernel.buffer() for _ in steps]
    mask = e.lanes_below("%last", lanes) if masked else None
    for result, (into, out) in zip(results, steps, strict=True):
        value = load_store.load(e, dtype, source, Index("%first", into), lanes, mask)
        load_store.store(e, dtype, value, result, Index("%first", out), lanes, mask)
    text = module_text(NAMED[target], [kernel.definition("f")], e.declarations)
    code = LoadedCode([compiled(text, NAMED[target])], NAMED[target])
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_int64] * 3)(code.address("f"))
    inputs = numbers(dtype, ROOM)
    arrays = [np.full(ROOM, 1, numpy_dtype(dtype)) for _ in steps]
    arguments = (ctypes.c_int64 * (1 + len(arrays)))(*(a.ctypes.data for a in (inputs, *arrays)))
    call(ctypes.addressof(arguments), ROOM // 2, max(0, lanes - 3), 0)
    return arrays


def numbers(dtype: DType, count: int) -> np.ndarray:
    line = np.arange(count) * 3 % 7 - 3
    if dtype == DType.FLOAT8E8M0:
        return np.exp2(line.astype(np.float32)).astype(numpy_dtype(dtype))
    return (line > 0 if dtype == t.BOOL else line).astype(numpy_dtype(dtype))


STEPS = [(1, 1), (1, -1), (-1, 1), (2, 1), (1, 2), (3, -2), (-2, 3), (0, 1)]


CASES = [
    (dtype, target)
    for dtype in DTYPES
    for target in TARGETS[: 1 if load_store.memory_type(dtype) == "i8" and dtype not in (t.BOOL, t.INT8) else None]
]
"""All element types, on all targets; most types of one byte in memory on one target only."""


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("dtype, target", CASES, ids=[f"{dtype.name}-{target}" for dtype, target in CASES])
def test_every_stride_of_loads_and_stores(dtype: DType, target: str, masked: bool) -> None:
    inputs = numbers(dtype, ROOM)
    for actual, (into, out) in zip(moved(dtype, target, STEPS, masked), STEPS, strict=True):
        expected = np.full(ROOM, 1, numpy_dtype(dtype))
        for lane in range(LANES - 3 if masked else LANES):
            expected[ROOM // 2 + lane * out] = inputs[ROOM // 2 + lane * into]
        np.testing.assert_array_equal(actual, expected, err_msg=f"steps {into}, {out}")


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_one_lane_is_a_scalar(dtype: DType) -> None:
    (actual,) = moved(dtype, TARGETS[0], [(1, 1)], False, lanes=1)
    expected = np.full(ROOM, 1, numpy_dtype(dtype))
    expected[ROOM // 2] = numbers(dtype, ROOM)[ROOM // 2]
    np.testing.assert_array_equal(actual, expected)
    (untouched,) = moved(dtype, TARGETS[0], [(1, 1)], True, lanes=1)
    np.testing.assert_array_equal(untouched, np.full(ROOM, 1, numpy_dtype(dtype)))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [t.FLOAT16, t.BFLOAT16], ids=lambda d: d.name)
def test_short_floats_are_rounded_to_even_and_come_back(dtype: DType, target: str) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(numpy_dtype(dtype))
    widened = Elementwise(lambda e, x, *_: x[0], [dtype], t.FLOAT, target)(every)
    np.testing.assert_array_equal(widened, every.astype(np.float32))
    # Every short number, the midpoints between neighbours, and the floats next to the midpoints.
    with np.errstate(all="ignore"):
        whole = every.astype(np.float32)
        halfway = (np.uint32(0x8000) + (np.arange(1 << 16, dtype=np.uint32) << 16)).view(np.float32)
        middle = (whole[:-1] + whole[1:]) / 2
        x = np.concatenate([whole, halfway, middle, np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf)])
        expected = x.astype(numpy_dtype(dtype))
    actual = Elementwise(lambda e, x, *_: x[0], [t.FLOAT], dtype, target)(x)
    same = actual.view(np.uint16) == expected.view(np.uint16)
    both_nan = np.isnan(actual.astype(np.float32)) & np.isnan(expected.astype(np.float32))
    assert (same | both_nan).all()


def test_constants_are_rounded_once() -> None:
    third = load_store.constant(t.BFLOAT16, 1 / 3, 1)
    assert third == load_store.constant(t.FLOAT, float(ml_dtypes.bfloat16(1 / 3)), 1)
    assert load_store.constant(t.BOOL, True, 2) == "splat (i1 true)"
    assert load_store.constant(t.UINT8, 200, 1) == "200"
    assert load_store.constant(t.FLOAT16, 1e6, 1) == load_store.constant(t.FLOAT, np.inf, 1)


def test_unsupported_types_and_strides_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="complex128"):
        load_store.register_type(t.COMPLEX128)
    with pytest.raises(UnsupportedError, match="one offset"):
        load_store.store(Kernel(NAMED["avx2"]).emitter, t.FLOAT, "%x", "%p", Index(0, 0), 8)
