"""Inputs and sizes on which a source and its model are compared.

Numbers are drawn in the range that the model's graph admits (:mod:`sardonyx.rewrite.verify.inputs`), narrowed to the
range of the caller's examples: token ids, masks, probabilities and sorted boundaries stay such.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.convert.imported import Feeds, Options, Size
from sardonyx.errors import OptionError
from sardonyx.rewrite.verify import inputs

FACTORS = (2.0, 1.5, 3.0, 0.5)
"""Factors of an example's size that are tried first; strided programs accept such sizes."""

STEPS = (1, 2, 3, 4, 8, 16, 32, -1)
"""Differences from an example's size that are tried next."""

WITHOUT_EXAMPLE = (2, 8, 16, 5, 32, 64, 1, 3, 4, 128, 224)
"""Sizes to try where no example tells one."""


def draw(model: ir.Model, sizes: Mapping[str, int], example: Feeds | None, seed: int) -> dict[str, Any]:
    """Draw one set of inputs.

    Args:
        model: The model, with inferred types.
        sizes: The open sizes by name.
        example: Feeds of the caller, whose ranges the drawn numbers keep; None without any.
        seed: Seed of the numbers.

    Raises:
        EvaluationError: An input cannot be drawn.
    """
    feeds = inputs.draw(model, sizes, seed)
    generator = np.random.default_rng(seed + 1)
    for name, known in (example or {}).items():
        if name in feeds and isinstance(known, np.ndarray) and known.size and isinstance(feeds[name], np.ndarray):
            feeds[name] = _in_range_of(known, feeds[name], generator, seed)
    return feeds


def _in_range_of(example: np.ndarray, drawn: np.ndarray, generator: np.random.Generator, seed: int) -> np.ndarray:
    """Return numbers of the drawn shape in the range of an example."""
    if example.dtype.kind == "b":
        constant = bool(example.all()) or not bool(example.any())
        if constant and seed % 2:
            return np.full(drawn.shape, example.reshape(-1)[0])
        return _mixed_like(example, drawn, generator)
    if example.dtype.kind in "iu":
        low, high = int(example.min()), int(example.max())
        # Bounds from the graph allow more numbers, which the source may refuse: only every second sample keeps them.
        if seed % 2 == 0 and drawn.size and low <= int(drawn.min()) and int(drawn.max()) > high:
            return drawn
        numbers = generator.integers(low, high + 1, drawn.shape).astype(drawn.dtype)
        if (low, high) == (0, 1):
            return _mixed_like(example, numbers, generator)
        return np.sort(numbers, -1) if _is_sorted(example) else numbers
    if example.dtype.kind != "f" or not np.isfinite(example).all():
        return example if example.shape == drawn.shape else drawn
    least, most = float(example.min()), float(example.max())
    if least >= 0 or most <= 0:
        uniform = generator.uniform(least, most if most > least else least + 1, drawn.shape)
        result = uniform.astype(drawn.dtype)
    else:
        result = drawn
    return np.sort(result, -1) if _is_sorted(example) else result


