"""Serving: models over HTTP and gRPC by the Open Inference Protocol, edited while they answer."""

from __future__ import annotations

from sardonyx.base.lazy_names import lazy_names

PUBLIC_NAMES = {
    "sardonyx.serve.models.batching": ["Batching", "QueuePolicy"],
    "sardonyx.serve.models.concatenation": ["Concatenation", "SizeInput"],
    "sardonyx.serve.models.ensemble": ["Ensemble", "EnsembleStep"],
    "sardonyx.serve.models.model": ["Control", "Model", "State"],
    "sardonyx.serve.models.reshaping": ["Reshaping"],
    "sardonyx.serve.protocol.limits": ["Limits"],
    "sardonyx.serve.server": ["Server"],
}
"""The public names, by module."""

__all__ = sorted(name for names in PUBLIC_NAMES.values() for name in names)

__getattr__ = lazy_names(__name__, PUBLIC_NAMES)
