"""Trial runs of two models on the same inputs, as the drop-in modules are asked for them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.errors import EvaluationError, OptionError
from sardonyx.rewrite.evaluate import evaluate
from sardonyx.rewrite.verify import inputs

Model = onnx.ModelProto | str | os.PathLike[str]
FILLS = ("random", "ones", "zeros", "arange")


class FillError(OptionError, ValueError):
    """There is no such way to fill inputs; a ``ValueError`` as well."""


def trial_inputs(
    model: ir.Model, count: int, shapes: Mapping[str, Sequence[int]], fill: str, given: Mapping[str, Any] | None
) -> Iterator[list[dict[str, Any]]]:
    """Sets of inputs to try: one list for each assignment of the open sizes, of which the first that runs will do.

    Args:
        model: The model before rewriting.
        count: How many sets.
        shapes: Shapes of inputs, by name; others are as declared, open sizes as the graph allows.
        fill: ``random``, ``ones``, ``zeros`` or ``arange``.
        given: Inputs as they are to be, by name; others are drawn.

    Raises:
        FillError: ``fill`` is none of these.
        EvaluationError: The type of an input cannot be drawn.
    """
    if fill not in FILLS:
        raise FillError(f"Unknown input_fill {fill!r}, expected one of {', '.join(FILLS)}.", where="input_fill")
    for value in inputs.required_inputs(model):
        if str(value.name) in shapes:
            value.shape = ir.Shape(list(shapes[str(value.name)]))
    for sizes in inputs.sizes_to_try(model):
        drawn = [inputs.draw(model, sizes, seed) for seed in range(count)]
        yield [{name: _filled(array, fill) for name, array in feeds.items()} | dict(given or {}) for feeds in drawn]


def _filled(drawn: Any, fill: str) -> Any:
    if fill == "random" or not isinstance(drawn, np.ndarray) or drawn.dtype.kind in "OUS":
        return drawn
    if fill == "arange":
        return np.arange(drawn.size).reshape(drawn.shape).astype(drawn.dtype)
    return np.full_like(drawn, 1 if fill == "ones" else 0)


def mismatches(
    original: Model, result: Model, trials: Iterator[list[dict[str, Any]]], rtol: float, atol: float
) -> list[str]:
    """Names of the outputs that differ on some trial (``numpy.allclose``, NaN equal to NaN).

    Raises:
        EvaluationError: the original runs on no trial, or the result not where the original does.
    """
    refusal: EvaluationError | None = None
    for feeds_of_sizes in trials:
        try:
            expected = [evaluate(original, feeds) for feeds in feeds_of_sizes]
        except EvaluationError as error:
            refusal = error
            continue
        wrong: dict[str, None] = {}
        for feeds, want in zip(feeds_of_sizes, expected, strict=True):
            found = evaluate(result, feeds)
            wrong.update(dict.fromkeys(n for n in want if n in found and not _close(want[n], found[n], rtol, atol)))
        return list(wrong)
    assert refusal is not None
    raise EvaluationError(
        f"the original runs on no trial: {refusal.problem}", remedy="Give shapes or inputs to try it on."
    )


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


def loaded(model: Model) -> ir.Model:
    """A Model of its own, which may be changed."""
    return model_io.load(model)
