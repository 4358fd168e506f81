"""Launches: kernels with their arguments, and control flow with the launches of its bodies."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from sardonyx.compiler.analysis.shape_guards import Equal
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.schedule.groups import Group
from sardonyx.compiler.tiling.choice import Choice
from sardonyx.core.dim import Size, ceil_div
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function, Value

if TYPE_CHECKING:
    from sardonyx.compiler.codegen.kernel_builder import Kernel
    from sardonyx.compiler.target.description import Target

NAME = "KERNEL"
"""Placeholder of the function name in the text of a kernel: kernels with equal text are one kernel."""


Read = Callable[[Value], np.ndarray]
"""Returns the elements of a closed value."""


class PackingKernel(Protocol):
    """A kernel that computes prepared data from the elements of a float32 constant; equal kernels are one."""

    def __hash__(self) -> int:
        """Return a number that equal kernels share."""

    def shape(self, target: Target) -> tuple[int, ...]:
        """Return the shape of the data, float32; zeros where the kernel does not write."""

    def items(self, target: Target) -> int:
        """Return the number of work items."""

    def emit(self, kernel: Kernel, target: Target) -> None:
        """Write the kernel, with buffers for the data, the elements and an int32 flag of denormal data."""


@dataclass(frozen=True)
class Prepared:
    """Data computed from constants when a program is built, e.g. a packed weight.

    Attributes:
        source: The constant.
        form: Description of the data, different for each form of the same constant.
        make: Computes the data; receives a function that reads closed values. Other kernels may share it for other
            weights (:mod:`.shared_kernels`): elements are read by this function alone.
        moves: True if the data are elements of the source and zeros, at places that do not depend on elements.
        kernel: A kernel that computes the data, with the same bits, from the elements of the source in float32.
    """

    source: Value
    form: str
    make: Callable[[Read], np.ndarray] = field(compare=False)
    moves: bool = field(default=False, compare=False)
    kernel: PackingKernel | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Scratch:
    """Scratch memory of a kernel.

    Attributes:
        bytes: Size for one worker.
    """

    bytes: Size


@dataclass(frozen=True)
class Relaid:
    """A copy of an image in another layout or element type.

    Attributes:
        source: The image.
        block: Channels of a block; 1 for a copy in NCHW.
        dtype: Element type of the copy.
    """

    source: Value
    block: int
    dtype: t.DType = t.FLOAT

    @property
    def bytes(self) -> Size:
        """Size of the copy."""
        batch, channels, *spatial = shape_of(self.source)
        return math.prod((self.dtype.bitwidth // 8, batch, ceil_div(channels, self.block) * self.block, *spatial))


@dataclass(frozen=True)
class Stage:
    """Intermediate data that one kernel of a group leaves for the next.

    Attributes:
        source: The operand or result of the group to which the data belongs.
        bytes: Size of the data.
    """

    source: Value
    bytes: Size


@dataclass(frozen=True)
class Count:
    """The number of results of a host function, written by the kernel as an i64.

    Attributes:
        source: The ``host``.
    """

    source: Value

    @property
    def bytes(self) -> int:
        """Size of the number."""
        return 8


FAULT = "fault"
Buffer = Value | Prepared | Scratch | Relaid | Stage | Count | str
"""Memory that an argument of a kernel points to; a string is the name of the fault flag."""


Choices = tuple["Choice[Any] | None", "Choice[Any] | None"]
"""The choice of a kernel's schedule, and that of fusion to leave work out of the kernel."""


_FORK_JOIN_WORK = 5120
"""Vector FMAs that take one thread slightly longer than a fork and a join."""


@dataclass
class Launch:
    """A kernel with its arguments, or control flow with its bodies.

    Attributes:
        text: LLVM functions of the kernel, named ``NAME``; empty for control flow.
        declarations: Declarations of external functions called by the text.
        buffers: Buffer arguments, in order.
        sizes: Size arguments, in order.
        items: Number of work items.
        writes: The written value; the launch may write only a part.
        title: Short description of the computation, for reports.
        group: The lowered group.
        bodies: Bodies of a loop, or branches of a choice; such a launch has no code of its own.
        other_writes: Further written values.
        work: Estimated cost of one work item in vector FMAs; 0 if unknown.
        concurrent_loops: Number of loops that run concurrently, counting this launch and the launches that follow.
        choices: Returns the choices behind the kernel, for explanations.
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
    other_writes: tuple[Value, ...] = ()
    work: int = 0
    concurrent_loops: int = 1
    choices: Callable[[], Choices] = field(default=lambda: (None, None), compare=False)

    @property
    def choice(self) -> Choice[Any] | None:
        """The kernel's schedule and the rejected candidates; None without a choice, or in a restored program."""
        return self.choices()[0]

    @property
    def fusion_choice(self) -> Choice[Any] | None:
        """The choice of fusion to leave work out of the kernel, e.g. the gates of a product; None without."""
        return self.choices()[1]

    @property
    def useful_chunks(self) -> int | None:
        """Number of chunks that are as expensive as a fork and a join; None if sizes or costs are unknown."""
        return self.items * self.work // _FORK_JOIN_WORK if self.work and isinstance(self.items, int) else None

    @functools.cached_property
    def all_writes(self) -> tuple[Value, ...]:
        """The values that the launch writes, in whole or in part."""
        if not self.bodies:
            return (self.writes, *self.other_writes)
        operands = len(self.writes.operands)
        return tuple(buffer for buffer in self.buffers[operands:] if isinstance(buffer, Value))


@dataclass(frozen=True, eq=False)
class Body:
    """The body of a loop, or a branch of a choice.

    Attributes:
        function: The Core function.
        launches: The launches, in order.
        blocks: Channels of a block, for each image in blocked layout.
        equal: Sizes that must be equal when the body runs.
        fault_guards: The pairs of ``equal`` that lowering adds, see :class:`.Lowering`.
    """

    function: Function
    launches: tuple[Launch, ...]
    blocks: Mapping[Value, int]
    equal: Sequence[Equal] = ()
    fault_guards: Sequence[Equal] = ()

    @property
    def all_writes(self) -> frozenset[Value]:
        """The values that the launches write."""
        return frozenset(value for launch in self.launches for value in launch.all_writes)


def all_launches(launches: Iterable[Launch]) -> Iterator[Launch]:
    """Yield the launches and, recursively, the launches of their bodies."""
    for launch in launches:
        yield launch
        for body in launch.bodies:
            yield from all_launches(body.launches)
