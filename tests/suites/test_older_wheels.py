"""The node data of ten older onnx wheels on the reference session: every case, or its reason in ``EXCLUDED``.

``SARDONYX_WHEELS`` names the folder that the wheels are downloaded into and unpacked in.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from sardonyx.errors import SardonyxError
from sardonyx.runtime import Session
from tests.suites.wheels import WHEELS, cases_in, data_sets, node_data

ATTENTION_3D = "heads were cut out of a 3D input by a reshape to [B, heads, S, size]; corrected in 1.19"
ATTENTION_GROUPS = "keys were repeated as a whole (tiled) for grouped queries, not head by head; corrected in 1.19"
ATTENTION_MODES = "qk_matmul_output_mode 1 and 2 were taken for each other, softcap after the mask; corrected in 1.21"

EXCLUDED: dict[str, tuple[tuple[str, ...], str]] = {
    r"test_bernoulli.*": (
        ("1.10.2", "1.12.0", "1.14.1", "1.16.2", "1.18.0", "1.20.1", "1.22.0"),
        "its values are random",
    ),
    r"test_adam_multiple": (
        ("1.7.0", "1.8.1", "1.10.2", "1.12.0", "1.14.1", "1.16.2", "1.18.0", "1.20.1"),
        "the epsilon of 0.01 that the data were computed with is not in the node; it is since 1.21",
    ),
    r"test_(nesterov_)?momentum(_multiple)?": (("1.7.0",), "results of an earlier draft of Momentum; corrected in 1.8"),
    r"test_sequence_insert_at_front": (("1.8.1",), "the output lacks the tensor inserted; corrected in 1.9"),
    r"test_averagepool_3d_dilations_large_count_include_pad_is_1_ceil_mode_is_True": (
        ("1.16.2",),
        "cells that only rounding up adds were counted as padding; corrected in 1.17",
    ),
    r"test_qlinearmatmul_[23]D_int8_float(16|32)": (
        ("1.16.2", "1.18.0", "1.20.1"),
        "sums out of the range of int8 wrapped; QLinearMatMul saturates; corrected in 1.21",
    ),
    r"test_rotary_embedding.*_rotary_dim": (
        ("1.18.0",),
        "the caches are as wide as half a head; they are as wide as half of rotary_embedding_dim; corrected in 1.19",
    ),
    r"test_l2normalization_axis_0": (
        ("1.20.1",),
        "0 over a norm of 0 was NaN; it is 0; corrected in 1.21",
    ),
    r"test_castlike_(BFLOAT16_to_FLOAT|FLOAT_to_BFLOAT16)(_expanded)?": (
        ("1.12.0", "1.14.1"),
        "the data of `like` have another rank than the model declares; corrected in 1.15",
    ),
    r"test_dft_inverse(_opset19)?": (
        ("1.12.0", "1.14.1", "1.16.2", "1.18.0"),
        "computed in float64, and since 1.19 in float32: zeros of the two lie 2e-7 apart, and 1e-7 is allowed",
    ),
    r"(?!.*_expanded)test_attention_3d.*": (("1.18.0",), ATTENTION_3D),
    r"(?!.*_expanded)test_attention_4d_gqa.*": (("1.18.0",), ATTENTION_GROUPS),
    r"test_attention_[34]d_with_(past_and_present_)?qk_matmul_(bias|softcap)(_[34]d_mask(_causal)?)?": (
        ("1.18.0", "1.20.1"),
        ATTENTION_MODES,
    ),
}
"""Cases left out: a regular expression of their names, the versions, and the reason."""


def reason_left_out(version: str, name: str) -> str | None:
    for pattern, (versions, reason) in EXCLUDED.items():
        if version in versions and re.fullmatch(pattern, name):
            return reason
    return None


def difference(case: Path) -> str | None:
    """What of a case the session gives otherwise; None if nothing."""
    model = onnx.load(case / "model.onnx")
    try:
        session = Session(model)
        for feeds, wanted in data_sets(case, model):
            assert_similar(session.run(None, feeds), wanted)
    except (SardonyxError, AssertionError) as error:
        return f"{case.name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return None


def assert_similar(found: Any, wanted: Any) -> None:
    """Types, shapes and elements are equal, to the tolerances of onnx's suite."""
    if isinstance(wanted, list):
        assert isinstance(found, list) and len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_similar(one, other)
    elif wanted is None:
        assert found is None
    else:
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        if wanted.dtype == object:
            assert found.tolist() == wanted.tolist()
        elif wanted.dtype.kind == "V" or wanted.dtype.name == "bfloat16":
            np.testing.assert_allclose(found.astype(np.float32), wanted.astype(np.float32), rtol=2**-6, atol=1e-7)
        else:
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-7)


@pytest.mark.long
@pytest.mark.parametrize("version", WHEELS)
def test_every_case(version: str) -> None:
    cache = os.environ.get("SARDONYX_WHEELS")
    if not cache:
        pytest.skip("SARDONYX_WHEELS does not name a folder for older wheels of onnx")
    cases = cases_in(node_data(version, Path(cache)))
    assert len(cases) > 400
    left_out = [case for case in cases if reason_left_out(version, case.name)]
    found = {case: difference(case) for case in cases}
    assert [text for case, text in found.items() if text and case not in left_out] == []
    # What passes is not left out.
    passing = [case.name for case in left_out if found[case] is None]
    assert [name for name in passing if "bernoulli" not in name] == []


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
