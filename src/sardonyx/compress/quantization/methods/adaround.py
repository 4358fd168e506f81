"""Rounding learned by gradients: a variable per weight moves between the integer below and the integer above.

The loss and its gradient are one Core function, differentiated by reverse mode, compiled once for all sizes.
Source: Nagel et al., Up or Down? Adaptive Rounding for Post-Training Quantization, 2020.
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

_LOW, _HIGH = -0.1, 1.1
"""Limits of the stretched sigmoid, beyond 0 and 1 so that the variables can reach both."""

_RATE = 0.05
_WARM_UP = 0.2
"""Share of the steps without the term that forces decisions."""

_SHARPEST = (20.0, 2.0)
"""The exponent of the term that forces decisions, at its first and last step."""

_WEIGHT = 10.0
"""The weight of the term that forces decisions, relative to the error of the nearest integers."""


def adaround(
    rows: np.ndarray, hessian: np.ndarray, grid: Grid, *, steps: int = 300, target: np.ndarray | None = None
) -> np.ndarray:
    """Return the integers of weights, [rows, k] as float32; the error of each row is at most that of the nearest.

    Args:
        rows: The weights, [rows, k].
        hessian: The sum or mean of ``x x^T`` over the inputs, [k, k].
        grid: The scales and limits.
        steps: Steps of Adam.
        target: The weights whose products are to be reached, [rows, k], if not ``rows``: in AdaQuant the
            inputs of the quantized model differ from those of the float model.

    Raises:
        OptionError: The Hessian does not fit the weights, an element is not finite, or there is no step.
    """
    ideal = (rows if target is None else target).astype(np.float32)
    nearest, before, factor, wide, grid, scales, zeros, limits = start(rows, ideal, hessian, grid, steps)
    if not factor:
        return nearest
    exact = rows / scales + zeros
    below = np.floor(exact).astype(np.float32)
    share = np.clip((exact - below - _LOW) / (_HIGH - _LOW), 0.01, 0.99)
    adam, program = Adam(np.log(share / (1 - share)).astype(np.float32)), _step()
    for step in range(1, steps + 1):
        raise_if_cancelled()
        progress = max(0.0, (step / steps - _WARM_UP) / (1 - _WARM_UP))
        exponent = _SHARPEST[1] + 0.5 * (_SHARPEST[0] - _SHARPEST[1]) * (1 + math.cos(progress * math.pi))
        weight = _WEIGHT if progress else 0.0
        numbers = [np.float32(exponent), np.float32(weight), factor, *limits]
        adam.step(np.asarray(program.run([adam.variables, ideal, wide, below, scales, zeros, *numbers])[1]), _RATE)
    integers = np.clip(below + (adam.variables > 0), grid.lowest, grid.highest).astype(np.float32)
    after = hessian_error(ideal - grid.values(integers), wide)
    return np.where((after < before)[:, None], integers, nearest)


@functools.lru_cache(maxsize=1)
def _step() -> Program:
    """Return the compiled loss and its gradient by the variables, for weights of any size."""
    n, k = Dim.symbol("rows"), Dim.symbol("k")
    matrix, square, scalar = TensorType(t.FLOAT, (n, k)), TensorType(t.FLOAT, (k, k)), TensorType(t.FLOAT, ())
    types = [matrix, matrix, square, matrix, matrix, matrix, scalar, scalar, scalar, scalar, scalar]
    loss = trace("rounding_loss", lambda *inputs: [_loss(*inputs)], types)
    return Program.compile(gradient(loss, wrt=[0]))


def _loss(
    variables: Tensor, ideal: Tensor, hessian: Tensor, below: Tensor, scales: Tensor, zeros: Tensor,
    exponent: Tensor, weight: Tensor, factor: Tensor, lowest: Tensor, highest: Tensor,
) -> Tensor:  # fmt: skip
    share = L.clip(L.sigmoid(variables) * (_HIGH - _LOW) + _LOW, 0.0, 1.0)
    soft = L.minimum(L.maximum(below + share, lowest), highest)
    difference = ideal - (soft - zeros) * scales
    error = L.reduce_sum(L.matmul(difference, hessian) * difference)
    distance = L.abs_(share * 2.0 - 1.0) + 1e-6
    undecided = L.reduce_sum(1.0 - L.exp(L.log(distance) * exponent))
    return error * factor + undecided * weight
