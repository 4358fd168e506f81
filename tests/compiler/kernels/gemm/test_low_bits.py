"""Products by weights of few bits equal the interpreter's, on every target of this machine, for any number of rows."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from tests.compiler.elementwise import TARGETS
from tests.compiler.low_bit_models import Weights, dequantized, draw_weights, n_bits
from tests.core.programs import computed

from sardonyx.compiler.program import Program
from sardonyx.compiler.target.description import NAMED, host
from sardonyx.compiler.tiling.gemm_schedule import GemmSchedule
from sardonyx.compiler.tiling.low_bits import multiplies_digits
from sardonyx.core import language as L
from sardonyx.core.eval.tensor import constant
from sardonyx.core.eval.trace import inline, trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function
from sardonyx.core.ir.types import TensorType
from sardonyx.ops.definitions.products import matmul

pytestmark = pytest.mark.sampled

Kind = Literal["n_bits", "block", "column", "tensor", "transposed"]


def compiled(function: Function, target: str = TARGETS[0]) -> Program:
    return Program.compile(function, target=host() if target == host().name else NAMED[target], threads=2)


def stays_low(program: Program) -> bool:
    """True if the program multiplies by weights of few bits."""
    choices = [launch.choice for launch in program.launches if launch.choice is not None]
    return any(isinstance(one.schedule, GemmSchedule) and one.schedule.form == "low_bits" for one in choices)


def check(program: Program, function: Function, weights: Weights, rows: int) -> None:
    """Assert that errors are those of a sum in float32 of the magnitudes that are added."""
    x = np.random.default_rng(rows).standard_normal((rows, len(weights.codes)), np.float32)
    (actual,), (expected,) = program.run([x]), computed(function, [x])
    bound = np.abs(x).astype(np.float64) @ weights.magnitude
    assert actual.shape == expected.shape
    assert (np.abs(actual.astype(np.float64) - expected) <= 1e-6 * bound).all()


FORMS = [
    # bits, block, zero points, signed, K, N
    ("n_bits", 4, 32, False, False, 512, 260), ("n_bits", 4, 16, True, False, 500, 288),
    ("n_bits", 2, 64, True, False, 330, 400), ("n_bits", 8, 128, True, False, 300, 333),
    ("n_bits", 4, 256, False, False, 700, 256), ("block", 4, 32, True, True, 520, 272),
    ("block", 8, 13, True, True, 400, 300), ("block", 2, 20, False, True, 410, 300),
    ("column", 8, 1100, False, True, 1100, 130), ("tensor", 4, 600, True, False, 600, 256),
    ("transposed", 4, 64, True, False, 400, 333),
]  # fmt: skip


def model(kind: Kind, weights: Weights, *rows: int) -> Function:
    if kind == "n_bits":
        return n_bits(weights, *rows)
    return dequantized(
        weights, *rows, transposed=kind == "transposed", per=kind if kind in ("column", "tensor") else "block"
    )


@pytest.mark.parametrize(("kind", "bits", "block", "zero", "signed", "k", "n"), FORMS)
def test_any_number_of_rows(kind: Kind, bits: int, block: int, zero: bool, signed: bool, k: int, n: int) -> None:
    weights = draw_weights(k, n, bits, block, zero=zero, signed=signed)
    function = model(kind, weights)
    program = compiled(function)
    assert stays_low(program)
    for rows in (1, 0, 2, 7, 12, 13, 300):
        check(program, function, weights, rows)


@pytest.mark.parametrize("target", TARGETS[1:])
@pytest.mark.parametrize(("bits", "block", "zero"), [(4, 32, True), (2, 16, False), (8, 64, True)])
def test_narrower_targets(bits: int, block: int, zero: bool, target: str) -> None:
    weights = draw_weights(300, 270, bits, block, zero=zero)
    function = n_bits(weights)
    program = compiled(function, target)
    assert stays_low(program)
    for rows in (1, 3, 40):
        check(program, function, weights, rows)


@pytest.mark.parametrize("rows", [1, 2, 5, 8, 9, 16, 17, 40])
def test_known_rows(rows: int) -> None:
    weights = draw_weights(500, 300, 4, 32, zero=True)
    function = n_bits(weights, rows)
    program = compiled(function)
    assert stays_low(program)
    check(program, function, weights, rows)


def expanded(weights: Weights, rows: int) -> Function:
    """The product by the weights as float32."""
    k, block = len(weights.codes), weights.block
    codes = weights.codes - weights.zero.repeat(block, 0)[:k]  # type: ignore[union-attr]
    floats = constant(codes.astype(np.float32) * weights.scale.repeat(block, 0)[:k], t.FLOAT)
    return trace("expanded", lambda x: [matmul(x, floats)], [TensorType(t.FLOAT, (rows, k))])


@pytest.mark.parametrize("target", [name for name in TARGETS if not multiplies_digits(NAMED.get(name, host()))])
def test_many_rows_have_the_bits_of_a_product_by_floats(target: str) -> None:
    weights = draw_weights(500, 300, 4, 32, zero=True, signed=True)
    x = np.random.default_rng(0).standard_normal((60, 500), np.float32)
    functions = dequantized(weights, 60), expanded(weights, 60)
    actual, expected = (compiled(function, target).run([x])[0] for function in functions)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("rows", [1, 4, 7, 60])
@pytest.mark.parametrize(("bits", "block"), [(2, 64), (4, 32), (4, 50), (8, 16), (8, 128)])
def test_errors_are_at_most_those_of_a_product_by_floats(bits: int, block: int, rows: int) -> None:
    weights = draw_weights(900, 300, bits, block, zero=True, signed=True)
    x = np.random.default_rng(0).standard_normal((rows, 900), np.float32)
    codes = weights.codes - weights.zero.repeat(block, 0)[:900]  # type: ignore[union-attr]
    exact = x.astype(np.float64) @ (codes * weights.scale.repeat(block, 0)[:900].astype(np.float64))
    errors = []
    for function in (dequantized(weights, rows), expanded(weights, rows)):
        program = compiled(function)
        assert stays_low(program) == (not errors)
        errors.append(np.sqrt(np.mean((program.run([x])[0] - exact) ** 2)))
    assert errors[0] <= 1.1 * errors[1]


@pytest.mark.parametrize("zero", [False, True])
def test_results_that_are_not_finite_are_those_of_the_reference(zero: bool) -> None:
    weights = draw_weights(300, 256, 4, 32, zero=zero)
    function = n_bits(weights)
    program = compiled(function)
    x = np.random.default_rng(0).standard_normal((3, 300), np.float32)
    x[0, 5], x[1, 7], x[1, 200], x[2, 100] = np.inf, 1e38, -2e38, np.nan
    with np.errstate(all="ignore"):
        (actual,), (expected,) = program.run([x]), computed(function, [x])
    for kind in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(kind(actual[[0, 2]]), kind(expected[[0, 2]]))
    assert np.isfinite(actual[1]).sum() >= np.isfinite(expected[1]).sum()


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_codes_of_zero_weights_give_zero(bits: int) -> None:
    weights = draw_weights(300, 260, bits, 32, zero=False)
    weights.codes[:, ::2] = 1 << (bits - 1)
    x = np.random.default_rng(0).standard_normal((1, 300), np.float32)
    (actual,) = compiled(n_bits(weights, 1)).run([x])
    assert not actual[:, ::2].any()
    assert actual[:, 1::2].all()


@pytest.mark.parametrize("rows", [1, 2, 5, 12])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_large_input_leaves_the_others_exact(bits: int, rows: int) -> None:
    weights = draw_weights(300, 260, bits, 32, zero=False)
    weights.codes[::32] = 1 << (bits - 1)
    function = n_bits(weights, rows)
    x = np.random.default_rng(0).standard_normal((rows, 300)).astype(np.float32)
    x[::2, ::32] = 3000
    (actual,), (expected,) = compiled(function).run([x]), computed(function, [x])
    # The weights of the large inputs are 0: the bound is that of the others alone.
    bound = np.abs(x).astype(np.float64) @ weights.magnitude
    assert (np.abs(actual.astype(np.float64) - expected) <= 1e-6 * bound).all()


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("magnitude", [1e-40, 1e-30, 1e30, 1e34])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_tiny_and_huge_inputs(bits: int, magnitude: float, rows: int) -> None:
    weights = draw_weights(300, 260, bits, 32, zero=True)
    function = n_bits(weights, rows)
    x = np.random.default_rng(0).standard_normal((rows, 300)).astype(np.float32) * np.float32(magnitude)
    (actual,), (expected,) = compiled(function).run([x]), computed(function, [x])
    bound = np.abs(x).astype(np.float64) @ weights.magnitude
    # A product of denormal numbers is rounded to their distance, in the reference as in the kernel.
    assert (np.abs(actual.astype(np.float64) - expected) <= 1e-6 * bound + 300 * 2.0**-149).all()


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("magnitude", [1e-30, 1e-33])
def test_results_of_tiny_inputs_are_no_denormals(magnitude: float, rows: int) -> None:
    """Powers of two between inputs and results may be smaller than the results, which flushing must keep."""
    weights = draw_weights(300, 260, 4, 32, zero=True)
    function = n_bits(weights, rows)
    x = np.random.default_rng(0).standard_normal((rows, 300)).astype(np.float32) * np.float32(magnitude)
    program = Program.compile(function, threads=1, denormals="flush")
    (actual,), (expected,) = program.run([x]), computed(function, [x])
    bound = np.abs(x).astype(np.float64) @ weights.magnitude
    assert (np.abs(actual.astype(np.float64) - expected) <= 1e-6 * bound + 300 * 2.0**-126).all()
    assert np.abs(expected).max() > 2.0**-120


@pytest.mark.parametrize("rows", [100, 150, 300])
def test_repeated_rows(rows: int) -> None:
    """All items of rows begin at the same address; the last one has fewer rows."""
    weights = draw_weights(512, 512, 4, 32, zero=True)
    product = n_bits(weights, rows)
    function = trace(
        "f", lambda x: list(inline(product, [L.broadcast_to(x, (rows, 512))])), [TensorType(t.FLOAT, (1, 512))]
    )
    program = Program.compile(function, threads=1)
    x = np.random.default_rng(0).standard_normal((1, 512), np.float32)
    (actual,) = program.run([x])
    np.testing.assert_array_equal(actual, np.repeat(actual[:1], rows, 0))
    np.testing.assert_allclose(actual, computed(function, [x])[0], rtol=1e-4, atol=1e-3)


def test_rows_that_are_not_finite_leave_the_others_alone() -> None:
    weights = draw_weights(600, 260, 4, 32, zero=True)
    program = compiled(n_bits(weights))
    x = np.random.default_rng(0).standard_normal((70, 600), np.float32)
    (expected,) = program.run([x])
    x[::9, 7] = np.nan
    (actual,) = program.run([x])
    assert np.isnan(actual[::9]).all()
    others = np.arange(70) % 9 != 0
    np.testing.assert_array_equal(actual[others], expected[others])


def test_small_weights_are_expanded() -> None:
    weights = draw_weights(64, 64, 4, 32, zero=False)
    function = n_bits(weights)
    program = compiled(function)
    assert not stays_low(program)
    check(program, function, weights, 3)


def test_scales_of_short_blocks_are_expanded() -> None:
    weights = draw_weights(300, 270, 4, 4, zero=False, signed=True)
    function = dequantized(weights)
    program = compiled(function)
    assert not stays_low(program)
    check(program, function, weights, 2)
