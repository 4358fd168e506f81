"""Preview operators of the standard: ``FlexAttention``.

Source: ONNX Operators, domain *ai.onnx.preview*.
"""

from __future__ import annotations

from sardonyx.core import language as L
from sardonyx.core.ir import types as t
from sardonyx.core.language import Tensor
from sardonyx.errors import ShapeError
from sardonyx.ops.definitions.attention import repeat_heads, scaled_scores
from sardonyx.ops.graph import Body
from sardonyx.ops.registry import operator


@operator("FlexAttention", since=1, domain="ai.onnx.preview")
def flex_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    prob_mod: Body | None = None,
    scale: float | None = None,
    score_mod: Body | None = None,
    softmax_precision: int | None = None,
) -> Tensor:
    q, k, v = (L.of_rank(x, 4, "an operand of attention") for x in (q, k, v))
    default = t.DOUBLE if q.dtype == t.DOUBLE else t.FLOAT
    precision = default if softmax_precision is None else t.computing_type(softmax_precision, "softmax_precision")
    scores = L.cast(scaled_scores(q, repeat_heads(k, q.shape[1]), scale), precision)
    probabilities = L.softmax(_modify(scores, score_mod, "score_mod"))
    probabilities = L.cast(_modify(probabilities, prob_mod, "prob_mod"), q.dtype)
    return L.matmul(probabilities, repeat_heads(v, q.shape[1]))


def _modify(x: Tensor, body: Body | None, name: str) -> Tensor:
    if body is None:
        return x
    results = body(x)
    if len(results) != 1 or not isinstance(results[0], Tensor):
        raise ShapeError(f"expected one tensor from `{name}`, got {len(results)} values.")
    return L.cast(L.of_shape(results[0], x.shape, f"the result of `{name}`"), x.dtype)
