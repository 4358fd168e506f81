"""Pauses of the garbage collector, for imports and for graphs of objects under construction."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def imports_frozen() -> Iterator[None]:
    """Pause the collector during imports, and move the imported objects to the oldest generation.

    Imported objects live as long as the process, so repeated traversals are wasted. Nothing changes if the collector is
    disabled or if objects are already frozen.
    """
    if not gc.isenabled() or gc.get_freeze_count():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        # Moves objects to the oldest generation without a traversal, which the first session would wait for.
        gc.freeze()
        gc.unfreeze()
        gc.enable()


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector while a large graph of objects is built.

    Threads may do so concurrently: the thread that finds the collector running stops and restarts the collector, others
    leave its state alone. A second stop, after the first thread left, would be permanent.
    """
    enabled = gc.isenabled()
    if enabled:
        gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
