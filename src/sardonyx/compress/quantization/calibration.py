"""Observation: statistics of activations, from one pass over samples on compiled code."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.compress.quantization.interpretation import SampleRuns, stacked
from sardonyx.compress.quantization.placement import RECURRENT, WeightSite
from sardonyx.compress.quantization.ranges import Statistics
from sardonyx.compress.quantization.site_inputs import NOTHING, Needs, SiteInput, moments_within
from sardonyx.compress.samples import not_a_number, number_of

_REMEDY = "Remove the sample, or exclude the nodes that read the activation."


class Observation:
    """Statistics of activations over samples.

    Args:
        model: The float model.
        names: The names of the activations whose ranges are needed.
        samples: The samples, read once.
        sites: The sites whose inputs a method needs.
        needs: The statistics of these inputs.
        expected: The least number of samples.

    Attributes:
        statistics: The statistics of activations by name.
        inputs: The statistics of the inputs of sites, by label; empty if `needs` is.
        count: The number of samples.
        sample_work: The multiplications of one sample on the interpreter; infinite if unknown. Set by :meth:`close`.

    Raises:
        EvaluationError: An activation is NaN.
        SardonyxError: The model does not run on a sample.
    """

    def __init__(
        self,
        model: ir.Model,
        names: Sequence[str],
        samples: Iterable[Mapping[str, Any]],
        sites: Sequence[WeightSite] = (),
        needs: Needs = NOTHING,
        expected: int = 1,
    ) -> None:
        self.statistics = {name: Statistics() for name in names}
        self.inputs: dict[str, SiteInput] = {}
        self.count = 0
        self.sample_work = math.inf
        self._readers: dict[str, list[SiteInput]] = {}
        if not needs.is_empty:
            self._place_inputs(model, sites, needs)
        fed = {str(value.name) for value in model.graph.inputs}
        observed = list(dict.fromkeys([*names, *self._readers]))
        self._fed = [name for name in observed if name in fed]
        inner = [name for name in observed if name not in fed]
        self._runs: SampleRuns | None = SampleRuns(model, inner, expected)
        self.add(samples)

    def add(self, samples: Iterable[Mapping[str, Any]]) -> None:
        """Add samples to the statistics.

        Raises:
            EvaluationError: An activation is NaN.
            SardonyxError: The model does not run on a sample.
        """
        assert self._runs is not None
        for group, values in self._runs.run(samples):
            feeds = stacked(group)
            fed = {name: np.asarray(feeds[name]) for name in self._fed}
            numbers = [number_of(sample, self.count + index) for index, sample in enumerate(group)]
            self._observe({**values, **fed}, group, numbers)
            self.count += len(group)

    def require_numbers(self, samples: Iterable[Mapping[str, Any]]) -> None:
        """Check inputs of the model that are observed, of samples that are not added.

        Raises:
            EvaluationError: An input is NaN.
        """
        for number, sample in enumerate(samples):
            for name in self._fed:
                array = np.asarray(sample[name])
                if array.dtype.kind == "f" and np.isnan(array).any():
                    raise not_a_number("the activation holds", name, sample, number_of(sample, number), _REMEDY)

    def rescale(self, name: str, result: str, factors: np.ndarray, statistics: Statistics) -> None:
        """Let the statistics of sites that read an activation be those of its product by factors.

        Args:
            name: The activation, whose readers among the sites all read the product.
            result: The name of the product.
            factors: Positive factors of channels, of shape [channels].
            statistics: Those of the product on some samples; the extremes become those of all samples.
        """
        for reader in self._readers.pop(name, ()):
            reader.rescale(factors)
            if reader.lows is not None and reader.highs is not None:
                statistics.widen(float(reader.lows.min()), float(reader.highs.max()))
            self._readers.setdefault(result, []).append(reader)
        self.statistics[result] = statistics

    def close(self) -> None:
        """Release the compiled model; no more samples can be added."""
        if self._runs is not None:
            self.sample_work = self._runs.sample_work
        self._runs = None

    def _place_inputs(self, model: ir.Model, sites: Sequence[WeightSite], needs: Needs) -> None:
        """Let sites that read the same rows share statistics."""
        within = moments_within(sites, needs)
        shared: dict[object, SiteInput] = {}
        for seed, site in enumerate(sites):
            value = site.input
            is_apart = site.is_batched and site.node.op_type not in RECURRENT
            if value is None or site.node.graph is not model.graph or is_apart:
                continue  # Rows of a batched input belong to several matrices; all directions read the same rows.
            key = str(value.name), SiteInput.geometry(site)
            if key not in shared:
                shared[key] = SiteInput(site, needs, site.label in within, seed)
                self._readers.setdefault(str(value.name), []).append(shared[key])
            self.inputs[site.label] = shared[key]

    def _observe(
        self, values: Mapping[str, np.ndarray], group: Sequence[Mapping[str, Any]], numbers: Sequence[int]
    ) -> None:
        for name, value in values.items():
            array = np.asarray(value)
            try:
                if name in self.statistics:
                    self.statistics[name].add(array, len(numbers))
                elif array.dtype.kind == "f" and np.isnan(array).any():
                    raise ValueError("not a number")
            except ValueError as error:
                index = _first_with_nan(array, len(numbers))
                raise not_a_number("the activation holds", name, group[index], numbers[index], _REMEDY) from error
            for reader in self._readers.get(name, ()):
                reader.add(array, len(numbers))


def _first_with_nan(array: np.ndarray, samples: int) -> int:
    """Return the index of the first of several samples whose rows of an array hold NaN."""
    if array.shape[:1] and len(array) % samples == 0:
        return int(np.isnan(array).reshape(samples, -1).any(1).argmax())
    return 0


def product_statistics(
    model: ir.Model, factors: Mapping[str, np.ndarray], samples: Iterable[Mapping[str, Any]]
) -> dict[str, Statistics]:
    """Return the statistics of activations, by name, multiplied by factors.

    Args:
        model: The float model.
        factors: The factors by activation, in shapes that broadcast.
        samples: The samples.
    """
    result = {name: Statistics() for name in factors}
    inner = [name for name in factors if name not in {value.name for value in model.graph.inputs}]
    for group, values in SampleRuns(model, inner).run(samples):
        feeds = stacked(group)
        for name, own in factors.items():
            array = values[name] if name in values else feeds[name]
            result[name].add(np.asarray(array) * own, len(group))
    return result
