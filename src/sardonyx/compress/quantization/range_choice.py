"""Ranges of activations chosen by measured errors of the outputs: one method for all, then exceptions.

The model with switches has scales as inputs, so that no candidate is compiled. Which method is best depends on the
readers of a tensor: clipping a rare large value costs much where a decision depends on that value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sardonyx.compress.quantization.scheme import Affine
from sardonyx.compress.quantization.sensitivity import Probe, decibels

_LEAST_GAIN = 0.01
_DEVIATIONS = 2.0
"""The share of the error, and the standard errors of the gain over samples, from which another range replaces one."""

_MOST_GAIN = 3.0
"""dB that the ranges of another method gain at most, but for rare models."""

Candidates = Mapping[str, Mapping[str, Affine]]
"""The maps of all activations by name, by method."""


@dataclass(frozen=True)
class RangeChoice:
    """The chosen ranges.

    Attributes:
        method: The method of most activations.
        methods: The method of each activation.
        before: The signal-to-noise ratio of the worst output in dB, with one method.
        after: The ratio with the chosen ranges.
    """

    method: str
    methods: Mapping[str, str]
    before: float
    after: float

    @property
    def note(self) -> str:
        """The choice as a sentence."""
        others = sum(one != self.method for one in self.methods.values())
        exceptions = f", {others} of {len(self.methods)} activations have that of another method" if others else ""
        return (
            f"Ranges are those of {self.method}{exceptions}: the worst output has {self.after:.1f} dB "
            "on samples of the calibration."
        )


def choose_ranges(
    probe: Probe, samples: Sequence[Mapping[str, Any]], references: Sequence[Sequence[np.ndarray]],
    candidates: Candidates, most_runs: float, least: float = -math.inf,
    enough: float = math.inf,
) -> RangeChoice:  # fmt: skip
    """Return the ranges of the least error of the outputs, all nodes quantized; the probe keeps them.

    Args:
        probe: The model with switches, with the maps of any candidate.
        samples: Samples to measure on.
        references: The float outputs of the samples.
        candidates: The maps by method; all methods have the same activations.
        most_runs: Runs of one sample for the exceptions; activations whose candidates differ most come first.
        least: The ratio of the worst output in dB without which the ranges are of no use: if the first method is far
            from it, nothing else is measured.
        enough: The ratio of the worst output in dB from which no exceptions are tried.
    """

    def measured(maps: Mapping[str, Affine]) -> np.ndarray:
        probe.replace_maps(maps)
        return probe.sample_noise(samples, references, probe.nodes)

    noises: dict[str, np.ndarray] = {}
    for method, maps in candidates.items():
        noises[method] = measured(maps)
        if _worst(noises[method]) < least - _MOST_GAIN:
            return RangeChoice(method, dict.fromkeys(maps, method), *(_worst(noises[method]),) * 2)
    method = min(noises, key=lambda one: float(noises[one].sum()))
    chosen = {name: method for name in candidates[method] if name not in probe.followers}
    noise = noises[method]
    probe.replace_maps(candidates[method])
    before = _worst(noise)
    left = most_runs if before < enough else 0.0
    for name in sorted(chosen, key=lambda one: (-_difference(candidates, method, one), one)):
        for other, maps in candidates.items():
            if maps[name] == candidates[chosen[name]][name] or left < len(samples):
                continue
            left -= len(samples)
            trial = measured({name: maps[name]})
            if _is_less(trial, noise):
                noise, chosen[name] = trial, other
        probe.replace_maps({name: candidates[chosen[name]][name]})
    return RangeChoice(method, chosen, before, _worst(noise))


def _worst(noise: np.ndarray) -> float:
    """Return the signal-to-noise ratio of the worst output in dB, from the noise by sample and output."""
    return decibels(float(noise.sum(0).max(initial=0)))


def _is_less(trial: np.ndarray, noise: np.ndarray) -> bool:
    """Return True if the noise of a trial is less by more than chance, from the differences of samples."""
    gains = (noise - trial).sum(1)
    total = float(gains.sum())
    if not total > _LEAST_GAIN * float(noise.sum()):
        return False
    return len(gains) < 2 or total > _DEVIATIONS * float(gains.std(ddof=1)) * len(gains) ** 0.5


def _difference(candidates: Candidates, method: str, name: str) -> float:
    """Return the largest difference of the scales of an activation, relative to that of the method."""
    own = candidates[method][name].scale
    return max(abs(maps[name].scale / own - 1) for maps in candidates.values())
