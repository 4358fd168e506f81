"""Operators of which onnx and ONNX Runtime ignore unknown attributes; any other operator is refused with one."""

UNCHECKED = {
    "LayerNormalization": frozenset({"axis", "epsilon", "stash_type"}),
    "SimplifiedLayerNormalization": frozenset({"axis", "epsilon", "stash_type"}),
}
"""The known attributes by operator of the default domain."""
