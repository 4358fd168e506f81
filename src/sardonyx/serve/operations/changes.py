"""Changes of models as data, which all workers of a server make."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sardonyx.errors import RequestError
from sardonyx.runtime.session import Session
from sardonyx.serve.operations import live_edits
from sardonyx.serve.protocol import datatypes
from sardonyx.serve.protocol.raw_tensors import binary_data, binary_tensor


@dataclass(frozen=True)
class Change:
    """A change of one model.

    Attributes:
        kind: ``"weights"``, ``"edit"`` or ``"undo"``.
        model: The name of the model.
        version: The number of the version as text.
        value: Arrays by the name of a weight, or the list of changes of an edit; None for an undo.
    """

    kind: str
    model: str
    version: str
    value: Any = None

    def perform(self, session: Session) -> dict[str, Any]:
        """Make the change in a session; raises what :mod:`.live_edits` raises."""
        match self.kind:
            case "weights":
                return live_edits.update_weights(session, self.value)
            case "edit":
                return live_edits.edit(session, self.value)
            case _:
                return live_edits.undo(session)

    def packed(self) -> tuple[dict[str, Any], bytes]:
        """Return the change as a JSON object and bytes."""
        head: dict[str, Any] = {"kind": self.kind, "model": self.model, "version": self.version}
        if self.kind == "weights":
            parts, data = packed_arrays(self.value)
            return {**head, "arrays": parts}, data
        return {**head, "value": self.value}, b""

    @classmethod
    def unpacked(cls, head: Mapping[str, Any], data: bytes) -> Change:
        """Return the change of an object and bytes, as :meth:`packed` makes them."""
        value = unpacked_arrays(head["arrays"], data) if "arrays" in head else head["value"]
        return cls(head["kind"], head["model"], head["version"], value)


def packed_arrays(arrays: Mapping[str, np.ndarray]) -> tuple[list[Any], bytes]:
    """Return arrays as descriptions and bytes."""
    parts, pieces = [], []
    for name, array in arrays.items():
        datatype = datatypes.of_array(array)
        piece = bytes(binary_data(array, datatype))
        parts.append([name, datatype.name, list(array.shape), len(piece)])
        pieces.append(piece)
    return parts, b"".join(pieces)


def unpacked_arrays(parts: list[Any], data: bytes) -> dict[str, np.ndarray]:
    """Return the arrays of descriptions and bytes."""
    arrays, offset, view = {}, 0, memoryview(data)
    for name, datatype, shape, size in parts:
        arrays[name] = binary_tensor(view[offset : offset + size], datatypes.named(datatype, name), shape, name)
        offset += size
    return arrays


def encoded(head: Mapping[str, Any]) -> bytes:
    """Return a JSON object as text; numbers of any length, and the words NaN and Infinity, stay as they are.

    Raises:
        RequestError: The object contains a value that JSON lacks.
    """
    try:
        return json.dumps(head).encode()
    except (TypeError, ValueError) as error:
        raise RequestError(f"the change cannot be sent to the workers: {error}.") from error


def decoded(text: bytes) -> dict[str, Any]:
    """Return the JSON object of a text that :func:`encoded` made."""
    value: dict[str, Any] = json.loads(text)
    return value
