"""Targets: where the model will run, and what that asks of the optimizer."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.errors import OptionError


@dataclass(frozen=True)
class Profile:
    """What a target owns: the fusions that its engine makes itself and that must stay findable, and the gates.

    Attributes:
        name: The target.
        engine: The Python package that runs it, used to measure; None where there is none.
        protected: Operators whose count after the engine's own optimization must not fall (its fusions).
        description: One line for ``--help``.
    """

    name: str
    engine: str | None
    protected: frozenset[str]
    description: str


_ATTENTION = frozenset({"Attention", "MultiHeadAttention", "GroupQueryAttention", "SkipLayerNormalization"})

PROFILES = {
    p.name: p
    for p in (
        Profile("portable", None, frozenset(), "runs anywhere: standard operators at the model's own opset"),
        Profile(
            "onnxruntime",
            "onnxruntime",
            _ATTENTION | {"LayerNormalization", "Gelu", "BiasGelu", "FastGelu", "EmbedLayerNormalization", "FusedConv"},
            "ONNX Runtime: may use com.microsoft operators; never slower there",
        ),
        Profile("openvino", "openvino", frozenset(), "OpenVINO: standard operators only"),
        Profile("tensorrt", "tensorrt", frozenset(), "TensorRT: standard operators it parses"),
        Profile("native", None, frozenset(), "the native engine of Sardonyx"),
    )
}


def profile(name: str) -> Profile:
    """The profile of a target.

    Raises:
        OptionError: no such target.
    """
    found = PROFILES.get(name)
    if found is None:
        raise OptionError(f"no such target '{name}'", where="target", remedy=f"Targets: {', '.join(PROFILES)}.")
    return found
