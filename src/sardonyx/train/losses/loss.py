"""The protocol of losses, and sums over samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from sardonyx.base.option_checks import option, require_options
from sardonyx.core import language as L
from sardonyx.core.dim import Dim, Size
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import fresh_symbol
from sardonyx.core.ir.types import TensorType
from sardonyx.core.language import Tensor
from sardonyx.errors import OptionError, UnsupportedError

LABELS = "labels"
"""The default name of labels, which are always read from the batch."""

Outputs = Mapping[str, Tensor]
OutputTypes = Mapping[str, TensorType]


class Terms(NamedTuple):
    """A loss as a quotient, so that micro-batches of different weight accumulate to the loss of the whole batch.

    Attributes:
        total: The weighted sum over samples or elements, a scalar.
        weight: The sum of the weights, a scalar without gradient.
    """

    total: Tensor
    weight: Tensor


@dataclass(frozen=True)
class Loss(ABC):
    """Base class of losses.

    Attributes:
        output: The output of the model that the loss reads; the first floating-point output by default.
        label: The name of the labels in a batch. If it is not the default, and an output of the model has the name,
            the loss reads that output, and gradients reach the weights through both outputs.
        undone: The operator whose input is read if the output is its result; the loss computes the function itself.
        label_remedy: Instruction for labels of another type or shape.
    """

    output: str | None = option(None, kind=str)
    label: str = LABELS
    undone: ClassVar[str] = ""
    label_remedy: ClassVar[str] = "Give labels of the type and shape of the output."

    def __post_init__(self) -> None:
        require_options(self)

    @abstractmethod
    def labels(self, outputs: OutputTypes) -> dict[str, TensorType]:
        """Return the types of the labels by name.

        Args:
            outputs: Types of the model's outputs.

        Raises:
            OptionError: The model has no such output, or an output of an unsuitable type.
        """

    @abstractmethod
    def terms(self, outputs: Outputs, labels: Outputs) -> Terms:
        """Return the loss of a batch, traced over Core."""

    def check(self, labels: Mapping[str, np.ndarray], outputs: OutputTypes) -> None:  # noqa: B027 - any label by default
        """Check the values of labels.

        Raises:
            FeedError: A label is out of range.
        """

    def classes(self, outputs: OutputTypes) -> int | None:
        """Return the number of classes whose indices are labels; None if open, or if labels are no indices."""
        return None

    def reads(self, outputs: OutputTypes) -> tuple[str, ...]:
        """Return the names of the outputs that the loss reads."""
        return (self.output_name(outputs),)

    def output_name(self, outputs: Mapping[str, Any]) -> str:
        """Return the name of the output that the loss reads.

        Raises:
            OptionError: The model has no such output, or no floating-point output.
        """
        return choose_output(self.output, outputs)


def choose_output(name: str | None, outputs: Mapping[str, Any]) -> str:
    """Return the name of an output: the requested one, or the first of floating-point type.

    Raises:
        OptionError: The model has no such output, or no floating-point output.
    """
    if name is not None:
        if name not in outputs:
            raise OptionError(
                f"expected an output of the model, got {name!r}.",
                where="loss",
                remedy=f"The outputs are {', '.join(outputs)}.",
            )
        return name
    for candidate, type in outputs.items():
        if isinstance(type, TensorType) and t.kind(type.dtype) == "float":
            return candidate
    raise OptionError("expected a model with a floating-point output.", where="loss")


def label_shape(shape: tuple[Size, ...]) -> tuple[Size, ...]:
    """Return the sizes of labels that equal the sizes of an output; computed sizes become symbols of their own."""
    return tuple(
        Dim.symbol(fresh_symbol())
        if isinstance(size, Dim) and (size.atom is None or size.atom.kind != "symbol")
        else size
        for size in shape
    )


def shape_of(type: TensorType) -> tuple[Size, ...]:
    """Return the sizes of an output.

    Raises:
        UnsupportedError: The rank is a value of a run.
    """
    if type.shape is None:
        raise UnsupportedError(
            "the rank of the output that the loss reads is known at run time alone.", where="loss",
            remedy="Name an output of known rank (`output=`), or reshape the result in the model.",
        )  # fmt: skip
    return type.shape


def mean_over(values: Tensor, weights: Tensor | None = None) -> Terms:
    """Return the mean of values as a quotient, each value with its weight."""
    if weights is None:
        count = L.cast(L.size_tensor([L.product(values.shape)], ()), values.dtype)
        return Terms(L.reduce_sum(values), count)
    return Terms(L.reduce_sum(values * weights), L.stop_gradient(L.reduce_sum(weights)))
