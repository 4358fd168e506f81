"""Edits of a live model: transactions, and each change as one of its own."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from sardonyx.runtime.draft import Draft

if TYPE_CHECKING:
    from sardonyx.runtime.live import Live

P = ParamSpec("P")
R = TypeVar("R")


class Edit(Draft):
    """A transaction: changes to a copy of a live model, which takes its place as a whole or not at all.

    Used in a ``with`` statement. At its end the copy is checked and put in place; calls that are under way end on the
    model that they began with. After an exception, in the block or in the check, the session is as it was.

    Args:
        live: The model, whose edits wait for each other.
    """

    def __init__(self, live: Live) -> None:
        self._live = live

    def __enter__(self) -> Edit:
        """Begin.

        Raises:
            EditError: The same thread has begun an edit and not ended it.
            UnsupportedError: There is no model in a compiled file.
        """
        self._live.begin()
        try:
            super().__init__(self._live.version.model)
        except BaseException:
            self._live.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Check what was made and put it in place.

        Raises:
            SardonyxError: It cannot be run; says why.
        """
        try:
            if kind is None:
                self._live.commit(self)
        finally:
            self._live.end()


class Edits(ABC):
    """The changes of an edit, each as an edit of its own."""

    @abstractmethod
    def edit(self) -> Edit:
        """Begin an edit; see :class:`Edit`."""

    @staticmethod
    def _alone(change: Callable[Concatenate[Draft, P], R]) -> Callable[Concatenate[Edits, P], R]:
        @functools.wraps(change)
        def call(self: Edits, /, *args: P.args, **named: P.kwargs) -> R:
            with self.edit() as draft:
                return change(draft, *args, **named)

        return call

    add_node = _alone(Draft.add_node)
    remove_node = _alone(Draft.remove_node)
    replace_node = _alone(Draft.replace_node)
    rewire = _alone(Draft.rewire)
    add_output = _alone(Draft.add_output)
    remove_output = _alone(Draft.remove_output)
    add_input = _alone(Draft.add_input)
    remove_input = _alone(Draft.remove_input)
    add_weight = _alone(Draft.add_weight)
    set_weight = _alone(Draft.set_weight)
    update_weights = _alone(Draft.update_weights)
    attach = _alone(Draft.attach)
    detach = _alone(Draft.detach)

    def insert_after(
        self, tensor: str, op: str, name: str | None = None, *, domain: str = "", **attributes: Any
    ) -> str:
        """Put a node of one input behind a tensor; see :meth:`sardonyx.runtime.draft.Draft.insert_after`."""
        with self.edit() as draft:
            return draft.insert_after(tensor, op, name, domain=domain, **attributes)
