"""Writes sizes as shape arithmetic: one-element tensors of 64-bit integers, computed from the shapes at hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.core.dim import Dim, Size
from sardonyx.core.dim.polynomial import Atom
from sardonyx.errors import ShapeError
from sardonyx.rewrite.names import Names, node_names, value_names

OPERATORS = {"//": "Div", "min": "Min", "max": "Max"}
"""Operation of a Dim → the operator that computes it on sizes, which are never negative."""


class Arithmetic:
    """Builds shape arithmetic in the main graph, always in front of the node that is being looked at.

    Args:
        model: The model that is changed.
    """

    def __init__(self, model: ir.Model) -> None:
        self._graph = model.graph
        self._values = Names(value_names(model))
        self._nodes = Names(node_names(model))
        self._known: dict[Size, tuple[ir.Value, int]] = {}
        self._written: dict[Size, ir.Value] = {}
        self.made: list[ir.Node] = []
        self.place: ir.Node | None = None

    def know(self, value: ir.Value, dims: Sequence[Size] | None) -> None:
        """From here on, the sizes of ``value`` can be asked for."""
        for axis, dim in enumerate(dims or ()):
            if not isinstance(dim, int):
                self._known.setdefault(dim, (value, axis))

    def forget(self) -> None:
        """Names of sizes mean other sizes from here on."""
        self._known.clear()
        self._written.clear()

    def vector(self, sizes: Sequence[Size]) -> ir.Value:
        """A vector of sizes: a constant where all are numbers.

        Raises:
            ShapeError: a size cannot be computed from shapes that are known here.
        """
        if all(isinstance(size, int) for size in sizes):
            return self.constant(np.array(sizes, np.int64))
        return self.node("Concat", [self.scalar(size) for size in sizes], shape=[len(sizes)], axis=0)

    def scalar(self, size: Size) -> ir.Value:
        """A vector of one size; see ``vector``."""
        if isinstance(size, int):
            return self.constant(np.array([size], np.int64))
        if size not in self._written:
            self._written[size] = self._measured(size) if size in self._known else self._sum(size)
        return self._written[size]

    def _measured(self, size: Size) -> ir.Value:
        value, axis = self._known[size]
        whole = self.node("Shape", [value], shape=[None])
        return self.node("Gather", [whole, self.constant(np.array([axis], np.int64))], shape=[1], axis=0)

    def _sum(self, size: Dim) -> ir.Value:
        total: ir.Value | None = None
        for _, atoms, factor in size.terms:
            parts = [self._atom(atom) for atom in atoms]
            if factor != 1 or not parts:
                parts.append(self.scalar(factor))
            term = parts[0]
            for part in parts[1:]:
                term = self.node("Mul", [term, part], shape=[1])
            total = term if total is None else self.node("Add", [total, term], shape=[1])
        assert total is not None
        return total

    def _atom(self, atom: Atom) -> ir.Value:
        size = Dim.parse(atom.text)
        if size in self._known:
            return self.scalar(size)
        if atom.kind not in OPERATORS:
            raise ShapeError(f"no tensor at hand has the size {atom.text}")
        operands = [self.scalar(arg) for arg in atom.args]
        result = operands[0]
        for operand in operands[1:]:
            result = self.node(OPERATORS[atom.kind], [result, operand], shape=[1])
        return result

    def constant(self, array: np.ndarray) -> ir.Value:
        """A new initializer."""
        name = self._values.fresh("size")
        value = ir.Value(
            name=name,
            type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
            shape=ir.Shape(array.shape),
            const_value=ir.Tensor(array, name=name),
        )
        self._graph.register_initializer(value)
        return value

    def node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        *,
        shape: Sequence[int | None] | None,
        kind: ir.TypeProtocol | None = None,
        **attributes: int,
    ) -> ir.Value:
        """A new node in front of the place; its output."""
        assert self.place is not None
        output = ir.Value(
            name=self._values.fresh(f"size_{op_type}"),
            type=kind or ir.TensorType(ir.DataType.INT64),
            shape=None if shape is None else ir.Shape(list(shape)),
        )
        made = ir.Node(
            "",
            op_type,
            inputs,
            [ir.AttrInt64(name, number) for name, number in attributes.items()],
            outputs=[output],
            name=self._nodes.fresh(f"size_{op_type}"),
        )
        self._graph.insert_before(self.place, made)
        self.made.append(made)
        return output
