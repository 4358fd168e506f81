"""What was done to a live model, and the models before."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

import onnx_ir as ir

from sardonyx.errors import EditError

_COMMITS = 1000
"""Commits that are remembered."""

_MODELS = 32
"""Models before that are kept, so that as many commits can be undone."""

_SPARE_BYTES = 1 << 28
"""Bytes of weights that models before may hold alone, beside twice those of the model there is."""


@dataclass(frozen=True)
class Commit:
    """An edit that was made.

    Attributes:
        number: Counts the edits of a session, from 1.
        changes: What was changed, in words.
        time: When, in seconds since 1970.
    """

    number: int
    changes: tuple[str, ...]
    time: float = field(default_factory=time.time)


class History:
    """The edits of a model, the latest last."""

    def __init__(self) -> None:
        self._commits: deque[Commit] = deque(maxlen=_COMMITS)
        self._before: deque[_Kept] = deque()
        self._after: _Kept | None = None
        self._made = 0

    @property
    def commits(self) -> tuple[Commit, ...]:
        """The edits that stand, as far as they are remembered."""
        return tuple(self._commits)

    def add(self, before: ir.Model | None, after: ir.Model | None, changes: tuple[str, ...]) -> None:
        """Note an edit.

        Args:
            before: The model that it changed; None where that is not known, and nothing before can be had back.
            after: What became of it.
            changes: What was changed, in words.
        """
        self._made += 1
        self._commits.append(Commit(self._made, changes))
        if before is None or after is None:
            self._before.clear()
            self._after = None
            return
        # What came of the edit before is, as a rule, what this one changed.
        last = self._after
        self._before.append(last if last is not None and last.model is before else _Kept(before))
        self._after = _Kept(after)
        now = self._after.weights
        held, most, kept = set(now), _SPARE_BYTES + 2 * sum(now.values()), 0
        for each in reversed(self._before):
            most -= sum(size for tensor, size in each.weights.items() if tensor not in held)
            held.update(each.weights)
            if most < 0 or kept == _MODELS:
                break
            kept += 1
        while len(self._before) > kept:
            self._before.popleft()

    def before(self) -> ir.Model:
        """The model before the latest edit.

        Raises:
            EditError: There is none, or it is not kept any more.
        """
        if not self._before:
            why = "it is too long ago" if self._commits else "there is none"
            raise EditError(f"no edit can be undone: {why}.", where="undo")
        return self._before[-1].model

    def forget(self) -> Commit:
        """Take the latest edit off the list, and the model before it; what the edit was."""
        self._before.pop()
        return self._commits.pop()


class _Kept:
    """A model before or after an edit, and the bytes of its weights by the identity of their tensors."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.weights = _bytes_of_weights(model)


def _bytes_of_weights(model: ir.Model) -> dict[int, int]:
    tensors = (value.const_value for value in model.graph.initializers.values())
    return {id(tensor): tensor.nbytes for tensor in tensors if tensor is not None}
