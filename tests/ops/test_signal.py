"""Signals: transforms are numpy's at any length, along any axis; windows and mel bands are their formulas."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from sardonyx.errors import ExecutionError, InvalidModelError, NeedsValueError, SardonyxError, ShapeError
from tests.ops.agreement import assert_equal, eager, traced

RNG = np.random.default_rng(5)


def paired(z: np.ndarray) -> np.ndarray:
    return np.stack([z.real, z.imag], -1).astype(np.float32)


@pytest.mark.parametrize("axis", [0, 1, -2])
@pytest.mark.parametrize("length", [None, 4, 5, 9])
@pytest.mark.parametrize("inverse", [0, 1])
def test_complex_transform(axis: int, length: int | None, inverse: int) -> None:
    z = RNG.standard_normal((6, 5, 4)) + 1j * RNG.standard_normal((6, 5, 4))
    arrays = [paired(z), None if length is None else np.array(length), np.array(axis)]
    (actual,) = eager("DFT", arrays, inverse=inverse)
    along = axis if axis >= 0 else axis + 1
    expected = (np.fft.ifft if inverse else np.fft.fft)(z, length, axis=along)
    np.testing.assert_allclose(actual, paired(expected), rtol=1e-4, atol=1e-5)
    assert_equal(traced("DFT", arrays, ["A B C 2", None, None], inverse=inverse), [actual])
    if length is None:
        (older,) = eager("DFT", arrays[:1], opset=17, inverse=inverse, axis=axis)
        assert_equal([older], [actual])


@pytest.mark.parametrize("length", [None, 7, 8, 12])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_real_signals_round_trip_one_sided(length: int | None, dtype: type[Any]) -> None:
    x = RNG.standard_normal((3, 8, 1)).astype(dtype)
    size = None if length is None else np.array(length)
    (half,) = eager("DFT", [x, size], onesided=1)
    expected = np.fft.rfft(x[..., 0], length).astype(np.complex128)
    tolerance = {np.float16: 2e-2, np.float32: 1e-5, np.float64: 1e-12}[dtype]
    np.testing.assert_allclose(half, np.stack([expected.real, expected.imag], -1), rtol=tolerance, atol=tolerance)
    (back,) = eager("DFT", [half, np.array(length or 8)], onesided=1, inverse=1)
    cut = np.zeros((3, length or 8, 1), dtype)
    cut[:, : min(8, length or 8)] = x[:, : length or 8]
    np.testing.assert_allclose(back, cut, rtol=tolerance, atol=tolerance)
    assert_equal(traced("DFT", [half, size], ["N M 2", None], onesided=1, inverse=1),
                 eager("DFT", [half, size], onesided=1, inverse=1))  # fmt: skip


def test_a_computed_length_is_a_size() -> None:
    x, length = RNG.standard_normal((2, 5, 1)).astype(np.float32), np.array(6)
    assert_equal(traced("DFT", [x, length], ["N T 1", ""]), eager("DFT", [x, length]))
    with pytest.raises(NeedsValueError):
        traced("DFT", [x, length, np.array(-2)], ["N T 1", None, ""])


@pytest.mark.parametrize(
    ("shape", "attributes", "error"),
    [
        ((2, 5, 3), {}, ShapeError),
        ((2, 5, 2), {"axis": -1}, ShapeError),
        ((2, 5, 2), {"axis": 3}, ShapeError),
        ((2, 5, 2), {"onesided": 1}, InvalidModelError),
        ((2, 5, 1), {"onesided": 1, "inverse": 1}, InvalidModelError),
    ],
)
def test_invalid_signals_are_refused(
    shape: tuple[int, ...], attributes: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        eager("DFT", [np.zeros(shape, np.float32)], opset=17, **attributes)


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("inputs", ["window", "length", "both", "neither"])
def test_frames_are_windowed_and_transformed(onesided: int, inputs: str) -> None:
    x = RNG.standard_normal((2, 23, 1)).astype(np.float32)
    window = np.hanning(8).astype(np.float32) if inputs in ("window", "both") else None
    length = np.array(8) if inputs in ("length", "both") else None
    arrays = [x, np.array(3), window, length]
    (actual,) = eager("STFT", arrays, onesided=onesided)
    size = 23 if inputs == "neither" else 8
    frames = np.stack([x[:, i : i + size, 0] for i in range(0, 23 - size + 1, 3)], 1)
    frames = frames * (1 if window is None else window)
    expected = np.fft.rfft(frames) if onesided else np.fft.fft(frames)
    np.testing.assert_allclose(actual, paired(expected), rtol=1e-4, atol=1e-5)
    assert_equal(traced("STFT", arrays, ["B L 1", None, "W", None], onesided=onesided), [actual])
    arrays[0] = x[:, :, 0]
    assert_equal(eager("STFT", arrays, onesided=onesided), [actual])
    assert_equal(traced("STFT", arrays, ["B L", None, "W", None], onesided=onesided), [actual])


@pytest.mark.parametrize(
    ("step", "length", "window", "error"),
    [(0, 4, None, ExecutionError), (2, 9, None, ShapeError), (2, 4, 5, ShapeError), (-1, 4, None, SardonyxError)],
)
def test_mismatched_frames_are_refused(step: int, length: int, window: int | None, error: type[Exception]) -> None:
    x = np.zeros((1, 8, 1), np.float32)
    w = None if window is None else np.ones(window, np.float32)
    with pytest.raises(error):
        eager("STFT", [x, np.array(step), w, np.array(length)])


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("HannWindow", lambda p: 0.5 - 0.5 * np.cos(p)),
        ("HammingWindow", lambda p: 25 / 46 - 21 / 46 * np.cos(p)),
        ("BlackmanWindow", lambda p: 0.42 - 0.5 * np.cos(p) + 0.08 * np.cos(2 * p)),
    ],
)
@pytest.mark.parametrize("periodic", [0, 1])
def test_windows(name: str, formula: Any, periodic: int) -> None:
    size = np.array(9, np.int32)
    (actual,) = eager(name, [size], periodic=periodic, output_datatype=11)
    expected = formula(np.arange(9) * 2 * np.pi / (9 if periodic else 8))
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-15)
    assert_equal(traced(name, [size], [""], periodic=periodic, output_datatype=11), [actual])


@pytest.mark.parametrize("dtype", [TensorProto.STRING, TensorProto.BOOL, TensorProto.COMPLEX64])
def test_windows_are_numbers(dtype: int) -> None:
    """Texts of numbers would depend on their last bits."""
    with pytest.raises(InvalidModelError, match="expected a type of real numbers as `output_datatype`"):
        eager("HannWindow", [np.array(4)], opset=17, output_datatype=dtype)


def test_mel_bands_are_triangles_that_meet_at_their_corners() -> None:
    arrays = [np.array(4), np.array(64), np.array(8000), np.array(100.0, np.float32), np.array(3800.0, np.float32)]
    (actual,) = eager("MelWeightMatrix", arrays)
    assert actual.shape == (33, 4) and actual.dtype == np.float32
    np.testing.assert_array_equal(actual.max(0), 1)
    centers = actual.argmax(0)
    assert (np.diff(centers) > 0).all()
    for band, (a, b) in enumerate(itertools.pairwise(centers)):
        np.testing.assert_allclose(actual[a:b, band] + actual[a:b, band + 1], 1, rtol=1e-6)
    assert_equal(traced("MelWeightMatrix", arrays, [""] * 5), [actual])
