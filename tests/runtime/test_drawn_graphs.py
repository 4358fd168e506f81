"""Structured operators between views compile to native code, over fixed, open and counted sizes."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnx.parser
import pytest
from tests.random_cases import cases
from tests.runtime.drawn_graphs import STRUCTURED, draw
from tests.runtime.graph_draft import Case

from sardonyx.runtime.session import Session

pytestmark = pytest.mark.sampled

HOST_FUNCTIONS = {"Unique"}
"""Host functions without a kernel: the interpreter computes them."""


def interpreted_values(session: Session) -> list[str]:
    assert session.program is not None, session.placement
    interpreted = []
    for value, reason in session.program.grouping.host.items():
        source = value.operands[0] if value.op == "get" else value
        if source.op != "host" or source.params["function"].name not in HOST_FUNCTIONS:
            interpreted.append(f"{value.op} of {value.origin}: {reason}")
    return interpreted


def check_case(case: Case) -> None:
    expected = Session(case.model, compile="off").run(None, case.feeds)
    session = Session(case.model, compile="wait", threads=1)
    assert interpreted_values(session) == [], case.title
    for _ in range(2):  # The second call is the generated function's.
        for result, reference in zip(session.run(None, case.feeds), expected, strict=True):
            scale = np.abs(reference).max(initial=1)
            np.testing.assert_allclose(result, reference, rtol=1e-4, atol=1e-4 * scale, err_msg=case.title)


@pytest.mark.parametrize(("structured", "sizes"), [*itertools.product(STRUCTURED, ("fixed", "open", "counted"))])
def test_structured_operators_between_views_compile(structured: str, sizes: str) -> None:
    for seed in range(cases(8)):
        check_case(draw(structured, sizes, seed))


@pytest.mark.parametrize(
    "after", ["Squeeze (c, axis)", "Flatten (c)", "Reshape (c, row)", "Transpose <perm = [1, 0, 2]> (c)"]
)
@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose"])
def test_a_convolution_of_open_sizes_may_be_reshaped_at_once(operator: str, after: str) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18]>
        g (float[N, 1, L] x) => (float y)
        <float[1, 1, 3] w = {{0.5, 0.25, -1}}, int64[1] axis = {{1}}, int64[1] row = {{-1}}>
        {{ c = {operator} (x, w)  y = {after} }}"""
    )
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    x = np.random.default_rng(0).standard_normal((2, 1, 37)).astype(np.float32)
    check_case(Case(model, {"x": x}, f"{operator}, {after}"))


def test_the_number_of_results_alone_may_be_read() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]>
        g (float[N, 3] x) => (int64[2] y) { positions = NonZero (x)  y = Shape (positions) }"""
    )
    x = np.array([[1, 0, 2], [0, 0, 3]], np.float32)
    check_case(Case(model, {"x": x}, "NonZero > Shape"))


def test_a_cumulative_sum_along_the_only_long_axis_compiles() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]>
        g (float[1, N, 1] x) => (float[1, N, 1] y) <int64 axis = {1}> { y = CumSum (x, axis) }"""
    )
    check_case(Case(model, {"x": np.arange(37, dtype=np.float32).reshape(1, 37, 1)}, "CumSum"))


def test_a_forest_of_equal_rows_compiles() -> None:
    """The rows are a constant of equal elements, which other kernels do not read from memory."""
    check_case(draw("trees", "fixed", 5003))
