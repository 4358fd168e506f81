"""The proof of a conversion: the source and its model answer the same inputs, at several sizes.

An integer or float that differs is judged by the source's own noise: the source is run again on inputs that differ in
the last bits, and a sample at which its answers change as much decides nothing. A source that answers equal inputs
differently proves no model.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.convert import drawing
from sardonyx.convert.imported import Answers, Feeds, Imported, Size
from sardonyx.core.eval.interpreter import match_type
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import TensorType
from sardonyx.errors import EvaluationError, SardonyxError
from sardonyx.model.copying import copy_model
from sardonyx.rewrite import evaluate
from sardonyx.rewrite.analysis import inference
from sardonyx.rewrite.verify import Verdict
from sardonyx.rewrite.verify.compare import difference, is_informative, tolerance, varies
from sardonyx.rewrite.verify.first_difference import first_difference
from sardonyx.rewrite.verify.inputs import declared_sizes, open_sizes, required_inputs

SAMPLES = 4
"""Number of samples to compare: the example's, others of its sizes, batch 1, other sizes."""

MOST_ATTEMPTS = 60
"""Maximum number of drawn input sets."""

SECONDS = 60.0
"""Time after which no further sample is drawn."""

NOISE = 8.0
"""A difference up to this multiple of the source's own noise is no difference."""

UNSTEADY = "the source answers equal inputs differently"
"""The reason why no model is proved against a source with a state that its calls change, or with random numbers."""

MOST_ROUNDING = 2.0**-5
"""Largest difference, relative to the largest element, that roundings to codes or of 16-bit weights explain."""

PERTURBATIONS = 2
"""Number of runs of the source on inputs that differ in the last bits."""

CODE_PERTURBATIONS = 8
"""Number of runs of a quantized source on inputs that differ by a code: its answers move in steps, often by none."""


@dataclass(frozen=True)
class Proof:
    """The verdict about a model, with the evidence.

    Attributes:
        verdict: See :class:`Verdict`.
        confirmed: The values of each open size at which both agreed.
        guilty: The first layer whose result differs, with its source line; empty if all agree or none is known.
    """

    verdict: Verdict
    confirmed: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    guilty: str = ""


@dataclass(frozen=True)
class Sample:
    """Feeds on which the source ran, and its answers."""

    sizes: Mapping[str, int]
    feeds: Feeds
    answers: Answers


