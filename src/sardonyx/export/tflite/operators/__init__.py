"""Writers of ONNX operators, one file a family; importing the package registers all of them."""

from sardonyx.export.tflite.operators import (
    control,
    elementwise,
    indexing,
    matrix,
    movement,
    normalization,
    quantization,
    reductions,
    windows,
)

__all__ = [
    "control",
    "elementwise",
    "indexing",
    "matrix",
    "movement",
    "normalization",
    "quantization",
    "reductions",
    "windows",
]
