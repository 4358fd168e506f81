"""Labeled samples in folders: one folder a class, one file a sample."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sardonyx.errors import MissingDependencyError, ModelFileError, OptionError
from sardonyx.model.named_arrays import true_dtype

_IMAGES = frozenset({".bmp", ".jpeg", ".jpg", ".png", ".webp"})


class LabeledFiles:
    """The files of a folder with a folder for each class, which is numbered in the order of names.

    Images are float32 [channels, rows, columns] from 0 to 1; ``.npy`` files are arrays. Files are read when their batch
    is requested.

    Args:
        folder: The folder.

    Attributes:
        classes: Names of the classes.
        paths: The files.
        labels: The class of each file, int64.

    Raises:
        OptionError: The folder holds no sample.
    """

    def __init__(self, folder: Path) -> None:
        self.classes = tuple(sorted(path.name for path in folder.iterdir() if path.is_dir()))
        pairs = [
            (path, number)
            for number, name in enumerate(self.classes)
            for path in sorted((folder / name).iterdir())
            if path.suffix.lower() in _IMAGES | {".npy"}
        ]
        if not pairs:
            raise OptionError(
                "expected a folder for each class with images or .npy files.", where=str(folder),
                remedy="Put the samples of a class into a folder of its name.",
            )  # fmt: skip
        self.paths = [path for path, _ in pairs]
        self.labels = np.array([number for _, number in pairs], np.int64)

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, chosen: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the samples and the labels at some positions.

        Raises:
            ModelFileError: A file cannot be read.
            OptionError: The samples of a batch differ in size.
            MissingDependencyError: Pillow is not installed, and a file is an image.
        """
        samples = [_read(self.paths[int(i)]) for i in chosen]
        shapes = {sample.shape for sample in samples}
        if len(shapes) > 1:
            listed = ", ".join(str(list(shape)) for shape in sorted(shapes))
            where = str(self.paths[0].parent.parent)
            raise OptionError(f"expected samples of one size in a batch, got {listed}.", where=where)
        return np.stack(samples), self.labels[np.asarray(chosen)]


def _read(path: Path) -> np.ndarray:
    try:
        if path.suffix.lower() == ".npy":
            array = np.asarray(np.load(path, allow_pickle=False))
            return array.view(true_dtype(array.dtype))
        try:
            from PIL import Image
        except ImportError as error:
            raise MissingDependencyError("images require pillow.", remedy="Install it: pip install pillow.") from error
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("L" if image.mode in ("1", "L", "I;16") else "RGB"), np.float32) / 255
    except (OSError, ValueError) as error:
        raise ModelFileError(f"cannot be read as a sample: {error}", where=str(path)) from error
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))
