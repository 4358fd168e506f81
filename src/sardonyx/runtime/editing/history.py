"""The history of a live model: committed edits, and the models before them."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sardonyx.errors import EditError

if TYPE_CHECKING:
    import onnx_ir as ir

    from sardonyx.runtime.editing.weighted_model import WeightedModel

_COMMITS = 1000
"""Limit of remembered commits."""

_MODELS = 32
"""Limit of earlier models in memory, and so of commits that can be undone."""

_SPARE_BYTES = 1 << 28
"""Limit of the bytes of weights that only earlier models hold, beyond twice the weights of the current model."""


@dataclass(frozen=True)
class Commit:
    """A committed edit.

    Attributes:
        number: The number of the edit in its session, from 1.
        changes: Descriptions of the changes.
        time: The time of the commit, in seconds since 1970.
    """

    number: int
    changes: tuple[str, ...]
    time: float = field(default_factory=time.time)


class History:
    """The committed edits of a model, oldest first."""

    def __init__(self) -> None:
        self._commits: deque[Commit] = deque(maxlen=_COMMITS)
        self._before: deque[_Snapshot] = deque()
        self._after: _Snapshot | None = None
        self._count = 0

    @property
    def commits(self) -> tuple[Commit, ...]:
        """The commits that are not undone, as far as they are remembered."""
        return tuple(self._commits)

    @property
    def next_number(self) -> int:
        """The number of the next edit."""
        return self._count + 1

    @property
    def earlier_number(self) -> int:
        """The number of the edit before the latest one; 0 if there is none."""
        return self._commits[-2].number if len(self._commits) > 1 else 0

    def add(
        self, before: ir.Model | WeightedModel | None, after: ir.Model | WeightedModel | None, changes: tuple[str, ...]
    ) -> None:
        """Record an edit.

        Args:
            before: The model before the edit; None if unavailable, so that no earlier edit can be undone any more.
            after: The model after the edit.
            changes: Descriptions of the changes.
        """
        self._count += 1
        self._commits.append(Commit(self._count, changes))
        if before is None or after is None:
            self._before.clear()
            self._after = None
            return
        # The model before this edit is usually the model after the previous one.
        last = self._after if self._after is not None and self._after.model is before else _Snapshot(before)
        self._after = _Snapshot(after)
        current = self._after.weights
        last.own = sum(size for tensor, size in last.weights.items() if tensor not in current)
        self._before.append(last)
        most = _SPARE_BYTES + 2 * sum(current.values())
        while len(self._before) > _MODELS or sum(snapshot.own for snapshot in self._before) > most:
            self._before.popleft()

    def before(self) -> ir.Model | WeightedModel:
        """Return the model before the latest edit.

        Raises:
            EditError: No edit is recorded, or the model is no longer in memory.
        """
        if not self._before:
            reason = "the model before it is no longer in memory" if self._commits else "the history is empty"
            raise EditError(f"the latest edit cannot be undone: {reason}.", where="undo")
        return self._before[-1].model

    def forget(self) -> Commit:
        """Remove and return the latest edit, with the model before it."""
        self._before.pop()
        return self._commits.pop()


class _Snapshot:
    """A model, and the bytes of its weights by the identity of their tensors.

    Attributes:
        model: The model.
        weights: See above.
        own: The bytes of weights that the next model does not have.
    """

    def __init__(self, model: ir.Model | WeightedModel) -> None:
        self.model = model
        self.weights = _bytes_of_weights(model)
        self.own = 0


def _bytes_of_weights(model: ir.Model | WeightedModel) -> dict[int, int]:
    from sardonyx.runtime.editing.weighted_model import WeightedModel

    if isinstance(model, WeightedModel):
        return model.bytes_of_weights
    tensors = (value.const_value for value in model.graph.initializers.values())
    return {id(tensor): tensor.nbytes for tensor in tensors if tensor is not None}
