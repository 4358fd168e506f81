"""Graphs while random nodes are drawn for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_T = TypeVar("_T")
ML = "ai.onnx.ml"
"""The domain of trees."""

_DTYPES = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.int64): TensorProto.INT64,
    np.dtype(bool): TensorProto.BOOL,
    np.dtype(np.uint8): TensorProto.UINT8,
    np.dtype(np.int32): TensorProto.INT32,
}


@dataclass(frozen=True)
class Drawn:
    """A value of a drawn graph.

    Attributes:
        name: The name.
        shape: The sizes in the call that the case makes.
        fixed: By axis: True if the size is a number in the model, False for an open or counted size.
        dtype: The element type.
    """

    name: str
    shape: tuple[int, ...]
    fixed: tuple[bool, ...]
    dtype: type = np.float32

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def with_shape(self, name: str, shape: Sequence[int], fixed: Sequence[bool]) -> Drawn:
        """Return a value of the same element type."""
        return Drawn(name, tuple(shape), tuple(fixed), self.dtype)


@dataclass
class Case:
    """A model, one set of feeds, and the operators in order.

    Attributes:
        model: The model.
        feeds: The feeds.
        title: The operators, for messages.
    """

    model: onnx.ModelProto
    feeds: dict[str, np.ndarray]
    title: str


@dataclass
class Draft:
    """A graph while nodes are drawn.

    Attributes:
        rng: The source of all choices.
        sizes: How sizes of the input are declared: ``fixed``, ``open`` or ``counted``.
    """

    rng: np.random.Generator
    sizes: str
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    feeds: dict[str, np.ndarray] = field(default_factory=dict)
    outputs: list[Drawn] = field(default_factory=list)
    _count: int = 0

    def fresh(self) -> str:
        """Return an unused name."""
        self._count += 1
        return f"v{self._count}"

    def chance(self, probability: float) -> bool:
        """Return True with a probability."""
        return bool(self.rng.random() < probability)

    def pick(self, low: int, high: int) -> int:
        """Return an integer of [low, high]."""
        return int(self.rng.integers(low, high + 1))

    def choice(self, items: Sequence[_T]) -> _T:
        """Return one of some items."""
        return items[int(self.rng.integers(len(items)))]

    def constant(self, array: np.ndarray) -> str:
        """Add a constant."""
        name = self.fresh()
        self.initializers.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def weights(self, *shape: int) -> str:
        """Add weights: a constant, or an input in one case of five."""
        array = (self.rng.standard_normal(shape) * 0.5).astype(np.float32)
        if self.chance(0.8):
            return self.constant(array)
        return self.feed(array, (True,) * len(shape)).name

    def feed(self, array: np.ndarray, fixed: Sequence[bool]) -> Drawn:
        """Add an input of the model."""
        name = self.fresh()
        sizes = zip(array.shape, fixed, strict=True)
        declared = [size if known else f"{name}_{axis}" for axis, (size, known) in enumerate(sizes)]
        self.inputs.append(helper.make_tensor_value_info(name, _DTYPES[array.dtype], declared))
        self.feeds[name] = array
        return Drawn(name, array.shape, tuple(fixed), array.dtype.type)

    def node(
        self, op: str, inputs: Sequence[str], outputs: int = 1, domain: str = "", **attributes: object
    ) -> list[str]:
        """Add a node; return the names of its outputs."""
        names = [self.fresh() for _ in range(outputs)]
        self.nodes.append(
            helper.make_node(op, list(inputs), names, domain=domain, name=f"{op}_{names[0]}", **attributes)
        )
        return names

    def ints(self, *values: int) -> str:
        """Add a constant int64 vector."""
        return self.constant(np.array(values, np.int64))

    def reshaped(self, x: Drawn, shape: Sequence[int | None], fixed: Sequence[bool], open_axis: int = -1) -> Drawn:
        """Reshape a value; the axis ``open_axis`` is written as -1, and a None in ``shape`` has the rest."""
        total = math.prod(x.shape)
        known = math.prod(size for size in shape if size is not None)
        sizes = [total // known if size is None else size for size in shape]
        written = [-1 if size is None or axis == open_axis else size for axis, size in enumerate(shape)]
        (name,) = self.node("Reshape", [x.name, self.ints(*written)])
        return x.with_shape(name, sizes, fixed)

    def part_of_shape(self, x: Drawn, axes: Sequence[int]) -> list[str]:
        """Return vectors of one element each: sizes of a value, as constants where fixed."""
        parts = []
        for axis in axes:
            if x.fixed[axis]:
                parts.append(self.ints(x.shape[axis]))
            else:
                (shape,) = self.node("Shape", [x.name])
                parts += self.node("Gather", [shape, self.ints(axis)])
        return parts

    def case(self) -> Case:
        """Return the finished case."""
        outputs = [
            helper.make_tensor_value_info(value.name, _DTYPES[np.dtype(value.dtype)], [None] * value.rank)
            for value in self.outputs
        ]
        graph = helper.make_graph(self.nodes, "drawn", self.inputs, outputs, self.initializers)
        imports = [helper.make_opsetid("", 20), helper.make_opsetid(ML, 3), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=9)
        return Case(model, self.feeds, " > ".join(node.op_type for node in self.nodes))
