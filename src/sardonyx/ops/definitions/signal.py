"""Signals: ``DFT``, ``STFT``, windows, ``MelWeightMatrix``.

Source: ONNX Operators, *DFT*, *STFT*, *HannWindow*, *HammingWindow*, *BlackmanWindow*, *MelWeightMatrix*. Complex
numbers are pairs along the last axis.
"""

from __future__ import annotations

import math

from sardonyx.core import language as L
from sardonyx.core.dim import dim_max, floor_div
from sardonyx.core.ir import types as t
from sardonyx.core.language import Size, Tensor
from sardonyx.errors import ExecutionError, InvalidModelError, NeedsValueError, ShapeError
from sardonyx.ops.registry import operator


@operator("DFT", since=20)
def dft(
    x: Tensor, dft_length: Tensor | None = None, axis: Tensor | None = None, *, inverse: int = 0, onesided: int = 0
) -> Tensor:
    along = -2 if axis is None else int(L.static_scalar(axis, "the axis of a Fourier transform"))
    return _transform(x, _size(dft_length), along, inverse, onesided)


@operator("DFT", since=17)
def dft_by_attribute(
    x: Tensor, dft_length: Tensor | None = None, *, axis: int = 1, inverse: int = 0, onesided: int = 0
) -> Tensor:
    return _transform(x, _size(dft_length), axis, inverse, onesided)


def _number_type(identifier: int) -> t.DType:
    """Return the element type of an `output_datatype`, which is one of numbers."""
    dtype = t.element_type(identifier)
    if not (t.is_float(dtype) or t.is_integer(dtype)):
        raise InvalidModelError(f"expected a type of real numbers as `output_datatype`, got {dtype.name.lower()}.")
    return dtype


def _size(x: Tensor | None) -> Size | None:
    return None if x is None else L.sizes(L.reshape(x, ()), "a length")[0]


def _transform(x: Tensor, length: Size | None, axis: int, inverse: int, onesided: int) -> Tensor:
    axis = L.normalized_axis(axis, x.rank)
    if not isinstance(x.shape[-1], int):
        raise NeedsValueError("the last size of the signal (1: real, 2: complex) is unknown before the run.", value=x)
    if axis == x.rank - 1 or x.shape[-1] not in (1, 2):
        raise ShapeError(f"expected a last axis of size 1 or 2 other than the transformed axis {axis}, got {x.type}.")
    if onesided and (x.shape[-1] == 2) != bool(inverse):
        kind, parts = ("inverse", "complex") if inverse else ("transform", "real")
        raise InvalidModelError(f"a one-sided {kind} expects {parts} numbers, got {x.type}.")
    pairs = L.cast(x, x.dtype if x.dtype == t.DOUBLE else t.FLOAT)
    if x.shape[-1] == 1:
        pairs = L.concat([pairs, L.zeros_like(pairs)], -1)
    if onesided and inverse:
        length = dim_max(2 * (x.shape[axis] - 1), 0) if length is None else length
        pairs = _complete_spectrum(_resize(pairs, axis, floor_div(length, 2) + 1), axis, length)
    length = x.shape[axis] if length is None else length
    spectrum = _fft(_resize(pairs, axis, length), axis, bool(inverse))
    if inverse:
        spectrum = spectrum / L.cast(L.size_tensor([length], ()), spectrum.dtype)
    if onesided:
        spectrum = L.slice_(spectrum, -1, 0, 1) if inverse else L.slice_(spectrum, axis, 0, floor_div(length, 2) + 1)
    return L.cast(spectrum, x.dtype)


def _resize(x: Tensor, axis: int, size: Size) -> Tensor:
    """Crop or zero-pad an axis to a size."""
    return L.pad(x, (0,) * x.rank, [size - x.shape[a] if a == axis else 0 for a in range(x.rank)])


def _complete_spectrum(x: Tensor, axis: int, length: Size) -> Tensor:
    """Complete the one-sided spectrum of a real signal by the conjugates of its inner elements."""
    between = L.slice_(x, axis, 1, dim_max(length - floor_div(length, 2), 1))
    return L.concat([x, L.reverse(between, [axis]) * L.constant([1, -1], x.dtype)], axis)


