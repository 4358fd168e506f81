"""Imports without the garbage collector: what they make stays for good, and it would walk all of it again and again."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Keep the collector from what is imported: within, and until it next walks everything there is.

    Where it does not run, or where somebody froze what is there, all stays as it is.
    """
    if not gc.isenabled() or gc.get_freeze_count():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        # To the oldest generation, without a walk: else the first session would wait for one over all of the packages.
        gc.freeze()
        gc.unfreeze()
        gc.enable()
