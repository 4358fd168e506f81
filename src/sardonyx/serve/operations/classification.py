"""The classification extension: the names of the highest scores in place of the scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sardonyx.errors import RequestError
from sardonyx.serve.protocol.strings import string_array


def classified(scores: np.ndarray, classes: int, labels: Sequence[str], has_rows: bool, where: str) -> np.ndarray:
    """Return the highest scores as strings ``score:index`` or ``score:index:label``.

    Args:
        scores: Scores [classes] or [rows, classes].
        classes: The number of scores to return; more than there are means all.
        labels: Names by index.
        has_rows: True if the first axis counts rows.
        where: The name of the output, for messages.

    Returns:
        Strings [classes] or [rows, classes], highest score first.

    Raises:
        RequestError: The output does not consist of numbers.
    """
    if scores.dtype.kind not in "iufb" and scores.dtype.name not in ("bfloat16",):
        raise RequestError("expected an output of numbers for classification.", where=where)
    has_rows = has_rows and scores.ndim > 1
    matrix = scores.reshape(len(scores), math.prod(scores.shape[1:])) if has_rows else scores.reshape(1, scores.size)
    count = min(classes, matrix.shape[1])
    texts = []
    for row in matrix:
        for index in np.argsort(-row.astype(np.float64), kind="stable")[:count]:
            label = f":{labels[index]}" if index < len(labels) else ""
            score = f"{int(row[index])}" if scores.dtype.kind in "iub" else f"{float(row[index]):f}"
            texts.append(f"{score}:{index}{label}")
    return string_array(texts, [len(matrix), count] if has_rows else [count])
