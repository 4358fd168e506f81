"""Weight swaps: a compiled model over other weights, without rewriting, tracing or comparison of functions.

The first update of weights is traced (:meth:`.NativeModel.reweighted`). If every constant that it changed is a view of
a weight, and the program computes nothing else from the elements of these weights, later updates prepare the constants
of the new weights alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from sardonyx.compiler.plan.packing import in_memory_order
from sardonyx.rewrite.weight_digest import Contents

if TYPE_CHECKING:
    from sardonyx.compiler.plan.weight_plan import WeightPlan
    from sardonyx.compiler.program import Program
    from sardonyx.core.ir.graph import Function
    from sardonyx.runtime.compiled.frontend import Source
    from sardonyx.runtime.editing.fingerprint import Structure
    from sardonyx.runtime.providers.protocol import OptimizationLevel


class WeightSwap:
    """The current weights of a compiled model, and the way to replace them.

    Args:
        source: The rewritten model.
        plan: The constants of the program as views of tensors.
        tensors: The tensors of the rewritten model, as the program reads them.
        orders: The order of axes in memory, of each tensor: rules leave transposed views of weights.
        free: Indices of the tensors that may change.
    """

    def __init__(
        self,
        source: Source,
        plan: WeightPlan,
        tensors: Sequence[ir.TensorProtocol],
        orders: Sequence[tuple[int, ...]],
        free: Collection[int],
    ) -> None:
        self._source, self._plan, self._tensors, self._orders, self._free = source, plan, tensors, orders, free

    @classmethod
    def of(
        cls,
        source: Source,
        before: Program,
        after: Program,
        model: ir.Model,
        tensors: Sequence[ir.TensorProtocol],
        traced: Function,
    ) -> WeightSwap | None:
        """Return the swap of a program that was traced over other weights; None if it must be traced each time.

        Args:
            source: The rewritten model.
            before: The program whose code ``after`` reuses.
            after: The program over the weights of ``model``.
            model: The model.
            tensors: The tensors of the rewritten model that were traced.
            traced: The function of the rewritten model.
        """
        ordered = [in_memory_order(tensor.numpy()) for tensor in tensors]
        arrays, orders = [array for array, _ in ordered], [order for _, order in ordered]
        plan = after.weight_plan(before, arrays)
        if plan is None:
            return None
        # Tensors that no kernel reads, as statistics in training mode, are free too.
        floats = {i for i, tensor in enumerate(tensors) if tensor.dtype.is_floating_point() and tensor.size > 1}
        for candidates in (floats | plan.weights, plan.weights, plan.changed):
            read = source.read(model, candidates, traced)
            if read is not None:
                return cls(source, plan, tensors, orders, frozenset(candidates) - (read - plan.weights))
        return None

    def over(
        self, program: Program, model: Structure, optimization: OptimizationLevel
    ) -> tuple[Program, WeightSwap] | None:
        """Return the program over the weights of a model, and its swap; None if the model must be traced."""
        tensors = self._source.tensors(model, optimization)
        if tensors is None:
            return None
        contents, arrays = Contents(), dict[int, np.ndarray]()
        for index, (was, now) in enumerate(zip(self._tensors, tensors, strict=True)):
            if now is was:
                continue
            if now.dtype != was.dtype or now.shape != was.shape:
                return None
            if index in self._free:
                arrays[index] = np.ascontiguousarray(now.numpy().transpose(self._orders[index]))
            elif not contents.equal(was, now):
                return None
        swapped = program.with_weights(self._plan, arrays)
        if swapped is None:
            return None
        return swapped, WeightSwap(self._source, self._plan, tensors, self._orders, self._free)
