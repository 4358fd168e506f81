"""Evaluation of nodes on constant tensors, for constant folding and opset conversion."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.core.eval.run_context import RunContext, running
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import STRING, DType, TensorType, dtype_of
from sardonyx.errors import UnsupportedError
from sardonyx.ops.core_values import array_constant
from sardonyx.ops.graph import Frame, Preparer, call_step, node_label

MEMORY = 1 << 30
"""Most bytes alive at a time while constants are computed."""

SECONDS = 60.0
"""Most seconds that one group of constants may take."""


def evaluate_nodes(
    nodes: Sequence[ir.Node],
    outputs: Sequence[ir.Value],
    known: Callable[[ir.Value], np.ndarray | None],
    imports: Mapping[str, int],
    *,
    max_memory: int | None = MEMORY,
    timeout: float | None = SECONDS,
) -> dict[ir.Value, np.ndarray]:
    """Compute nodes on constant tensors and return the requested results.

    Args:
        nodes: The nodes, in topological order; bodies may not read values of an outer scope.
        outputs: Results to return.
        known: Returns the tensor of a value that no node here computes; None if the value is unknown.
        imports: Versions of operator sets by domain, ``ai.onnx`` as the empty string.
        max_memory: Most bytes of values alive at a time.
        timeout: Most seconds.

    Raises:
        UnsupportedError: An operator has no definition here, or a result is no tensor.
        ExecutionError: A node has no result for these values.
        ResourceError: A limit is exceeded.
    """
    preparer = Preparer({})
    steps = [preparer.step(node, imports) for node in nodes]
    if preparer.missing:
        raise UnsupportedError(
            f"operators without a definition: {', '.join(preparer.missing)}.", where=node_label(nodes[0])
        )
    frame = Frame(None)
    with running(RunContext(max_memory=max_memory, timeout=timeout)):
        for step in steps:
            for value in step.node.inputs:
                if value is not None and value not in frame.values:
                    frame.values[value] = _constant(value, known(value))
            call_step(step, frame)
        return {value: _tensor(frame.values[value]) for value in outputs}


def _constant(value: ir.Value, array: np.ndarray | None) -> Value:
    if array is None:
        raise UnsupportedError("the value is not known.", where=value.name or "")
    dtype = DType(value.dtype) if value.dtype is not None else STRING if array.dtype.kind in "OSU" else dtype_of(array)
    return array_constant(array, dtype, value.name or "")


def _tensor(value: Value | None) -> np.ndarray:
    if value is None:
        raise UnsupportedError("a requested optional result is missing.")
    if not isinstance(value.type, TensorType):
        raise UnsupportedError(f"a requested result is {value.type}, expected a tensor.")
    return np.asarray(value.known)
