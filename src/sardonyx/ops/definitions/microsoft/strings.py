"""Tokenization of strings, as in the text pipelines of scikit-learn's converter.

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


@host_operator("Tokenizer", since=1, domain="com.microsoft", types=_types, reason="strings are not numbers")
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
    """Split every string by separators or into regex matches; rows are padded with ``pad_value``."""
    if bool(separators) == bool(tokenexp):
        raise InvalidModelError("Tokenizer needs exactly one of `separators` and `tokenexp`.")
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
    tokens = np.full((len(rows), longest), pad_value, object)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = row
    return (tokens.reshape(*x.shape, longest),)


def _words(text: str, separators: Sequence[str], expression: str) -> list[str]:
    if expression:
        return [match.group() for match in re.finditer(expression, text)]
    if list(separators) == [""]:
        return list(text)
    words = [text]
    for separator in separators:
        words = [part for word in words for part in re.split(separator, word)]
    return words
