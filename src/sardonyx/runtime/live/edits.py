"""Single changes of a live model, each a transaction of its own."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from sardonyx.runtime.editing.draft import Draft
    from sardonyx.runtime.live.transaction import Edit

P = ParamSpec("P")
R = TypeVar("R")


def _draft() -> type[Draft]:
    from sardonyx.runtime.editing.draft import Draft

    return Draft


class _Change:
    """A method of drafts as a method of sessions; the class of drafts is imported when the method is first accessed.

    Args:
        change: Returns the method.
    """

    def __init__(self, change: Callable[[], Callable[..., Any]]) -> None:
        self._change = change

    def __set_name__(self, owner: type[Edits], name: str) -> None:
        self._owner, self._name = owner, name

    def __get__(self, instance: Edits | None, owner: type[Edits]) -> Callable[..., Any]:
        change = self._change()

        @functools.wraps(change)
        def call(self: Edits, /, *args: Any, **named: Any) -> Any:
            with self.edit() as draft:
                return change(draft, *args, **named)

        setattr(self._owner, self._name, call)
        method: Callable[..., Any] = getattr(owner if instance is None else instance, self._name)
        return method


def _as_transaction(change: Callable[[], Callable[Concatenate[Draft, P], R]]) -> Callable[Concatenate[Edits, P], R]:
    method: Any = _Change(change)
    return method  # type: ignore[no-any-return]


class Edits(ABC):
    """The changes of an edit as methods, each of which is a transaction."""

    @abstractmethod
    def edit(self) -> Edit:
        """Begin a transaction; see :class:`Edit`."""

    add_node = _as_transaction(lambda: _draft().add_node)
    remove_node = _as_transaction(lambda: _draft().remove_node)
    replace_node = _as_transaction(lambda: _draft().replace_node)
    rewire = _as_transaction(lambda: _draft().rewire)
    add_output = _as_transaction(lambda: _draft().add_output)
    remove_output = _as_transaction(lambda: _draft().remove_output)
    add_input = _as_transaction(lambda: _draft().add_input)
    remove_input = _as_transaction(lambda: _draft().remove_input)
    add_weight = _as_transaction(lambda: _draft().add_weight)
    set_weight = _as_transaction(lambda: _draft().set_weight)
    attach = _as_transaction(lambda: _draft().attach)
    detach = _as_transaction(lambda: _draft().detach)

    def update_weights(self, weights: Mapping[str, Any]) -> None:
        """Set the elements of several weights; see :meth:`.Draft.set_weight`.

        A publication of weights alone copies no graph, from the second one on.
        """
        edit = self.edit()
        if not edit.publish(weights):
            with edit as draft:
                draft.update_weights(weights)

    def insert_after(
        self, tensor: str, op: str, name: str | None = None, *, domain: str = "", **attributes: Any
    ) -> str:
        """Insert a node with one input after a tensor; see :meth:`.Draft.insert_after`."""
        with self.edit() as draft:
            return draft.insert_after(tensor, op, name, domain=domain, **attributes)