def _fft(pairs: Tensor, axis: int, inverse: bool) -> Tensor:
    """Return the unscaled transform of pairs along an axis."""
    z = L.bitcast(pairs, t.COMPLEX128 if pairs.dtype == t.DOUBLE else t.COMPLEX64)
    transformed = L.swap_axes(L.fft(L.swap_axes(z, axis, z.rank - 1), inverse), axis, z.rank - 1)
    return L.bitcast(transformed, pairs.dtype)


@operator("STFT", since=17)
def stft(
    signal: Tensor, frame_step: Tensor, window: Tensor | None = None, frame_length: Tensor | None = None, *,
    onesided: int = 1,
) -> Tensor:  # fmt: skip
    declared, step = _size(frame_length), _size(frame_step)
    assert step is not None
    window = None if window is None else L.of_rank(window, 1, "the window")
    if signal.rank == 2:  # PyTorch's exporter leaves out the last axis of real signals, and engines accept it.
        signal = L.unsqueeze(signal, [2])
    signal = L.of_rank(signal, 3, "the signal")
    length = declared if declared is not None else window.shape[0] if window is not None else signal.shape[1]
    if step == 0:
        raise ExecutionError("the frame step is 0.", remedy="Use a step of at least 1.")
    frames = floor_div(signal.shape[1] - length, step) + 1
    problem = f"a frame of {length} is longer than a signal of {signal.shape[1]}."
    signal = L.at_most(signal, length, signal.shape[1], problem)
    positions = L.iota((frames, length), 0) * L.size_tensor([step], ()) + L.iota((frames, length), 1)
    framed = L.take(signal, positions, 1)
    if window is not None:
        framed = framed * L.unsqueeze(L.of_shape(window, (length,), "the window"), [1])
    return _transform(framed, length, 2, 0, onesided)


def _register_window(name: str, *amplitudes: float) -> None:
    """Register a window that is a sum of cosines: the i-th amplitude belongs to i periods."""

    @operator(name, since=17)
    def window(size: Tensor, *, output_datatype: int = int(t.FLOAT), periodic: int = 1) -> Tensor:
        count = _size(size)
        assert count is not None
        period = L.cast(L.size_tensor([count if periodic else count - 1], ()), t.DOUBLE)
        phase = L.arange(count, t.DOUBLE) * (2 * math.pi) / period
        terms = [amplitude * L.cos(i * phase) for i, amplitude in enumerate(amplitudes)]
        return L.cast(sum(terms[1:], terms[0]), _number_type(output_datatype))


_register_window("HannWindow", 0.5, -0.5)
_register_window("HammingWindow", 25 / 46, -21 / 46)
_register_window("BlackmanWindow", 0.42, -0.5, 0.08)


@operator("MelWeightMatrix", since=17)
def mel_weight_matrix(
    num_mel_bins: Tensor,
    dft_length: Tensor,
    sample_rate: Tensor,
    lower_edge_hertz: Tensor,
    upper_edge_hertz: Tensor,
    *,
    output_datatype: int = int(t.FLOAT),
) -> Tensor:
    """Return triangular filters over spectrogram bins; the corners are equidistant in mel."""
    bands, length = _size(num_mel_bins), _size(dft_length)
    assert bands is not None and length is not None
    low, high, rate = (L.reshape(L.cast(x, t.DOUBLE), ()) for x in (lower_edge_hertz, upper_edge_hertz, sample_rate))
    low, high = (2595 / math.log(10) * L.log(1 + hertz / 700) for hertz in (low, high))
    corners = L.size_tensor([bands + 2, length + 1], (2,))
    step = (high - low) / L.cast(L.entry(corners, 0), t.DOUBLE)
    hertz = 700 * (L.exp((L.arange(bands + 2, t.DOUBLE) * step + low) * (math.log(10) / 2595)) - 1)
    bins = L.floor(L.cast(L.entry(corners, 1), t.DOUBLE) * hertz / rate)
    left, center, right = (L.slice_(bins, 0, i, bands + i) for i in range(3))
    j = L.iota((floor_div(length, 2) + 1, bands), 0, t.DOUBLE)
    rising = L.where(L.equal(left, center), 1, (j - left) / (center - left))
    falling = (right - j) / (right - center)
    inside = L.where((j >= left) & (j <= center), rising, 0)
    return L.cast(L.where((j >= center) & (j < right), falling, inside), _number_type(output_datatype))
