"""Trial runs of two models on the same inputs, as the drop-in modules are asked for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx.errors import EvaluationError, OptionError
from sardonyx.rewrite import inference
from sardonyx.rewrite.verify import inputs
from sardonyx.rewrite.verify.child import Apart, uses_own_operators
from sardonyx.rewrite.verify.search import Search

FILLS = ("random", "ones", "zeros", "arange")


class FillError(OptionError, ValueError):
    """There is no such way to fill inputs; a ``ValueError`` as well."""


@dataclass(frozen=True)
class Trials:
    """What to try models on.

    Attributes:
        count: How many sets of inputs.
        shapes: Shapes of inputs, by name; others are as declared, open sizes such that the model runs.
        fill: ``random`` (in the range that the graph allows), ``ones``, ``zeros`` or ``arange``.
        given: Inputs as they are to be, by name.
    """

    count: int
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    fill: str = "random"
    given: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.fill not in FILLS:
            raise FillError(
                f"Unknown input_fill {self.fill!r}, expected one of {', '.join(FILLS)}.", where="input_fill"
            )

    def feeds(self, drawn: Mapping[str, Any]) -> dict[str, Any]:
        """A set of inputs as drawn, filled and replaced as asked."""
        return {name: self.given.get(name, _filled(array, self.fill)) for name, array in drawn.items()}


def _filled(drawn: Any, fill: str) -> Any:
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
    """Names of the outputs that differ on some trial (``numpy.allclose``, NaN equal to NaN).

    Models run in a process of its own, so that an engine that crashes over one takes nothing with it.

    Args:
        original: The model before rewriting; its shapes are changed.
        runnable: The same model, unchanged, or the path of its file.
        result: The model after rewriting. Outputs that it does not have are not compared.
        trials: What to try both on.
        rtol: Relative tolerance.
        atol: Absolute tolerance.

    Raises:
        EvaluationError: the original runs on no trial, or the result not where the original does.
    """
    for value in inputs.required_inputs(original):
        wanted = trials.given[str(value.name)].shape if str(value.name) in trials.given else None
        wanted = trials.shapes.get(str(value.name), wanted)
        if wanted is not None:
            value.shape = ir.Shape(list(wanted))
    inference.infer_shapes(original, strict=False)
    with (
        Apart(here=uses_own_operators(original)) as apart,
        apart.file_of(runnable) as first,
        apart.file_of(result) as second,
    ):
        search = Search(original, lambda drawn: apart.run(first, trials.feeds(drawn)), seed=0, wanted=trials.count)
        samples = search.samples() or search.dull[: trials.count]
        if not samples:
            raise EvaluationError(
                f"the original runs on no trial: {'; '.join(search.reasons)}",
                remedy="Give shapes or inputs to try it on.",
            )
        wrong: dict[str, None] = {}
        for sample in samples:
            found = apart.run(second, trials.feeds(sample.feeds))
            compared = [name for name in sample.answers if name in found]
            wrong.update(dict.fromkeys(n for n in compared if not _close(sample.answers[n], found[n], rtol, atol)))
    return list(wrong)


def _close(want: Any, found: Any, rtol: float, atol: float) -> bool:
    if isinstance(want, np.ndarray) and want.dtype.kind not in "OUS":
        if want.dtype != found.dtype or want.shape != found.shape:
            return False
        wide = np.complex128 if want.dtype.kind == "c" else np.float64
        return bool(np.allclose(want.astype(wide), found.astype(wide), rtol=rtol, atol=atol, equal_nan=True))
    if isinstance(want, (list, tuple)):
        return len(want) == len(found) and all(_close(a, b, rtol, atol) for a, b in zip(want, found, strict=True))
    if isinstance(want, dict):
        return want.keys() == found.keys() and all(_close(want[key], found[key], rtol, atol) for key in want)
    return bool(np.array_equal(want, found))
