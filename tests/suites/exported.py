"""Node cases of the public suite, traced to Core and exported back to ONNX.

A case is traced on the types of its inputs; those whose values tracing needs (axes, shapes) are taken as constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from sardonyx.core.eval.host_function import unknown_size
from sardonyx.core.eval.run_context import tracing
from sardonyx.core.eval.tensor import known as known_value
from sardonyx.core.eval.trace import trace
from sardonyx.core.export.export import to_model
from sardonyx.core.ir.graph import Function, Value, sort_topologically
from sardonyx.core.ir.types import OptionalType, SequenceType, TensorType, Type
from sardonyx.errors import NeedsValueError
from sardonyx.model import load
from sardonyx.ops.core_values import declared_type
from sardonyx.ops.feeds import as_value
from sardonyx.ops.graph import prepare


def traced_case(model: onnx.ModelProto, inputs: Sequence[Any]) -> tuple[Function, list[int]]:
    """The graph of a model on the types of these inputs; returns the inputs that stay open, too."""
    loaded = load(model)
    graph = prepare(loaded)
    known = [
        known_input(x, refined(declared_type(v), x), v.name or "")
        for x, v in zip(inputs, loaded.graph.inputs, strict=True)
    ]
    fixed: set[int] = set()
    while True:
        open_ = [i for i in range(len(known)) if i not in fixed]

        def body(*open_values: Value, open_: list[int] = open_) -> Sequence[Value]:
            by_position = dict(zip(open_, open_values, strict=True))
            return graph.call([by_position.get(i, value) for i, value in enumerate(known)])

        try:
            with tracing():
                return trace("case", body, [known[i].type for i in open_]), open_
        except NeedsValueError as error:
            needed = _inputs_of(error.value, open_) or [i for i in open_ if _is_small(inputs[i])] or open_
            if not needed:
                raise
            fixed.update(needed)


def known_input(x: Any, type: Type | None, name: str) -> Value:
    value = as_value(x, type, name)
    return value if type is None or isinstance(type, TensorType) else known_value(value.known, type)


def refined(declared: Type | None, x: Any) -> Type | None:
    """The type of a sequence or an optional, with the ranks and sizes that its elements have."""
    match declared:
        case SequenceType(element) if x and isinstance(element, TensorType) and len({item.ndim for item in x}) == 1:
            sizes = [
                column[0] if len(set(column)) == 1 else unknown_size()
                for column in zip(*(i.shape for i in x), strict=True)
            ]
            return SequenceType(TensorType(element.dtype, tuple(sizes)))
        case OptionalType(element) if x is not None:
            shape = x.shape if isinstance(element, TensorType) else None
            inner = refined(element, x) if shape is None else TensorType(element.dtype, shape)
            return OptionalType(inner or element)
    return declared


def _inputs_of(value: object, open_: Sequence[int]) -> list[int]:
    if not isinstance(value, Value):
        return []
    return [open_[v.params["position"]] for v in sort_topologically([value]) if v.op == "input" and v.level == 0]


def _is_small(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype.kind in "iub" and x.size < 64


def run_exported(function: Function, feeds: Sequence[Any]) -> list[Any]:
    """What ``onnx.reference`` gives for the exported function."""
    model = ir.serde.serialize_model(to_model(function))
    onnx.checker.check_model(model)
    evaluator = ReferenceEvaluator(model)
    return list(evaluator.run(None, dict(zip((x.name for x in model.graph.input), feeds, strict=True))))
