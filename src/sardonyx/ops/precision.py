"""Precision in which definitions compute."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from sardonyx.core import language as L
from sardonyx.core.ir import types as t
from sardonyx.core.language import Tensor

F = TypeVar("F", bound=Callable[..., Tensor])


def rounded_once(definition: F) -> F:
    """Decorate a definition to compute 16-bit floats in float32 and to round the result once."""

    @functools.wraps(definition)
    def widened(*inputs: Any, **attributes: Any) -> Tensor:
        dtype = inputs[0].dtype
        if dtype not in (t.FLOAT16, t.BFLOAT16):
            return definition(*inputs, **attributes)
        return L.cast(definition(*[L.cast(x, t.FLOAT) for x in inputs], **attributes), dtype)

    return widened  # type: ignore[return-value]
