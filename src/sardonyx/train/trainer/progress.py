"""The line of progress of a training on a terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress_line(enabled: bool | None, epochs: int, length: int | None) -> Iterator[Callable[[int, float], None]]:
    """Show a line of progress on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, emoji=False)
    if not (console.is_terminal if enabled is None else enabled):
        yield lambda epoch, loss: None
        return
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("training", total=None if length is None else epochs * length)

        def show(epoch: int, loss: float) -> None:
            bar.update(task, advance=1, description=f"epoch {epoch + 1}/{epochs} loss {loss:.4g}")

        yield show
