"""Every public model converts, passes the full checker, loads in ONNX Runtime, and has equal output types."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from sardonyx import model as model_io
from sardonyx.compress.float16 import (
    auto_mixed_precision,
    convert_bfloat16,
    convert_float16,
    output_error,
)
from sardonyx.compress.float16.clamp import default_clamp
from sardonyx.compress.float16.convert import convert, make_options, private_copy
from sardonyx.rewrite.evaluate import evaluate
from sardonyx.rewrite.verify.search import Search

from .loading import run, session

pytestmark = pytest.mark.sampled

SUITES = Path(os.environ.get("SARDONYX_SUITES", "absent"))
needs_suites = pytest.mark.skipif(
    not SUITES.is_dir(), reason="SARDONYX_SUITES does not name the folder of the public models"
)
REAL = [entry["id"] for entry in json.loads((SUITES / "real/index.json").read_text())] if SUITES.is_dir() else []
GRAPHS = sorted(path.stem for path in (SUITES / "../models").glob("*.onnx"))
QUICK = {"silero_vad_16k_op15", "cnn_mnist_pytorch", "sklearn_randomforest", "xgb_regressor", "voicevox_sing_consonant"}
QUICK |= {"byte_sb_bilstm", "yunet_n_dynamic", "dtln_1", "magika_v3_3", "mlp", "super_resolution.dyn"}

# Output error with every rounding counted, where float16 alone is not good enough for the model: a spectrum's power and
# its logarithm, instance norms of large values, sums beyond the range, counts of boxes near a threshold.
COARSE = {"basic_pitch": 0.3, "candy": 0.7, "magika_v3_3": 1.1, "sinet": np.inf, "yolov3_post": 0.1}


def quick_first(names: list[str]) -> list[object]:
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in names]


def passes_full_check(proto: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(proto, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


def inputs_of(name: str) -> dict[str, np.ndarray]:
    stored = np.load(SUITES / f"real/{name}.npz", allow_pickle=True)
    return {key.removeprefix("in::"): stored[key] for key in stored.files if key.startswith("in::")}


def drawn_inputs(model: ir.Model, proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    samples = Search(model, lambda feeds: evaluate(proto, feeds), seed=0, count=1).samples()
    if not samples:
        pytest.fail("the model runs at none of the sizes")
    return samples[0].feeds


def check_conversions(model: ir.Model, feeds: dict[str, np.ndarray] | None, coarse: float) -> None:
    original = model_io.to_proto(model)
    feeds = feeds or drawn_inputs(model, original)
    reference = evaluate(original, feeds)
    checked = passes_full_check(original)
    for keep in (False, True):
        proto = model_io.to_proto(convert_float16(model, keep_io_types=keep).model)
        assert passes_full_check(proto) or not checked
        assert [value.name for value in proto.graph.output] == list(reference)
        run(proto, feeds)
    weights = {tensor.name for tensor in original.graph.initializer}
    for old, new in zip(
        (*original.graph.input, *original.graph.output), (*proto.graph.input, *proto.graph.output), strict=True
    ):
        assert old.name in weights or old.type == new.type
    options = make_options(default_clamp(ir.DataType.FLOAT16, None, None), True, False, None, None)
    rounded = convert(private_copy(model), options, only_round=True).model
    assert output_error(reference, evaluate(model_io.to_proto(rounded), feeds)) <= coarse
    if original.opset_import[0].version >= 13:
        proto = model_io.to_proto(convert_bfloat16(model).model)
        assert passes_full_check(proto) or not checked


@needs_suites
@pytest.mark.parametrize("name", quick_first(REAL))
def test_a_trained_model_converts(name):
    model = model_io.load(SUITES / f"real/{name}.onnx")
    check_conversions(model, inputs_of(name), COARSE.get(name, 0.03))


@needs_suites
@pytest.mark.parametrize("name", quick_first(GRAPHS))
def test_a_network_converts(name, tmp_path):
    script = SUITES / "../models/materialize.py"
    subprocess.run([sys.executable, script, tmp_path, name], check=True)
    check_conversions(model_io.load(tmp_path / f"{name}.onnx"), None, 0.03)


@needs_suites
@pytest.mark.long
@pytest.mark.parametrize("name", ["basic_pitch", "candy", "magika_v3_3", "sinet", "silero_vad", "yolov3_post"])
def test_the_search_meets_a_tolerance_of_a_hundredth(name):
    result = auto_mixed_precision(SUITES / f"real/{name}.onnx", inputs_of(name), 1e-2, keep_io_types=True)
    assert result.error <= 1e-2
    session(model_io.to_proto(result.model))
