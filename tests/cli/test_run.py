"""``sardonyx run``: inputs, outputs, expected outputs, NaN and infinity."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import sardonyx
from tests.cli.conftest import Run

BROKEN = """<ir_version: 8, opset_import: ["": 17]>
broken (float[N, 4] x) => (float[N, 4] y, float[N, 4] z) <float[1] zero = {0.0}> {
  [activation] a = Relu(x)
  [quotient] b = Div(a, zero)
  [sign] y = Neg(b)
  [copy] z = Identity(a)
}"""


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(BROKEN), tmp_path / "broken.onnx")
    return tmp_path / "broken.onnx"


def arrays(path: Path, **values: np.ndarray) -> Path:
    np.savez(path, **values)
    return path


def test_outputs_are_written_and_accepted_as_expected_outputs(run: Run, two_layers: Path, tmp_path: Path) -> None:
    inputs, outputs = arrays(tmp_path / "in.npz", x=np.eye(2, dtype=np.float32)), tmp_path / "out.npz"
    written = run("run", two_layers, "--inputs", inputs, "-o", outputs)
    assert written.code == 0 and f"Written: {outputs}" in written.out
    with np.load(outputs) as stored:
        np.testing.assert_allclose(stored["y"], np.array([[1.5, 4.5], [4.0, 9.5]]), rtol=1e-6)
    assert "1 of 1 outputs compared" in run("run", two_layers, "--inputs", inputs, "--expect", outputs).out


def test_a_difference_from_the_expected_output_exits_with_1(run: Run, two_layers: Path, tmp_path: Path) -> None:
    inputs = arrays(tmp_path / "in.npz", x=np.eye(2, dtype=np.float32))
    right = np.array([[1.5, 4.5], [4.0, 9.5]], np.float32)
    wrong = arrays(tmp_path / "wrong.npz", y=right + np.float32(0.1))
    refused = run("run", two_layers, "--inputs", inputs, "--expect", wrong)
    assert refused.code == 1 and "y differs from the expected output: error 1.0e-02" in refused.out
    assert run("run", two_layers, "--inputs", inputs, "--expect", wrong, "--tolerance", "0.02").code == 0
    other = arrays(tmp_path / "other.npz", y=right[:1])
    assert (
        "expected float32[1, 2], got float32[2, 2]" in run("run", two_layers, "--inputs", inputs, "--expect", other).out
    )
    unknown = run("run", two_layers, "--inputs", inputs, "--expect", arrays(tmp_path / "unknown.npz", nope=right))
    assert unknown.code == 2 and "unknown output 'nope'" in unknown.err


def test_drawn_inputs_are_written_and_repeat_the_run(run: Run, two_layers: Path, tmp_path: Path) -> None:
    inputs, first = tmp_path / "drawn.npz", tmp_path / "first.npz"
    assert run("run", two_layers, "--sizes", "N=3", "--save-inputs", inputs, "-o", first).code == 0
    with np.load(inputs) as stored:
        assert stored["x"].shape == (3, 2)
    result = run("run", two_layers, "--inputs", inputs, "--expect", first, "--tolerance", "0", "--json").json
    assert result["equal"] is True
    assert result["outputs"][0]["shape"] == [3, 2]


def test_the_first_node_that_makes_nan_or_infinity_is_named(run: Run, broken: Path, tmp_path: Path) -> None:
    inputs = arrays(tmp_path / "in.npz", x=np.array([[-1, 2, 3, 4]], np.float32))
    outcome = run("run", broken, "--inputs", inputs)
    assert outcome.code == 0
    assert "NaN first in 'b': Div quotient computes 1 of 4 elements." in outcome.out
    assert "infinity first in 'b': Div quotient computes 3 of 4 elements." in outcome.out
    assert run("run", broken, "--inputs", inputs, "--finite").code == 1
    data = run("run", broken, "--inputs", inputs, "--json").json
    assert data["finite"] is False
    assert [(origin["kind"], origin["node"]) for origin in data["non_finite"]] == [
        ("NaN", "quotient"), ("infinity", "quotient"),
    ]  # fmt: skip


def test_a_node_that_reads_nan_is_not_its_origin(broken: Path) -> None:
    x = np.array([[np.nan, 2, 3, 4]], np.float32)
    origins = {origin.kind: origin for origin in sardonyx.non_finite(broken, {"x": x})}
    assert (origins["NaN"].tensor, origins["NaN"].node) == ("x", "")
    assert origins["infinity"].node == "quotient"


def test_a_compiled_file_runs(run: Run, two_layers: Path, tmp_path: Path) -> None:
    compiled, inputs, outputs = tmp_path / "net.sdx", tmp_path / "in.npz", tmp_path / "out.npz"
    assert run("compile", two_layers, "-o", compiled).code == 0
    assert run("run", compiled, "--sizes", "N=2", "--save-inputs", inputs, "-o", outputs).code == 0
    assert run("run", two_layers, "--inputs", inputs, "--expect", outputs).code == 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"z": np.zeros((1, 2), np.float32)}, "missing input 'x'"),
        ({"x": np.zeros((1, 2), np.float32), "z": np.zeros(1, np.float32)}, "z"),
        ({"x": np.zeros((1, 3), np.float32)}, "x"),
        ({"x": np.zeros((1, 2), np.int64)}, "x"),
    ],
)
def test_unsuitable_inputs_exit_with_2(
    run: Run, two_layers: Path, tmp_path: Path, values: dict[str, np.ndarray], message: str
) -> None:
    refused = run("run", two_layers, "--inputs", arrays(tmp_path / "in.npz", **values))
    assert refused.code == 2
    assert f"'{message}'" in refused.err or message in refused.err
    assert "input 0" not in refused.err


def test_types_that_numpy_lacks_are_written_as_float32(run: Run, tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (bfloat16[2] y) { y = Cast<to = 16>(x) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "half.onnx")
    inputs = arrays(tmp_path / "in.npz", x=np.array([1, 2.5], np.float32))
    outputs = tmp_path / "out.npz"
    assert run("run", tmp_path / "half.onnx", "--inputs", inputs, "-o", outputs).code == 0
    with np.load(outputs) as stored:
        assert stored["y"].dtype == np.float32 and stored["y"].tolist() == [1, 2.5]
    assert run("run", tmp_path / "half.onnx", "--inputs", inputs, "--expect", outputs).code == 0


def test_a_model_without_operator_sets_runs_as_in_a_session(run: Run, two_layers: Path) -> None:
    model = onnx.load(two_layers)
    model.ClearField("opset_import")
    onnx.save(model, two_layers)
    outcome = run("run", two_layers, "--json")
    assert outcome.code == 0, outcome.err
    assert [row["name"] for row in outcome.json["outputs"]] == ["y"]


RANDOM = """<ir_version: 8, opset_import: ["": 17]>
drawn (float[2, 4] x) => (float[2, 4] y, float[2, 4] z) {
  [copy] z = Relu(x)
  [noise] n = RandomNormalLike(x)
  [sum] y = Add(z, n)
}"""


def test_repeated_runs_of_a_sound_model_have_equal_bits(run: Run, two_layers: Path) -> None:
    outcome = run("run", two_layers, "--sizes", "N=3", "--repeat", "5")
    assert outcome.code == 0 and "Equal bits in 5 runs." in outcome.out
    assert run("run", two_layers, "--sizes", "N=3", "--repeat", "5", "--json").json["repeated"]["differing"] == []


def test_the_first_node_that_differs_between_runs_is_named(run: Run, tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(RANDOM), tmp_path / "random.onnx")
    outcome = run("run", tmp_path / "random.onnx", "--repeat", "3")
    assert outcome.code == 1
    assert "y differ from the first run in run 2 and 1 more of 3: first in 'n'" in outcome.out
    assert "draws random numbers" in outcome.out
    repeated = run("run", tmp_path / "random.onnx", "--repeat", "3", "--json").json["repeated"]
    assert repeated["outputs"] == ["y"] and repeated["node"] == "noise" and repeated["is_random"]


def test_a_compiled_file_is_repeated_without_a_search(run: Run, two_layers: Path, tmp_path: Path) -> None:
    compiled = tmp_path / "m.sdx"
    assert run("compile", two_layers, "-o", compiled).code == 0
    inputs = arrays(tmp_path / "in.npz", x=np.eye(2, dtype=np.float32))
    assert "Equal bits in 2 runs." in run("run", compiled, "--inputs", inputs, "--repeat", "2").out
