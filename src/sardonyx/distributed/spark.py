"""Spark: predictions for ``pyspark.ml.functions.predict_batch_udf``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sardonyx.distributed.image import Image
from sardonyx.distributed.predictor import Predictor


def make_predict_fn(image: Image, output: str | None = None) -> Callable[[], Callable[..., Any]]:
    """Return the function that ``predict_batch_udf(make_predict_fn=…)`` calls in each worker.

    Args:
        image: The compiled model; broadcast with the function.
        output: The output to return; None for the only or first output.

    Example:
        >>> classify = predict_batch_udf(make_predict_fn(image), return_type=ArrayType(FloatType()), batch_size=64,
        ...                              input_tensor_shapes=[[3, 224, 224]])
    """

    def make() -> Callable[..., Any]:
        predictor = Predictor(image, outputs=None if output is None else [output])
        names = predictor.inputs

        def predict(*columns: np.ndarray) -> Any:
            results = predictor.predict(dict(zip(names, columns, strict=True)))
            return next(iter(results.values()))

        return predict

    return make
