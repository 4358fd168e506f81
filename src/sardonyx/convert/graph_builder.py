"""A graph under construction: nodes with unique names, and constants of which equal ones are stored once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir import convenience as ir_convenience

from sardonyx.model.tensors import tensor_from

_SMALL = 64
"""Number of elements up to which equal constants are stored once."""


class Names:
    """Unique names of values and nodes in one model."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def fresh(self, base: str) -> str:
        """Return `base`, with a number if it is in use."""
        base = base or "value"
        count = self._counts.get(base, 0)
        self._counts[base] = count + 1
        return base if count == 0 else self.fresh(f"{base}_{count}")


class GraphBuilder:
    """Nodes and constants of one graph.

    Args:
        names: Names in use in the whole model.

    Attributes:
        names: Names in use.
        nodes: Nodes in order.
        initializers: Constants, by name.
    """

    def __init__(self, names: Names) -> None:
        self.names = names
        self.nodes: list[ir.Node] = []
        self.initializers: dict[str, ir.Value] = {}
        self._constants: dict[tuple[str, bytes, tuple[int, ...]], ir.Value] = {}
        self._annotated = 0

    def node(self, operator: str, *inputs: ir.Value | None, domain: str = "", **attributes: Any) -> ir.Value:
        """Add a node with one output, and return the output; attributes that are None are left out."""
        return self.nodes_of(operator, 1, *inputs, domain=domain, **attributes)[0]

    def nodes_of(
        self, operator: str, count: int, *inputs: ir.Value | None, domain: str = "", **attributes: Any
    ) -> list[ir.Value]:
        """Add a node with `count` outputs, and return these."""
        present = list(inputs)
        while present and present[-1] is None:
            present.pop()
        items = [ir_convenience.convert_attribute(key, value) for key, value in attributes.items() if value is not None]
        node = ir.Node(domain, operator, present, items, num_outputs=count)
        node.name = self.names.fresh(operator)
        for output in node.outputs:
            output.name = self.names.fresh(f"{node.name}_output")
        self.nodes.append(node)
        return list(node.outputs)

    def annotate(self, infer: Callable[[ir.Node], None]) -> None:
        """Call a function that infers types and shapes for each node that was added since the last call."""
        for node in self.nodes[self._annotated :]:
            infer(node)
        self._annotated = len(self.nodes)

    def constant(self, array: Any, dtype: Any = None, name: str = "") -> ir.Value:
        """Return an initializer; equal small ones without a name of their own are stored once.

        Args:
            array: The elements; texts as an array of objects.
            dtype: Element type of numpy, that of the array by default.
            name: Name of the initializer.
        """
        array = np.asarray(array, dtype)
        is_text = array.dtype.kind in "OUS"
        if is_text or name or array.size > _SMALL:
            return self.initializer(tensor_from(array), name or "constant")
        key = (array.dtype.name, array.tobytes(), array.shape)
        if key not in self._constants:
            self._constants[key] = self.initializer(ir.tensor(array), "constant")
        return self._constants[key]

    def initializer(self, tensor: ir.TensorProtocol, name: str) -> ir.Value:
        """Return an initializer that holds a tensor, named by `name`."""
        value = ir.Value(
            name=self.names.fresh(name),
            shape=ir.Shape(tensor.shape.numpy()),
            type=ir.TensorType(tensor.dtype),
            const_value=tensor,
        )
        tensor.name = value.name
        assert value.name is not None
        self.initializers[value.name] = value
        return value

    def graph(self, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value], name: str) -> ir.Graph:
        """Return the nodes and constants as a graph."""
        constants = list(self.initializers.values())
        return ir.Graph(inputs, outputs, nodes=self.nodes, initializers=constants, name=self.names.fresh(name))
