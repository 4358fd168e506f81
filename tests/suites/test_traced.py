"""Every node case of ONNX's suite, traced at open sizes and evaluated, gives what it gives at once.

Equal sizes get one symbol, so that shapes fit; sizes of 1 stay, since they broadcast. Integers that a shape, an axis
or a count is read from become known where tracing asks for them.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from sardonyx.core.dim import Dim
from sardonyx.core.eval.interpreter import evaluate
from sardonyx.core.eval.run_context import RunContext, running
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.errors import NeedsValueError, SardonyxError
from sardonyx.model import load
from sardonyx.ops.core_values import declared_type
from sardonyx.ops.feeds import as_value
from sardonyx.ops.graph import prepare
from tests.suites.left_out import TRACED


def plain(fed: Any) -> Any:
    if isinstance(fed, onnx.TensorProto):
        return numpy_helper.to_array(fed)
    return [plain(item) for item in fed] if isinstance(fed, (list, tuple)) else fed


def opened(type_: t.Type) -> t.Type:
    if not isinstance(type_, t.TensorType) or not type_.shape:
        return type_
    return t.TensorType(type_.dtype, tuple(Dim.symbol(f"s{n}") if n > 1 else n for n in type_.shape))  # type: ignore[operator]


def is_small(value: Value) -> bool:
    type_ = value.type
    return isinstance(type_, t.TensorType) and type_.dtype in (t.INT64, t.INT32, t.BOOL) and value.known.size <= 4


def traced(model: onnx.ModelProto, feeds: Sequence[Any], *, known: bool) -> tuple[list[Value], tuple[Value, ...]]:
    """The outputs of the traced model, and at once; with small integers known while tracing, or not."""
    graph = prepare(load(model))
    arguments = [
        as_value(plain(fed), declared_type(v), str(v.name)) for fed, v in zip(feeds, graph.inputs, strict=False)
    ]
    open_values = [value for value in arguments if not (known and is_small(value))]

    def body(*inputs: Value) -> tuple[Value, ...]:
        rest = iter(inputs)
        return graph.call([value if known and is_small(value) else next(rest) for value in arguments])

    function = trace(graph.outputs[0].name or "g", body, [opened(value.type) for value in open_values])
    with running(RunContext()):
        return evaluate(function, open_values), graph.call(arguments)


def is_same(a: Any, b: Any) -> bool:
    if isinstance(a, list):
        return len(a) == len(b) and all(map(is_same, a, b))
    if a is None or b is None:
        return a is b
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool(a.tolist() == b.tolist() if a.dtype == object else a.tobytes() == b.tobytes())


@pytest.mark.long
def test_every_case() -> None:
    loader = pytest.importorskip("onnx.backend.test.loader", reason="this onnx comes without its backend suite")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = loader.load_model_tests(kind="node")
    wrong = []
    for case in cases:
        if any(re.fullmatch(pattern, case.name) for pattern in TRACED):
            continue
        try:
            try:
                actual, expected = traced(case.model, case.data_sets[0][0], known=False)
            except NeedsValueError:
                actual, expected = traced(case.model, case.data_sets[0][0], known=True)
        except SardonyxError as error:
            wrong.append(f"{case.name}: {type(error).__name__}: {error}")
        else:
            if not all(is_same(a.known, b.known) for a, b in zip(actual, expected, strict=True)):
                wrong.append(f"{case.name}: other values")
    assert wrong == []
    assert len(cases) > 1500


def test_what_is_compared_tells_values_apart() -> None:
    assert is_same([np.ones(2), None], [np.ones(2), None])
    assert not is_same(np.ones(2), np.ones(2, np.float32)) and not is_same(np.ones(2), np.zeros(2))
