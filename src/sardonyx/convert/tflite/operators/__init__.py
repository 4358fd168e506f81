"""Translations of operators, one file a family; importing the package registers all of them."""

from sardonyx.convert.tflite.operators import (
    control,
    detection,
    elementwise,
    matrix,
    movement,
    recurrent,
    reductions,
    resources,
    tensor_lists,
    tensorflow,
    windows,
)

__all__ = [
    "control",
    "detection",
    "elementwise",
    "matrix",
    "movement",
    "recurrent",
    "reductions",
    "resources",
    "tensor_lists",
    "tensorflow",
    "windows",
]
