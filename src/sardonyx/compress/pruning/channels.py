"""Dependency graph of channels: the slices of all constants that belong to one channel of the model.

Channels are numbered over the whole model. A value has one axis of channels with the number of the channel of each
element; operators pass the numbers on, unite numbers (sums of branches), or fix channels (operators without a rule).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.analysis import facts

UNNUMBERED = -1
"""The number of an element that belongs to no channel; the element stays."""

Role = Literal["producer", "consumer", "parameter"]


@dataclass(frozen=True, eq=False)
class Cut:
    """An axis of a constant whose elements belong to channels.

    Attributes:
        node: The node that reads the constant.
        index: The index of the input.
        axis: The axis of the constant.
        ids: The channel of each element of the axis.
        role: ``"producer"`` for weights that compute the channels, ``"consumer"`` for weights that read the channels.
    """

    node: ir.Node
    index: int
    axis: int
    ids: np.ndarray
    role: Role


@dataclass(frozen=True, eq=False)
class Axis:
    """The axis of channels of a value: the index of the axis, and the channel of each element."""

    index: int
    ids: np.ndarray


@dataclass(frozen=True, eq=False)
class SizeEntry:
    """An element of a constant list of sizes that counts channels: of a Reshape, Expand or Split.

    Attributes:
        node: The node that reads the constant.
        index: The index of the input.
        position: The offset of the element in the constant.
        ids: The channels that the element counts.
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
        groups: Convolutions whose number of groups is the number of input channels, with these channels.
        sizes: The sizes in constants that count channels.
        heads: Channels that stay or go at once because a Reshape groups them: the heads of an attention.
        axes: The axis of channels by value.
        reasons: The reason why a channel stays, by channel.
    """

    cuts: list[Cut] = field(default_factory=list)
    groups: list[tuple[ir.Node, np.ndarray]] = field(default_factory=list)
    sizes: list[SizeEntry] = field(default_factory=list)
    heads: set[int] = field(default_factory=set)
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

    def head_roots(self) -> set[int]:
        """Return the representing channels of heads."""
        return {self.root(channel) for channel in self.heads}

    def fixed_roots(self) -> dict[int, str]:
        """Return the representing channels that stay, with a reason."""
        result: dict[int, str] = {}
        for channel, reason in self.reasons.items():
            result.setdefault(self.root(channel), reason)
        return result


def is_constant(node: ir.Node, index: int) -> bool:
    """Return True if the input is a constant with known elements."""
    return index < len(node.inputs) and facts.is_constant(node.inputs[index])
