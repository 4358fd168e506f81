"""Conversion to float16 and bfloat16; float32 remains where operators or accuracy need it."""

from sardonyx.compress.float16.auto import MixedPrecision, Trial, auto_mixed_precision, output_error
from sardonyx.compress.float16.clamp import Clamp, ClippedTensor
from sardonyx.compress.float16.convert import (
    DEFAULT_OP_BLOCK_LIST,
    Conversion,
    KeptNode,
    convert_bfloat16,
    convert_float16,
)

__all__ = [
    "DEFAULT_OP_BLOCK_LIST",
    "Clamp",
    "ClippedTensor",
    "Conversion",
    "KeptNode",
    "MixedPrecision",
    "Trial",
    "auto_mixed_precision",
    "convert_bfloat16",
    "convert_float16",
    "output_error",
]
