"""The node cases of onnx's backend suite, taken up and down: the expected outputs, wherever an engine can tell."""

from __future__ import annotations

from collections import Counter
from typing import Any

import onnx
import onnx_ir as ir
import pytest

from sardonyx import model as model_io
from sardonyx.errors import EvaluationError, OpsetConversionError
from sardonyx.rewrite.opset import convert_opset
from tests.rewrite.opset import lowest
from tests.rewrite.opset.running import answers, difference

NEWEST = 28

RANDOM = ("bernoulli", "dropout", "random", "multinomial")
"""Cases with random results."""

NOT_JUDGED = {
    "test_mvn": "onnx's checker refuses the operator's own function from opset 18 on",
    "test_if_opt": "engines disagree about an empty optional",
}


def _plain(content: Any) -> Any:
    """Return arrays instead of the messages of the suite."""
    if isinstance(content, onnx.TensorProto):
        return onnx.numpy_helper.to_array(content)
    return [_plain(item) for item in content] if isinstance(content, (list, tuple)) else content


def _verdict(case: lowest.Case, proto: onnx.ModelProto) -> str:
    """Return ``right``, ``not run`` if no engine can run the model, or the difference."""
    for inputs, outputs in case.data_sets:
        feeds = {value.name: _plain(content) for value, content in zip(case.model.graph.input, inputs, strict=True)}
        try:
            got = answers(proto, feeds)
        except EvaluationError:
            return "not run"
        for value, expected in zip(case.model.graph.output, outputs, strict=True):
            fault = difference(got[value.name], _plain(expected), max(case.rtol, 1e-3), max(case.atol, 1e-5))
            if fault is not None:
                return f"{value.name}: {fault}"
    return "right"


def _versions(model: ir.Model) -> list[ir.Model]:
    """Return the model at the newest set, the lowest reachable one, and some between."""
    down = [result for _, result in lowest.way_down(model) if isinstance(result, ir.Model)]
    distinct = {id(m): m for m in (*down[:1], *down[-1:], *(m for m in down if m.opset_imports[""] in (9, 12, 17)))}
    return [convert_opset(model, NEWEST), *distinct.values()]


def _faults(cases: list[lowest.Case]) -> tuple[list[str], Counter[str]]:
    faults: list[str] = []
    counts: Counter[str] = Counter()
    for case in cases:
        if any(word in case.name for word in RANDOM) or case.name in NOT_JUDGED:
            continue
        if (before := _verdict(case, case.model)) != "right":
            counts["not judged"] += 1
            continue
        for converted in _versions(model_io.from_proto(case.model)):
            proto = model_io.to_proto(converted)
            onnx.checker.check_model(proto, full_check=True)
            after = _verdict(case, proto)
            counts[after if after in ("right", "not run") else "wrong"] += 1
            if after not in ("right", "not run"):
                faults.append(f"{case.name} at {converted.opset_imports['']}: {after} ({before} before)")
    return faults, counts


def test_a_sample_keeps_its_outputs() -> None:
    faults, counts = _faults(lowest.cases()[::89])
    assert not faults, "\n".join(faults)
    assert counts["right"] > 30, counts


@pytest.mark.long
def test_every_case_keeps_its_outputs() -> None:
    faults, counts = _faults(lowest.cases())
    print(dict(counts))
    assert not faults, "\n".join(faults)
    assert counts["right"] > 3000, counts


def test_a_refusal_names_the_node() -> None:
    for case in lowest.cases()[::97]:
        for _, result in lowest.way_down(model_io.from_proto(case.model)):
            if isinstance(result, OpsetConversionError):
                assert any(op in result.where for op in {node.op_type for node in case.model.graph.node} | {"node"})


@pytest.mark.long
def test_the_table_in_the_documentation_is_current() -> None:
    assert lowest.recorded() == lowest.table()
