"""Helpers shared by the operator tests: run an operator eagerly, traced at open sizes, and in other engines.

An attribute whose name collides with a parameter here is passed with an underscore after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

from sardonyx.core.dim import as_dim
from sardonyx.core.eval.interpreter import evaluate
from sardonyx.core.eval.run_context import RunContext, running
from sardonyx.core.eval.tensor import constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function, Value
from sardonyx.ops.registry import find
from sardonyx.runtime import Session


def release(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version, which determine the feature set."""
    return tuple(int(part) for part in version.split(".")[:2])


def eager(
    name: str,
    arrays: Sequence[np.ndarray | None],
    *,
    opset: int = 28,
    outputs: int = 1,
    domain: str = "",
    **attributes: Any,
) -> list[np.ndarray]:
    """Return the results of an operator, computed eagerly."""
    with running(RunContext()):
        values = [None if array is None else constant(array) for array in arrays]
        return [v.known for v in _apply(name, values, opset, outputs, domain, attributes) if v is not None]


def traced(
    name: str,
    arrays: Sequence[np.ndarray | None],
    shapes: Sequence[str | None],
    *,
    opset: int = 28,
    outputs: int = 1,
    domain: str = "",
    **attributes: Any,
) -> list[np.ndarray]:
    """Return the results of an operator traced at open sizes, then evaluated; see :func:`traced_function`."""
    function = traced_function(name, arrays, shapes, opset=opset, outputs=outputs, domain=domain, **attributes)
    open_ = [array for array, shape in zip(arrays, shapes, strict=True) if array is not None and shape is not None]
    with running(RunContext()):
        return [v.known for v in evaluate(function, [constant(array) for array in open_])]


def traced_function(
    name: str,
    arrays: Sequence[np.ndarray | None],
    shapes: Sequence[str | None],
    *,
    opset: int = 28,
    outputs: int = 1,
    domain: str = "",
    **attributes: Any,
) -> Function:
    """Trace an operator at open sizes.

    Args:
        name: The operator.
        arrays: The inputs.
        shapes: Sizes of each input, ``"N 4 2*M"``; None for an input whose value is known while tracing.
        opset: The version of the domain.
        outputs: Number of requested results.
        domain: The domain.
        **attributes: The attributes.
    """
    open_ = [array for array, shape in zip(arrays, shapes, strict=True) if array is not None and shape is not None]
    texts = [shape for array, shape in zip(arrays, shapes, strict=True) if array is not None and shape is not None]
    types = [
        t.TensorType(t.dtype_of(array), tuple(int(s) if s.isdigit() else as_dim(s) for s in text.split()))
        for array, text in zip(open_, texts, strict=True)
    ]

    def body(*inputs: Value) -> list[Value]:
        rest = iter(inputs)
        values = [
            None if array is None else constant(array) if shape is None else next(rest)
            for array, shape in zip(arrays, shapes, strict=True)
        ]
        return [v for v in _apply(name, values, opset, outputs, domain, attributes) if v is not None]

    return trace(name, body, types)


def assert_computes(
    name: str,
    arrays: Sequence[np.ndarray | None],
    shapes: Sequence[str | None],
    *expected: np.ndarray,
    rtol: float = 0.0,
    **options: Any,
) -> None:
    """Assert that an operator gives these results, eagerly and traced at open sizes."""
    options["outputs"] = len(expected)
    assert_equal(eager(name, arrays, **options), expected, rtol=rtol)
    assert_equal(traced(name, arrays, shapes, **options), expected, rtol=rtol)


def _apply(
    name: str, values: Sequence[Value | None], opset: int, outputs: int, domain: str, attributes: Mapping[str, Any]
) -> tuple[Value | None, ...]:
    operator = find(domain, name, opset)
    assert operator is not None, name
    plain = {key.removesuffix("_"): value for key, value in attributes.items()}
    return operator(values, plain, opset=opset, outputs=outputs, identity="node")[:outputs]


def model_of(
    name: str, arrays: Sequence[np.ndarray | None], *, opset: int, outputs: int, domain: str = "", **attributes: Any
) -> onnx.ModelProto:
    """Return a model of one node with inputs ``i0``, ``i1`` … and outputs ``o0`` … of open sizes."""
    names = ["" if array is None else f"i{i}" for i, array in enumerate(arrays)]
    node = helper.make_node(name, names, [f"o{i}" for i in range(outputs)], domain=domain)
    node.attribute.extend(helper.make_attribute(key.removesuffix("_"), value) for key, value in attributes.items())
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), [None] * a.ndim)
        for n, a in zip(names, arrays, strict=True)
        if a is not None
    ]
    infos = [onnx.ValueInfoProto(name=f"o{i}") for i in range(outputs)]
    graph = helper.make_graph([node], "one", inputs, infos)
    imports = [helper.make_opsetid(domain, opset)] + ([helper.make_opsetid("", 23)] if domain else [])
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def by_session(model: onnx.ModelProto, arrays: Sequence[np.ndarray | None]) -> list[Any]:
    """Return the outputs of a model of one node, computed by the reference session."""
    return Session(model).run(None, {f"i{i}": a for i, a in enumerate(arrays) if a is not None})


def by_onnxruntime(model: onnx.ModelProto, arrays: Sequence[np.ndarray | None]) -> list[Any]:
    """Return the outputs of a model of one node, computed by ONNX Runtime without optimization."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    outputs: list[Any] = session.run(None, {f"i{i}": a for i, a in enumerate(arrays) if a is not None})
    return outputs


def assert_agrees(
    name: str,
    arrays: Sequence[np.ndarray | None],
    shapes: Sequence[str | None],
    *,
    opset: int,
    outputs: int = 1,
    rtol: float = 1e-4,
    **attributes: Any,
) -> None:
    """Assert that traced results equal eager ones bit for bit, and eager ones ONNX Runtime's to a tolerance."""
    actual = eager(name, arrays, opset=opset, outputs=outputs, **attributes)
    assert_equal(traced(name, arrays, shapes, opset=opset, outputs=outputs, **attributes), actual)
    expected = by_onnxruntime(model_of(name, arrays, opset=opset, outputs=outputs, **attributes), arrays)
    for a, b in zip(actual, expected, strict=True):
        assert_equal([a], [b], rtol=rtol, atol=rtol * float(np.nanmax(np.abs(b.astype(np.float64)), initial=1e-3)))


def assert_equal(
    actual: Sequence[np.ndarray], expected: Sequence[np.ndarray], rtol: float = 0.0, atol: float = 0.0
) -> None:
    """Assert equal element types, shapes and elements, to a tolerance."""
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape, (a.dtype, a.shape, b.dtype, b.shape)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
