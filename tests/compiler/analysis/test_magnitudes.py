"""Bounds of magnitudes hold, and are finite where kernels need them to be."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sardonyx.compiler.analysis.magnitudes import INTEGER_CLASSES, largest_magnitude
from sardonyx.core import language as L
from sardonyx.core.dim import Dim, Size
from sardonyx.core.eval.tensor import constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import TensorType

WEIGHTS = np.full((5, 6, 3, 3), -128, np.int8)
OFFSETS = np.arange(5).reshape(5, 1, 1).astype(np.int32)


def sums(x: L.Tensor) -> L.Tensor:
    return L.convolve(x, constant(WEIGHTS, t.INT8), strides=[1, 1], padding=[(0, 0)] * 2, dtype=t.INT32)


def gate(x: L.Tensor) -> L.Tensor:
    y = L.cast(sums(x), t.FLOAT) * 0.25
    return y / (1.0 + L.exp(-y))


def bound(body, sizes: tuple[Size, ...] = (1, 6, 9, 9), computes=lambda value: value.op != "input") -> float:  # type: ignore[no-untyped-def]
    function = trace("f", lambda x: [body(x)], [TensorType(t.UINT8, sizes)])
    return largest_magnitude(function.results[0], computes)


def test_sums_of_products_are_bounded_by_their_number() -> None:
    largest = 255 * 128 * 54
    assert largest <= bound(sums) <= 256 * 128 * 54
    assert bound(lambda x: sums(x) - constant(OFFSETS, t.INT32)) == bound(sums) + INTEGER_CLASSES[0]


def test_sums_beyond_the_type_have_its_bound() -> None:
    assert bound(lambda x: sums(x) + constant(np.full((5, 1, 1), 2**31 - 1, np.int32), t.INT32)) == 2.0**31


def test_a_gate_is_bounded_by_its_numerator() -> None:
    assert math.isclose(bound(gate), bound(sums) / 4, rel_tol=1e-2)


@pytest.mark.parametrize("body", [sums, gate])
def test_values_that_a_kernel_reads_are_any_numbers(body) -> None:  # type: ignore[no-untyped-def]
    def is_elementwise(value: Value) -> bool:
        return value.op not in ("input", "convolve", "reshape", "permute")

    assert bound(body, computes=is_elementwise) >= 2.0**29


def test_open_sizes_of_images_keep_the_bound() -> None:
    assert bound(sums, (1, 6, Dim.symbol("H"), Dim.symbol("W"))) == bound(sums)
