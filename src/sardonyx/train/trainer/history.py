"""The history of a training: one row an epoch."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from sardonyx.errors import MissingDependencyError, ModelFileError, OptionError
from sardonyx.model import require_file


class History(Mapping[str, list[float]]):
    """Numbers by name, one an epoch: ``loss``, ``rate``, metrics, and the same with ``validation_`` before.

    Args:
        rows: The rows of a training that is continued.
    """

    def __init__(self, rows: list[dict[str, float]] | None = None) -> None:
        self.rows: list[dict[str, float]] = list(rows or [])

    def add(self, row: Mapping[str, float]) -> None:
        """Add the row of an epoch."""
        self.rows.append(dict(row))

    def __getitem__(self, name: str) -> list[float]:
        if name not in set(self):
            raise KeyError(name)
        return [row.get(name, math.nan) for row in self.rows]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name for row in self.rows for name in row))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write one line an epoch."""
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(self))
            writer.writeheader()
            writer.writerows(self.rows)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Write a plot of the losses and metrics, in the format of the file's extension; ``.png`` is added to none.

        Raises:
            MissingDependencyError: Matplotlib is not installed.
            OptionError: The extension names no format, or no file can be written at the path.
            ModelFileError: The file cannot be written.
        """
        file = require_plot(path)
        from matplotlib.figure import Figure

        names = [name for name in self if name not in ("epoch", "rate", "seconds")]
        losses = [name for name in names if name.endswith("loss")]
        others = [name for name in names if name not in losses]
        groups = [group for group in (losses, others) if group]
        figure = Figure(figsize=(5 * max(1, len(groups)), 3.5), layout="constrained")
        for number, group in enumerate(groups, 1):
            axes = figure.add_subplot(1, len(groups), number)
            for name in group:
                axes.plot(range(1, len(self.rows) + 1), self[name], marker="o", label=name)
            axes.set_xlabel("epoch")
            axes.legend()
            axes.grid(alpha=0.3)
        try:
            figure.savefig(file)
        except (OSError, RuntimeError, ValueError) as error:  # The last two are of the writers of formats.
            reason = getattr(error, "strerror", None) or error
            raise ModelFileError(f"cannot be written: {reason}", where=str(file)) from error


def require_plot(path: str | os.PathLike[str]) -> Path:
    """Return the file that :meth:`History.plot` writes, after a check before a training that it can be written.

    Args:
        path: The file.

    Raises:
        MissingDependencyError: Matplotlib is not installed.
        OptionError: The extension names no format, or no file can be written at the path.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError(
            "plots require matplotlib.", remedy="Install it: pip install matplotlib."
        ) from error
    file = Path(path)
    if not file.suffix:
        if os.path.isdir(file) or file.name == "..":  # noqa: PTH112 - False also for a name that is too long.
            require_file(file, "plot")
        if file.name:
            file = file.with_name(f"{file.name}.png")
    formats = set(Figure().canvas.get_supported_filetypes()) - {"pgf"}  # Of which LaTeX computes the sizes.
    if file.suffix[1:].lower() not in formats:
        raise OptionError(
            f"expected a file of a format of plots, got {os.fspath(path)!r}.",
            where="plot",
            remedy=f"Formats: {', '.join(sorted(formats))}.",
        )
    require_file(file, "plot")
    if file.is_symlink():  # A plot is written through a link.
        require_file(file.resolve(), "plot")
    if file.exists() and not os.access(file, os.W_OK):
        raise OptionError(f"{str(file)!r} cannot be written: it is read-only.", where="plot")
    return file
