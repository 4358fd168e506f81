"""What the tests of operator families share: an operator run at once, traced at open sizes, and run by others.

An attribute whose name a parameter here has is given with an underscore after it.
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
    """The first two numbers of a version, which say what a package has."""
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
    """The results of an operator, computed at once."""
    with running(RunContext()):
        values = [None if array is None else constant(array) for array in arrays]
        return [v.known for v in _applied(name, values, opset, outputs, domain, attributes) if v is not None]


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
    """The results of an operator that was traced at open sizes, then evaluated; see :func:`traced_function`."""
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
    """An operator traced at open sizes.

    Args:
        name: The operator.
        arrays: Its inputs.
        shapes: Sizes of each, ``"N 4 2*M"``; None for an input whose value must be known when tracing.
        opset: The version of its domain.
        outputs: How many results are asked for.
        domain: Its domain.
        **attributes: Its attributes.
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
        return [v for v in _applied(name, values, opset, outputs, domain, attributes) if v is not None]

    return trace(name, body, types)


def assert_computes(
    name: str,
    arrays: Sequence[np.ndarray | None],
    shapes: Sequence[str | None],
    *wanted: np.ndarray,
    rtol: float = 0.0,
    **options: Any,
) -> None:
    """An operator gives these results, at once and traced at open sizes."""
    options["outputs"] = len(wanted)
    assert_equal(eager(name, arrays, **options), wanted, rtol=rtol)
    assert_equal(traced(name, arrays, shapes, **options), wanted, rtol=rtol)


def _applied(
    name: str, values: Sequence[Value | None], opset: int, outputs: int, domain: str, attributes: Mapping[str, Any]
) -> tuple[Value | None, ...]:
    operator = find(domain, name, opset)
    assert operator is not None, name
    plain = {key.removesuffix("_"): value for key, value in attributes.items()}
    return operator(values, plain, opset=opset, outputs=outputs, identity="node")[:outputs]


def model_of(
    name: str, arrays: Sequence[np.ndarray | None], *, opset: int, outputs: int, domain: str = "", **attributes: Any
) -> onnx.ModelProto:
    """A model of one node; inputs ``i0``, ``i1`` …, outputs ``o0`` …, of open sizes."""
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
    """The outputs of a model of one node, by the reference session."""
    return Session(model).run(None, {f"i{i}": a for i, a in enumerate(arrays) if a is not None})


def by_onnxruntime(model: onnx.ModelProto, arrays: Sequence[np.ndarray | None]) -> list[Any]:
    """The outputs of a model of one node, by ONNX Runtime without optimization."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found: list[Any] = session.run(None, {f"i{i}": a for i, a in enumerate(arrays) if a is not None})
    return found


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
    """An operator traced at open sizes equals what runs at once, bit for bit, and that equals ONNX Runtime."""
    found = eager(name, arrays, opset=opset, outputs=outputs, **attributes)
    assert_equal(traced(name, arrays, shapes, opset=opset, outputs=outputs, **attributes), found)
    wanted = by_onnxruntime(model_of(name, arrays, opset=opset, outputs=outputs, **attributes), arrays)
    for a, b in zip(found, wanted, strict=True):
        assert_equal([a], [b], rtol=rtol, atol=rtol * float(np.nanmax(np.abs(b.astype(np.float64)), initial=1e-3)))


def assert_equal(
    found: Sequence[np.ndarray], wanted: Sequence[np.ndarray], rtol: float = 0.0, atol: float = 0.0
) -> None:
    """Element types, shapes and elements are equal, to a tolerance."""
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape, (a.dtype, a.shape, b.dtype, b.shape)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
