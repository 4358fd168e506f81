"""Fuzzer of the kernels of training: gradients of operators on hostile values in guarded memory.

The gradient of a weighted sum of an operator's results is compiled as in training, for sizes fixed or open; the
interpreter computes the expected results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import onnx

from sardonyx.compiler.call.fault import Fault
from sardonyx.compiler.program import Program
from sardonyx.core import language as L
from sardonyx.core.eval.interpreter import evaluate
from sardonyx.core.eval.run_context import RunContext, running
from sardonyx.core.eval.tensor import constant
from sardonyx.core.eval.trace import inline, trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function, Value
from sardonyx.core.ir.types import TensorType
from sardonyx.core.transform.differentiation import gradient, is_differentiable
from sardonyx.errors import FeedError, ResourceError, SardonyxError, SizeLimitError
from sardonyx.model import load
from sardonyx.train.data.batches import as_declared
from sardonyx.train.step.forward import trace_graph
from tests.fuzz.answers import difference
from tests.fuzz.guarded_memory import copied, guarded
from tests.fuzz.hostile_cases import CASES, Variant, declared_model
from tests.fuzz.large_cases import LARGE
from tests.fuzz.native_fuzzer import (
    MAX_ITERATIONS,
    MAX_MEMORY,
    NOT_CALLED,
    Finding,
    StorePosition,
    Tally,
    describe,
    limit_time,
)
from tests.ops.generators import GENERATORS
from tests.ops.generators.draw import Draw

NAMES = tuple(sorted((*GENERATORS, *LARGE)))
"""The generators of operators; those without a gradient are counted as such."""


def run_gradient(name: str, seed: int, runs: int, store_position: StorePosition) -> Tally:
    """Run the gradient of one operator and return the counts; see :data:`.native_fuzzer.RunVariant`."""
    tally = Tally(variants=1)
    limit_time()
    draw = Draw(f"gradient {name} {seed}")
    case = CASES[name](draw)
    model, fed, words = declared_model(draw, case)
    variant = Variant(f"gradient of {name} seed {seed} ({words})", case, model, fed, draw)
    try:
        derived = gradient_of(model)
        with guarded("end"):
            program = None if derived is None else Program.compile(derived, threads=1)
    except SardonyxError:
        derived = program = None
    if derived is None or program is None:
        tally.outcomes["no gradient"] += 1
        limit_time(0, 0)
        return tally
    order = [value.name for value in model.graph.input]
    for run, feeds in enumerate(variant.feeds(runs)):
        limit_time()
        store_position(run, tally.runs)
        outcome, problem = _compare(derived, program, [feeds[key] for key in order])
        tally.runs += outcome != NOT_CALLED
        tally.outcomes[outcome] += 1
        if problem:
            tally.findings.append(Finding(f"{variant.label} run {run}", problem, describe(feeds)))
    limit_time(0, 0)
    return tally


def gradient_of(model: onnx.ModelProto) -> Function | None:
    """Return the gradient of a weighted sum of the floating-point results by the inputs; None without such.

    Raises:
        SardonyxError: The operator has no gradient, or cannot be traced as a whole.
    """
    function = trace_graph(load(model))
    positions = [i for i, value in enumerate(function.inputs) if _is_real(value)]
    if not positions or not any(map(_is_real, function.results)):
        return None

    def body(*inputs: Value) -> list[Value]:
        total = L.constant(0.0, t.FLOAT)
        for number, value in enumerate(inline(function, inputs)):
            if _is_real(value):
                y = cast("L.Tensor", value)
                count = L.reshape(L.arange(L.product(y.shape)), y.shape)
                total = total + L.reduce_sum(L.cast(y, t.FLOAT) * L.cos(L.cast(count, t.FLOAT) + number))
        return [total]

    return gradient(trace("total", body, [value.type for value in function.inputs]), positions)


def _is_real(value: Value) -> bool:
    return is_differentiable(value.type) and t.kind(cast("TensorType", value.type).dtype) == "float"


def _compare(derived: Function, program: Program, values: Sequence[Any]) -> tuple[str, str]:
    """Return the outcome of a run, and the difference between compiled code and interpreter, or nothing."""
    try:
        arrays = [
            as_declared(value, cast("TensorType", declared.type), "x")
            for declared, value in zip(derived.inputs, values, strict=True)
        ]
    except FeedError:
        return NOT_CALLED, ""
    expected = _interpreted(derived, arrays, _limits())
    with guarded("end"):
        actual = _native(program, [copied(array) for array in arrays], _limits())
    if isinstance(actual, (ResourceError, SizeLimitError)) or isinstance(expected, (ResourceError, SizeLimitError)):
        return "limit", ""
    if isinstance(actual, Exception) or isinstance(expected, Exception):
        agrees = isinstance(expected, Exception) and type(actual) in (Fault, type(expected))
        return type(expected).__name__, "" if agrees else f"native {actual!r:.300}; interpreter {expected!r:.300}"
    width = min([array.dtype.itemsize for array in arrays if array.dtype.kind in "fV"], default=8)
    problem = difference(dict(enumerate(arrays)), actual, expected, width=width)  # type: ignore[arg-type]
    return ("different", problem) if problem else ("compiled", "")


def _limits() -> RunContext:
    return RunContext(max_memory=MAX_MEMORY, max_loop_iterations=MAX_ITERATIONS)


def _interpreted(derived: Function, arrays: Sequence[np.ndarray], context: RunContext) -> list[np.ndarray] | Exception:
    try:
        with running(context):
            return [value.known for value in evaluate(derived, [constant(array) for array in arrays])]
    except SardonyxError as error:
        return error


def _native(program: Program, arrays: Sequence[np.ndarray], context: RunContext) -> list[np.ndarray] | Exception:
    try:
        return program.run(arrays, context)
    except (SardonyxError, Fault) as error:
        return error
