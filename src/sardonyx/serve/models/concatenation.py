"""Requests of unlike sizes as one run: their values one after another, and their sizes as further inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from sardonyx.errors import OptionError, RequestError

SizeKind = Literal["counts", "ends", "offsets", "longest", "shapes", "flat_shapes"]
"""The sizes of the rows of a batch as a tensor; see :class:`SizeInput`."""

Feeds = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class SizeInput:
    """An input of the model that the server computes from the sizes of the requests of a run.

    Attributes:
        input: The input; requests do not contain it.
        kind: ``"counts"``: the elements of each row. ``"ends"``: their sums so far. ``"offsets"``: a zero, then these
            sums. ``"longest"``: zeros, as many as the longest row has elements. ``"shapes"``: the sizes of each row, a
            line for each. ``"flat_shapes"``: the same on one axis.
        source: The concatenated input whose sizes are described.

    Raises:
        OptionError: The kind is unknown.
    """

    input: str
    kind: SizeKind
    source: str

    def __post_init__(self) -> None:
        if self.kind not in get_args(SizeKind):
            expected = ", ".join(map(repr, get_args(SizeKind)))
            raise OptionError(f"expected one of {expected}, got {self.kind!r}.", where=f"sizes.{self.input}")

    def tensor(self, arrays: Sequence[np.ndarray], dtype: np.dtype[np.generic]) -> np.ndarray:
        """Return the tensor for the arrays of the source in a run.

        Raises:
            RequestError: A size does not fit the element type.
        """
        counts = _lengths(arrays)
        match self.kind:
            case "counts":
                sizes = counts
            case "ends":
                sizes = np.cumsum(counts)
            case "offsets":
                sizes = np.concatenate([[0], np.cumsum(counts)])
            case "longest":
                return np.zeros(int(counts.max(initial=0)), dtype)
            case _:
                rows = [np.broadcast_to(array.shape[1:], (len(array), array.ndim - 1)) for array in arrays]
                sizes = np.concatenate(rows) if self.kind == "shapes" else np.concatenate(rows).ravel()
        tensor = sizes.astype(dtype)
        if not np.array_equal(tensor.astype(np.int64), sizes):
            raise RequestError(f"the sizes of the batch do not fit {dtype}.", kind="too_large", where=self.input)
        return tensor


@dataclass(frozen=True)
class Concatenation:
    """Inputs whose rows have sizes of their own: a run gets the values of all rows, one after another.

    A request has an axis of rows before the axes of the model's input: ``[rows, length, …]`` for ``[total, …]``.

    Attributes:
        inputs: The concatenated inputs.
        sizes: Inputs that the server computes.
        outputs: Outputs with the values of all rows one after another, each with the input that has its sizes. Other
            outputs have a row for each row of the requests.

    Raises:
        OptionError: A source is no concatenated input, or an input is named twice.
    """

    inputs: Sequence[str]
    sizes: Sequence[SizeInput] = ()
    outputs: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", tuple(self.inputs))
        object.__setattr__(self, "sizes", tuple(self.sizes))
        for source in (*(size.source for size in self.sizes), *self.outputs.values()):
            if source not in self.inputs:
                expected = ", ".join(self.inputs) or "none"
                raise OptionError(f"expected a concatenated input ({expected}), got {source!r}.", where="concatenation")
        names = [*self.inputs, *(size.input for size in self.sizes)]
        for name in names:
            if names.count(name) > 1:
                raise OptionError("the input is named twice.", where=f"concatenation: {name}")

    def merged(self, requests: Sequence[Feeds], dtypes: Mapping[str, np.dtype[np.generic]]) -> dict[str, np.ndarray]:
        """Return the inputs of a run for requests with equal names and types.

        Args:
            requests: The inputs of each request.
            dtypes: The element types of the inputs that the server computes.

        Raises:
            RequestError: A request lacks the source of sizes, its inputs have unlike numbers of rows, or a size does
                not fit its element type.
        """
        for request in requests:
            if len({len(array) for array in request.values()}) > 1:
                sizes = ", ".join(f"{len(array)} of {name}" for name, array in request.items())
                raise RequestError(f"expected as many rows of every input, got {sizes}.", where="rows")
        feeds = {}
        for name in requests[0]:
            arrays = [request[name] for request in requests]
            if name in self.inputs:
                arrays = [array.reshape(-1, *array.shape[2:]) for array in arrays]
            feeds[name] = np.concatenate(arrays)
        for size in self.sizes:
            if size.source not in requests[0]:
                raise RequestError("the input is missing.", where=size.source)
            feeds[size.input] = size.tensor([request[size.source] for request in requests], dtypes[size.input])
        return feeds

    def divided(self, results: Mapping[str, np.ndarray], requests: Sequence[Feeds]) -> list[list[np.ndarray]]:
        """Return the outputs of each request from the outputs of a run.

        Args:
            results: The outputs by name.
            requests: The inputs of each request.

        Raises:
            RequestError: An output has another number of values or rows than the requests.
        """
        rows = [len(next(iter(request.values()))) for request in requests]
        parts: list[list[np.ndarray]] = [[] for _ in requests]
        for name, result in results.items():
            source = self.outputs.get(name)
            arrays = [request[source] for request in requests] if source is not None else []
            counts = [array.shape[0] * array.shape[1] for array in arrays] if arrays else rows
            if not isinstance(result, np.ndarray) or result.ndim == 0 or result.shape[0] != sum(counts):
                raise RequestError(f"expected {sum(counts)} rows of output {name}.", kind="internal")
            pieces = np.split(result, np.cumsum(counts)[:-1])
            for index, piece in enumerate(pieces):
                inner = (*arrays[index].shape[:2], *result.shape[1:]) if arrays else piece.shape
                parts[index].append(piece.reshape(inner))
        return parts


def _lengths(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return the length of each row of all arrays."""
    return np.repeat([array.shape[1] for array in arrays], [len(array) for array in arrays])
