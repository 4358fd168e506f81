"""Every model of the ONNX backend suite that ONNX Runtime loads also loads and runs after conversion."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

from sardonyx import model as model_io
from sardonyx.compress.float16 import convert_float16

from .loading import run, session

KINDS = ["node", "simple", "pytorch-operator", "pytorch-converted"]


def model_of(case: TestCase) -> onnx.ModelProto:
    return case.model if case.model is not None else onnx.load(Path(case.model_dir) / "model.onnx")


def inputs_of(case: TestCase) -> list[object]:
    if case.data_sets is not None:
        return list(case.data_sets[0][0])
    paths = sorted(Path(case.model_dir).glob("test_data_set_0/input_*.pb"), key=lambda path: int(path.stem[6:]))
    return [numpy_helper.to_array(onnx.load_tensor(path)) for path in paths]


def loads(proto: onnx.ModelProto) -> bool:
    try:
        session(proto)
    except Exception:  # The binding raises a dozen unrelated classes.
        return False
    return True


def complaint(case: TestCase) -> str:
    """Return the failure of one case's conversion, a reason in parentheses to skip the case, or an empty text."""
    proto = model_of(case)
    if not loads(proto):
        return "(original refused by ONNX Runtime)"
    result = model_io.to_proto(convert_float16(proto).model)
    if not loads(result):
        return "does not load"
    if any(value.type.WhichOneof("value") != "tensor_type" for value in proto.graph.input):
        return "(inputs are not tensors)"
    inputs = inputs_of(case)
    weights = {tensor.name for tensor in proto.graph.initializer}
    names = [value.name for value in proto.graph.input if value.name not in weights]
    if len(inputs) != len(names) or not all(isinstance(array, np.ndarray) for array in inputs):
        return "(inputs are not tensors)"
    feeds = dict(zip(names, inputs, strict=True))
    try:
        run(proto, feeds)
    except Exception:  # As in `loads`.
        return "(original fails)"
    run(result, feeds)
    return ""


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_loadable_models_load_after_conversion(kind):
    outcomes = {case.name: complaint(case) for case in load_model_tests(kind=kind)}
    print(Counter(text for text in outcomes.values()))
    assert [(name, text) for name, text in outcomes.items() if text and not text.startswith("(")] == []
    assert sum(not text for text in outcomes.values()) > len(outcomes) / 2
