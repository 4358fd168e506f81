"""NaN in samples and weights: an error with the name, unless the model reads NaN of a sample as a missing value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.errors import EvaluationError

_READS_NAN = frozenset({"IsNaN", "Imputer", "TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor"})
"""Operators for which NaN is a missing value."""

_MOVES = frozenset({
    "Cast", "Concat", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Pad", "Reshape",
    "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
})  # fmt: skip
"""Operators that pass elements on as they are."""


def reads_missing_values(value: ir.Value) -> bool:
    """Return True if a node that knows NaN as a missing value reads an input, directly or after moves."""
    pending, seen = [value], {value}
    while pending:
        for use in pending.pop().uses():
            if use.node.op_type in _READS_NAN:
                return True
            if use.node.op_type in _MOVES and not use.node.domain:
                pending += [output for output in use.node.outputs if output not in seen]
                seen.update(use.node.outputs)
    return False


def require_numbers(feeds: Mapping[str, Any], inputs: Sequence[ir.Value], where: str) -> None:
    """Refuse NaN for inputs of which the model expects numbers.

    Args:
        feeds: Arrays by the name of the input.
        inputs: The inputs of the model.
        where: The sample, for the message.

    Raises:
        EvaluationError: An array holds NaN, and no operator of the model reads NaN of this input as a missing value.
    """
    for value in inputs:
        array = feeds.get(str(value.name))
        if not isinstance(array, (np.ndarray, np.generic)) or array.dtype.kind not in "fV":
            continue
        if array.dtype.kind == "V" and "float" not in array.dtype.name:
            continue
        # A sum is NaN if an element is, or for infinities of both signs: only then are the elements examined.
        with np.errstate(invalid="ignore", over="ignore"):
            suspicious = array.dtype.kind == "V" or np.isnan(array.sum())
        if suspicious and np.isnan(array.astype(np.float32)).any() and not reads_missing_values(value):
            raise EvaluationError(
                "the sample holds NaN.", where=f"{where}, {value.name}",
                remedy="Remove the sample, or replace NaN by the number that stands for a missing value.",
            )  # fmt: skip


def infinite_input(feeds: Mapping[str, Any]) -> str | None:
    """Return the name of the first input of a sample that holds infinity; None if all are finite or NaN."""
    for name, array in feeds.items():
        if isinstance(array, (np.ndarray, np.generic)) and array.dtype.kind == "f" and np.isinf(array).any():
            return name
    return None


def not_a_number(what: str, name: str, feeds: Mapping[str, Any], number: int, remedy: str) -> EvaluationError:
    """Return the error for NaN that a model computes from a sample: infinity of the sample is named as the cause.

    Args:
        what: What is NaN.
        name: The name of the value that is NaN.
        feeds: The sample.
        number: The number of the sample.
        remedy: What to do if the sample is finite.
    """
    source = infinite_input(feeds)
    if source is None:
        return EvaluationError(f"{what} NaN.", where=f"{name}, sample {number}", remedy=remedy)
    return EvaluationError(
        f"the sample holds infinity, of which the model computes NaN ({name}).", where=f"sample {number}, {source}",
        remedy="Remove the sample, or replace infinity by the largest number that occurs.",
    )  # fmt: skip


def require_finite(where: str, *arrays: np.ndarray) -> None:
    """Refuse weights, or statistics of activations, that are not finite.

    Args:
        where: The layer.
        arrays: The numbers.

    Raises:
        EvaluationError: A number is NaN or infinite.
    """
    if not all(np.isfinite(array.astype(np.float32) if array.dtype.kind == "V" else array).all() for array in arrays):
        raise EvaluationError(
            "expected finite weights and activations, got infinity or NaN.", where=where,
            remedy="Repair the weights, or exclude the node.",
        )  # fmt: skip