class Witness:
    """The source's answers, computed once, against which any number of models is judged.

    Args:
        imported: The source as a model.
        seed: Seed of the drawn inputs.
    """

    def __init__(self, imported: Imported, seed: int = 0) -> None:
        self._imported = imported
        self._seed = seed
        self._worst = 0.0
        self._noises: dict[int, dict[str, float]] = {}
        self._code_roundings: dict[int, Mapping[str, Mapping[str, float]]] = {}
        self._weight_roundings: dict[int, Mapping[str, float]] = {}
        self._repeated: dict[int, bool] = {}
        self._refused = ""
        self.reasons: dict[str, None] = {}
        self.samples: list[Sample] = [] if imported.run is None else self._find_samples()

    def _find_samples(self) -> list[Sample]:
        model = copy_model(self._imported.model)
        inference.infer_shapes(model, strict=False)
        leading = open_sizes(model)
        sizes = {name: self._imported.sizes.get(name, Size()) for name in leading}
        samples: list[Sample] = []
        began = time.monotonic()
        for number, feeds in enumerate(self._imported.examples):
            if not self._try(samples, _sizes_in(model, feeds), feeds) and number == 0:
                self._refused = next(reversed(self.reasons))
        example = self._imported.examples[0] if self._imported.examples else None
        unseen = set(sizes)
        target = SAMPLES + len(samples)
        for number, assignment in enumerate(drawing.assignments(sizes, leading)):
            if number >= MOST_ATTEMPTS or (samples and time.monotonic() - began > SECONDS):
                break
            changed = {name for name, size in assignment.items() if size != sizes[name].example}
            if len(samples) >= target and not changed & unseen:
                continue
            if self._draw(samples, model, assignment, example, self._seed + number):
                unseen -= changed
        for number, outside in enumerate(self._imported.outside):
            if time.monotonic() - began > SECONDS:
                break
            if sizes.keys() <= outside.keys():
                self._draw(samples, model, outside, example, self._seed + 2 * MOST_ATTEMPTS + number)
        base = {name: size.example or 2 for name, size in sizes.items()}
        for number in range(SAMPLES):
            if len(samples) >= max(2, target - 2):
                break
            self._draw(samples, model, base, example, self._seed + MOST_ATTEMPTS + number)
        if samples and not _decide(samples):
            # Answers that never change say nothing: the source may tell zeros, negative numbers or NaN apart.
            self._try(samples, samples[0].sizes, drawing.unusual(samples[0].feeds))
        return samples

    def _draw(
        self, samples: list[Sample], model: ir.Model, sizes: Mapping[str, int], example: Feeds | None, seed: int
    ) -> bool:
        try:
            feeds = drawing.draw(model, sizes, example, seed)
        except EvaluationError as error:
            self.reasons[str(error)[:300]] = None
            return False
        return self._try(samples, sizes, feeds)

    def _try(self, samples: list[Sample], sizes: Mapping[str, int], feeds: Feeds) -> bool:
        assert self._imported.run is not None
        try:
            samples.append(Sample(dict(sizes), feeds, self._imported.run(feeds)))
        except EvaluationError as error:
            self.reasons[str(error).splitlines()[0][:300]] = None
            return False
        return True

    def judge(self, model: ir.Model) -> Proof:
        """Compare a model with the source."""
        if (reason := self.missing_evidence()) is not None:
            return Proof(Verdict("not proved", reason=reason))
        for sample in self.samples:
            if refusal := _misfit(model, sample.feeds):
                reason = f"the model refuses inputs of the source: {refusal}"
                return Proof(Verdict("different", reason=reason, worst=float("inf"), exact=False))
        with tempfile.TemporaryDirectory(prefix="sardonyx-proof-") as folder:
            path = Path(folder) / "model.onnx"
            model_io.save(model, path)
            try:
                runner = evaluate.runner(path)
            except EvaluationError as error:
                reason = f"the model cannot be loaded: {error}"
                return Proof(Verdict("different", reason=reason, worst=float("inf"), exact=False))
            second = None if runner.name == "reference" else lambda: evaluate.ReferenceRunner(path)
            return self.judge_runner(runner, second=second, locate=self._guilty)

    def disagreements(self, model: ir.Model) -> list[Sample]:
        """Return the samples at which a model does not answer as the source does."""
        with tempfile.TemporaryDirectory(prefix="sardonyx-proof-") as folder:
            path = Path(folder) / "model.onnx"
            model_io.save(model, path)
            try:
                runner = evaluate.runner(path)
            except EvaluationError:
                return list(self.samples)
            return [
                sample
                for number, sample in enumerate(self.samples)
                if _misfit(model, sample.feeds)
                or ((fault := self._fault(runner, sample)) is not None and fault[1] > self._noise(number))
            ]

    def unsteady(self) -> list[Sample]:
        """Return the samples that the source answers differently again, if it repeats its answer to the example.

        Some functions read outside of their memory at sizes that they do not check.
        """
        if not self.samples or not self._repeats(0):
            return []
        return [sample for number, sample in enumerate(self.samples) if not self._repeats(number)]

    def missing_evidence(self) -> str | None:
        """Return the reason why the source's answers decide nothing about any model; None if they do."""
        if self._imported.run is None:
            return self._imported.reason or "the source cannot be run here"
        if not self.samples:
            return f"the source ran on no sample: {'; '.join(self.reasons) or 'no inputs could be drawn'}"
        if self._refused:
            return f"the source does not run on the example: {self._refused}"
        if not _decide(self.samples):
            return "every output is empty, NaN or one repeated number"
        return None

    def judge_runner(
        self,
        runner: evaluate.Runner,
        *,
        second: Callable[[], evaluate.Runner] | None = None,
        locate: Callable[[Sample], str] | None = None,
    ) -> Proof:
        """Compare the answers of a runner with the source's.

        Args:
            runner: Runs the result of a conversion.
            second: Loads another runner of the same result, which decides where the first differs from the source.
            locate: Returns the first layer that differs at a sample, in words; empty if unknown.
        """
        if (reason := self.missing_evidence()) is not None:
            return Proof(Verdict("not proved", reason=reason))
        self._worst = 0.0
        decided: list[Sample] = []
        notes: list[str] = []
        undecided = "the answers change with the last bits of the inputs"
        runners = [runner]
        for number, sample in enumerate(self.samples):
            fault = self._fault(runners[0], sample)
            if fault is not None and second is not None:
                if len(runners) == 1:
                    runners.append(second())
                other = self._fault(runners[1], sample)
                if other is None:
                    notes.append(f"{runners[0].name} differs from the operators' definitions: {fault[0]}")
                    fault = None
            if fault is None:
                decided.append(sample)
                continue
            text, gap = fault
            causes = {
                **self._code_rounding(number),
                "the last bits of the 16-bit weights": self._weight_rounding(number),
            }
            if (cause := self._explanation(runners[-1], sample, causes, MOST_ROUNDING)) is not None:
                notes.append(f"{text}, less than by {cause}")
                decided.append(sample)
                continue
            if (cause := self._explanation(runners[-1], sample, causes, np.inf)) is not None:
                undecided = f"{cause} changes the answers too much to decide"
                notes.append(f"{text}; {undecided}")
                continue
            if not self._repeats(number):
                return Proof(Verdict("not proved", reason=UNSTEADY))
            if gap > self._noise(number):
                sizes = f" at sizes {dict(sample.sizes)}" if sample.sizes else ""
                verdict = Verdict("different", reason=text + sizes, worst=gap, exact=False, samples=len(decided))
                return Proof(verdict, guilty="" if locate is None else locate(sample))
            notes.append(f"{text}, as the source does for inputs that differ in the last bits")
        if (unguarded := self._answered_refusal(runners[0])) is not None:
            return Proof(Verdict("different", reason=unguarded, worst=float("inf"), exact=False))
        if not decided:
            return Proof(Verdict("not proved", reason=undecided, notes=tuple(notes)))
        if not self._repeats(0):
            return Proof(Verdict("not proved", reason=UNSTEADY))
        verdict = Verdict(
            "proved",
            samples=len(decided),
            sizes=tuple(dict(sample.sizes) for sample in decided),
            worst=self._worst,
            exact=self._worst == 0,
            notes=tuple(dict.fromkeys(notes)),
        )
        return Proof(verdict, _values(decided))

    def _answered_refusal(self, runner: evaluate.Runner) -> str | None:
        """Return the fault of a model that answers inputs outside its guards; None without any."""
        for feeds in self._imported.refused() if self._imported.refused is not None else ():
            try:
                runner.run(feeds)
            except EvaluationError:
                continue
            return "the model answers inputs for which the program takes other branches"
        return None

    def _fault(
        self, runner: evaluate.Runner, sample: Sample, allowed: Mapping[str, float] | None = None
    ) -> tuple[str, float] | None:
        """Return the first difference in words, and its size; differences up to `allowed`, by output, are none."""
        try:
            actual = runner.run(sample.feeds)
        except EvaluationError as error:
            return f"the model does not run: {error}", float("inf")
        for name, expected in sample.answers.items():
            if name not in actual:
                return f"the model has no output '{name}'", float("inf")
            reference = self._numbers(expected)
            deviation = difference(name, reference, self._numbers(actual[name]))
            if deviation.error <= max(tolerance(reference), (allowed or {}).get(name, 0.0)):
                self._worst = max(self._worst, deviation.error)
            else:
                detail = f" ({deviation.detail})" if deviation.detail else ""
                return (
                    f"output '{name}' differs by {deviation.error:.2e} of its largest element{detail}",
                    deviation.error,
                )
        return None

    def _repeats(self, number: int) -> bool:
        """Return True if the source, run again, answers a sample as before, and the example as in its first call."""
        if number not in self._repeated:
            assert self._imported.run is not None
            sample = self.samples[number]
            first = self._imported.first if number == 0 else None
            try:
                again = self._imported.run(sample.feeds)
            except EvaluationError:
                again = {}
            self._repeated[number] = all(map(partial(self._agree, sample.answers), (again, first or sample.answers)))
        return self._repeated[number]

    def _agree(self, expected: Answers, actual: Answers) -> bool:
        """Return True if both answers of the source are equal but for rounding errors."""
        for name, array in expected.items():
            numbers = self._numbers(array)
            if name not in actual or difference(name, numbers, self._numbers(actual[name])).error > tolerance(numbers):
                return False
        return True

    def _noise(self, number: int) -> float:
        """Return the multiple of the source's own noise at a sample, below which nothing is decided."""
        if number not in self._noises:
            self._noises[number] = self._measured_noise(self.samples[number])
        return NOISE * max(self._noises[number].values(), default=0.0)

    def _numbers(self, array: Any) -> Any:
        """Return the codes of a quantized source as numbers, between which differences have a size."""
        is_code = isinstance(array, np.ndarray) and array.dtype.kind in "iu"
        if is_code and array.dtype.itemsize * 8 == self._imported.code_bits:
            return array.astype(np.float32)
        return array

    def _explanation(
        self, runner: evaluate.Runner, sample: Sample, causes: Mapping[str, Mapping[str, float]], most: float
    ) -> str | None:
        """Return the first cause whose changes of the outputs, up to `most`, hold all differences at a sample."""
        for cause, changes in causes.items():
            allowed = {name: min(change, most) for name, change in changes.items()}
            if allowed and self._fault(runner, sample, allowed) is None:
                return cause
        return None

    def _code_rounding(self, number: int) -> Mapping[str, Mapping[str, float]]:
        """Return changes of a quantized source's outputs, by cause: a step of the inputs' codes, or of the outputs'.

        The last layer rounds to a code of the outputs, whatever the inputs' codes change.
        """
        bits = self._imported.code_bits
        if not bits:
            return {}
        if number not in self._code_roundings:
            sample = self.samples[number]
            changes = self._measured_noise(sample, bits)
            steps = dict(changes)
            for name, step in self._imported.code_steps.items():
                largest = float(np.abs(self._numbers(sample.answers[name])).max(initial=0.0))
                steps[name] = max(steps.get(name, 0.0), step * (1 + 1e-6) / largest if largest else 0.0)
            self._code_roundings[number] = {
                f"a step of the {bits}-bit inputs": changes,
                f"a step of the {bits}-bit outputs": steps,
            }
        return self._code_roundings[number]

    def _weight_rounding(self, number: int) -> Mapping[str, float]:
        """Return the change of the source's float outputs when its 16-bit weights change by a unit in the last place.

        A source with 16-bit weights rounds after every layer, and the model may round to the neighbouring number, which
        an output in 32 bits, or integers among the inputs, do not show.
        """
        if self._imported.rounded is None:
            return {}
        if number not in self._weight_roundings:
            sample = self.samples[number]
            changes: dict[str, float] = {}
            for seed in range(PERTURBATIONS):
                answers = self._imported.rounded(sample.feeds, seed)
                for name, array in sample.answers.items():
                    if isinstance(array, np.ndarray) and (array.dtype.kind == "f" or array.dtype.name == "bfloat16"):
                        change = difference(name, array, answers[name]).error
                        changes[name] = max(changes.get(name, 0.0), min(change, MOST_ROUNDING))
            self._weight_roundings[number] = changes
        return self._weight_roundings[number]

    def _measured_noise(self, sample: Sample, bits: int = 0) -> dict[str, float]:
        assert self._imported.run is not None
        noise: dict[str, float] = {}
        for seed in range(CODE_PERTURBATIONS if bits else PERTURBATIONS):
            self._add_noise(noise, sample, partial(self._imported.run, perturbed(sample.feeds, seed, bits)), np.inf)
            if not bits and self._imported.shaken is not None:
                shaken = partial(self._imported.shaken, sample.feeds, seed)
                self._add_noise(noise, sample, shaken, MOST_ROUNDING / NOISE)
        return noise

    def _add_noise(self, noise: dict[str, float], sample: Sample, run: Callable[[], Answers], most: float) -> None:
        """Add the change of the answers in one run; a change without a size counts for nothing below a limit."""
        try:
            answers = run()
        except EvaluationError:
            return
        for name, expected in sample.answers.items():
            change = difference(name, self._numbers(expected), self._numbers(answers[name])).error
            if change <= most or np.isfinite(change):
                noise[name] = max(noise.get(name, 0.0), min(change, most))

    def _guilty(self, sample: Sample) -> str:
        """Return the first layer of the imported model whose result differs from the source's."""
        if self._imported.inner is None:
            return ""
        return first_difference(self._imported.model, self._imported.inner, sample.feeds, is_expected=False)


