"""Pictures for the terminal: a grey image in shades of text, with boxes around detected objects."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rich.style import Style
from rich.text import Text

SHADES = " ░▒▓█"
"""Characters from paper to ink."""


@dataclass(frozen=True)
class Box:
    """A labelled box: corners in pixels of the image, and the text on the upper edge."""

    x1: float
    y1: float
    x2: float
    y2: float
    label: str


def draw(image: npt.NDArray[np.float32], boxes: Iterable[Box], *, cell: tuple[int, int] = (4, 2)) -> Text:
    """Draw an image and boxes as text.

    Args:
        image: (height, width), from 0 (paper) to the maximum (ink).
        boxes: The boxes.
        cell: Rows and columns of pixels per character; a character is twice as high as wide.
    """
    rows, columns = image.shape[0] // cell[0], image.shape[1] // cell[1]
    means = image[: rows * cell[0], : columns * cell[1]].reshape(rows, cell[0], columns, cell[1]).mean(axis=(1, 3))
    top = max(float(means.max()), 1e-6)
    levels = np.minimum((means / top * len(SHADES)).astype(int), len(SHADES) - 1)
    grid = [[SHADES[level] for level in row] for row in levels]
    marked: set[tuple[int, int]] = set()
    for box in boxes:
        for row, column, character in _edges(box, cell, rows, columns):
            grid[row][column] = character
            marked.add((row, column))
    text = Text()
    for r, line in enumerate(grid):
        for c, character in enumerate(line):
            text.append(character, Style(color="green", bold=True) if (r, c) in marked else None)
        text.append("\n")
    return text


def _edges(box: Box, cell: tuple[int, int], rows: int, columns: int) -> Iterable[tuple[int, int, str]]:
    top, bottom = (min(max(int(y // cell[0]), 0), rows - 1) for y in (box.y1 - cell[0], box.y2 + cell[0] - 1))
    left, right = (min(max(int(x // cell[1]), 0), columns - 1) for x in (box.x1 - cell[1], box.x2 + cell[1] - 1))
    for column in range(left + 1, right):
        yield from ((top, column, "─"), (bottom, column, "─"))
    for row in range(top + 1, bottom):
        yield from ((row, left, "│"), (row, right, "│"))
    yield from ((top, left, "┌"), (top, right, "┐"), (bottom, left, "└"), (bottom, right, "┘"))
    for offset, character in enumerate(box.label[: max(right - left - 1, 1)]):
        yield top, min(left + 1 + offset, right), character
