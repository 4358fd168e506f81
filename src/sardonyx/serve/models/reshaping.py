"""Tensors whose sizes in requests and answers differ from those in the model, by ``reshape`` of a configuration."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sardonyx.errors import ModelFileError, RequestError
from sardonyx.serve.models.interface import Tensor
from sardonyx.serve.protocol.requests import Answer, InferRequest, Output


@dataclass(frozen=True)
class Reshaping:
    """Sizes of one tensor, outside of the model and in it; an open size, -1, is the same on both sides, in order.

    Attributes:
        outer: The sizes in requests and answers, without the axis of rows.
        inner: The sizes in the model, without the axis of rows.
        has_rows: True if both have an axis of rows before these sizes.

    Raises:
        ModelFileError: The numbers of elements differ.
    """

    outer: tuple[int, ...]
    inner: tuple[int, ...]
    has_rows: bool

    def __post_init__(self) -> None:
        if any(size < 1 and size != -1 for size in (*self.outer, *self.inner)):
            raise ModelFileError(f"expected sizes of at least 1, or -1, got {list(self.outer)} and {list(self.inner)}.")
        if _elements_between(self.outer) != _elements_between(self.inner):
            raise ModelFileError(
                f"the sizes {list(self.outer)} are to be reshaped to {list(self.inner)}, which have other elements."
            )

    def sizes(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Return sizes with the axis of rows, -1, where there is one."""
        return (*((-1,) if self.has_rows else ()), *sizes)

    def to_inner(self, array: np.ndarray, where: str) -> np.ndarray:
        """Return an input of a request as the model gets it.

        Raises:
            RequestError: The array has other sizes.
        """
        expected = self.sizes(self.outer)
        if not _fits(array.shape, expected):
            raise RequestError(f"expected the shape {list(expected)}, got {list(array.shape)}.", where=where)
        return array.reshape(_filled(array.shape, expected, self.sizes(self.inner)))

    def to_outer(self, array: np.ndarray, where: str) -> np.ndarray:
        """Return an output of the model as answers have it.

        Raises:
            RequestError: The output has other sizes than the configuration tells.
        """
        expected = self.sizes(self.inner)
        if not _fits(array.shape, expected):
            raise RequestError(
                f"the configuration expects the sizes {list(expected)}, the model returned {list(array.shape)}.",
                kind="no_result", where=where,
            )  # fmt: skip
        return array.reshape(_filled(array.shape, expected, self.sizes(self.outer)))

    def described(self, tensor: Tensor) -> Tensor:
        """Return a tensor of the model with the sizes of requests and answers."""
        return dataclasses.replace(tensor, shape=tuple(None if s < 0 else s for s in self.sizes(self.outer)))


def _elements_between(sizes: Sequence[int]) -> list[int]:
    """Return the number of elements before, between and after the open sizes."""
    groups = itertools.groupby(sizes, key=lambda size: size < 0)
    products: list[int] = [1]
    for is_open, group in groups:
        if is_open:
            products += [1] * len(list(group))
        else:
            products[-1] *= math.prod(group)
    return products


def _fits(shape: Sequence[int], expected: Sequence[int]) -> bool:
    return len(shape) == len(expected) and all(
        size in (-1, actual) for size, actual in zip(expected, shape, strict=True)
    )


def _filled(shape: Sequence[int], source: Sequence[int], target: Sequence[int]) -> list[int]:
    """Return the target sizes with the open ones of a shape of the source sizes."""
    open_sizes = iter([actual for size, actual in zip(source, shape, strict=True) if size < 0])
    return [next(open_sizes) if size < 0 else size for size in target]


def reshape_inputs(request: InferRequest, reshapings: Mapping[str, Reshaping]) -> None:
    """Replace the inputs of a request by those of the model; inputs without a reshaping stay as they are.

    Raises:
        RequestError: An input has other sizes than the configuration tells.
    """
    request.inputs = {
        name: reshapings[name].to_inner(array, name) if name in reshapings else array
        for name, array in request.inputs.items()
    }


def reshaped_answer(answer: Answer, reshapings: Mapping[str, Reshaping]) -> Answer:
    """Return an answer with the sizes that the configuration tells; the answer itself may be remembered.

    Raises:
        RequestError: An output has other sizes than the configuration tells.
    """
    outputs = [
        Output(output.name, reshapings[output.name].to_outer(output.array, output.name), output.requested)
        if output.name in reshapings
        else output
        for output in answer.outputs
    ]
    return Answer(answer.model, answer.version, answer.id, outputs, answer.revision)
