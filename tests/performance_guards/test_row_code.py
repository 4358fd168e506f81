"""Kernels of rows and maps compute costly and invariant values once."""

from __future__ import annotations

import re

import pytest
from tests.performance_guards.emitted import innermost_loops

from sardonyx.compiler.codegen import vector_math
from sardonyx.compiler.llvm.ir_builder import Emitter, vector
from sardonyx.compiler.llvm.object_code import assembly, module_text
from sardonyx.compiler.llvm.vector_value import Vector
from sardonyx.compiler.program import Program
from sardonyx.compiler.target.description import NAMED
from sardonyx.core import language as L
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import TensorType

pytestmark = pytest.mark.performance_guard


def softmax(x: L.Tensor) -> list[L.Tensor]:
    e = L.exp(x - L.reduce_max(x, [1], keepdims=True))
    return [e / L.reduce_sum(e, [1], keepdims=True)]


def log_softmax(x: L.Tensor) -> list[L.Tensor]:
    centred = x - L.reduce_max(x, [1], keepdims=True)
    return [centred - L.log(L.reduce_sum(L.exp(centred), [1], keepdims=True))]


def normalize(x: L.Tensor) -> list[L.Tensor]:
    return [x / L.sqrt(L.reduce_sum(x * x, [1], keepdims=True) + 1e-5)]


def loops(body: object) -> list[str]:
    function = trace("rows", body, [TensorType(t.FLOAT, (7, 64))])  # type: ignore[arg-type]
    (launch,) = Program.compile(function, target=NAMED["avx2"]).launches
    assert launch.title == "rows"
    return innermost_loops(launch, NAMED["avx2"])


def test_an_exponential_is_computed_once() -> None:
    assert len([body for body in loops(softmax) if "vpslld" in body]) == 1


@pytest.mark.parametrize("body", [normalize, log_softmax])
def test_values_that_are_the_same_along_a_row_are_computed_before_its_loops(body: object) -> None:
    actual = loops(body)
    assert actual
    assert not any("sqrt" in loop or "vcvtsi2ss" in loop for loop in actual)


def test_indices_of_a_row_are_read_before_its_loop() -> None:
    types = [TensorType(t.FLOAT, (9, 20)), TensorType(t.INT64, (2, 3))]
    (launch,) = Program.compile(trace("f", lambda x, i: [L.take(x, i, 0)], types)).launches
    # A loop over whole vectors and the rest are two texts of a row.
    assert launch.text.count("icmp ult i64") == 1


@pytest.mark.parametrize("target", ["avx2", "avx512", "neon"])
@pytest.mark.parametrize("name", ["sqrt", "exp", "log", "tanh", "erf", "asin", "atan", "sinh"])
def test_vectors_stay_vectors(name: str, target: str) -> None:
    chosen = NAMED[target]
    lanes, e = chosen.lanes(32), Emitter()
    actual = vector_math.FUNCTIONS[name](Vector(e, e.load(vector(lanes, "float"), "%p", 4), "float", lanes))
    e.store(actual.type, actual.name, "%p", 4)
    body = f"define void @f(ptr %p) {{\n{e.text()}\n  ret void\n}}"
    text = assembly(module_text(chosen, [body], e.declarations), chosen)
    assert not re.search(r"\t(callq?|bl|jmp)\t", text)