def _decide(samples: list[Sample]) -> bool:
    """Return True if answers hold different numbers, in one sample or from sample to sample."""
    answers = [sample.answers for sample in samples]
    return any(map(is_informative, answers)) or varies(answers)


def perturbed(feeds: Feeds, seed: int, bits: int = 0) -> dict[str, Any]:
    """Return feeds with floats changed in their last bits, or numbers changed by up to one `bits`-bit code."""
    generator = np.random.default_rng(seed)
    result: dict[str, Any] = {}
    for name, array in feeds.items():
        result[name] = array
        if not isinstance(array, np.ndarray) or not array.size:
            continue
        if bits and array.dtype.kind == "f":
            step = float(np.ptp(array)) / (2**bits - 1)
            result[name] = (array + generator.uniform(-step, step, array.shape)).astype(array.dtype)
        elif bits and array.dtype.itemsize * 8 == bits and array.dtype.kind in "iu":
            limits = np.iinfo(array.dtype)
            moved = array.astype(np.int64) + generator.integers(-1, 2, array.shape)
            result[name] = moved.clip(limits.min, limits.max).astype(array.dtype)
        elif not bits and array.dtype.kind == "f":
            step = float(np.finfo(array.dtype).eps)
            factors = 1 + step * generator.integers(-2, 3, array.shape)
            result[name] = (array * factors).astype(array.dtype)
    return result


