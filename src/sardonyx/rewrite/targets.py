"""Targets: where the model will run, and what that asks of the optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

from sardonyx.errors import OptionError
from sardonyx.model.check.targets import find_target


@dataclass(frozen=True)
class Profile:
    """What a target owns: its passes, the fusions that its engine makes itself and that must stay findable, the gates.

    Attributes:
        name: The target.
        engine: The Python package that runs it, used to measure; None where there is none.
        protected: Operators whose count after the engine's own optimization must not fall (its fusions). Where the
            engine is absent, the fusions of ``census`` stand for them.
        description: One line for ``--help``.
        adds: Passes run although they are no default ones.
        without: Default passes not run.
        parsed: Whether its engine takes only what a parser knows: an operator that is missing there is decomposed,
            and none is made. (ONNX Runtime decomposes by itself what has no kernel.)
    """

    name: str
    engine: str | None
    protected: frozenset[str]
    description: str
    adds: frozenset[str] = frozenset()
    without: frozenset[str] = frozenset()
    parsed: bool = False

    @property
    def installed(self) -> bool:
        """Whether the engine can be imported here."""
        return self.engine is not None and find_spec(self.engine) is not None

    @property
    def operators(self) -> frozenset[str] | None:
        """The operators that its parser takes, as ``sardonyx.model.check`` lists them; None: all."""
        table = find_target(self.name) if self.parsed else None
        return None if table is None else frozenset(table.operators)

    def opset(self, version: int) -> int:
        """The operator set that it takes nearest to a model's own."""
        table = find_target(self.name) if self.engine is not None else None
        low, high = (None, None) if table is None else table.opsets.get("", (None, None))
        return min(max(version, low or version), high or version)


_ATTENTION = frozenset({"Attention", "MultiHeadAttention", "GroupQueryAttention", "SkipLayerNormalization"})

_TENSORRT = frozenset({"legalize_center_crop_pad", "legalize_microsoft", "legalize_swish"})
"""Decompositions of what its parser does not take."""

PROFILES = {
    p.name: p
    for p in (
        Profile("portable", None, frozenset(), "runs anywhere: standard operators at the model's own opset"),
        Profile(
            "onnxruntime",
            "onnxruntime",
            _ATTENTION
            | {"LayerNormalization", "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization"}
            | {"Gelu", "BiasGelu", "FastGelu", "QuickGelu", "EmbedLayerNormalization", "FusedConv", "FusedMatMul"}
            | {"FusedGemm", "QLinearConv", "QLinearMatMul", "MatMulIntegerToFloat", "DynamicQuantizeMatMul"},
            "ONNX Runtime: may use com.microsoft operators; never slower there",
        ),
        Profile("openvino", "openvino", frozenset(), "OpenVINO: standard operators that it converts", parsed=True),
        Profile(
            "tensorrt",
            "tensorrt",
            frozenset(),
            "TensorRT: standard operators that it parses",
            adds=_TENSORRT,
            # It builds integer layers from pairs of DequantizeLinear and QuantizeLinear, and moves these itself.
            without=frozenset({"fuse_quantized_movement"}),
            parsed=True,
        ),
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
