"""Canonical form: what the scheduler looks for, written one way.

- A ``convolve`` reads an image ``[N, G * C, spatial]`` and gives one ``[N, G * M, spatial]``; the movements between
  those and Core's form stand directly around it.
- A ``call`` is taken apart, unless there is a kernel for its function.
- What moves with the number of a loop's iteration is an element of a tensor
  (:mod:`sardonyx.compiler.passes.loop_slices`).
- A division by a constant is a multiplication, unless its reciprocal would lose more than a rounding.
- A window that sees all of an image is a ``reduce``.
- Products that share an operand are one (see :mod:`sardonyx.compiler.passes.merge_matmuls`).
- Products of what stands for integers of 8 bits are products of these integers (:mod:`.quantized`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sardonyx.compiler.analysis.primitive_traits import dtype_of
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.analysis.tree_ensembles import tree_sum
from sardonyx.compiler.passes.int8_matmul import image_operands, product
from sardonyx.compiler.passes.loop_slices import without_moving_slices
from sardonyx.compiler.passes.merge_matmuls import joined
from sardonyx.compiler.target.description import Target
from sardonyx.core.eval.run_context import tracing
from sardonyx.core.eval.substitution import Substitution
from sardonyx.core.eval.tensor import Tensor, apply, constant
from sardonyx.core.eval.trace import inline
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function, Value, function


def canonical(inner: Function, target: Target) -> Function:
    """The function in canonical form for a target; bodies are left as they are."""
    with tracing():
        while any(map(_is_open_call, inner.values)):
            inner = function(inner.name, inner.inputs, _Inlined(inner).values_of(inner.results), inner.level)
        inner = function(inner.name, inner.inputs, _Canonical(inner, target).values_of(inner.results), inner.level)
        return joined(inner)


def _is_open_call(value: Value) -> bool:
    return value.op == "call" and tree_sum(value) is None


class _Inlined(Substitution):
    """One pass that takes calls apart."""

    def __init__(self, inner: Function) -> None:
        super().__init__({}, {}, inner.level, set(inner.values).__contains__)
        self._results: dict[Value, list[Value]] = {}

    def made(self, value: Value) -> Value:
        """The value of what its operands have become."""
        if _is_open_call(value):
            operands = [self.new[operand] for operand in value.operands]
            self._results[value] = inline(value.params["function"], operands)
            return value
        if value.op == "get" and value.operands[0] in self._results:
            index: int = value.params["index"]
            return self._results[value.operands[0]][index]
        return super().made(value)


class _Canonical(Substitution):
    """One pass over a function."""

    def __init__(self, inner: Function, target: Target) -> None:
        super().__init__({}, {}, inner.level, set(inner.values).__contains__)
        self._target = target
        self._images: dict[Value, Tensor] = {}
        self._swapped: dict[Value, Tensor] = {}

    def made(self, value: Value) -> Value:
        """The value of what its operands have become."""
        operands = tuple(self.new[operand] for operand in value.operands)
        if value.op == "loop":
            return self._loop(value, operands)
        if value.op == "convolve":
            return self._convolve(value, *operands)  # type: ignore[arg-type]
        if value.op == "reduce_window" and (axes := _whole_axes(value)) is not None:
            whole = apply("reduce", operands[0], kind=value.params["kind"], axes=axes)
            whole.origin = whole.origin or value.origin
            return apply("reshape", whole, shape=shape_of(value))
        if value.op == "contract":
            x, y = operands
            if (found := product(value, x, y, self._target)) is not None:
                found.origin = found.origin or value.origin
                return found
        if value.op == "permute" and operands[0] in self._swapped and value.params["axes"] == _swap(value):
            return self._swapped[operands[0]]
        if value.op == "reshape" and operands[0] in self._images:
            image = self._images[operands[0]]
            shape = value.params["shape"]
            found = image if shape == shape_of(image) else apply("reshape", image, shape=shape)
            self._images[found] = image
            found.origin = found.origin or value.origin
            return found
        if value.op == "div" and operands[1].op in ("constant", "broadcast"):
            return self._divided(value, *operands)
        return super().made(value)

    def _loop(self, value: Value, operands: tuple[Value, ...]) -> Value:
        body = without_moving_slices(value.params["body"])
        if body is value.params["body"]:
            return super().made(value)
        params = {name: self.part(body if name == "body" else param) for name, param in value.params.items()}
        return self.recorded(value, operands, params)

    def _convolve(self, value: Value, x: Tensor, w: Tensor) -> Value:
        groups, batch, channels, *spatial = shape_of(x)
        image = _image_of(x)
        wanted = (batch, groups * channels, *spatial)
        if image is None:
            image = apply("permute", x, axes=_swap(x))
        if shape_of(image) != wanted:
            image = apply("reshape", image, shape=wanted)
        narrow = image_operands(image, w, value.params, self._target)
        if narrow is not None:
            image, weights, params, finish = narrow
            result = finish(_convolved(image, weights, params))
        else:
            result = _convolved(image, w, value.params)
        result.origin = result.origin or value.origin
        filters, out = shape_of(w)[1], shape_of(result)[2:]
        again = apply("reshape", result, shape=(batch, groups, filters, *out))
        back = apply("permute", again, axes=_swap(x))
        self._images[again] = self._images[result] = result
        self._swapped[back] = again
        return back

    def _divided(self, value: Value, x: Value, divisor: Value) -> Value:
        known = divisor if divisor.is_constant else divisor.operands[0]
        dtype = dtype_of(value)
        if not known.is_constant or dtype not in (t.FLOAT, t.DOUBLE):
            return super().made(value)
        array = np.asarray(known.known)
        with np.errstate(all="ignore"):
            reciprocal = (1 / array).astype(array.dtype)
        smallest = np.finfo(array.dtype).tiny
        if not (np.isfinite(reciprocal).all() and (np.abs(reciprocal) >= smallest).all()):
            return super().made(value)
        factor = constant(reciprocal, dtype)
        if not divisor.is_constant:
            factor = apply("broadcast", factor, shape=divisor.params["shape"])
        found = apply("mul", x, factor)
        found.origin = found.origin or value.origin
        return found


def _whole_axes(value: Value) -> tuple[int, ...] | None:
    """The axes that a ``reduce_window`` sees all of in its only window; None where it moves along any."""
    params, shape = value.params, shape_of(value.operands[0])
    if params["kind"] not in ("add", "max", "min"):
        return None
    leading, found = len(shape) - len(params["window"]), []
    for axis, (size, window, stride, padding, dilation) in enumerate(
        zip(shape[leading:], params["window"], params["strides"], params["padding"], params["dilation"], strict=True),
        leading,
    ):
        if padding != (0, 0) or not ((window == size and dilation == 1) or window == stride == 1):
            return None
        if window != 1:
            found.append(axis)
    return tuple(found) or None


def _convolved(image: Tensor, weights: Value, params: Mapping[str, Any]) -> Tensor:
    """The image that a ``convolve`` makes of an image."""
    batch, _, *spatial = shape_of(image)
    groups, filters, channels = shape_of(weights)[:3]
    split = apply("reshape", image, shape=(batch, groups, channels, *spatial))
    found = apply("convolve", apply("permute", split, axes=_swap(split)), weights, **params)
    out = shape_of(found)[3:]
    return apply("reshape", apply("permute", found, axes=_swap(split)), shape=(batch, groups * filters, *out))


def _swap(value: Value) -> tuple[int, ...]:
    return (1, 0, *range(2, len(shape_of(value))))


def _image_of(x: Value) -> Tensor | None:
    """What stands before the movements that bring an image into the form of a ``convolve``."""
    if x.op == "permute" and x.params["axes"] == _swap(x) and x.operands[0].op == "reshape":
        return x.operands[0].operands[0]  # type: ignore[return-value]
    return None
