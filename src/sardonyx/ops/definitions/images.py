"""Images: ``ImageDecoder``.

Source: ONNX Operators, *ImageDecoder*. Pillow decodes.
"""

from __future__ import annotations

import io

import numpy as np

from sardonyx.core.eval.host_function import unknown_size
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import TensorType, Type
from sardonyx.errors import InvalidModelError, MissingDependencyError, ResourceError
from sardonyx.ops.registry import host_operator

_MODES = {"RGB": ("RGB", 3), "BGR": ("RGB", 3), "Grayscale": ("L", 1)}


def _types(encoded: TensorType, *, pixel_format: str = "RGB") -> tuple[Type]:
    if pixel_format not in _MODES:
        raise InvalidModelError(f"unknown pixel_format {pixel_format!r}.", remedy=f"Use one of: {', '.join(_MODES)}.")
    return (TensorType(t.UINT8, (unknown_size(), unknown_size(), _MODES[pixel_format][1])),)


@host_operator("ImageDecoder", since=20, types=_types, reason="images are decoded by a library")
def image_decoder(encoded: np.ndarray, *, pixel_format: str = "RGB") -> tuple[np.ndarray]:
    """Decode an image; undecodable data gives an image without pixels."""
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "decoding images needs Pillow, which is not installed.", remedy="Install it: pip install 'sardonyx[pillow]'"
        ) from error
    mode, channels = _MODES[pixel_format]
    try:
        with Image.open(io.BytesIO(encoded.tobytes())) as image:
            pixels = np.asarray(image.convert(mode))
    except Image.DecompressionBombError as error:
        raise ResourceError(f"an image is too large: {error}") from error
    except (OSError, SyntaxError, ValueError):
        return (np.empty((0, 0, channels), np.uint8),)
    pixels = pixels.reshape(*pixels.shape[:2], channels)
    return (np.ascontiguousarray(pixels[..., ::-1] if pixel_format == "BGR" else pixels),)
