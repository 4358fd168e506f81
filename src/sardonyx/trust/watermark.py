"""Watermarks: which channels of a model were multiplied by two, chosen by a secret key, without a change of answers.

Where the result of a layer passes only operators that commute with a factor per channel (Relu, pools, sums with
constants), a channel may be doubled and the weights that read the channel halved. A power of two changes exponents
alone, so that every answer stays equal to the bit as long as the values of a doubled channel are within the range of
normal numbers. The pattern is found again by comparing a suspect's weights with the original's.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.compress.quantization.methods.channel_groups import (
    ChannelGroup,
    find_channel_groups,
    input_channels,
    present_matrix,
    rescale,
)
from sardonyx.compress.quantization.placement import WeightSite
from sardonyx.errors import OptionError, UnsupportedError, VerificationError
from sardonyx.model.copying import copy_model
from sardonyx.model.load import Loadable
from sardonyx.model.node_order import load_sorted
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.inference import infer_shapes
from sardonyx.runtime.profiling.profile import drawn_feeds
from sardonyx.runtime.session import Session
from sardonyx.trust.encryption.key_text import Key

LEAST_CHANNELS = 64
"""Channels below which a mark proves too little: evidence is at best exp(-channels / 2)."""

_LEAST_LIKENESS = 0.5
"""Mean cosine between the rows of a weight and of its counterpart in a suspect."""

_LEAST_BOUND = math.ulp(0.0)
_SURE_LIKENESS = 0.9
_LARGEST_EXPONENT = 2.0
"""Estimates beyond are outliers: a mark has exponents 0 and 1."""


@dataclass(frozen=True)
class Marked:
    """A model with a watermark.

    Attributes:
        model: The model.
        channels: The number of channels that carry the mark; about a half of these are doubled.
        layers: The number of layers whose results carry the mark.
    """

    model: ir.Model
    channels: int
    layers: int


@dataclass(frozen=True)
class Evidence:
    """The result of a search for a watermark.

    Attributes:
        p_value: An upper bound of the probability that a model without the mark agrees with the key as well.
        channels: The number of compared channels.
        layers: The number of layers that were recognized in the suspect.
    """

    p_value: float
    channels: int
    layers: int


def embed(model: Loadable, key: Key) -> Marked:
    """Mark a model; the answers stay equal to the bit.

    Args:
        model: The model; not changed. Keep it: the search needs it.
        key: A shared secret (``aes256``); one for each copy tells whose copy a suspect is.

    Raises:
        OptionError: The key is of another kind.
        UnsupportedError: The model has too few channels that can carry a mark.
        VerificationError: An answer differs on seeded random inputs.
    """
    _require_secret(key)
    original = load_sorted(model)
    marked = copy_model(original)
    infer_shapes(marked, strict=False)
    groups = list(_signed_groups(marked, key))
    channels = sum(group.channels for group, _ in groups)
    if channels < LEAST_CHANNELS:
        raise UnsupportedError(
            f"{channels} channels can carry a mark, expected at least {LEAST_CHANNELS}.", where="watermark",
            remedy="Layers carry a mark if only Relu, pools or sums with constants are between two of them.",
        )  # fmt: skip
    for group, signs in groups:
        _double(marked, group, signs > 0)
    _require_equal(original, marked)
    return Marked(marked, channels, len(groups))


def detect(suspect: Loadable, original: Loadable, key: Key) -> Evidence:
    """Search a model for a watermark.

    The weights of the suspect may be rounded, integers with DequantizeLinear, pruned, fine-tuned, or multiplied per
    output channel; names and order of layers do not matter. Rescaled input channels have no mark.

    Args:
        suspect: The model to search.
        original: The model before the mark was embedded.
        key: The secret of the mark.

    Returns:
        The evidence; its bound is at least the smallest positive float. By Hoeffding's inequality the bound holds for
        every suspect that was written without knowledge of the key.

    Raises:
        OptionError: The key is of another kind.
    """
    _require_secret(key)
    known = copy_model(load_sorted(original))
    infer_shapes(known, strict=False)
    weights = dict(_weights(load_sorted(suspect)))
    agreement, variance, channels, layers = 0.0, 0.0, 0, 0
    for group, signs in _signed_groups(known, key):
        estimates = [row for site in group.sites if (row := _exponents(site, weights)) is not None]
        if not estimates:
            continue
        deviations = np.mean(estimates, axis=0)
        deviations = deviations - deviations.mean()
        agreement += float(deviations @ signs)
        variance += float(deviations @ deviations)
        channels, layers = channels + group.channels, layers + 1
    bound = math.exp(-(agreement**2) / (2 * variance)) if agreement > 0 and variance > 0 else 1.0
    # A bound of 0 would be false: the evidence of large models is below the smallest float.
    return Evidence(max(bound, _LEAST_BOUND), channels, layers)


def _require_secret(key: Key) -> None:
    if key.kind != "aes256":
        raise OptionError(
            f"expected a shared secret, got {key.kind}.",
            where="key",
            remedy="sardonyx keygen --kind aes256 -o mark.key",
        )


def _signed_groups(model: ir.Model, key: Key) -> Iterator[tuple[ChannelGroup, np.ndarray]]:
    """Yield the groups of channels of a model before it is marked, each with 1 or -1 per channel by the key."""
    seen: Counter[bytes] = Counter()
    rows = []
    for group in find_channel_groups(model):
        digest = hashlib.sha256(np.ascontiguousarray(present_matrix(group.sites[0])).tobytes()).digest()
        rows.append((group, _signs(key, digest, seen[digest], group.channels)))
        seen[digest] += 1
    yield from rows


def _signs(key: Key, digest: bytes, occurrence: int, count: int) -> np.ndarray:
    """Return pseudorandom signs: a function of the key and of the original weight that reads the channels."""
    start = b"sardonyx watermark 1" + digest + occurrence.to_bytes(4, "big")
    numbers = (index.to_bytes(4, "big") for index in range(-(-count // 256)))
    blocks = b"".join(hmac.digest(key.value, start + number, "sha256") for number in numbers)
    bits = np.unpackbits(np.frombuffer(blocks, np.uint8))[:count]
    return bits.astype(np.float64) * 2 - 1


def _double(model: ir.Model, group: ChannelGroup, doubled: np.ndarray) -> None:
    """Double channels of a group, except those whose weights would leave the range of normal numbers."""
    with np.errstate(over="ignore", under="ignore"):
        exact = np.ones(group.channels, bool)
        for site in group.sites:
            matrix, index = present_matrix(site), input_channels(site)
            is_exact = (matrix * np.float32(0.5) * 2 == matrix).all(1)
            np.logical_and.at(exact, index, is_exact)
        for parameter in group.parameters:
            array = facts.constant(parameter.node.inputs[parameter.index])
            assert array is not None
            if array.ndim >= -parameter.axis:
                rows = np.moveaxis(array, parameter.axis, 0).reshape(group.channels, -1)
                exact &= np.isfinite(rows * np.float32(2)).all(1)
    rescale(model, group, np.where(doubled & exact, 2.0, 1.0))


def _require_equal(original: ir.Model, marked: ir.Model) -> None:
    before, after = Session(original, compile="wait"), Session(marked, compile="wait")
    feeds, _ = drawn_feeds(original, before)
    names = [output.name for output in before.get_outputs()]
    for name, left, right in zip(names, before.run(names, feeds), after.run(names, feeds), strict=True):
        one, other = np.asarray(left), np.asarray(right)
        if one.dtype != other.dtype or one.shape != other.shape or one.tobytes() != other.tobytes():
            raise VerificationError(f"the marked model computes another output '{name}'.", where="watermark")


def _weights(model: ir.Model) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the matrices and filters of a model in float32 by name; integers with their scales."""
    for node in model.graph.all_nodes():
        if node.op_type == "DequantizeLinear" and not node.domain:
            array = _dequantized(node)
            if array is not None and array.ndim > 1:
                yield str(node.outputs[0].name), array
        for value in node.inputs:
            tensor = facts.constant_tensor(value)
            if tensor is not None and len(tensor.shape) > 1 and tensor.dtype.is_floating_point():
                yield str(value.name if value is not None else ""), tensor.numpy().astype(np.float32)


