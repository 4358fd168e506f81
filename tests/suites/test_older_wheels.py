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
    return [Trial(model, feeds, wanted) for feeds, wanted in data_sets(case, model)]


def difference(trial: Trial, *, values: bool = True) -> str | None:
    """What of a trial the session gives otherwise; None if nothing."""
    try:
        assert_similar(trial.run(), trial.wanted, values=values)
    except (SardonyxError, AssertionError) as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return None


def assert_similar(found: Any, wanted: Any, *, values: bool = True) -> None:
    """Types, shapes and elements are equal, to the tolerances of onnx's suite."""
    if isinstance(wanted, list):
        assert isinstance(found, list) and len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_similar(one, other, values=values)
    elif wanted is None:
        assert found is None
    else:
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        if not values:
            return
        if wanted.dtype == object:
            assert found.tolist() == wanted.tolist()
        elif wanted.dtype.kind == "V" or wanted.dtype.name == "bfloat16":
            np.testing.assert_allclose(found.astype(np.float32), wanted.astype(np.float32), rtol=2**-6, atol=1e-7)
        else:
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-7)


def problem(version: str, case: Path) -> str | None:
    """What is wrong with a case; None where it passes."""
    flaws = flaws_of(version, case.name)
    for trial in trials(case):
        if flaws and difference(trial) is None:
            return f"{case.name}: it passes as it is stored: {[flaw.reason for flaw in flaws]}"
        corrected = functools.reduce(lambda so_far, flaw: flaw.corrected(so_far), flaws, trial)
        told = difference(corrected, values=not re.fullmatch(RANDOM, case.name))
        if told is not None:
            return f"{case.name}: {told}"
    return None


@pytest.mark.long
@pytest.mark.parametrize("version", WHEELS)
def test_every_case(version: str) -> None:
    cache = os.environ.get("SARDONYX_WHEELS")
    if not cache:
        pytest.skip("SARDONYX_WHEELS does not name a folder for older wheels of onnx")
    cases = cases_in(node_data(version, Path(cache)))
    assert len(cases) > 400
    assert [told for case in cases if (told := problem(version, case)) is not None] == []
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
    ((feeds, wanted),) = data_sets(tmp_path, onnx.helper.make_model(graph))
    assert float(feeds["x"][0]) == 1.5 and wanted[0].tolist() == [0x3FC0]
