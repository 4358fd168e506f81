"""Statistics of the inputs of layers, in parts: second moments of all layers take as much memory as the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import onnx_ir as ir

from sardonyx.compress.quantization.calibration import Observation
from sardonyx.compress.quantization.patches import Patches
from sardonyx.compress.quantization.placement import WeightSite
from sardonyx.compress.quantization.site_inputs import Needs, SiteInput

LEAST_BYTES = 256 << 20
"""Second moments that one pass observes at most, or a quarter of the weights: a pass costs a compilation and a run."""


class LayerInputs:
    """Statistics of the inputs of layers, which are read in the order of the graph.

    Args:
        model: The model whose activations are observed; it stays as it is.
        sites: The layers, in the order in which they are read.
        needs: The statistics.
        samples: A function that returns the samples anew.
        weight_bytes: Bytes of the weights of the model.
    """

    def __init__(
        self, model: ir.Model, sites: Iterable[WeightSite], needs: Needs,
        samples: Callable[[], Iterable[Mapping[str, Any]]], weight_bytes: int,
    ) -> None:  # fmt: skip
        self._model, self._needs, self._samples = model, needs, samples
        limit = min(needs.most_bytes, max(LEAST_BYTES, weight_bytes // 4)) if needs.second_moments else 0
        self._parts = _parts(list(sites), limit) if limit else [list(sites)]
        self._part_of = {site.label: number for number, part in enumerate(self._parts) for site in part}
        self._current, self._inputs = -1, dict[str, SiteInput]()

    def get(self, label: str) -> SiteInput | None:
        """Return the statistics of a layer; None if the layer is not observed."""
        part = self._part_of.get(label)
        if part is None:
            return None
        if part != self._current:
            self._inputs = {}  # Two parts would take twice the limit.
            self._inputs = Observation(self._model, [], self._samples(), self._parts[part], self._needs).inputs
            self._current = part
        return self._inputs.get(label)


def _parts(sites: list[WeightSite], limit: int) -> list[list[WeightSite]]:
    """Return consecutive sites whose second moments fit in a limit; sites that read the same rows count once."""
    parts: list[list[WeightSite]] = [[]]
    left, counted = limit, set[object]()
    for site in sites:
        patches = Patches.of(site)
        key = site.input, patches
        size = 0 if key in counted else patches.moment_bytes
        if size > left and parts[-1]:
            parts.append([])
            left, counted, size = limit, set(), patches.moment_bytes
        left -= size
        counted.add(key)
        parts[-1].append(site)
    return parts
