"""Convolutions of complex numbers, as four convolutions of real ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sardonyx.convert.torch.operators.products import any_convolution, convolution, transposed_convolution
from sardonyx.convert.torch.operators.registry import of_complex
from sardonyx.convert.torch.operators.spectral import joined, part
from sardonyx.core.eval.tensor import Tensor


def _by_parts(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function that is linear in its first two operands, for complex numbers."""

    def translation(x: Tensor, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any) -> Tensor:
        a, b, c, d = part(x, 0), part(x, 1), part(weight, 0), part(weight, 1)
        e, f = (None, None) if bias is None else (part(bias, 0), part(bias, 1))
        real = function(a, c, e, *args, **kwargs) - function(b, d, None, *args, **kwargs)
        return joined(real, function(a, d, f, *args, **kwargs) + function(b, c, None, *args, **kwargs))

    return translation


of_complex("conv1d.default", "conv2d.default", "conv3d.default")(_by_parts(convolution))
of_complex("conv1d.padding", "conv2d.padding", "conv3d.padding")(_by_parts(convolution))
of_complex("conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input")(
    _by_parts(transposed_convolution)
)
of_complex("convolution.default", "_convolution.default")(_by_parts(any_convolution))
