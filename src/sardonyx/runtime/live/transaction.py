"""Edits of a live model: transactions, and each change as one of its own."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar, get_args

from sardonyx.errors import EditError, OptionError
from sardonyx.runtime.editing.draft import Draft
from sardonyx.runtime.live.live_model import EditCompile, LiveModel

P = ParamSpec("P")
R = TypeVar("R")


class Edit(Draft):
    """A transaction: changes to a copy of a live model, which takes its place as a whole or not at all.

    Used in a ``with`` statement. At its end the copy is checked and put in place; calls that are under way end on the
    model that they began with. After an exception, in the block or in the check, the session is as it was.

    Args:
        live: The model, whose edits wait for each other.
        compile: When to compile the edited model; see :meth:`Session.edit`.

    Raises:
        OptionError: There is no such time.
    """

    def __init__(self, live: LiveModel, compile: EditCompile | None = None) -> None:
        if compile is not None and compile not in get_args(EditCompile):
            remedy = f"There are: {', '.join(get_args(EditCompile))}."
            raise OptionError(f"an edit cannot compile {compile!r}.", where="compile", remedy=remedy)
        self._live = live
        self._compile = compile

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
                self._live.commit(self, self._compile)
        finally:
            # What is drafted may answer calls by now: nothing here may reach it any more.
            for name in vars(self).keys() - {"_live", "_compile"}:
                delattr(self, name)
            self._live.end()

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse changes outside of the ``with`` statement, where there is no draft to change."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise EditError("the edit is not open.", remedy="Make changes in its `with` statement, or begin another.")


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
        """Put a node of one input behind a tensor; see :meth:`sardonyx.runtime.editing.draft.Draft.insert_after`."""
        with self.edit() as draft:
            return draft.insert_after(tensor, op, name, domain=domain, **attributes)
