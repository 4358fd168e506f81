"""Programs of one call, translated and compared with torch in the reference interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

import sardonyx  # noqa: E402
from sardonyx.convert.imported import Options  # noqa: E402
from sardonyx.convert.torch import translation  # noqa: E402
from sardonyx.convert.torch.capture import Program  # noqa: E402


def module_of(function: Any, count: int) -> Any:
    """Return a module that calls a function of ``count`` tensors."""
    if isinstance(function, torch.nn.Module):
        return function.eval()
    names = ", ".join(f"x{i}" for i in range(count))
    scope: dict[str, Any] = {}
    exec(f"def forward(self, {names}):\n    return self.function({names})", scope)
    module = type("Call", (torch.nn.Module,), {"forward": scope["forward"]})()
    module.function = function
    return module


def numbers(value: Any) -> np.ndarray:
    """Return a tensor of torch as an array; complex numbers as pairs."""
    return np.asarray(torch.view_as_real(value) if value.is_complex() else value.detach())


def flatten(value: Any) -> list[Any]:
    """Return the tensors of nested tuples, in order."""
    return [value] if isinstance(value, torch.Tensor) else [leaf for part in value for leaf in flatten(part)]


def require_equal(
    function: Any, *examples: Sequence[Any], tolerance: float = 2e-5, options: Options | None = None
) -> None:
    """Translate with the first inputs, and compare the answers to all of them."""
    module = module_of(function, len(examples[0]))
    model = translation.read(Program(module, tuple(examples[0]), {}, None, options or Options())).model
    session = sardonyx.Session(model, providers=["reference"])
    for inputs in examples:
        expected = [numbers(leaf) for leaf in flatten(module(*inputs))]
        feeds = {str(value.name): numbers(x) for value, x in zip(model.graph.inputs, inputs, strict=True)}
        results = session.run(None, feeds)
        assert len(results) == len(expected)
        for own, other in zip(results, expected, strict=True):
            assert (own.dtype, own.shape) == (other.dtype, other.shape)
            if own.dtype.kind != "f":
                np.testing.assert_array_equal(own, other)
                continue
            finite = other[np.isfinite(other)]
            scale = float(np.abs(finite).max()) if finite.size else 1.0
            np.testing.assert_allclose(own, other, rtol=tolerance, atol=tolerance * scale)
