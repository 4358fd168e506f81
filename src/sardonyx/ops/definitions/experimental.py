"""Experimental operators of ONNX 1.0, dropped by 1.5; old files contain them, and engines run them.

Source: the documentation of ONNX 1.0 to 1.4, *Affine* to *ScaledTanh*.
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.core import language as L
from sardonyx.core.ir import types as t
from sardonyx.core.language import Tensor
from sardonyx.errors import InvalidModelError
from sardonyx.ops.registry import operator


@operator("Affine", since=1)
def affine(x: Tensor, *, alpha: float = 1.0, beta: float = 0.0) -> Tensor:
    return x * alpha + beta


@operator("ImageScaler", since=1)
def image_scaler(x: Tensor, *, scale: float = 1.0, bias: Sequence[float] = ()) -> Tensor:
    """Scale images [N, C, H, W] and add a bias for each channel."""
    scaled = L.of_rank(x, 4, "the images") * scale
    return scaled + L.reshape(L.constant(list(bias), x.dtype), (len(bias), 1, 1)) if bias else scaled


@operator("Crop", since=1)
def crop(x: Tensor, *, border: Sequence[int], scale: Sequence[int] = ()) -> Tensor:
    """Remove a border (left, top, right, bottom), or crop to a size (height, width) from left and top on."""
    if len(border) != 4 or len(scale) not in (0, 2):
        raise InvalidModelError(
            f"expected 4 numbers in `border` and 0 or 2 in `scale`, got {len(border)} and {len(scale)}."
        )
    x = L.of_rank(x, 4, "the images")
    left, top, right, bottom = border
    rows = top + scale[0] if scale else x.shape[2] - bottom
    columns = left + scale[1] if scale else x.shape[3] - right
    return L.slice_(L.slice_(x, 2, top, rows), 3, left, columns)


@operator("ParametricSoftplus", since=1)
def parametric_softplus(x: Tensor, *, alpha: float = 1.0, beta: float = 1.0) -> Tensor:
    return alpha * L.log(L.exp(beta * x) + 1)


@operator("ScaledTanh", since=1)
def scaled_tanh(x: Tensor, *, alpha: float = 1.0, beta: float = 1.0) -> Tensor:
    return alpha * L.tanh(beta * x)


@operator("GivenTensorFill", since=1)
def given_tensor_fill(
    shape: Tensor | None = None,
    *,
    values: Sequence[float] = (),
    shape_: Sequence[int] = (),
    input_as_shape: int = 0,
    extra_shape: Sequence[int] = (),
) -> Tensor:
    """Return a tensor of these values in the shape of the attribute, the input or the input's elements."""
    filler = L.constant(list(values), t.FLOAT)
    if shape is None:
        return L.reshape(filler, shape_)
    return L.reshape(filler, [*(L.sizes(shape) if input_as_shape else shape.shape), *extra_shape])
