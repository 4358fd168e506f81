"""Integers learned by gradients that pass straight through the rounding: a weight may move by several steps.

AdaRound chooses between the two integers next to a weight; here the weight itself is trained, so that the integers of a
row can make up for each other's errors. The loss is the error of the products, and a Core function that is
differentiated by reverse mode and compiled once for all sizes.
Source: Hubara et al., Improving Post Training Neural Quantization, 2020.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from sardonyx.base.cancellation import raise_if_cancelled
from sardonyx.compiler.program import Program
from sardonyx.compress.quantization.methods.grids import Grid, hessian_error
from sardonyx.compress.quantization.methods.trained_rounding import Adam, start
from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import TensorType
from sardonyx.core.language import Tensor
from sardonyx.core.transform.differentiation import gradient

_RATE = 0.01
"""Integers that Adam moves a weight by in the first step; the rate falls to 0 by half a cosine."""

_LOOKS = 10
"""Times that the errors of the rows are compared with the least so far: rounded weights oscillate."""


def adaquant(rows: np.ndarray, hessian: np.ndarray, grid: Grid, *, steps: int = 300) -> np.ndarray:
    """Return the integers of weights, [rows, k] as float32; the error of each row is at most that of the nearest.

    Args:
        rows: The weights, [rows, k].
        hessian: The sum or mean of ``x x^T`` over the inputs, [k, k].
        grid: The scales and limits.
        steps: Steps of Adam.

    Raises:
        OptionError: The Hessian does not fit the weights, an element is not finite, or there is no step.
    """
    ideal = rows.astype(np.float32)
    best, least, factor, wide, grid, scales, zeros, limits = start(rows, ideal, hessian, grid, steps)
    if not factor:
        return best
    moved = Adam((ideal / scales + zeros).astype(np.float32))
    looks = {round(number * steps / _LOOKS) for number in range(1, _LOOKS + 1)}
    program = _step()
    for step in range(1, steps + 1):
        raise_if_cancelled()
        slope = np.asarray(program.run([moved.variables, ideal, wide, scales, zeros, factor, *limits])[1])
        moved.step(slope, 0.5 * _RATE * (1 + math.cos(math.pi * (step - 1) / steps)))
        if step in looks:
            integers = np.clip(np.rint(moved.variables), grid.lowest, grid.highest)
            errors = hessian_error(ideal - grid.values(integers), wide)
            better = errors < least
            best = np.where(better[:, None], integers, best)
            least = np.where(better, errors, least)
    return np.asarray(best, np.float32)


@functools.lru_cache(maxsize=1)
def _step() -> Program:
    """Return the compiled loss and its gradient by the moved weights, for weights of any size."""
    n, k = Dim.symbol("rows"), Dim.symbol("k")
    matrix, square, scalar = TensorType(t.FLOAT, (n, k)), TensorType(t.FLOAT, (k, k)), TensorType(t.FLOAT, ())
    types = [matrix, matrix, square, matrix, matrix, scalar, scalar, scalar]
    loss = trace("straight_through_loss", lambda *inputs: [_loss(*inputs)], types)
    return Program.compile(gradient(loss, wrt=[0]))


def _loss(
    moved: Tensor, ideal: Tensor, hessian: Tensor, scales: Tensor, zeros: Tensor, factor: Tensor, lowest: Tensor,
    highest: Tensor,
) -> Tensor:  # fmt: skip
    rounded = moved + L.stop_gradient(L.round_(moved) - moved)
    integers = L.minimum(L.maximum(rounded, lowest), highest)
    difference = ideal - (integers - zeros) * scales
    return L.reduce_sum(L.matmul(difference, hessian) * difference) * factor
