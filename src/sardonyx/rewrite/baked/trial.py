"""Runs a model with other input shapes beside the original, in a process apart."""

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
from sardonyx.rewrite.inference import infer_shapes
from sardonyx.rewrite.verify import inputs
from sardonyx.rewrite.verify.child import Apart, uses_own_operators
from sardonyx.rewrite.verify.compare import difference, tolerance
from sardonyx.rewrite.verify.search import Sample, Search

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
    free = _opened(original, changed)
    with _files(original, changed) as (first, second), Apart(here=uses_own_operators(original)) as apart:
        sample = _sample(original, first, apart)
        if sample is None:
            return
        if _accepts(changed, sample.feeds):
            got = _run(apart, second, sample.feeds, "at the old sizes")
            for name, want in sample.answers.items():
                found = difference(name, want, got[name])
                if found.error > tolerance(want):
                    raise ShapeError(f"answers otherwise than before, by {found.error:.1e}", where=f"output '{name}'")
        for seed, other in enumerate(_others(free)):
            sizes = {**sample.sizes, **other}
            told = ", ".join(f"{name}={size}" for name, size in other.items()) or "the new sizes"
            _run(apart, second, inputs.draw(changed, sizes, seed), f"at {told}")


def compare_with_samples(original: ir.Model, changed: ir.Model) -> dict[str, int]:
    """Runs samples as one batch and one by one: the answers must be the same.

    Returns:
        The axis of each output along which the samples lie; nothing where the original runs on no inputs drawn.

    Raises:
        ShapeError: an output differs, or holds one answer for all.
    """
    with _files(original, changed) as (first, second), Apart(here=uses_own_operators(original)) as apart:
        sample = _sample(original, first, apart)
        if sample is None:
            return {}
        drawn = [inputs.draw(original, sample.sizes, seed) for seed in range(SAMPLES)]
        try:
            alone = [apart.run(first, feeds) for feeds in drawn]
        except EvaluationError:
            drawn, alone = [sample.feeds] * SAMPLES, [dict(sample.answers)] * SAMPLES
        together = {name: np.concatenate([feeds[name] for feeds in drawn]) for name in drawn[0]}
        if not _accepts(changed, together):
            return {}
        got = _run(apart, second, together, f"for a batch of {SAMPLES}")
    return {name: _sample_axis(name, [answers[name] for answers in alone], got[name]) for name in alone[0]}


def _sample(model: ir.Model, path: Path, apart: Apart) -> Sample | None:
    annotated = model.clone()
    infer_shapes(annotated, strict=False)
    search = Search(annotated, lambda feeds: apart.run(path, feeds), seed=0, wanted=1)
    found = search.samples() or search.dull
    return found[0] if found else None


def _sample_axis(name: str, alone: list[Any], together: Any) -> int:
    parts = [np.asarray(each) for each in alone]
    whole = np.asarray(together)
    axes = [axis for axis in range(whole.ndim) if parts[0].ndim == whole.ndim and whole.shape[axis] == SAMPLES]
    for axis in axes:
        if all(part.shape[axis] == 1 for part in parts):
            joined = np.concatenate(parts, axis=axis)
            if joined.shape == whole.shape and difference(name, joined, whole).error <= tolerance(whole):
                return axis
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


def _opened(original: ir.Model, changed: ir.Model) -> Sizes:
    """The sizes that are open now and were numbers: name → the number."""
    before = {value.name: value for value in inputs.required_inputs(original)}
    free: Sizes = {}
    for value in inputs.required_inputs(changed):
        old = before[value.name].shape
        for axis, size in enumerate(inputs.declared_sizes(value) or ()):
            was = None if old is None else old[axis]
            if not isinstance(size, int) and isinstance(was, int) and was >= 0:
                free.setdefault(str(size), was)
    return free


def _others(free: Sizes) -> Iterator[Sizes]:
    if not free:
        yield {}
        return
    first = next(iter(free))
    for leading, rest in OTHER_SIZES:
        yield {name: size * (leading if name == first or "batch" in name else rest) for name, size in free.items()}


def _accepts(model: ir.Model, feeds: Mapping[str, Any]) -> bool:
    """Whether the declared shapes of the inputs allow these arrays."""
    for value in inputs.required_inputs(model):
        given = np.shape(feeds[str(value.name)])
        if value.shape is not None and any(
            isinstance(dim, int) and dim != size for dim, size in zip(value.shape, given, strict=True)
        ):
            return False
    return True


def _run(apart: Apart, path: Path, feeds: Mapping[str, Any], when: str) -> dict[str, Any]:
    try:
        return apart.run(path, feeds)
    except EvaluationError as error:
        named = _NODE.search(str(error))
        reason = re.sub(r"\s+", " ", str(error).replace(str(path), "the model"))
        raise ShapeError(
            f"does not run {when}: {reason[:400]}",
            where=f"node '{named[1]}'" if named else "",
            remedy="Its sizes are fixed by what the model was trained or built for.",
        ) from error
