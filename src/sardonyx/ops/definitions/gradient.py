"""``Gradient``: derivatives of one value of the graph by others, from the gradient table of Core.

Source: ONNX Operators, domain *ai.onnx.preview.training*.
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.core.eval.interpreter import evaluate
from sardonyx.core.eval.run_context import current_run, tracing
from sardonyx.core.eval.tensor import apply_any, get
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir.graph import Value
from sardonyx.core.language import Tensor
from sardonyx.core.transform import differentiation
from sardonyx.errors import InvalidModelError
from sardonyx.ops.registry import Between, operator


@operator("Gradient", since=1, domain="ai.onnx.preview.training")
def gradient(*inputs: Tensor, xs: Sequence[str], y: str, zs: Sequence[str] = (), between: Between) -> tuple[Value, ...]:
    """Return the derivatives of the sum of ``y`` by ``xs``; the inputs are values of ``xs`` and ``zs``."""
    if len(inputs) != len(xs) + len(zs):
        raise InvalidModelError(f"expected {len(xs)} inputs for `xs` and {len(zs)} for `zs`, got {len(inputs)} in all.")
    compute = between([*xs, *zs], y)
    with tracing():
        traced = trace("Gradient", lambda *values: [compute(*values)], [x.type for x in inputs])
        derived = differentiation.gradient(traced, range(len(xs)))
    if current_run() is not None:
        return tuple(evaluate(derived, inputs)[1:])
    results = apply_any("call", *inputs, function=derived)
    return tuple(get(results, 1 + i) for i in range(len(xs)))
