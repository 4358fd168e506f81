"""Words of texts, as the text pipelines of scikit-learn's converter cut them.

Source: ONNX Runtime's contrib operators, *Tokenizer*.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from sardonyx.core.eval.host_function import unknown_size
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import TensorType, Type
from sardonyx.errors import InvalidModelError
from sardonyx.ops.registry import host_operator

START, END = "\x02", "\x03"


def _types(
    x: Type,
    *,
    mark: int,
    mincharnum: int,
    pad_value: str,
    separators: Sequence[str] = (),
    tokenexp: str = "",
    stopwords: Sequence[str] = (),
) -> tuple[Type]:
    assert isinstance(x, TensorType) and x.shape is not None
    return (TensorType(t.STRING, (*x.shape, unknown_size())),)


@host_operator("Tokenizer", since=1, domain="com.microsoft", types=_types, reason="takes and gives strings")
def tokenizer(
    x: np.ndarray,
    *,
    mark: int,
    mincharnum: int,
    pad_value: str,
    separators: Sequence[str] = (),
    tokenexp: str = "",
    stopwords: Sequence[str] = (),
) -> tuple[np.ndarray]:
    """Every text cut by separators, or into what an expression finds; rows are filled up with ``pad_value``."""
    if bool(separators) == bool(tokenexp):
        raise InvalidModelError("Tokenizer needs either separators or tokenexp.")
    rows = [
        [
            word
            for word in _words(text, separators, tokenexp)
            if len(word) >= max(mincharnum, 1) and word not in stopwords
        ]
        for text in x.ravel().tolist()
    ]
    rows = [[START, *row, END] if mark else row for row in rows]
    longest = max(map(len, rows), default=0)
    found = np.full((len(rows), longest), pad_value, object)
    for i, row in enumerate(rows):
        found[i, : len(row)] = row
    return (found.reshape(*x.shape, longest),)


def _words(text: str, separators: Sequence[str], expression: str) -> list[str]:
    if expression:
        return [match.group() for match in re.finditer(expression, text)]
    if list(separators) == [""]:
        return list(text)
    words = [text]
    for separator in separators:
        words = [part for word in words for part in re.split(separator, word)]
    return words
