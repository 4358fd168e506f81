"""Overwrite the arenas that no call uses, so that a test notices a read of what an earlier call wrote."""

from __future__ import annotations

import ctypes

from sardonyx.compiler.executor.arena import Blocks
from sardonyx.compiler.executor.tape_player import player
from sardonyx.compiler.target.description import host

SEIZE = player(host()).seize
"""The generated function that claims a block."""


def poison(pool: Blocks) -> None:
    """Write NaN over every block that no call has claimed."""
    for block in pool.live():
        if SEIZE(block.address):
            ctypes.memset(block.memory_address, 0xFF, block.capacity)
            block.release()
