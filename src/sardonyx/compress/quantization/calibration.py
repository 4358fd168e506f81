"""Observation: statistics of activations, from one pass over samples on compiled code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.compress.quantization.placement import RECURRENT, WeightSite
from sardonyx.compress.quantization.ranges import Statistics
from sardonyx.compress.quantization.site_inputs import NOTHING, Needs, SiteInput, moments_within
from sardonyx.compress.samples import number_of
from sardonyx.errors import EvaluationError
from sardonyx.model.copying import copy_model
from sardonyx.runtime.session import Session


class Observation:
    """Statistics of activations over samples.

    Args:
        model: The float model.
        names: The names of the activations whose ranges are needed.
        samples: The samples, read once.
        sites: The sites whose inputs a method needs.
        needs: The statistics of these inputs.

    Attributes:
        statistics: The statistics of activations by name.
        inputs: The statistics of the inputs of sites, by label; empty if `needs` is.
        count: The number of samples.

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
    ) -> None:
        self.statistics = {name: Statistics() for name in names}
        self.inputs: dict[str, SiteInput] = {}
        self.count = 0
        self._readers: dict[str, list[SiteInput]] = {}
        if not needs.is_empty:
            self._place_inputs(model, sites, needs)
        fed = {str(value.name) for value in model.graph.inputs}
        observed = list(dict.fromkeys([*names, *self._readers]))
        self._fed = [name for name in observed if name in fed]
        self._inner = [name for name in observed if name not in fed]
        self._session = Session(_with_outputs(model, self._inner), compile="wait") if self._inner else None
        self.add(samples)

    def add(self, samples: Iterable[Mapping[str, Any]]) -> None:
        """Add samples to the statistics.

        Raises:
            EvaluationError: An activation is NaN.
            SardonyxError: The model does not run on a sample.
        """
        for sample in samples:
            results = [] if self._session is None else self._session.run(None, sample)
            values = dict(zip(self._inner, results, strict=True))
            self._observe(
                {**values, **{name: np.asarray(sample[name]) for name in self._fed}}, number_of(sample, self.count)
            )
            self.count += 1

    def require_numbers(self, samples: Iterable[Mapping[str, Any]]) -> None:
        """Check inputs of the model that are observed, of samples that are not added.

        Raises:
            EvaluationError: An input is NaN.
        """
        for number, sample in enumerate(samples):
            for name in self._fed:
                array = np.asarray(sample[name])
                if array.dtype.kind == "f" and np.isnan(array).any():
                    raise _not_a_number(name, f"sample {number_of(sample, number)}")

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
        self._session = None

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

    def _observe(self, values: Mapping[str, np.ndarray], number: int) -> None:
        for name, value in values.items():
            array = np.asarray(value)
            try:
                if name in self.statistics:
                    self.statistics[name].add(array)
                elif array.dtype.kind == "f" and np.isnan(array).any():
                    raise ValueError("not a number")
            except ValueError as error:
                raise _not_a_number(name, f"sample {number}") from error
            for reader in self._readers.get(name, ()):
                reader.add(array)


def _not_a_number(name: str, sample: str) -> EvaluationError:
    return EvaluationError(
        "the activation holds NaN.",
        where=f"{name}, {sample}",
        remedy="Remove the sample, or exclude the nodes that read the activation.",
    )


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
    session = Session(_with_outputs(model, inner), compile="wait") if inner else None
    for sample in samples:
        values = dict(zip(inner, [] if session is None else session.run(None, sample), strict=True))
        for name, own in factors.items():
            result[name].add(np.asarray(values.get(name, sample.get(name))) * own)
    return result


def _with_outputs(model: ir.Model, names: Sequence[str]) -> ir.Model:
    """Return a copy of a model whose outputs are the values of some names, so that one program computes these alone."""
    observed = copy_model(model)
    values = {value.name: value for node in observed.graph for value in node.outputs}
    observed.graph.outputs[:] = [values[name] for name in names]
    return observed