def _misfit(model: ir.Model, feeds: Feeds) -> str:
    """Return the reason why feeds do not have the sizes that a model declares; empty if they have."""
    sizes: dict[str, int] = {}
    for value in required_inputs(model):
        array, declared = feeds.get(str(value.name)), declared_sizes(value)
        if not isinstance(array, np.ndarray) or declared is None:
            continue
        try:
            match_type(TensorType(t.FLOAT, declared), TensorType(t.FLOAT, array.shape), sizes, str(value.name))
        except SardonyxError as error:
            return str(error)
    return ""


def _sizes_in(model: ir.Model, feeds: Feeds) -> dict[str, int]:
    """Return the open sizes that feeds have, for dimensions that are a single name."""
    sizes: dict[str, int] = {}
    for value in model.graph.inputs:
        array = feeds.get(str(value.name))
        if isinstance(array, np.ndarray) and value.shape is not None and len(value.shape) == array.ndim:
            for size, number in zip(value.shape, array.shape, strict=True):
                name = None if isinstance(size, int) else size.value
                if name is not None and name.isidentifier():
                    sizes.setdefault(name, int(number))
    return sizes


def _values(samples: list[Sample]) -> dict[str, tuple[int, ...]]:
    names = dict.fromkeys(name for sample in samples for name in sample.sizes)
    return {name: tuple(sorted({sample.sizes[name] for sample in samples if name in sample.sizes})) for name in names}
