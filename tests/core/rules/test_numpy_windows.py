"""Convolutions and reductions over windows equal their definition, written out place by place."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.random_cases import cases

from sardonyx.core.eval.run_context import RunContext, running
from sardonyx.core.eval.tensor import apply, constant
from sardonyx.core.ir import types as t


def computed(op: str, *arrays: np.ndarray, **params: Any) -> np.ndarray:
    with running(RunContext()):
        actual: np.ndarray = apply(op, *(constant(array) for array in arrays), **params).known
        return actual


def index(position: tuple[int, ...]) -> Any:
    """Of the last axes."""
    return (..., *position)


@st.composite
def windows(draw: st.DrawFn, base: bool = False) -> dict[str, Any]:
    """Sizes, kernels and the rest of one to three axes, such that some window fits."""
    n = draw(st.integers(1, 3))
    axes: list[tuple[Any, ...]] = []
    for _ in range(n):
        size, kernel = draw(st.integers(1, 5)), draw(st.integers(1, 3))
        stride, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 2))
        between = draw(st.integers(1, 3)) if base else 1
        low, high = draw(st.integers(-1, 3)), draw(st.integers(-1, 3))
        short = dilation * (kernel - 1) + 1 - ((size - 1) * between + 1 + low + high)
        axes.append((size, kernel, stride, dilation, (low, high + max(short, 0)), between))
    names = ("sizes", "kernel", "strides", "dilation", "padding", "base")
    return dict(zip(names, zip(*axes, strict=True), strict=True))


def positions(w: dict[str, Any]) -> tuple[tuple[int, ...], dict[tuple[int, ...], list[tuple[tuple[int, ...], Any]]]]:
    """How many windows there are, and for each its places: in the kernel, and in the input or None."""
    along = []
    for size, kernel, stride, dilation, (low, high), between in zip(
        w["sizes"], w["kernel"], w["strides"], w["dilation"], w["padding"], w["base"], strict=True
    ):
        spread = (size - 1) * between + 1 + low + high
        count = (spread - dilation * (kernel - 1) - 1) // stride + 1
        line = []
        for i in range(count):
            at = [i * stride + k * dilation - low for k in range(kernel)]
            line.append([a // between if a % between == 0 and 0 <= a // between < size else None for a in at])
        along.append(line)
    counts = tuple(map(len, along))
    actual = {}
    for window in itertools.product(*map(range, counts)):
        entries = []
        for k in itertools.product(*map(range, w["kernel"])):
            position = tuple(along[axis][window[axis]][k[axis]] for axis in range(len(k)))
            entries.append((k, None if None in position else position))
        actual[window] = entries
    return counts, actual


@settings(deadline=None, max_examples=cases(60))
@given(windows(base=True), st.integers(1, 2), st.integers(1, 2), st.integers(1, 2), st.integers(0, 2), st.booleans())
def test_convolve(w: dict[str, Any], groups: int, batch: int, features: int, channels: int, whole: bool) -> None:
    rng = np.random.default_rng(0)
    shapes = (groups, batch, channels, *w["sizes"]), (groups, features, channels, *w["kernel"])
    x, k = (rng.integers(-128, 128, s).astype(np.int8 if whole else np.float64) for s in shapes)
    counts, actual = positions(w)
    expected = np.zeros((groups, batch, features, *counts), np.int32 if whole else np.float64)
    for window, entries in actual.items():
        for at_kernel, at in entries:
            if at is not None:
                pixel, weight = (a[index(i)].astype(expected.dtype) for a, i in ((x, at), (k, at_kernel)))
                expected[index(window)] += np.einsum("gnc,gmc->gnm", pixel, weight)
    result = computed(
        "convolve", x, k, strides=w["strides"], padding=w["padding"], base_dilation=w["base"],
        kernel_dilation=w["dilation"], dtype=t.INT32 if whole else t.DOUBLE,
    )  # fmt: skip
    assert result.dtype == expected.dtype
    np.testing.assert_allclose(result, expected, rtol=1e-12)


@settings(deadline=None, max_examples=cases(60))
@given(windows(), st.sampled_from(["add", "max", "min", "argmax", "argmin"]), st.sampled_from(["f4", "i1", "nan"]))
def test_reduce_window(w: dict[str, Any], kind: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-4, 5, (2, *w["sizes"])).astype("i1" if dtype == "i1" else "f4")
    if dtype == "nan":
        x[x == 2] = np.nan
    counts, actual = positions(w)
    if math.prod(counts) == 0:
        return
    result = computed(
        "reduce_window", x, kind=kind, window=w["kernel"], strides=w["strides"], padding=w["padding"],
        dilation=w["dilation"],
    )  # fmt: skip
    for image, (window, entries) in itertools.product(range(2), actual.items()):
        inside = [at for _, at in entries if at is not None]
        value = result[(image, *window)]
        if kind.startswith("arg"):
            order = [int(np.ravel_multi_index(at, w["sizes"])) for at in inside]
            chosen = getattr(np, kind)([x[(image, *at)] for at in inside]) if inside else None
            assert value == (-1 if chosen is None else order[chosen])
        elif inside:
            values = np.array([x[(image, *at)] for at in inside])
            expected = values.sum(dtype=x.dtype) if kind == "add" else getattr(np, kind)(values)
            np.testing.assert_equal(value, expected)
        else:
            identity = {"add": 0, "max": np.iinfo("i1").min, "min": np.iinfo("i1").max}[kind]
            infinite = {"add": 0, "max": -np.inf, "min": np.inf}[kind]
            assert value == (identity if dtype == "i1" else infinite)


@pytest.mark.parametrize("shape", [(2, 0, 3, 3), (0, 2, 3, 3)])
def test_nothing_gives_nothing(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float32)
    options: dict[str, Any] = {"window": (2, 2), "strides": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1)}
    for kind in ("add", "max", "argmax"):
        assert computed("reduce_window", x, kind=kind, **options).shape == (*shape[:2], 2, 2)


def test_integer_products_are_exact_beyond_float64() -> None:
    big = np.full((64, 70), (1 << 31) - 1, np.int64)
    expected = (big.astype(object) @ big.T.astype(object))[0, 0]
    actual = computed("contract", big, big, batch=(), left=(1,), right=(1,), dtype=t.INT64)
    assert int(actual[0, 0]) == (expected + (1 << 63)) % (1 << 64) - (1 << 63)


def test_8_bit_products_wrap_as_their_result_does() -> None:
    x = np.full((70, 70), -128, np.int8)
    assert computed("contract", x, x, batch=(), left=(1,), right=(1,), dtype=t.INT32)[0, 0] == 128 * 128 * 70
    assert computed("contract", x, x, batch=(), left=(1,), right=(1,), dtype=t.INT8)[0, 0] == 0


def of_shifted_images(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return a convolution of [G, N, C, H, W] with [G, M, C, KH, KW] as sums of shifted images, in float64."""
    height, width = (size - window + 1 for size, window in zip(x.shape[3:], w.shape[3:], strict=True))
    result = np.zeros((*x.shape[:2], w.shape[1], height, width))
    for row, column in itertools.product(*map(range, w.shape[3:])):
        image = x[..., row : row + height, column : column + width].astype(np.float64)
        result += np.einsum("gnchw,gmc->gnmhw", image, w[..., row, column].astype(np.float64))
    return result


@pytest.mark.parametrize(
    ("groups", "features", "channels", "size"),
    [(1, 8, 1, 40), (3, 5, 1, 40), (40, 1, 1, 130), (40, 2, 1, 90), (1, 4, 3, 300), (2, 3, 2, 50), (5, 1, 1, 700)],
)
def test_images_beyond_one_step(groups: int, features: int, channels: int, size: int) -> None:
    random = np.random.default_rng(7)
    x = random.standard_normal((groups, 1, channels, size, size)).astype(np.float32)
    w = random.standard_normal((groups, features, channels, 3, 2)).astype(np.float32)
    result = computed(
        "convolve",
        x,
        w,
        strides=(1, 1),
        padding=((0, 0), (0, 0)),
        base_dilation=(1, 1),
        kernel_dilation=(1, 1),
        dtype=t.FLOAT,
    )
    np.testing.assert_allclose(result, of_shifted_images(x, w), rtol=0, atol=2e-5)
