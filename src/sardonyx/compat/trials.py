"""Trial runs of two models on the same inputs, with the options of the drop-in modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx.errors import EvaluationError, OptionError
from sardonyx.rewrite.analysis import inference
from sardonyx.rewrite.verify import inputs
from sardonyx.rewrite.verify.child import IsolatedRunner, uses_own_operators
from sardonyx.rewrite.verify.search import Search

FILLS = ("random", "ones", "zeros", "arange")


class FillError(OptionError, ValueError):
    """Unknown way to fill inputs; a ``ValueError`` as well."""


@dataclass(frozen=True)
class Trials:
    """Inputs on which models are compared.

    Attributes:
        count: Number of sets of inputs.
        shapes: Shapes of inputs, by name; others are as declared, with open sizes at which the model runs.
        fill: ``random`` (in the range that the graph allows), ``ones``, ``zeros`` or ``arange``.
        arrays: Fixed inputs, by name.
    """

    count: int
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    fill: str = "random"
    arrays: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.fill not in FILLS:
            raise FillError(
                f"Unknown input_fill {self.fill!r}, expected one of {', '.join(FILLS)}.", where="input_fill"
            )

    def feeds(self, drawn: Mapping[str, Any]) -> dict[str, Any]:
        """Return a set of random inputs, filled and replaced as configured."""
        return {name: self.arrays.get(name, _fill(array, self.fill)) for name, array in drawn.items()}


def _fill(drawn: Any, fill: str) -> Any:
    if fill == "random" or not isinstance(drawn, np.ndarray) or drawn.dtype.kind in "OUS":
        return drawn
    if fill == "arange":
        return np.arange(drawn.size).reshape(drawn.shape).astype(drawn.dtype)
    return np.full_like(drawn, 1 if fill == "ones" else 0)


def mismatches(
    original: ir.Model,
    runnable: ir.Model | onnx.ModelProto | str,
    result: ir.Model | onnx.ModelProto,
    trials: Trials,
    rtol: float,
    atol: float,
) -> list[str]:
    """Return the names of the outputs that differ on some trial (``numpy.allclose``, NaN equal to NaN).

    Models run in a child process, so that a crash of the engine ends only the child.

    Args:
        original: The model before rewriting; its shapes are changed.
        runnable: The same model, unchanged, or the path of its file.
        result: The model after rewriting. Outputs missing in the result are not compared.
        trials: The inputs.
        rtol: Relative tolerance.
        atol: Absolute tolerance.

    Raises:
        EvaluationError: The original runs on no trial, or the result fails on a trial of the original.
    """
    for value in inputs.required_inputs(original):
        name = str(value.name)
        shape = trials.shapes.get(name, trials.arrays[name].shape if name in trials.arrays else None)
        if shape is not None:
            value.shape = ir.Shape(list(shape))
    inference.infer_shapes(original, strict=False)
    with (
        IsolatedRunner(here=uses_own_operators(original)) as apart,
        apart.file_of(runnable) as first,
        apart.file_of(result) as second,
    ):
        search = Search(original, lambda drawn: apart.run(first, trials.feeds(drawn)), seed=0, count=trials.count)
        samples = search.samples() or search.uninformative[: trials.count]
        if not samples:
            raise EvaluationError(
                f"the original runs on no trial: {'; '.join(search.reasons)}",
                remedy="Give shapes or inputs for the trials.",
            )
        wrong: dict[str, None] = {}
        for sample in samples:
            actual = apart.run(second, trials.feeds(sample.feeds))
            compared = [name for name in sample.answers if name in actual]
            wrong.update(dict.fromkeys(n for n in compared if not _close(sample.answers[n], actual[n], rtol, atol)))
    return list(wrong)


def _close(expected: Any, actual: Any, rtol: float, atol: float) -> bool:
    if isinstance(expected, np.ndarray) and expected.dtype.kind not in "OUS":
        if expected.dtype != actual.dtype or expected.shape != actual.shape:
            return False
        wide = np.complex128 if expected.dtype.kind == "c" else np.float64
        return bool(np.allclose(expected.astype(wide), actual.astype(wide), rtol=rtol, atol=atol, equal_nan=True))
    if isinstance(expected, (list, tuple)):
        return len(expected) == len(actual) and all(
            _close(a, b, rtol, atol) for a, b in zip(expected, actual, strict=True)
        )
    if isinstance(expected, dict):
        return expected.keys() == actual.keys() and all(
            _close(expected[key], actual[key], rtol, atol) for key in expected
        )
    return bool(np.array_equal(expected, actual))
