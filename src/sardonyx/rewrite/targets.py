"""Targets: the engine that will run the model, and its requirements on the optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from sardonyx.errors import OptionError
from sardonyx.model.check.targets import find_target


@dataclass(frozen=True)
class Profile:
    """Requirements of a target: its passes, the fusions of its engine to preserve, and the gates.

    Attributes:
        name: The target.
        engine: The Python package of its engine, used to measure; None if the target has none.
        protected: Operators that the engine's own optimization creates, by kind of fusion: of each kind, the count
            after that optimization must not fall. If the engine is absent, the fusions of ``census`` are counted.
        description: One line for ``--help``.
        adds: Passes run in addition to the default ones.
        without: Default passes not run.
        loads: The engine (a target of ``check``) that must load the result if it loads the original; None for none.
        parsed: True if the engine accepts only operators known to its parser: unknown operators are decomposed, and
            no rule introduces one. (ONNX Runtime itself decomposes operators without a kernel.)
        folding: Bytes that one folding of costly nodes may add; 0 for targets whose engines fold while they load.
    """

    name: str
    engine: str | None
    protected: Mapping[str, frozenset[str]]
    description: str
    adds: frozenset[str] = frozenset()
    without: frozenset[str] = frozenset()
    loads: str | None = None
    parsed: bool = False
    folding: int = 0

    @property
    def installed(self) -> bool:
        """True if the engine can be imported here."""
        return self.engine is not None and find_spec(self.engine) is not None

    @property
    def operators(self) -> frozenset[str] | None:
        """The operators known to the engine's parser, from ``sardonyx.model.check``; None means all."""
        table = find_target(self.name) if self.parsed else None
        return None if table is None else frozenset(table.operators)

    def opset(self, version: int) -> int:
        """Return the operator set nearest to a model's own among those supported by the engine."""
        table = find_target(self.name) if self.engine is not None else None
        low, high = (None, None) if table is None else table.opsets.get("", (None, None))
        return min(max(version, low or version), high or version)


_FUSED_BY_ONNXRUNTIME = {
    "attention": frozenset({"Attention", "MultiHeadAttention", "GroupQueryAttention"}),
    "normalization": frozenset(
        {"LayerNormalization", "SimplifiedLayerNormalization", "SkipLayerNormalization", "RMSNormalization"}
        | {"SkipSimplifiedLayerNormalization", "EmbedLayerNormalization"}
    ),
    "Gelu": frozenset({"Gelu", "BiasGelu", "FastGelu", "QuickGelu"}),
    "integer product": frozenset({"QLinearConv", "QLinearMatMul", "MatMulIntegerToFloat", "DynamicQuantizeMatMul"}),
}
"""Fusions of ONNX Runtime. Products with an epilogue are not listed: a lost one is one more node, which counts too."""

_TENSORRT = frozenset({"legalize_center_crop_pad", "legalize_microsoft", "legalize_swish"})
"""Decompositions of operators unknown to the parser of TensorRT."""

PROFILES = {
    p.name: p
    for p in (
        Profile(
            "portable", None, {}, "runs anywhere: standard operators at the model's own opset", loads="onnxruntime"
        ),
        Profile(
            "onnxruntime",
            "onnxruntime",
            _FUSED_BY_ONNXRUNTIME,
            "ONNX Runtime: may use com.microsoft operators; loses none of its fusions",
            loads="onnxruntime",
        ),
        Profile("openvino", "openvino", {}, "OpenVINO: standard operators that it converts", parsed=True),
        Profile(
            "tensorrt",
            "tensorrt",
            {},
            "TensorRT: standard operators that it parses",
            adds=_TENSORRT,
            # TensorRT builds integer layers from pairs of DequantizeLinear and QuantizeLinear, and moves these itself.
            without=frozenset({"fuse_quantized_movement"}),
            parsed=True,
        ),
        Profile("native", None, {}, "the native engine of Sardonyx", folding=4 << 20),
    )
}


def profile(name: str) -> Profile:
    """Return the profile of a target.

    Raises:
        OptionError: the target is unknown.
    """
    match = PROFILES.get(name)
    if match is None:
        raise OptionError(f"unknown target '{name}'", where="target", remedy=f"Targets: {', '.join(PROFILES)}.")
    return match
