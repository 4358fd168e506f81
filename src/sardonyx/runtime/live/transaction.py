"""Transactions: edits of a live model that are committed as a whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, NoReturn, get_args

from sardonyx.errors import EditError, OptionError
from sardonyx.runtime.editing.draft import Draft
from sardonyx.runtime.live.live_model import EditCompile, LiveModel


class Edit(Draft):
    """A transaction: changes to a copy of a live model, committed as a whole or not at all.

    Used in a ``with`` statement. At its end the copy is validated and replaces the model; running calls finish on the
    model with which they began. After an exception, in the block or in the validation, the session is unchanged.

    Args:
        live: The model; edits of one model exclude each other.
        compile: When to compile the edited model; see :meth:`Session.edit`.

    Raises:
        OptionError: Unknown value of `compile`.
    """

    def __init__(self, live: LiveModel, compile: EditCompile | None = None) -> None:
        if compile is not None and compile not in get_args(EditCompile):
            expected = ", ".join(map(repr, get_args(EditCompile)))
            raise OptionError(f"expected one of {expected}, got {compile!r}.", where="compile")
        self._live = live
        self._compile = compile

    def publish(self, weights: Mapping[str, Any]) -> bool:
        """Replace weights of the session without beginning the transaction; see :meth:`.LiveModel.publish`."""
        return self._live.publish(weights)

    def __enter__(self) -> Edit:
        """Begin the transaction.

        Raises:
            EditError: An edit is open in this thread.
            UnsupportedError: A compiled file holds no model.
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
        """Validate the copy and let the session answer from it.

        Raises:
            SardonyxError: The edited model cannot be run.
        """
        try:
            if kind is None:
                self._live.commit(self, self._compile)
        finally:
            # The committed model answers calls by now: later changes through this object must be impossible.
            for name in vars(self).keys() - {"_live", "_compile"}:
                delattr(self, name)
            self._live.end()

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse changes outside of the ``with`` statement."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise EditError("the edit is not open.", remedy="Make changes in its `with` statement, or begin another.")
