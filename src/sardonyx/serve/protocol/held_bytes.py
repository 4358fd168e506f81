"""Bytes that a server holds for slow clients: incomplete requests, and answers that are not read."""

from __future__ import annotations

from typing import Protocol

from sardonyx.serve.protocol.limits import Limits

SMALL = 4 << 10
"""Bytes of a request or an answer that need no count: 64 calls of 1024 connections have 256 MiB at most."""


class Holder(Protocol):
    """A request or an answer that waits for its client."""

    def give_up(self) -> None:
        """End, and free the bytes."""


class HeldBytes:
    """The held bytes of all connections of a server, within one limit.

    The bytes that are held longest are freed first: a client that reads and sends without pause is soon done.

    Args:
        limits: The limits of the server.

    Attributes:
        total: The bytes of all holders.
    """

    def __init__(self, limits: Limits) -> None:
        self.total = 0
        self._most = max(limits.held_bytes, limits.body_bytes + limits.output_bytes)
        self._held: dict[Holder, int] = {}

    def hold(self, holder: Holder, size: int) -> bool:
        """Set the bytes of a holder, and end the oldest holders beyond the limit.

        Returns:
            False if the holder itself must give up; its bytes are no longer counted.
        """
        self.total += size - self._held.get(holder, 0)
        self._held[holder] = size
        while self.total > self._most:
            oldest = next(iter(self._held))
            self.release(oldest)
            if oldest is holder:
                return False
            oldest.give_up()
        return True

    def release(self, holder: Holder) -> None:
        """Forget a holder."""
        self.total -= self._held.pop(holder, 0)
