"""Images: decoded by Pillow, channels last; undecodable data has no pixels."""

from __future__ import annotations

import builtins
import io
from typing import Any

import numpy as np
import pytest

from sardonyx.errors import InvalidModelError, MissingDependencyError, ResourceError
from tests.ops.agreement import assert_equal, eager, traced

Image = pytest.importorskip("PIL.Image")

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)


def encoded(pixels: np.ndarray, mode: str = "RGB", form: str = "PNG") -> np.ndarray:
    stream = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(stream, form)
    return np.frombuffer(stream.getvalue(), np.uint8)


@pytest.mark.parametrize("form", ["PNG", "BMP", "TIFF"])
def test_channels_follow_the_pixel_format(form: str) -> None:
    x = encoded(PIXELS, form=form)
    assert_equal(eager("ImageDecoder", [x]), [PIXELS])
    assert_equal(eager("ImageDecoder", [x], pixel_format="BGR"), [PIXELS[..., ::-1]])
    assert_equal(traced("ImageDecoder", [x], ["N"], pixel_format="BGR"), [PIXELS[..., ::-1]])
    (gray,) = eager("ImageDecoder", [x], pixel_format="Grayscale")
    assert gray.shape == (5, 7, 1)


def test_other_images_are_converted_to_the_pixel_format() -> None:
    gray = PIXELS[..., 0]
    assert_equal(eager("ImageDecoder", [encoded(gray, "L")]), [np.repeat(gray[..., None], 3, 2)])
    assert eager("ImageDecoder", [encoded(PIXELS, "P")])[0].shape == (5, 7, 3)


@pytest.mark.parametrize("cut", [0, 3, 40])
def test_undecodable_data_has_no_pixels(cut: int) -> None:
    (actual,) = eager("ImageDecoder", [encoded(PIXELS)[:cut]])
    assert actual.shape == (0, 0, 3) and actual.dtype == np.uint8


def test_an_image_of_too_many_pixels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(ResourceError, match="too large"):
        eager("ImageDecoder", [encoded(PIXELS)])


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(InvalidModelError, match="unknown pixel_format"):
        eager("ImageDecoder", [encoded(PIXELS)], pixel_format="YUV")


def test_without_pillow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("PIL"):
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    data = encoded(PIXELS)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependencyError, match=r"sardonyx\[pillow\]"):
        eager("ImageDecoder", [data])
