"""Options of batching and queueing of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from sardonyx.errors import OptionError
from sardonyx.serve.models.concatenation import Concatenation

BatchMode = Literal["auto", "off", "force"]
"""Merge requests if a proof holds, never, or without a proof."""

Ragged = Literal["group", "pad", "concat"]
"""Requests of other inner sizes: run apart, padded with zeros to the largest of the batch, or concatenated."""


@dataclass(frozen=True)
class Batching:
    """Options of batching and queueing.

    Attributes:
        mode: ``"auto"`` merges requests if merged rows are proved equal to rows computed apart; ``"off"`` never;
            ``"force"`` without a proof.
        max_rows: Largest number of rows of a batch.
        most_rows: Largest number of rows of one request; 0 for any.
        preferred_rows: Numbers of rows at which a batch does not wait for more; only of use with `max_delay_us`.
        max_delay_us: Microseconds that a batch waits for more requests while the model is idle; 0 never waits.
        ragged: Treatment of requests with other inner sizes: ``"group"`` runs equal sizes together; ``"pad"`` is for
            models that ignore zeros at the end, which no proof covers. Sizes of outputs that are named as those of an
            input are cut to the sizes of the request. ``"concat"`` is for models that take the values of all requests
            one after another, see `concatenation`.
        priority_levels: Number of priorities that requests may name; 0 for any.
        default_priority: The priority of requests that name none.
        timeout_us: Microseconds that a request may wait; 0 for no limit.
        delays: True if a request whose time is over waits behind all others, rather than being refused.
        allows_timeout: True if requests may name a shorter time.
        queue_requests: Requests that may wait for the model; 0 for the limit of the server.
        concatenation: The inputs that ``"concat"`` joins, and the inputs that describe their sizes.

    Raises:
        OptionError: A value is invalid.
    """

    mode: BatchMode = "auto"
    max_rows: int = 64
    most_rows: int = 0
    preferred_rows: tuple[int, ...] = ()
    max_delay_us: int = 0
    ragged: Ragged = "group"
    priority_levels: int = 0
    default_priority: int = 0
    timeout_us: int = 0
    delays: bool = False
    allows_timeout: bool = True
    queue_requests: int = 0
    concatenation: Concatenation | None = None

    def __post_init__(self) -> None:
        for name, kind in (("mode", BatchMode), ("ragged", Ragged)):
            if getattr(self, name) not in get_args(kind):
                expected = ", ".join(map(repr, get_args(kind)))
                raise OptionError(f"expected one of {expected}, got {getattr(self, name)!r}.", where=f"batching.{name}")
        if (self.concatenation is None) is (self.ragged == "concat"):
            expected = "the inputs to join" if self.ragged == "concat" else "no inputs to join"
            raise OptionError(f"ragged={self.ragged!r} expects {expected}.", where="batching.concatenation")
        if self.max_rows < 1:
            raise OptionError(f"expected at least 1 row, got {self.max_rows}.", where="batching.max_rows")
        counts = ("most_rows", "max_delay_us", "priority_levels", "default_priority", "timeout_us", "queue_requests")
        for name in counts:
            if getattr(self, name) < 0:
                raise OptionError(f"expected at least 0, got {getattr(self, name)}.", where=f"batching.{name}")
