"""Comparison of a model with new input shapes to the original, by running both in a child process."""

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
from sardonyx.rewrite.analysis.inference import infer_shapes
from sardonyx.rewrite.verify import inputs
from sardonyx.rewrite.verify.child import IsolatedRunner, uses_own_operators
from sardonyx.rewrite.verify.compare import difference, tolerance
from sardonyx.rewrite.verify.search import Sample, Search

OTHER_SIZES = ((3, 2), (2, 3))
"""(factor of the first sizes, factor of the others) for trials at other sizes than the old ones."""

SAMPLES = 3

_NODE = re.compile(r"[Nn]ode\.? ?(?:\(|Name:')([^')]+)")

Sizes = dict[str, int]


def compare_with(original: ir.Model, changed: ir.Model) -> None:
    """Check that the changed model agrees with the original at the old sizes, and runs at others.

    If the original runs on none of the drawn inputs, nothing is compared.

    Raises:
        ShapeError: the outputs differ or a run fails; names the output or node.
    """
    free = _opened(original, changed)
    with _files(original, changed) as (first, second), IsolatedRunner(here=uses_own_operators(original)) as runner:
        sample = _sample(original, first, runner)
        if sample is None:
            return
        if _accepts(changed, sample.feeds):
            actual = _run(runner, second, sample.feeds, "at the old sizes")
            for name, expected in sample.answers.items():
                deviation = difference(name, expected, actual[name])
                if deviation.error > tolerance(expected):
                    raise ShapeError(
                        f"output differs from the original's by {deviation.error:.1e}", where=f"output '{name}'"
                    )
        for seed, other in enumerate(_others(free)):
            sizes = {**sample.sizes, **other}
            assignment = ", ".join(f"{name}={size}" for name, size in other.items()) or "the new sizes"
            _run(runner, second, inputs.draw(changed, sizes, seed), f"at {assignment}")


def compare_with_samples(original: ir.Model, changed: ir.Model) -> dict[str, int]:
    """Run samples as one batch and one by one: the answers must agree.

    Returns:
        The batch axis of each output; empty if the original runs on none of the drawn inputs.

    Raises:
        ShapeError: an output differs, or has one answer for the whole batch.
    """
    with _files(original, changed) as (first, second), IsolatedRunner(here=uses_own_operators(original)) as runner:
        sample = _sample(original, first, runner)
        if sample is None:
            return {}
        drawn = [inputs.draw(original, sample.sizes, seed) for seed in range(SAMPLES)]
        try:
            alone = [runner.run(first, feeds) for feeds in drawn]
        except EvaluationError:
            drawn, alone = [sample.feeds] * SAMPLES, [dict(sample.answers)] * SAMPLES
        together = {name: np.concatenate([feeds[name] for feeds in drawn]) for name in drawn[0]}
        if not _accepts(changed, together):
            return {}
        actual = _run(runner, second, together, f"for a batch of {SAMPLES}")
    return {name: _sample_axis(name, [answers[name] for answers in alone], actual[name]) for name in alone[0]}


def _sample(model: ir.Model, path: Path, runner: IsolatedRunner) -> Sample | None:
    annotated = model.clone()
    infer_shapes(annotated, strict=False)
    search = Search(annotated, lambda feeds: runner.run(path, feeds), seed=0, count=1)
    samples = search.samples() or search.uninformative
    return samples[0] if samples else None


def _sample_axis(name: str, alone: list[Any], together: Any) -> int:
    parts = [np.asarray(answer) for answer in alone]
    whole = np.asarray(together)
    axes = [axis for axis in range(whole.ndim) if parts[0].ndim == whole.ndim and whole.shape[axis] == SAMPLES]
    for axis in axes:
        if all(part.shape[axis] == 1 for part in parts):
            joined = np.concatenate(parts, axis=axis)
            if joined.shape == whole.shape and difference(name, joined, whole).error <= tolerance(whole):
                return axis
    raise ShapeError(
        "the output for a batch differs from the outputs of its samples",
        where=f"output '{name}'",
        remedy="The model mixes the samples of a batch: run one sample at a time.",
    )


@contextmanager
def _files(*models: ir.Model) -> Iterator[list[Path]]:
    with tempfile.TemporaryDirectory(prefix="sardonyx-shapes-") as folder:
        paths = [Path(folder) / f"{number}.onnx" for number in range(len(models))]
        for model, path in zip(models, paths, strict=True):
            model_io.save(model, path)
        yield paths


def _opened(original: ir.Model, changed: ir.Model) -> Sizes:
    """Return the sizes opened by the change: name → former number."""
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
    """Return True if the declared shapes of the inputs admit these arrays."""
    for value in inputs.required_inputs(model):
        shape = np.shape(feeds[str(value.name)])
        if value.shape is not None and any(
            isinstance(dim, int) and dim != size for dim, size in zip(value.shape, shape, strict=True)
        ):
            return False
    return True


def _run(runner: IsolatedRunner, path: Path, feeds: Mapping[str, Any], when: str) -> dict[str, Any]:
    try:
        return runner.run(path, feeds)
    except EvaluationError as error:
        named = _NODE.search(str(error))
        reason = re.sub(r"\s+", " ", str(error).replace(str(path), "the model"))
        raise ShapeError(
            f"does not run {when}: {reason[:400]}",
            where=f"node '{named[1]}'" if named else "",
            remedy="Restore the old size: the model was built for fixed sizes.",
        ) from error
