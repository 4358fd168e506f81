"""The node data of ten older onnx wheels on the reference session.

Every case gives its data; where these are not what the standard says, with the correction in ``FLAWS`` and without it
not. ``SARDONYX_WHEELS`` names the folder that the wheels are downloaded into and unpacked in.
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from sardonyx.errors import SardonyxError
from tests.suites.wheel_flaws import FLAWS, RANDOM, Flaw, Trial, flaws_of
from tests.suites.wheels import WHEELS, cases_in, data_sets, node_data


def trials(case: Path) -> list[Trial]:
    model = onnx.load(case / "model.onnx")
    return [Trial(model, feeds, expected) for feeds, expected in data_sets(case, model)]


def difference(trial: Trial, *, values: bool = True) -> str | None:
    """What of a trial the session gives otherwise; None if nothing."""
    try:
        assert_similar(trial.run(), trial.expected, values=values)
    except (SardonyxError, AssertionError) as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return None


def assert_similar(actual: Any, expected: Any, *, values: bool = True) -> None:
    """Types, shapes and elements are equal, to the tolerances of onnx's suite."""
    if isinstance(expected, list):
        assert isinstance(actual, list) and len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_similar(one, other, values=values)
    elif expected is None:
        assert actual is None
    else:
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        if not values:
            return
        if expected.dtype == object:
            assert actual.tolist() == expected.tolist()
        elif expected.dtype.kind == "V" or expected.dtype.name == "bfloat16":
            np.testing.assert_allclose(actual.astype(np.float32), expected.astype(np.float32), rtol=2**-6, atol=1e-7)
        else:
            np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-7)


def problem(version: str, case: Path) -> str | None:
    """What is wrong with a case; None where it passes."""
    flaws = flaws_of(version, case.name)
    for trial in trials(case):
        if flaws and difference(trial) is None:
            return f"{case.name}: it passes as it is stored: {[flaw.reason for flaw in flaws]}"
        corrected = functools.reduce(lambda so_far, flaw: flaw.corrected(so_far), flaws, trial)
        deviation = difference(corrected, values=not re.fullmatch(RANDOM, case.name))
        if deviation is not None:
            return f"{case.name}: {deviation}"
    return None


@pytest.mark.long
@pytest.mark.parametrize("version", WHEELS)
def test_every_case(version: str) -> None:
    cache = os.environ.get("SARDONYX_WHEELS")
    if not cache:
        pytest.skip("SARDONYX_WHEELS does not name a folder for older wheels of onnx")
    cases = cases_in(node_data(version, Path(cache)))
    assert len(cases) > 400
    assert [text for case in cases if (text := problem(version, case)) is not None] == []
    names = [case.name for case in cases]
    assert [flaw.cases for flaw in FLAWS if version in flaw.versions and not _any(flaw, names)] == []


def _any(flaw: Flaw, names: list[str]) -> bool:
    return any(re.fullmatch(flaw.cases, name) for name in names)


def test_reading_of_data(tmp_path: Path) -> None:
    bits = onnx.numpy_helper.from_array(np.array([0x3FC0], np.uint16))
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.BFLOAT16, [1])
    data = tmp_path / "test_data_set_0"
    data.mkdir()
    for name in ("input_0.pb", "output_0.pb"):
        (data / name).write_bytes(bits.SerializeToString())
    graph = onnx.helper.make_graph(
        [], "g", [value], [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.UINT16, [1])]
    )
    ((feeds, expected),) = data_sets(tmp_path, onnx.helper.make_model(graph))
    assert float(feeds["x"][0]) == 1.5 and expected[0].tolist() == [0x3FC0]
