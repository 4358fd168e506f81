"""Launches: a kernel's code and what it is called with; of a loop or a choice, the launches of its body."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sardonyx.compiler.analysis.shape_guards import Equal
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.schedule.groups import Group
from sardonyx.compiler.tiling.choice import Choice
from sardonyx.core.dim import Size, ceil_div
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function, Value

NAME = "KERNEL"
"""Stands for the name in the text of a kernel: equal texts are one kernel."""


Read = Callable[[Value], np.ndarray]
"""Gives the elements of a closed value."""


@dataclass(frozen=True)
class Prepared:
    """Something computed from constants when a program is made: a packed weight.

    Attributes:
        source: The constant.
        form: What is made of it, in words that tell it from other forms of the same constant.
        make: Makes it, of what closed values are read as.
    """

    source: Value
    form: str
    make: Callable[[Read], np.ndarray] = field(compare=False)


@dataclass(frozen=True)
class Scratch:
    """Memory that a kernel needs while it runs.

    Attributes:
        bytes: For each worker.
    """

    bytes: Size


@dataclass(frozen=True)
class Relaid:
    """An image that is written once more, in blocked layout or as another type.

    Attributes:
        source: The image.
        block: Channels of a block; 1 of an image that is written plane by plane.
        dtype: What it is written as.
    """

    source: Value
    block: int
    dtype: t.DType = t.FLOAT

    @property
    def bytes(self) -> Size:
        """How much it is."""
        batch, channels, *spatial = shape_of(self.source)
        return math.prod((self.dtype.bitwidth // 8, batch, ceil_div(channels, self.block) * self.block, *spatial))


@dataclass(frozen=True)
class Stage:
    """What one kernel leaves for the next.

    Attributes:
        source: What it is made of.
        bytes: How much it is.
    """

    source: Value
    bytes: Size


@dataclass(frozen=True)
class Count:
    """Where a kernel writes how many results there are, an i64.

    Attributes:
        source: What gives them.
    """

    source: Value

    @property
    def bytes(self) -> int:
        """How much it is."""
        return 8


FAULT = "fault"
Buffer = Value | Prepared | Scratch | Relaid | Stage | Count | str
"""What a kernel's argument points to: a value in memory, a prepared weight, scratch memory, a count, the fault flag."""


_WORTH_SHARING = 5120
"""Multiply-adds of vectors that take a thread somewhat longer than a fork and a join."""


@dataclass
class Launch:
    """A kernel and what it is called with.

    Attributes:
        text: The kernel's LLVM functions, named ``NAME``.
        declarations: What they call.
        buffers: Its buffer arguments, in order.
        sizes: Its size arguments, in order.
        items: How many work items it has.
        writes: The value that it writes, or a part of it.
        title: What it computes, for people.
        group: What it was made of.
        bodies: What control flow plays; the launch then has no code of its own.
        also: Other values that it writes.
        work: Multiply-adds of vectors that a work item takes as long as, about; 0 where that is not known.
        beside: How many launches are played at the same time, this one and those that follow it: loops.
        choice: The kernel's schedule and the rejected candidates; None where there is no choice, or from an image.
    """

    text: str
    declarations: tuple[str, ...]
    buffers: tuple[Buffer, ...]
    sizes: tuple[Size, ...]
    items: Size
    writes: Value
    title: str
    group: Group
    bodies: tuple[Body, ...] = ()
    also: tuple[Value, ...] = ()
    work: int = 0
    beside: int = 1
    choice: Choice[Any] | None = None

    @property
    def worth(self) -> int | None:
        """How many chunks there are that take as long as a fork and a join; None where sizes do not tell."""
        return self.items * self.work // _WORTH_SHARING if self.work and isinstance(self.items, int) else None

    @functools.cached_property
    def makes(self) -> tuple[Value, ...]:
        """The values that it writes, or parts of them."""
        if not self.bodies:
            return (self.writes, *self.also)
        operands = len(self.writes.operands)
        return tuple(buffer for buffer in self.buffers[operands:] if isinstance(buffer, Value))


@dataclass(frozen=True, eq=False)
class Body:
    """The body of a loop, or a branch of a choice.

    Attributes:
        function: What it computes.
        launches: Its kernels, in order.
        blocks: Channels in a block, of values that are images in blocked layout.
        equal: Sizes that must be equal where it runs.
    """

    function: Function
    launches: tuple[Launch, ...]
    blocks: Mapping[Value, int]
    equal: Sequence[Equal] = ()

    @property
    def makes(self) -> frozenset[Value]:
        """The values that its kernels write."""
        return frozenset(value for launch in self.launches for value in launch.makes)


def every(launches: Iterable[Launch]) -> Iterator[Launch]:
    """The launches, and those of their bodies."""
    for launch in launches:
        yield launch
        for body in launch.bodies:
            yield from every(body.launches)
