"""Memory of large arrays that is used again when the arrays are freed.

New memory of many megabytes costs more than the copy into it, because the system maps and clears each page.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import numpy as np

_MOST_FREE = 2
"""Free arrays that stay in memory: one more than a steady series of replacements needs."""


class RecycledArrays:
    """Arrays of one shape; the memory of an array that is no longer referenced is lent again.

    Args:
        allocate: Returns a new array, of an element type that memoryviews support.
    """

    def __init__(self, allocate: Callable[[], np.ndarray]) -> None:
        self._allocate = allocate
        self._free: list[np.ndarray] = []

    def lend(self) -> np.ndarray:
        """Return an array with any elements; the memory stays reserved as long as a view of the array is in use."""
        try:
            memory = self._free.pop()
        except IndexError:
            memory = self._allocate()
        # A view of a view refers to the owner of the memory alone; a view of an array over a memoryview, to that array.
        lent = np.asarray(memory.data)
        weakref.finalize(lent, self._return, memory).atexit = False
        return lent

    def _return(self, memory: np.ndarray) -> None:
        if len(self._free) < _MOST_FREE:
            self._free.append(memory)
