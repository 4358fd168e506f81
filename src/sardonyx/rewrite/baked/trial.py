"""Runs a model with other input shapes beside the original."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.errors import EvaluationError, ShapeError
from sardonyx.rewrite.evaluate import evaluate
from sardonyx.rewrite.verify import inputs
from sardonyx.rewrite.verify.compare import TOLERANCE, difference

OTHER_SIZES = ((3, 2), (2, 3))
"""(factor of the first sizes, factor of the others) by which opened sizes are tried beside the old ones."""

SAMPLES = 3

_NODE = re.compile(r"[Nn]ode\.? ?(?:\(|Name:')([^')]+)")

Sizes = dict[str, int]


def compare_with(original: ir.Model, changed: ir.Model) -> None:
    """Runs the changed model: at the old sizes it must answer as the original, at others it must run.

    Where the original runs on no inputs that can be drawn, there is nothing to compare with.

    Raises:
        ShapeError: it does not; names the node.
    """
    sizes = _sizes_of(original, changed)
    with _files(original, changed) as (first, second):
        for seed, (old, free) in enumerate(sizes):
            feeds = _draw(original, old, seed)
            expected = None if feeds is None else _answers(first, feeds)
            if feeds is None or expected is None:
                continue
            if _accepts(changed, feeds):
                got = _run(second, feeds, "at the old sizes")
                for name, want in expected.items():
                    found = difference(name, want, got[name])
                    if found.error > TOLERANCE:
                        raise ShapeError(
                            f"answers otherwise than before, by {found.error:.1e}", where=f"output '{name}'"
                        )
            for other in _others(free):
                try:
                    larger = inputs.draw(changed, {**old, **other}, seed)
                except EvaluationError:
                    continue
                _run(second, larger, f"at {', '.join(f'{k}={v}' for k, v in other.items()) or 'the new sizes'}")
            return


def compare_with_samples(original: ir.Model, changed: ir.Model) -> None:
    """Runs samples as one batch and one by one: the answers must be the same.

    Raises:
        ShapeError: an output differs, or holds one answer for all.
    """
    with _files(original, changed) as (first, second):
        for sizes in inputs.sizes_to_try(original):
            drawn = [_draw(original, sizes, seed) for seed in range(SAMPLES)]
            alone = [None if feeds is None else _answers(first, feeds) for feeds in drawn]
            pairs = [(f, a) for f, a in zip(drawn, alone, strict=True) if f is not None and a is not None]
            if len(pairs) == SAMPLES:
                break
        else:
            return
        together = {name: np.concatenate([feeds[name] for feeds, _ in pairs]) for name in pairs[0][0]}
        if not _accepts(changed, together):
            return
        got = _run(second, together, f"for a batch of {SAMPLES}")
    for name in pairs[0][1]:
        _compare_samples(name, [answers[name] for _, answers in pairs], got[name])


def _compare_samples(name: str, alone: list[Any], together: Any) -> None:
    parts = [np.asarray(each) for each in alone]
    whole = np.asarray(together)
    axes = [axis for axis in range(whole.ndim) if parts[0].ndim == whole.ndim and whole.shape[axis] == SAMPLES]
    for axis in axes:
        if all(part.shape[axis] == 1 for part in parts):
            joined = np.concatenate(parts, axis=axis)
            if joined.shape == whole.shape and difference(name, joined, whole).error <= TOLERANCE:
                return
    raise ShapeError(
        "does not hold, for a batch, what its samples give one by one",
        where=f"output '{name}'",
        remedy="The model mixes the samples of a batch: run them one by one.",
    )


@contextmanager
def _files(*models: ir.Model) -> Iterator[list[Path]]:
    with tempfile.TemporaryDirectory(prefix="sardonyx-shapes-") as folder:
        paths = [Path(folder) / f"{number}.onnx" for number in range(len(models))]
        for model, path in zip(models, paths, strict=True):
            model_io.save(model, path)
        yield paths


def _sizes_of(original: ir.Model, changed: ir.Model) -> Iterator[tuple[Sizes, Sizes]]:
    """Assignments of the original's open sizes, each with the old values of the sizes that were opened."""
    before = {value.name: value for value in inputs.required_inputs(original)}
    free: Sizes = {}
    for value in inputs.required_inputs(changed):
        old = before[value.name].shape
        for axis, dim in enumerate(value.shape or ()):
            size = None if old is None else old[axis]
            if not isinstance(dim, int) and isinstance(size, int):
                free.setdefault(inputs.dimension_name(value, axis), size)
    for sizes in inputs.sizes_to_try(original):
        yield sizes, free


def _others(free: Sizes) -> Iterator[Sizes]:
    if not free:
        yield {}
        return
    first = next(iter(free))
    for leading, rest in OTHER_SIZES:
        yield {name: size * (leading if name == first or "batch" in name else rest) for name, size in free.items()}


def _draw(model: ir.Model, sizes: Mapping[str, int], seed: int) -> dict[str, Any] | None:
    try:
        return inputs.draw(model, sizes, seed)
    except EvaluationError:
        return None


def _answers(path: Path, feeds: Mapping[str, Any]) -> dict[str, Any] | None:
    try:
        return evaluate(path, feeds)
    except EvaluationError:
        return None


def _accepts(model: ir.Model, feeds: Mapping[str, Any]) -> bool:
    """Whether the declared shapes of the inputs allow these arrays."""
    for value in inputs.required_inputs(model):
        given = np.shape(feeds[str(value.name)])
        if value.shape is not None and any(
            isinstance(dim, int) and dim != size for dim, size in zip(value.shape, given, strict=True)
        ):
            return False
    return True


def _run(path: Path, feeds: Mapping[str, Any], when: str) -> dict[str, Any]:
    try:
        return evaluate(path, feeds)
    except EvaluationError as error:
        named = _NODE.search(str(error))
        reason = re.sub(r"\s+", " ", str(error).replace(str(path), "the model"))
        raise ShapeError(
            f"does not run {when}: {reason[:400]}",
            where=f"node '{named[1]}'" if named else "",
            remedy="Its sizes are fixed by what the model was trained or built for.",
        ) from error
