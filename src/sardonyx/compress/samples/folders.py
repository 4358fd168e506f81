"""Folders of samples: images, audio and arrays, one sample a file."""

from __future__ import annotations

import wave
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sardonyx.errors import MissingDependencyError, ModelFileError, OptionError
from sardonyx.model.named_arrays import true_dtype

IMAGES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
AUDIO = frozenset({".wav"})
ARRAYS = frozenset({".npy", ".npz"})

_MOST_FILES = 1 << 20


@dataclass(frozen=True, eq=False)
class Recording:
    """Audio of one file.

    Attributes:
        frames: float32 of shape [frames], or [channels, frames] with several channels, between -1 and 1.
        rate: Frames a second.
    """

    frames: np.ndarray
    rate: int


def sample_files(folder: Path) -> list[Path]:
    """Return the files of a folder, and of folders in it, that hold samples, in the order of their names.

    Raises:
        OptionError: The folder has no such file.
    """
    known = IMAGES | AUDIO | ARRAYS
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in known and path.is_file())
    if not files or len(files) > _MOST_FILES:
        raise OptionError(
            f"expected between 1 and {_MOST_FILES} files of samples, got {len(files)}.",
            where=str(folder),
            remedy=f"Endings that are read: {', '.join(sorted(known))}.",
        )
    return files


def read_file(path: Path) -> np.ndarray | Recording | Mapping[str, np.ndarray]:
    """Return the sample of one file: an image as uint8 [height, width, 3], audio, or arrays.

    Raises:
        ModelFileError: The file cannot be read.
        MissingDependencyError: The file is an image, and pillow is not installed.
    """
    suffix = path.suffix.lower()
    try:
        if suffix in IMAGES:
            return _image(path)
        if suffix in AUDIO:
            return _recording(path)
        if suffix == ".npy":
            array = np.asarray(np.load(path, allow_pickle=False))
            return array.view(true_dtype(array.dtype))
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name.removeprefix("in::"): stored[name] for name in stored.files}
            return {name: array.view(true_dtype(array.dtype)) for name, array in arrays.items()}
    except (OSError, ValueError, EOFError, wave.Error, zipfile.BadZipFile) as error:
        raise ModelFileError(f"cannot be read as a sample: {error}", where=str(path)) from error


def _image(path: Path) -> np.ndarray:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingDependencyError(
            "reading images needs pillow.", where=str(path), remedy="pip install 'sardonyx[pillow]'"
        ) from error
    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB"))
    except Image.DecompressionBombError as error:
        raise ModelFileError(f"cannot be read as a sample: {error}", where=str(path)) from error


def _recording(path: Path) -> Recording:
    with wave.open(str(path), "rb") as stream:
        channels, width, rate = stream.getnchannels(), stream.getsampwidth(), stream.getframerate()
        data = stream.readframes(stream.getnframes())
    if width == 1:
        frames = (np.frombuffer(data, np.uint8).astype(np.float32) - 128) / 128
    elif width in (2, 4):
        limit = float(1 << (8 * width - 1))
        frames = (np.frombuffer(data, f"<i{width}") / limit).astype(np.float32)
    elif width == 3:
        raw = np.frombuffer(data, np.uint8).reshape(-1, 3).astype(np.int32)
        integers = (raw[:, 0] << 8 | raw[:, 1] << 16 | raw[:, 2] << 24) >> 8
        frames = (integers / float(1 << 23)).astype(np.float32)
    else:
        raise ValueError(f"expected samples of 1 to 4 bytes, got {width}")
    return Recording(frames if channels == 1 else np.ascontiguousarray(frames.reshape(-1, channels).T), rate)
