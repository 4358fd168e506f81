"""Sizes as shape arithmetic: one-element int64 tensors computed from the shapes of available tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.core.dim import Dim, Size
from sardonyx.core.dim.polynomial import Atom
from sardonyx.errors import ShapeError
from sardonyx.rewrite.analysis.names import Names, node_names, value_names

OPERATORS = {"//": "Div", "min": "Min", "max": "Max"}
"""Operation of a Dim → operator that computes the operation on (never negative) sizes."""


class Arithmetic:
    """Builder of shape arithmetic in the main graph, inserted before the current anchor node.

    Args:
        model: The model to change.
    """

    def __init__(self, model: ir.Model) -> None:
        self._graph = model.graph
        self._values = Names(value_names(model))
        self._nodes = Names(node_names(model))
        self._known: dict[Size, tuple[ir.Value, int]] = {}
        self._written: dict[Size, ir.Value] = {}
        self.nodes: list[ir.Node] = []
        self.anchor: ir.Node | None = None

    def register(self, value: ir.Value, dims: Sequence[Size] | None) -> None:
        """Make the sizes of ``value`` available from the anchor on."""
        for axis, dim in enumerate(dims or ()):
            if not isinstance(dim, int):
                self._known.setdefault(dim, (value, axis))

    def forget(self) -> None:
        """Clear all sizes, whose names get other meanings."""
        self._known.clear()
        self._written.clear()

    def vector(self, sizes: Sequence[Size]) -> ir.Value:
        """Return a vector of sizes, a constant if all are numbers.

        Raises:
            ShapeError: a size cannot be computed from the registered shapes.
        """
        if all(isinstance(size, int) for size in sizes):
            return self.constant(np.array(sizes, np.int64))
        return self.node("Concat", [self.scalar(size) for size in sizes], shape=[len(sizes)], axis=0)

    def scalar(self, size: Size) -> ir.Value:
        """Return a vector of one size; see ``vector``."""
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
            raise ShapeError(f"cannot compute the size {atom.text} from the tensors before this node")
        operands = [self.scalar(arg) for arg in atom.args]
        result = operands[0]
        for operand in operands[1:]:
            result = self.node(OPERATORS[atom.kind], [result, operand], shape=[1])
        return result

    def constant(self, array: np.ndarray) -> ir.Value:
        """Add an initializer."""
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
        """Insert a node before the anchor and return its output."""
        assert self.anchor is not None
        output = ir.Value(
            name=self._values.fresh(f"size_{op_type}"),
            type=kind or ir.TensorType(ir.DataType.INT64),
            shape=None if shape is None else ir.Shape(list(shape)),
        )
        node = ir.Node(
            "",
            op_type,
            inputs,
            [ir.AttrInt64(name, number) for name, number in attributes.items()],
            outputs=[output],
            name=self._nodes.fresh(f"size_{op_type}"),
        )
        self._graph.insert_before(self.anchor, node)
        self.nodes.append(node)
        return output
