"""Mixtures of experts: a router selects experts for every token.

Source: ONNX Runtime's contrib operators, *MoE*; Fedus et al. (2021, arXiv:2101.03961), Du et al. (2021,
arXiv:2112.06905).
"""

from __future__ import annotations

from sardonyx.core import language as L
from sardonyx.core.dim import floor_div
from sardonyx.core.language import Tensor
from sardonyx.errors import InvalidModelError, ShapeError, UnsupportedError
from sardonyx.ops.definitions import activations
from sardonyx.ops.registry import operator

DOMAIN = "com.microsoft"


@operator("MoE", since=1, domain=DOMAIN)
def mixture_of_experts(
    x: Tensor,
    router_probs: Tensor,
    fc1_experts_weights: Tensor,
    fc1_experts_bias: Tensor | None,
    fc2_experts_weights: Tensor,
    fc2_experts_bias: Tensor | None = None,
    fc3_experts_weights: Tensor | None = None,
    fc3_experts_bias: Tensor | None = None,
    *,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    activation_type: str = "relu",
    k: int = 1,
    normalize_routing_weights: int = 0,
    swiglu_fusion: int = 0,
    swiglu_limit: float | None = None,
    use_sparse_mixer: int = 0,
) -> Tensor:
    """Compute all experts and give unselected experts weight 0; ``router_probs`` are logits."""
    if use_sparse_mixer:
        raise UnsupportedError("MoE with `use_sparse_mixer` is not supported.")
    if x.rank not in (2, 3):
        raise ShapeError(f"expected 2 or 3 axes for the input, got {x.type}.")
    tokens = L.reshape(x, (L.product(x.shape[:-1]), x.shape[-1]))
    hidden = _apply_experts(tokens, fc1_experts_weights, fc1_experts_bias)
    gate = None if fc3_experts_weights is None else _apply_experts(tokens, fc3_experts_weights, fc3_experts_bias)
    if activation_type == "swiglu":
        hidden = _swiglu(hidden, gate, swiglu_fusion, activation_alpha, activation_beta, swiglu_limit)
    else:
        hidden = _activate(hidden, activation_type)
        hidden = hidden if gate is None else hidden * gate
    results = L.einsum("etj,ehj->teh", hidden, fc2_experts_weights)
    results = results if fc2_experts_bias is None else results + fc2_experts_bias
    weights = _weights(router_probs, k, bool(normalize_routing_weights))
    return L.reshape(L.einsum("te,teh->th", weights, results), x.shape)


def _apply_experts(tokens: Tensor, weights: Tensor, bias: Tensor | None) -> Tensor:
    """Apply a layer of every expert to the tokens, [experts, tokens, size]."""
    y = L.einsum("th,ejh->etj", tokens, weights)
    return y if bias is None else y + L.unsqueeze(bias, [1])


def _weights(logits: Tensor, k: int, normalized: bool) -> Tensor:
    """Return the probabilities of the ``k`` most probable experts, [tokens, experts]; 0 for the others."""
    likely = L.softmax(L.widened(logits))
    chosen = L.top_k(likely, -1, k)
    best = L.gather_elements(likely, chosen, -1)
    best = best / L.reduce_sum(best, [-1], keepdims=True) if normalized else best
    return L.cast(L.scatter_elements(L.zeros_like(likely), chosen, best, -1), logits.dtype)


def _activate(x: Tensor, name: str) -> Tensor:
    match name:
        case "relu":
            return activations.relu(x)
        case "gelu":
            return activations.gelu(x, approximate="tanh")
        case "silu":
            return x * L.sigmoid(x)
        case "identity":
            return x
    raise InvalidModelError(
        f"unknown activation_type {name!r} of MoE.", remedy="Use 'relu', 'gelu', 'silu', 'identity' or 'swiglu'."
    )


def _swiglu(x: Tensor, linear: Tensor | None, fusion: int, alpha: float, beta: float, limit: float | None) -> Tensor:
    """Return ``G sigmoid(alpha G) (L + beta)``; G and L may be interleaved (1) or concatenated (2)."""
    if fusion:
        half = floor_div(x.shape[-1], 2)
        parts = L.reshape(x, (*x.shape[:-1], half, 2) if fusion == 1 else (*x.shape[:-1], 2, half))
        axis = -1 if fusion == 1 else -2
        x, linear = L.entry(parts, 0, axis), L.entry(parts, 1, axis)
    if linear is None:
        raise InvalidModelError("swiglu needs a third layer, or `swiglu_fusion`.")
    if limit is not None:
        x, linear = L.clip(x, None, limit), L.clip(linear, -limit, limit)
    return x * L.sigmoid(x * alpha) * (linear + beta)
