"""ONNX's node cases compiled: which give the expected outputs, and what of them is left to the interpreter.

``python -m tests.suites.compiled [PATTERN]`` prints a line for each case that is wrong, and the primitives that are
interpreted, with the number of cases that have one.
"""

from __future__ import annotations

import collections
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper

from sardonyx.compiler.call.fault import Fault
from sardonyx.compiler.program import Program
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function, Value
from sardonyx.core.transform.simplify import simplify
from sardonyx.errors import NeedsValueError, SardonyxError, SizeLimitError
from sardonyx.model import load
from sardonyx.ops.core_values import declared_type
from sardonyx.ops.feeds import as_value
from sardonyx.ops.graph import prepare
from tests.suites.node_cases import Case, node_cases

RANDOM = re.compile(r"test_bernoulli.*|test_training_dropout.*")
"""Cases whose outputs are random numbers, which tell the shape alone."""


_GET = re.compile(r"get: .*")
"""Whose result is taken out does not matter: what gave it is listed."""


class Outcome(NamedTuple):
    """What became of a case.

    Attributes:
        name: The case.
        problem: What is wrong with it; empty where nothing is.
        interpreted: The primitives left to the interpreter, with the reason.
    """

    name: str
    problem: str
    interpreted: tuple[tuple[str, str], ...]


def outcomes(cases: Iterable[Case]) -> Iterator[Outcome]:
    """Compile and run each case."""
    for case in cases:
        try:
            yield _outcome(case)
        except Fault:
            yield Outcome(case.name, "a kernel met data without a result", ())
        except (SardonyxError, AssertionError) as error:
            yield Outcome(case.name, f"{type(error).__name__}: {error}".replace("\n", " "), ())


def _outcome(case: Case) -> Outcome:
    assert case.model is not None
    interpreted: dict[tuple[str, str], None] = {}
    for inputs, outputs in case.data_sets or ():
        try:
            function, arrays = _traced(case.model, inputs, known=False)
        except (NeedsValueError, SizeLimitError):
            function, arrays = _traced(case.model, inputs, known=True)
        program = Program.compile(function)
        interpreted.update(
            ((step.op, program.grouping.host[step]), None) for step in program.steps if isinstance(step, Value)
        )
        results = program.run(arrays)
        if not RANDOM.fullmatch(case.name):
            for expected, actual in zip(outputs, results, strict=True):
                _compare(_plain(expected), actual, case.rtol, case.atol)
    return Outcome(case.name, "", tuple(interpreted))


def _traced(model: onnx.ModelProto, feeds: Sequence[Any], *, known: bool) -> tuple[Function, list[Any]]:
    """The case as a function, and what it is called with; small integers are part of it where it needs them."""
    graph = prepare(load(model))
    values = [as_value(_plain(fed), declared_type(v), str(v.name)) for fed, v in zip(feeds, graph.inputs, strict=False)]
    open_values = [value for value in values if not (known and _is_small(value))]

    def body(*inputs: Value) -> tuple[Value, ...]:
        rest = iter(inputs)
        return graph.call([value if known and _is_small(value) else next(rest) for value in values])

    function = simplify(trace("case", body, [value.type for value in open_values]))
    arrays = [value.known for value in open_values]
    return function, [np.array(x, order="C") if isinstance(x, np.ndarray) else x for x in arrays]


def _is_small(value: Value) -> bool:
    type_ = value.type
    return isinstance(type_, t.TensorType) and type_.dtype in (t.INT64, t.INT32, t.BOOL) and value.known.size <= 8


def _plain(fed: Any) -> Any:
    if isinstance(fed, onnx.TensorProto):
        return numpy_helper.to_array(fed)
    return [_plain(item) for item in fed] if isinstance(fed, (list, tuple)) else fed


def _compare(expected: Any, actual: Any, rtol: float, atol: float) -> None:
    """As onnx's own runner compares."""
    if expected is None or isinstance(expected, list):
        assert isinstance(actual, type(expected)), f"{type(actual)} in place of {type(expected)}"
        for one, other in zip(expected or [], actual or [], strict=True):
            _compare(one, other, rtol, atol)
        return
    expected, actual = np.asarray(expected), np.asarray(actual)
    assert expected.shape == actual.shape, f"shape {actual.shape} in place of {expected.shape}"
    if expected.dtype.kind in "OUS":
        assert expected.tolist() == actual.tolist(), "other texts"
        return
    assert expected.dtype == actual.dtype, f"{actual.dtype} in place of {expected.dtype}"
    if expected.dtype.kind not in "biufc":
        rtol = max(rtol, 2**-6) if expected.dtype.name == "bfloat16" else rtol
        expected, actual = expected.astype(np.float32), actual.astype(np.float32)
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol)


def main(pattern: str = "") -> None:
    """Print what is wrong and what is interpreted."""
    cases = [case for case in node_cases() if re.search(pattern, case.name)]
    wrong, whole = 0, 0
    by_reason: dict[str, list[str]] = collections.defaultdict(list)
    for outcome in outcomes(cases):
        if outcome.problem:
            wrong += 1
            print(f"WRONG {outcome.name}: {outcome.problem[:300]}", flush=True)
        whole += not outcome.interpreted
        for reason in {_GET.sub("get", f"{op}: {why}") for op, why in outcome.interpreted}:
            by_reason[reason].append(outcome.name)
    for reason, names in sorted(by_reason.items(), key=lambda entry: -len(entry[1])):
        print(f"{len(names):5} {reason}, as in {', '.join(names[:3])}")
    print(f"{len(cases) - wrong} of {len(cases)} right, {whole} without the interpreter")


if __name__ == "__main__":
    main(*sys.argv[1:])
