"""The converted model as a float32 model with the same roundings.

Without 16-bit kernels, running a converted model says little about accuracy: ONNX Runtime computes in float32 and drops
the Casts between neighbours, so values are hardly ever rounded and never overflow. Here every 16-bit value passes
through a Cast to 16 bits and a Cast back, which no engine may drop. Operators compute in float32 and round their
results, like 16-bit hardware with float32 accumulation.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.compress.float16.casts import Applier
from sardonyx.compress.float16.plan import Use


class Rounder(Applier):
    """Rewriter that preserves all types, and rounds the plan's 16-bit values."""

    def _assign_type(self, value: ir.Value, low: bool, uses: list[Use], graph: ir.Graph) -> None:
        source = self._plan.sources.get(value)
        producer = value.producer()
        if low and value.const_value is not None and value.is_initializer():
            self._set_low(value, value.name)
        elif low and producer is not None and source is not None and source.movement and producer.op_type != "Cast":
            return
        else:
            returned = value.is_graph_input() and graph is self._typed.model.graph
            read = [use for use in uses if (low or use.cell.low) and not (returned and use.reader is graph)]
            self._cast(value, low, read, graph)

    def _bridge(self, value: ir.Value, low: bool, *, named: bool = False) -> list[ir.Node]:
        down = self._cast_node(value, self._dtype(True), self._suffixes[True])
        up = self._cast_node(down.outputs[0], self._dtype(False), self._suffixes[False])
        if named:
            name, value.name = value.name, self._names.fresh(f"{value.name}_exact")
            up.outputs[0].name = name
        return [down, up]

    def _convert(
        self, tensor: ir.TensorProtocol, reported_as: str | None, name: str | None = None
    ) -> ir.TensorProtocol:
        def contents() -> ir.TensorProtocol:
            return ir.Tensor(self._clamp.apply(tensor.numpy()).astype(np.float32), name=name or tensor.name)

        shape = tensor.shape if isinstance(tensor.shape, ir.Shape) else ir.Shape(tensor.shape.numpy())
        return ir.LazyTensor(contents, ir.DataType.FLOAT, shape, name=name or tensor.name)

    def _retype(self, value: ir.Value) -> None:
        """Do nothing: types are preserved."""

    def _write_type_attribute(self, node: ir.Node) -> None:
        """Do nothing: types are preserved."""

    def _remove_redundant_casts(self, graph: ir.Graph) -> None:
        """Do nothing: without changed types no Cast becomes redundant."""
