"""Dependency graph of channels: the slices of all constants that belong to one channel of the model.

Channels are numbered over the whole model. A value has one axis of channels with the number of the channel of each
element; operators pass the numbers on, unite numbers (sums of branches), or fix channels (operators without a rule).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.analysis import facts

UNNUMBERED = -1
"""The number of an element that belongs to no channel; the element stays."""

Role = Literal["producer", "consumer", "parameter"]

RECURRENT = ("LSTM", "GRU", "RNN")


@dataclass(frozen=True, eq=False)
class Cut:
    """An axis of a constant whose elements belong to channels.

    Attributes:
        node: The node that reads the constant.
        index: The index of the input.
        axis: The axis of the constant.
        ids: The channel of each element of the axis, of all groups one after the other.
        role: ``"producer"`` for weights that compute the channels, ``"consumer"`` for weights that read the channels.
        groups: The number of equal parts of axis 0 that have an axis each: of a convolution in groups.
        transpose: The Transpose between the constant and the node; None if the node reads the constant.
    """

    node: ir.Node
    index: int
    axis: int
    ids: np.ndarray
    role: Role
    groups: int = 1
    transpose: ir.Node | None = None

    @property
    def slot(self) -> tuple[ir.Node, int]:
        """The node and the index of the input that is the constant."""
        return (self.node, self.index) if self.transpose is None else (self.transpose, 0)

    @property
    def constant(self) -> ir.Value:
        """The constant."""
        node, index = self.slot
        value = node.inputs[index]
        assert value is not None
        return value

    @property
    def is_weight(self) -> bool:
        """True for a weight that a layer multiplies by or looks up; False for biases, scales and other vectors."""
        of_layer = self.node.op_type in ("Conv", "ConvTranspose") and self.index == 1
        return self.role != "parameter" or of_layer or (self.node.op_type in RECURRENT and self.index == 2)

    def rows(self, array: np.ndarray) -> np.ndarray:
        """Return the elements of the constant by channel, of shape [ids, elements]."""
        if self.groups > 1:
            array = array.reshape(self.groups, -1, *array.shape[1:])
            return np.moveaxis(array, self.axis + 1, 1).reshape(len(self.ids), -1)
        return np.moveaxis(array, self.axis, 0).reshape(len(self.ids), -1)

    def mask(self, array: np.ndarray, stays: np.ndarray) -> np.ndarray:
        """Return True for the elements of the constant that stay, of a shape that broadcasts to that of the array."""
        shape = [1] * array.ndim
        if self.groups > 1:
            shape[0], shape[self.axis] = len(array), -1
            return np.repeat(stays.reshape(self.groups, -1), len(array) // self.groups, axis=0).reshape(shape)
        shape[self.axis] = len(stays)
        return stays.reshape(shape)

    def compress(self, array: np.ndarray, stays: np.ndarray) -> np.ndarray:
        """Return the constant without channels; every group loses as many."""
        if self.groups == 1:
            return np.compress(stays, array, self.axis)
        parts = zip(np.split(array, self.groups), np.split(stays, self.groups), strict=True)
        return np.concatenate([np.compress(stay, part, self.axis) for part, stay in parts])


@dataclass(frozen=True, eq=False)
class Axis:
    """The axis of channels of a value.

    Attributes:
        index: The index of the axis.
        ids: The channel of each element.
        is_repeated: True if every channel is repeated by an open number: of channels joined with the axes of an image.
    """

    index: int
    ids: np.ndarray
    is_repeated: bool = False

    def at(self, index: int) -> Axis:
        """Return the axis at another index."""
        return replace(self, index=index)

    def of_length(self, length: int) -> np.ndarray | None:
        """Return the channel of each element of an axis of a length; None if the axis has another one."""
        if self.is_repeated and self.ids.size and length % len(self.ids) == 0:
            return np.repeat(self.ids, length // len(self.ids))
        return self.ids if len(self.ids) == length and not self.is_repeated else None


@dataclass(frozen=True, eq=False)
class AttributeCount:
    """An attribute that counts channels: the groups of a convolution, the size of a recurrent state.

    Attributes:
        node: The node.
        name: The attribute.
        ids: The channels that the attribute counts.
    """

    node: ir.Node
    name: str
    ids: np.ndarray


@dataclass(frozen=True, eq=False)
class BalancedGroups:
    """Groups that lose as many channels each.

    Attributes:
        node: The node that divides the channels.
        ids: The channels, of shape [groups, channels].
    """

    node: ir.Node
    ids: np.ndarray


@dataclass(frozen=True, eq=False)
class SizeEntry:
    """An element of a constant list of sizes that grows with the number of channels: of a Reshape, Expand or Split.

    Attributes:
        node: The node that reads the constant.
        index: The index of the input.
        position: The offset of the element in the constant.
        ids: The channels that the element counts, once or several times.
    """

    node: ir.Node
    index: int
    position: int
    ids: np.ndarray


@dataclass(eq=False)
class ChannelGraph:
    """The channels of a model.

    Attributes:
        cuts: The slices of constants.
        counts: The attributes that count channels.
        sizes: The sizes in constants that count channels.
        counted: Channels that a bound counts from the end: 0 would count from the start.
        balanced: Groups that lose as many channels each.
        grouped: Channels that stay or go at once because a Reshape groups them.
        attended: Channels of products of queries, keys and values; grouped ones are the heads of an attention.
        axes: The axis of channels by value.
        reasons: The reason why a channel stays, by channel.
    """

    cuts: list[Cut] = field(default_factory=list)
    counts: list[AttributeCount] = field(default_factory=list)
    sizes: list[SizeEntry] = field(default_factory=list)
    counted: list[np.ndarray] = field(default_factory=list)
    balanced: list[BalancedGroups] = field(default_factory=list)
    grouped: set[int] = field(default_factory=set)
    attended: set[int] = field(default_factory=set)
    axes: dict[ir.Value, Axis] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    _parents: list[int] = field(default_factory=list)

    def new(self, count: int) -> np.ndarray:
        """Return the numbers of new channels, of shape [count]."""
        start = len(self._parents)
        self._parents.extend(range(start, start + count))
        return np.arange(start, start + count)

    def root(self, channel: int) -> int:
        """Return the channel that represents all channels united with `channel`."""
        while self._parents[channel] != channel:
            self._parents[channel] = self._parents[self._parents[channel]]
            channel = self._parents[channel]
        return channel

    def roots(self, ids: np.ndarray) -> np.ndarray:
        """Return the representing channel of each element; unnumbered elements stay unnumbered."""
        return np.array([i if i == UNNUMBERED else self.root(int(i)) for i in ids], np.int64)

    def unite(self, first: np.ndarray, second: np.ndarray, reason: str) -> None:
        """Let channels of two axes of equal length stay or go at once."""
        for a, b in zip(first.tolist(), second.tolist(), strict=True):
            if UNNUMBERED in (a, b):
                self.fix(np.array([a, b]), reason)
            else:
                self._parents[self.root(a)] = self.root(b)

    def fix(self, ids: np.ndarray, reason: str) -> None:
        """Let channels stay, for a reason."""
        for i in ids.tolist():
            if i != UNNUMBERED:
                self.reasons.setdefault(i, reason)

    def unite_rows(self, rows: np.ndarray, reason: str) -> np.ndarray:
        """Let the channels of each row stay or go at once; return one channel of each, of shape [rows]."""
        self.unite(np.repeat(rows[:, :1], rows.shape[1] - 1, axis=1).reshape(-1), rows[:, 1:].reshape(-1), reason)
        return np.ascontiguousarray(rows[:, 0])

    def group(self, rows: np.ndarray, reason: str) -> np.ndarray:
        """Unite the channels of each row to a group, a head if an attention reads it; return one channel of each."""
        result = self.unite_rows(rows, reason)
        # A group whose elements are one channel already, repeated by an earlier join, is no head.
        self.grouped |= {int(row[0]) for row in rows if len(np.unique(row)) > 1}
        return result

    def head_roots(self) -> set[int]:
        """Return the representing channels of heads."""
        return {self.root(channel) for channel in self.grouped} & {self.root(channel) for channel in self.attended}

    def balance(self, scores: Mapping[int, float]) -> None:
        """Unite the channels of balanced groups by their rank of importance, so that the groups stay equal.

        Args:
            scores: The importance of each representing channel; channels without one stay.
        """
        for groups in self.balanced:
            fixed, rows = self.fixed_roots(), []
            for group in groups.ids:
                roots = self.roots(group).tolist()
                ranks = [np.inf if r in fixed else scores.get(r, np.inf) for r in roots]
                rows.append(group[np.lexsort((roots, ranks))])
            self.unite_rows(np.stack(rows, axis=1), "grouped with channels that stay")

    def fixed_roots(self) -> dict[int, str]:
        """Return the representing channels that stay, with a reason."""
        result: dict[int, str] = {}
        for channel, reason in self.reasons.items():
            result.setdefault(self.root(channel), reason)
        return result


def is_constant(node: ir.Node, index: int) -> bool:
    """Return True if the input is a constant with known elements."""
    return index < len(node.inputs) and facts.is_constant(node.inputs[index])