def _dequantized(node: ir.Node) -> np.ndarray | None:
    """Return the floats of a DequantizeLinear of constants; None for another, and for one that breaks ONNX's rules."""
    if len(node.inputs) < 2 or facts.refers_to_function_attribute(node):
        return None
    integers, scale, zero = (facts.constant(value) for value in [*node.inputs, None][:3])
    axis, block = facts.attribute(node, "axis", 13, 1), facts.attribute(node, "block_size", 21, 0)
    if integers is None or scale is None or not isinstance(axis, int) or not isinstance(block, int):
        return None
    for array in (integers, scale, zero):
        if array is not None and (array.dtype.kind in "OSU" or not _fits(array, integers, axis, block)):
            return None

    def spread(array: np.ndarray) -> np.ndarray:
        values = array.astype(np.float32)
        if block:
            repeated = np.repeat(values, min(block, integers.shape[axis]), axis)
            return repeated[tuple(slice(size) for size in integers.shape)]
        if values.size == 1:
            return values.reshape(())
        shape = [1] * integers.ndim
        shape[axis] = -1
        return values.reshape(shape)

    centred = integers.astype(np.float32) - (spread(zero) if zero is not None else np.float32(0))
    return np.asarray(centred * spread(scale), np.float32)


def _fits(array: np.ndarray, integers: np.ndarray, axis: int, block: int) -> bool:
    """Return True if an array is the integers, or can be their scale or zero point."""
    shape = integers.shape
    if array is integers or (not block and array.size == 1):
        return True
    if not -len(shape) <= axis < len(shape) or block < 0:
        return False
    if not block:
        return bool(array.size == shape[axis])
    axis %= len(shape)
    blocks = [-(-size // block) if i == axis else size for i, size in enumerate(shape)]
    return list(array.shape) == blocks


def _exponents(site: WeightSite, weights: dict[str, np.ndarray]) -> np.ndarray | None:
    """Return by how many powers of two each input channel of a site is smaller in a suspect; None if not recognized."""
    matrix = present_matrix(site)
    counterpart = _counterpart(site, matrix, weights)
    if counterpart is None:
        return None
    index = input_channels(site)
    # Small elements are mostly rounding after a quantization.
    present = (counterpart != 0) & (np.abs(matrix) > np.quantile(np.abs(matrix), 0.25))
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(present, np.log2(np.abs(matrix)) - np.log2(np.abs(counterpart)), np.nan)
    channels = int(index.max()) + 1
    if (index[0] != index[0, 0]).any():
        # Factors per output channel, e.g. of a folded normalization, are not part of the mark.
        logs = logs - _medians(logs.reshape(-1, logs.shape[-1])).reshape(*logs.shape[:2], 1)
    columns = np.full(channels, np.nan)
    for channel in range(channels):
        groups, positions = np.nonzero(index == channel)
        values = logs[groups, :, positions]
        if (values := values[np.isfinite(values)]).size:
            columns[channel] = np.median(values)
    mean = float(np.mean(columns[np.isfinite(columns)])) if np.isfinite(columns).any() else 0.0
    columns = np.where(np.isfinite(columns), columns - mean, 0.0)
    return np.asarray(np.clip(columns, -_LARGEST_EXPONENT, _LARGEST_EXPONENT))


def _medians(rows: np.ndarray) -> np.ndarray:
    """Return the median of the finite elements of each row; 0 for rows without one."""
    return np.array([np.median(row[np.isfinite(row)]) if np.isfinite(row).any() else 0.0 for row in rows])


def _counterpart(site: WeightSite, matrix: np.ndarray, weights: dict[str, np.ndarray]) -> np.ndarray | None:
    """Return the matrices of the suspect's weight that is most like a site's."""
    name = str(getattr(site.node.inputs[site.index], "name", ""))
    best, likeness = None, _LEAST_LIKENESS
    for other in sorted(weights, key=lambda other: other != name):
        for array in (weights[other], weights[other].T if weights[other].ndim == 2 else None):
            if array is None or array.shape != site.shape:
                continue
            candidate = site.matrix(array)
            if (value := _likeness(matrix, candidate)) > likeness:
                best, likeness = candidate, value
        if likeness > _SURE_LIKENESS:
            break
    return best


def _likeness(left: np.ndarray, right: np.ndarray) -> float:
    norms = np.linalg.norm(left, axis=2) * np.linalg.norm(right, axis=2)
    products = np.abs((left * right).sum(2))
    return float(np.mean(np.divide(products, norms, out=np.zeros_like(products), where=norms > 0)))


__all__ = ["LEAST_CHANNELS", "Evidence", "Marked", "detect", "embed"]