def _mixed_like(example: np.ndarray, drawn: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Return a mask with two properties of an example: no row of one value alone, and the same order in rows.

    A sequence without a token, which a row of one value stands for, has no answer in most programs, and behind the end
    of a sequence are no further tokens.
    """
    if example.ndim == 0 or example.ndim != drawn.ndim or example.shape[-1] < 2 or drawn.shape[-1] < 2:
        return drawn
    rows = drawn.reshape(-1, drawn.shape[-1]).copy()
    for value in (0, 1):
        if not bool((example == value).all(-1).any()):
            alone = (rows == value).all(-1)
            rows[alone, generator.integers(0, rows.shape[-1], int(alone.sum()))] = 1 - value
    if _is_sorted(example):
        rows.sort(-1)
    elif _is_sorted(example[..., ::-1]):
        rows = np.sort(rows, -1)[:, ::-1]
    return rows.reshape(drawn.shape)


def _is_sorted(example: np.ndarray) -> bool:
    """Return True if rows ascend along the last axis, as boundaries and offsets do."""
    if example.ndim == 0 or example.shape[-1] < 3 or bool((example == example.reshape(-1)[0]).all()):
        return False
    return bool((np.diff(example.astype(np.float64), axis=-1) >= 0).all())


def assignments(sizes: Mapping[str, Size], leading: Mapping[str, bool]) -> Iterator[dict[str, int]]:
    """Yield values of the open sizes: the examples', batch 1, all changed, and one changed at a time.

    Args:
        sizes: The open sizes.
        leading: True for a size that is the first of an input.
    """
    base = {
        name: size.example or _without_example(i, leading.get(name, False))
        for i, (name, size) in enumerate(sizes.items())
    }
    tried = [base]
    yield base
    if not sizes:
        return
    batches = [name for name in sizes if leading.get(name, False) and sizes[name].low <= 1]
    changes: list[dict[str, int]] = []
    if batches:
        changes.append(dict.fromkeys(batches, 1))
    for factor in FACTORS:
        changes.append({name: int(base[name] * factor) + (base[name] == 1) for name in sizes})
    changes.append({name: base[name] + 1 + i for i, name in enumerate(sizes)})
    for name in sizes:
        changes += [{name: base[name] + step} for step in STEPS]
        changes += [{name: int(base[name] * factor)} for factor in FACTORS]
    for change in changes:
        assignment = {**base, **change}
        if assignment not in tried and all(_admits(sizes[name], size) for name, size in assignment.items()):
            tried.append(assignment)
            yield assignment


def _without_example(index: int, is_leading: bool) -> int:
    return 2 if is_leading else WITHOUT_EXAMPLE[(1 + index) % len(WITHOUT_EXAMPLE)]


def _admits(size: Size, value: int) -> bool:
    return value >= max(size.low, 1) and (size.high is None or value <= size.high)


_UNUSUAL = (np.nan, 0.0, np.inf, -np.inf, -1.0)
"""Replace every second element of floats."""


def unusual(feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Return feeds with every second element replaced: floats by unusual numbers, integers by 0 or their negative."""
    result: dict[str, Any] = {}
    for name, array in feeds.items():
        result[name] = array
        if not isinstance(array, np.ndarray) or not array.size or array.dtype.kind not in "fib":
            continue
        line = np.arange(array.size).reshape(array.shape)
        if array.dtype.kind == "f":
            others = np.asarray(_UNUSUAL)[line // 2 % len(_UNUSUAL)].astype(array.dtype)
        else:
            others = ~array if array.dtype.kind == "b" else -array * (line // 2 % 2).astype(array.dtype)
        result[name] = np.where(line % 2 == 0, others, array)
    return result


def caller_examples(model: ir.Model, options: Options) -> tuple[Feeds, ...]:
    """Return the caller's examples as feeds of the model, for importers that know their inputs from a file.

    Raises:
        OptionError: The examples are too few or too many, or do not fit the model's inputs.
    """
    if not options.examples:
        return ()
    names = [str(value.name) for value in model.graph.inputs if not value.is_initializer()]
    if isinstance(options.examples, Mapping):
        feeds = {str(name): np.asarray(array) for name, array in options.examples.items()}
    elif len(options.examples) != len(names):
        raise OptionError(
            f"expected {len(names)} example inputs, got {len(options.examples)}",
            where="inputs",
            remedy=f"Inputs of the model are: {', '.join(names)}.",
        )
    else:
        feeds = dict(zip(names, map(np.asarray, options.examples), strict=True))
    inputs.require_fit(model, feeds)
    return (feeds,)


def sizes_of_inputs(model: ir.Model, examples: tuple[Feeds, ...] = ()) -> dict[str, Size]:
    """Return the open sizes of the model's inputs, with their values in the first example."""
    return {
        str(size.value): Size(int(np.shape(examples[0][str(value.name)])[axis]) if examples else 0)
        for value in model.graph.inputs
        for axis, size in enumerate(value.shape or ())
        if not isinstance(size, int) and size.value is not None
    }
