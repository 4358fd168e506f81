"""ONNX's own backend suite on the reference session: every case, or its reason in ``left_out``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

onnx_backend_test = pytest.importorskip("onnx.backend.test", reason="this onnx comes without its backend suite")

from onnx.backend.test.case import node as onnx_backend_node  # noqa: E402

from sardonyx.compat.onnx_backend import SardonyxBackend  # noqa: E402
from sardonyx.runtime import Session  # noqa: E402
from tests.suites.left_out import BACKEND  # noqa: E402


class EveryCase(SardonyxBackend):
    """Operators without a definition fail a case; they do not skip it."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        return True


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    suite = onnx_backend_test.BackendTest(EveryCase, __name__)
for pattern in BACKEND:
    suite.exclude(pattern)
cases = suite.test_cases
for case in cases.values():
    # Every case comes once a device, and there is one device here.
    for name in [name for name in vars(case) if name.endswith("_cuda")]:
        delattr(case, name)
globals().update(cases)


def test_a_sequence_that_begins_with_a_scalar() -> None:
    (case,) = [c for c in onnx_backend_node.collect_testcases("Loop") if c.name == "test_loop16_seq_none"]
    for inputs, (expected,) in case.data_sets:
        (actual,) = EveryCase.prepare(case.model).run(inputs)
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            np.testing.assert_array_equal(one, other, strict=True)


def test_squeezenet_in_compiled_code() -> None:
    """Of a thousand equal scores; see ``left_out``."""
    folder = Path(onnx_backend_test.__file__).parent / "data" / "light"
    session = Session(folder / "light_squeezenet.onnx", compile="wait")
    image = np.linspace(0, 1, 3 * 224 * 224, dtype=np.float32).reshape(1, 3, 224, 224)
    np.testing.assert_allclose(session.run(None, {"data_0": image})[0], np.full((1, 1000, 1, 1), 1e-3), rtol=1e-5)
