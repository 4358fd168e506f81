"""Options of batching and queueing of a model."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from sardonyx.errors import OptionError
from sardonyx.serve.models.concatenation import Concatenation

BatchMode = Literal["auto", "off", "force"]
"""Merge requests if a proof holds, never, or without a proof."""

Ragged = Literal["group", "pad", "concat"]
"""Requests of other inner sizes: run apart, padded with zeros to the largest of the batch, or concatenated."""


@dataclass(frozen=True)
class QueuePolicy:
    """Limits of requests that wait; the fields are those of :class:`Batching`.

    Attributes:
        timeout_us: Microseconds that a request may wait; 0 for no limit.
        delays: True if a request whose time is over waits behind all others, rather than being refused.
        allows_timeout: True if requests may name a shorter time.
        queue_requests: Requests that may wait; 0 for the limit of the server.

    Raises:
        OptionError: A number is negative.
    """

    timeout_us: int = 0
    delays: bool = False
    allows_timeout: bool = True
    queue_requests: int = 0

    def __post_init__(self) -> None:
        for name in ("timeout_us", "queue_requests"):
            _require_count(getattr(self, name), name)


@dataclass(frozen=True)
class Batching:
    """Options of batching and queueing.

    Attributes:
        mode: ``"auto"`` merges requests if merged rows are proved equal to rows computed apart; ``"off"`` never;
            ``"force"`` without a proof.
        max_rows: Largest number of rows of a batch.
        most_rows: Largest number of rows of one request; 0 for any.
        preferred_rows: Numbers of rows at which a batch does not wait for more; only of use with `max_delay_us`.
        keeps_order: True if runs begin in the order of arrival: requests of other sizes are not overtaken.
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
        level_queues: Policies of single priorities, in place of the four fields above; each counts the requests of its
            priority alone.
        concatenation: The inputs that ``"concat"`` joins, and the inputs that describe their sizes.

    Raises:
        OptionError: A value is invalid.
    """

    mode: BatchMode = "auto"
    max_rows: int = 64
    most_rows: int = 0
    preferred_rows: tuple[int, ...] = ()
    keeps_order: bool = False
    max_delay_us: int = 0
    ragged: Ragged = "group"
    priority_levels: int = 0
    default_priority: int = 0
    timeout_us: int = 0
    delays: bool = False
    allows_timeout: bool = True
    queue_requests: int = 0
    level_queues: Mapping[int, QueuePolicy] = field(default_factory=dict)
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
            _require_count(getattr(self, name), name)
        levels = self.priority_levels
        for level in (*((self.default_priority,) if self.default_priority else ()), *self.level_queues):
            if level < 1 or level > levels > 0:
                expected = f"from 1 to {levels}" if levels else "of at least 1"
                raise OptionError(f"expected a priority {expected}, got {level}.", where="batching.priority_levels")

    @functools.cached_property
    def _queue(self) -> QueuePolicy:
        return QueuePolicy(self.timeout_us, self.delays, self.allows_timeout, self.queue_requests)

    @property
    def is_immediate(self) -> bool:
        """True if requests are computed in any order and number once the model is idle, and of equal sizes together."""
        rules = (self.keeps_order, self.max_delay_us, self.priority_levels, self.timeout_us, self.queue_requests)
        return self.ragged == "group" and not any(rules) and not self.level_queues

    def queue(self, level: int) -> QueuePolicy:
        """Return the policy of requests of a priority; 0 for requests without one."""
        return self.level_queues.get(level, self._queue)


def _require_count(count: int, name: str) -> None:
    if count < 0:
        raise OptionError(f"expected at least 0, got {count}.", where=f"batching.{name}")
