"""Rotary embeddings: frequencies of rotated pairs from a configuration, with the known ways to stretch them.

Source: ``modeling_rope_utils.py`` of transformers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sardonyx.convert.weights.fields import Fields
from sardonyx.errors import ModelFileError, UnsupportedError

_FREQUENCIES = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Rotary:
    """A rotary embedding.

    Attributes:
        frequencies: Rotation per position of each pair.
        scale: Factor of cosines and sines.
        limit: Number of positions beyond which the following attributes apply; 0 if they never do.
        long_frequencies: Frequencies beyond the limit; empty if these depend on the number of positions.
        long_scale: Factor of cosines and sines beyond the limit.
        base: Base of the frequencies.
        factor: The base of n > limit positions is base * (factor * n / limit - (factor - 1)) ** (w / (w - 2)), of w
            rotated elements.
    """

    frequencies: tuple[float, ...]
    scale: float = 1.0
    limit: int = 0
    long_frequencies: tuple[float, ...] = ()
    long_scale: float = 1.0
    base: float = 0.0
    factor: float = 1.0


def rotary_of(config: Fields, parameters: Mapping[str, Any], head_size: int) -> Rotary:
    """Return the rotary embedding that parameters describe.

    Args:
        config: The whole configuration.
        parameters: ``rope_parameters`` or ``rope_scaling``, of one kind of layer.
        head_size: Elements of a head.

    Raises:
        UnsupportedError: The type is not known.
        ModelFileError: A field is missing or out of range.
    """
    fields = Fields(parameters, config.where)
    base = config.real("rope_theta", default=10000.0, low=1.000001)
    base = fields.real("rope_theta", default=base, low=1.000001)
    share = config.real("partial_rotary_factor", default=1.0, high=1.0)
    share = fields.real("partial_rotary_factor", default=share, high=1.0)
    width = config.integer("rotary_dim", default=int(head_size * share), low=2, high=head_size)
    if width % 2:
        raise ModelFileError(f"{width} rotated elements of a head, expected an even number", where=config.where)
    exponents = np.arange(0, width, 2, dtype=np.float64) / width
    plain = base**-exponents
    kind = fields.text("rope_type", "type", default="default")
    match kind:
        case "default" | "mrope":
            return Rotary(tuple(plain))
        case "linear":
            return Rotary(tuple(plain / _factor(fields)))
        case "llama3":
            return Rotary(tuple(_by_wave_length(plain, fields)))
        case "yarn":
            return _yarn(plain, base, width, fields, config)
        case "dynamic":
            limit = config.integer("max_position_embeddings", high=1 << 30)
            if width < 4:
                raise ModelFileError("dynamic rotary embeddings need 4 rotated elements", where=config.where)
            return Rotary(tuple(plain), limit=limit, base=base, factor=_factor(fields))
        case "longrope" | "su":
            return _long(plain, fields, config)
    raise UnsupportedError(f"rotary embedding of type '{kind}'", where=config.where)


def _factor(fields: Fields) -> float:
    return fields.real("factor", low=1e-3, high=1e6)


def _original(fields: Fields, config: Fields) -> int:
    name = "original_max_position_embeddings"
    default = config.get(name, "max_position_embeddings")
    return fields.integer(name, default=default, low=2, high=1 << 30)


def _by_wave_length(plain: _FREQUENCIES, fields: Fields) -> _FREQUENCIES:
    """Return frequencies of which slow ones are divided by a factor, and middle ones in part (Llama 3)."""
    factor = _factor(fields)
    low, high = (fields.real(name, low=1e-6) for name in ("low_freq_factor", "high_freq_factor"))
    if high <= low:
        raise fields.error("high_freq_factor", high, f"more than low_freq_factor {low:g}")
    context = fields.integer("original_max_position_embeddings", high=1 << 30)
    length = 2 * math.pi / plain
    smooth = (context / length - low) / (high - low)
    middle = (1 - smooth) * plain / factor + smooth * plain
    slow = np.where(length > context / low, plain / factor, middle)
    return np.where(length < context / high, plain, slow)


def _yarn(plain: _FREQUENCIES, base: float, width: int, fields: Fields, config: Fields) -> Rotary:
    """Return fast frequencies as they are, slow ones divided by a factor, and a ramp between (YaRN)."""
    original = _original(fields, config)
    factor = _factor(fields) if fields.has("factor") else config.integer("max_position_embeddings") / original

    def magnitude(scale: float, slope: float = 1.0) -> float:
        return 1.0 if scale <= 1 else 0.1 * slope * math.log(scale) + 1.0

    def pair_with(rotations: float) -> float:
        return width * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    slope, slope_of_all = (fields.real(name, default=0.0) for name in ("mscale", "mscale_all_dim"))
    scale = magnitude(factor, slope) / magnitude(factor, slope_of_all) if slope and slope_of_all else magnitude(factor)
    low = pair_with(fields.real("beta_fast", default=32.0, low=1e-6))
    high = pair_with(fields.real("beta_slow", default=1.0, low=1e-6))
    if fields.flag("truncate", default=True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    ramp = np.clip((np.arange(width // 2) - low) / ((high - low) or 0.001), 0, 1)
    frequencies = plain / factor * ramp + plain * (1 - ramp)
    return Rotary(tuple(frequencies), fields.real("attention_factor", default=scale))


def _long(plain: _FREQUENCIES, fields: Fields, config: Fields) -> Rotary:
    """Return frequencies divided by factors of their own, other ones beyond the original positions (LongRoPE)."""
    original = _original(fields, config)
    most = config.integer("max_position_embeddings", default=original, high=1 << 30)
    factor = _factor(fields) if fields.has("factor") else most / original
    scale = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    scale = fields.real("attention_factor", default=scale)
    short, long = (np.array(fields.numbers(name, len(plain))) for name in ("short_factor", "long_factor"))
    short_scale, long_scale = (fields.real(name, default=scale) for name in ("short_mscale", "long_mscale"))
    return Rotary(tuple(plain / short), short_scale, original, tuple(plain / long), long_scale)
