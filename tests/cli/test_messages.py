"""Messages, exit codes and files of the command line, as a reader of the terminal meets them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from sardonyx import demo
from sardonyx.model.check.commands import Commands
from sardonyx.model.check.rephrasing import rephrase
from tests.cli.conftest import Run

BATCHES = """<ir_version: 8, opset_import: ["": 17]>
g (float[2, 3] a, float[5, 3] b) => (float[2, 3] y, float[5, 3] z) { y = Relu(a) z = Neg(b) }"""


@pytest.mark.parametrize(
    ("name", "contents", "message"),
    [
        ("notes.txt", b"hello, this is a text\n", "is a text file, expected an ONNX model"),
        ("model.onnx", "größer\n".encode() * 999, "is a text file, expected an ONNX model"),
        ("model.onnx", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "git lfs pull"),
        ("cut.onnx", demo.path("digits_classifier").read_bytes()[:3000], "damaged"),
    ],
)
def test_a_file_without_a_model_is_named_for_what_it_is(
    run: Run, tmp_path: Path, name: str, contents: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(contents)
    outcome = run("info", path)
    assert outcome.code == 2
    assert message in outcome.err
    assert "group" not in outcome.err


WRITERS = {
    "optimize": ["--no-measure"], "simplify": [], "fp16": [], "set-shape": ["--batch", "3"],
    "convert-opset": ["--opset", "16"], "convert": [], "rename": ["x=a"], "extract": ["--outputs", "h"],
}  # fmt: skip


@pytest.mark.parametrize("verb", WRITERS)
def test_a_model_is_not_written_under_the_name_of_another_format(
    run: Run, two_layers: Path, tmp_path: Path, verb: str
) -> None:
    output = tmp_path / "out.txt"
    outcome = run(verb, two_layers, *WRITERS[verb], "-o", output)
    assert outcome.code == 2
    assert "unknown suffix '.txt'" in outcome.err and ".onnxtxt" in outcome.err
    assert not output.exists()


def test_a_remedy_names_options_of_the_command(run: Run, tmp_path: Path) -> None:
    half = tmp_path / "half.onnx"
    outcome = run("fp16", demo.path("digits_classifier"), "--auto", "--tolerance", "1e-9", "-o", half)
    assert outcome.code == 2 and not half.exists()
    assert "--tolerance: 1e-09 cannot be met" in outcome.err and "(`--keep-io`)" in outcome.err


WRONG_OPTIONS = {
    "quantize --method gptq": "--method: the method gptq learns from data; expected data, got none. Give samples",
    "quantize --method smoothquant": "--method: the method smoothquant learns from data",
    "quantize --drop 1": "--drop: a permitted loss needs a metric. Give `--eval`.",
    "quantize --drop -1 --eval eval.npz": "--drop: expected a number of 0 or more",
    "compress --drop 1 --data x.npz": "--drop: a permitted loss needs a metric. Give `--eval`",
    "compress": "--data: expected `--data` or `--eval`, got neither",
    "prune": "--channels, --heads, --layers, --sparsity: expected one of `--channels`, `--heads`, `--layers` and "
    "`--sparsity`, got none. Give --channels 0.3 for smaller shapes, or --sparsity 0.5 for zeros.",
    "factorize --rank 0.5 --energy 0.5": "--rank, --energy: expected one of `--rank` and `--energy`, got both",
    "fp16 --block-node nope": "--block-node: unknown node",
    "fp16 --min-positive 1 --max-finite 0.5": "--max-finite: expected a number between",
    "merge --link a=b": "--link: unknown output",
    "convert-opset --ir 99": "--ir: expected an IR version",
    "convert --format foo": "--format: unknown format of model files 'foo'",
    "convert --external-threshold -1": "--external-threshold: expected 0 bytes or more",
    "run --provider foo": "--provider: unknown provider",
    "run --expect x.npz": "--expect: unknown output",
    "explain --provider foo": "--provider: unknown provider",
    "profile --provider foo": "--provider: unknown provider",
    "reduce --command foo": "--command: expected {model}",
    "hub search foo": "NAME: the source 'foo' cannot be searched",
    "fp16 --tolerance 0.1": "--tolerance: requires --auto.",
    "run --tolerance -1": "--tolerance: expected a number of 0 or more",
    "run --repeat 0": "--repeat: expected an integer of at least 1, got 0",
    "bench --seconds 0": "--seconds: expected a number above 0",
    "bench --warmup -1": "--warmup: expected a number of at least 0",
    "compare --providers native,reference --budget 0": "--budget: expected a size such as 64MiB, got '0'",
    "compare --providers native,reference --tolerance nan": "--tolerance: expected a number of 0 or more",
    "reduce --providers native,reference --tolerance -1": "--tolerance: expected a number of 0 or more",
    "reduce --command true{model} --timeout 0": "--timeout: expected a number above 0",
    "ops --domain foo": "--domain: unknown domain 'foo'. Choose from ai.onnx,",
    "compress --data x.npz --latency foo": "--latency: expected a number with a unit (s, ms, us, ns, min, m, h)",
    "compress --data x.npz --energy foo": "--energy: expected a number with a unit (J, mJ,",
    "train --data eval.npz --momentum 0.9": "--momentum: the optimizer adamw has no such option",
    "check --target foo": "--target: unknown target 'foo'; expected one of coreml, mnn, native, ncnn,",
    "check --target stablehlo --version 3": "--version: the target stablehlo has no versions. Omit `--version`.",
    "sign --key x.npz --password env:SARDONYX_NO_SUCH": "--password: the environment has no variable",
    "optimize --rules x.npz": "x.npz: expected an existing Python file",
    "optimize --input-shape foo:1": "--input-shape: unknown input 'foo'. Inputs are: image.",
    "optimize --input-shape image:1": "--input-shape: expected 4 sizes of 'image', got 1",
    "set-shape --dynamic foo": "--dynamic: unknown input 'foo'. Inputs are: image.",
    "train --data eval.npz --eval eval.npz --metric foo": "--metric: expected one of",
    "train --data eval.npz --resume": "--resume: expected the folder of a checkpoint. Give `--checkpoint`.",
    "finetune --data eval.npz --targets foo": "--targets: no parameter matches",
}
"""Command lines of the digits classifier → parts of the error, which names options as they are typed."""


@pytest.mark.parametrize("line", WRONG_OPTIONS)
def test_errors_name_options_of_the_command(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    image = demo.inputs("digits_classifier")["image"][:4]
    np.savez("x.npz", image=image)
    np.savez("eval.npz", image=image, labels=np.arange(4))
    verb, *options = line.split()
    model = demo.path("digits_classifier")
    models = {"hub": [], "ops": [], "merge": [model, model]}.get(verb, [model])
    without = ("run", "explain", "profile", "hub", "ops", "bench", "compare", "check")
    output = [] if verb in without else ["-o", "out.onnx"]
    outcome = run(verb, *models, *options, *output)
    assert outcome.code == 2 and not Path("out.onnx").exists()
    assert WRONG_OPTIONS[line] in " ".join(outcome.err.split())


@pytest.mark.parametrize("verb", ["optimize", "fp16", "quantize", "cluster", "gradient", "compile"])
def test_a_file_that_cannot_be_written_is_refused_before_the_work(run: Run, tmp_path: Path, verb: str) -> None:
    """The model does not exist either: it would be read first."""
    suffix = "sdx" if verb == "compile" else "onnx"
    outcome = run(verb, tmp_path / "model.onnx", "-o", tmp_path / "missing" / f"out.{suffix}")
    assert outcome.code == 2
    assert f"out.{suffix}' cannot be written: its folder does not exist" in " ".join(outcome.err.split())


def test_convert_writes_any_name_in_a_named_format(run: Run, two_layers: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.txt"
    assert run("convert", two_layers, "--format", "onnxtxt", "-o", output).code == 0
    assert "MatMul" in output.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "arguments",
    [
        ["set-shape", "--input", "nope:3"],
        ["set-shape", "--input", "x:3"],
        ["set-shape", "--batch", "-2"],
        ["extract", "--outputs", "nope"],
        ["rename", "nope=a"],
    ],
)
def test_an_unknown_name_or_size_is_an_invalid_request(run: Run, two_layers: Path, arguments: list[str]) -> None:
    verb, *options = arguments
    outcome = run(verb, two_layers, *options, "-o", two_layers.with_name("out.onnx"))
    assert outcome.code == 2, outcome.err
    option = next((word for word in options if word.startswith("--")), "")
    assert option in outcome.err


def test_messages_name_no_functions_of_python(run: Run, tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(BATCHES), tmp_path / "two.onnx")
    outcome = run("set-shape", tmp_path / "two.onnx", "--batch", "2", "-o", tmp_path / "out.onnx")
    assert outcome.code == 1
    assert "a: 2, b: 5" in outcome.err and "set_input_shapes" not in outcome.err


REFUSED = {
    "float y = MatMul(h, w)": "Inputs: h float[2, 3], w float[4, 5].",
    "float y = Add(x, i)": "B has the type tensor(int64), unlike other inputs of the same type variable.",
    "float y = Gemm(h)": "expected 2 to 3 inputs, got 1. Inputs: h float[2, 3].",
    "float y = Reshape(x, s)": "which the operator does not accept",
    "float y = Concat <axis = 0> (x, w)": "axis 1 has the sizes 5 and 3",
}


@pytest.mark.parametrize("node", REFUSED)
def test_errors_that_onnx_finds_name_the_inputs(run: Run, tmp_path: Path, node: str) -> None:
    declared, _, call = node.partition(" ")
    text = f"g (float[2, 3] x, float[4, 5] w, int64[2, 3] i, float[1] s) => ({declared} y) {{ h = Relu (x)  {call} }}"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}'), tmp_path / "bad.onnx")
    outcome = run("check", tmp_path / "bad.onnx")
    assert outcome.code == 1
    assert outcome.out.count(REFUSED[node]) == 1
    assert "schema(" not in outcome.out and "typestr" not in outcome.out and "merge shape" not in outcome.out


def test_a_domain_without_import_is_reported_once(run: Run, tmp_path: Path) -> None:
    text = "g (float[2] x) => (float[2] y) { a = Relu (x)  y = ai.onnx.ml.Normalizer (a) }"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}'), tmp_path / "bad.onnx")
    (finding,) = run("check", tmp_path / "bad.onnx", "--json").json["findings"]
    assert finding["code"] == "opset-missing"


def test_positions_of_inputs_in_texts_of_onnx_are_names() -> None:
    node = onnx.helper.make_node("If", ["a", "", "c"], ["y"])
    assert rephrase("Input 2 is null, inputs 0 is not.", node) == "input 'c' is null, input 'a' is not."
    assert rephrase("Input 1 and input 7 are absent.", node) == "Input 1 and input 7 are absent."


def test_a_repair_of_many_findings_is_printed_once(run: Run, tmp_path: Path) -> None:
    nodes = " ".join(f"u{i} = Relu(x)" for i in range(25))
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) {{ {nodes} y = Neg(x) }}'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "unused.onnx")
    out = run("check", tmp_path / "unused.onnx", "--lint").out
    assert out.count("$ sardonyx") == 1
    assert "unused-node: 25 findings" in out and "and 19 more; --json lists all" in out
    assert len(run("check", tmp_path / "unused.onnx", "--lint", "--json").json["findings"]) >= 25


def test_a_repair_is_written_to_a_folder_that_can_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    assert Commands(str(path)).simplify().endswith(f"-o {tmp_path / 'net.repaired.onnx'}")
    monkeypatch.setattr("os.access", lambda folder, mode: False)
    assert Commands(str(path)).simplify().endswith("-o net.repaired.onnx")


MODEL = str(demo.path("digits_classifier"))


@pytest.mark.parametrize(
    "words", [["info", MODEL], ["info", MODEL, "--json"], ["serve", "--new-token", "infer"], ["--version"]]
)
def test_a_closed_pipe_does_not_change_the_exit_code(words: list[str]) -> None:
    line = [sys.executable, "-m", "sardonyx", *words]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        # The secret of a new token goes to standard error by intention, in one line.
        own = [line for line in process.stderr.read().splitlines() if not line.startswith(b"Token for clients: ")]
        assert own == []
        assert process.wait() == 0


@pytest.mark.parametrize("verb", [verb for verb in WRITERS if verb != "rename"])
def test_the_output_may_follow_the_model(run: Run, two_layers: Path, tmp_path: Path, verb: str) -> None:
    named, placed = tmp_path / "named.onnx", tmp_path / "placed.onnx"
    assert run(verb, two_layers, *WRITERS[verb], "-o", named).code == 0
    outcome = run(verb, two_layers, placed, *WRITERS[verb])
    assert outcome.code == 0, outcome.err
    assert named.read_bytes() == placed.read_bytes()
    last = tmp_path / "last.onnx"
    assert run(verb, *WRITERS[verb], two_layers, last).code == 0
    assert named.read_bytes() == last.read_bytes()


def test_more_arguments_than_model_and_output_are_refused(run: Run, two_layers: Path, tmp_path: Path) -> None:
    assert run("convert", two_layers, tmp_path / "a.onnx", tmp_path / "b.onnx").code == 2
    assert run("convert", two_layers, tmp_path / "a.onnx", "-o", tmp_path / "b.onnx").code == 2
    assert run("info", two_layers, "--nope").code == 2
    refused = run("set-shape", two_layers, tmp_path / "a.onnx", "surplus")
    assert refused.code == 2 and "surplus" in refused.err and "--output" not in refused.err
    assert not (tmp_path / "a.onnx").exists() and not (tmp_path / "b.onnx").exists()


def test_the_listing_of_sparsity_counts_zeros_channels_and_groups(run: Run, tmp_path: Path) -> None:
    weight = np.ones((8, 6), np.float32)
    weight[::2, 1:] = 0
    weight[4] = 0
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[N, 8] x) => (float[N, 6] y) '
        "<float[8, 6] dense = {"
        + ", ".join(["1"] * 48)
        + "}> { h = MatMul (x, w)  k = MatMul (x, dense)  y = Add (h, k) }"
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(proto, tmp_path / "sparse.onnx")
    rows = run("info", tmp_path / "sparse.onnx", "--sparsity", "--json").json["weight_list"]
    sparse = next(row for row in rows if row["name"] == "w")
    assert sparse["zeros"] == pytest.approx(21 / 48)
    assert sparse["zero_channels"] == 1 / 8
    assert sparse["zero_groups"] == pytest.approx(10 / 12)  # The first column has one zero.
    lines = run("info", tmp_path / "sparse.onnx", "--sparsity").out
    assert "Sparsity: 21.9% of all weights are 0" in lines and lines.index(" w ") < lines.index(" dense ")


def test_names_between_colons_stay_as_they_are(run: Run) -> None:
    """`:abc:` is the name of a picture for the library that prints."""
    assert "nope:abc: unknown source 'nope:'" in run("hub", "get", "nope:abc").err


def test_the_reason_why_a_model_is_not_compiled_ends_once(run: Run, two_layers: Path, tmp_path: Path) -> None:
    model = onnx.load(two_layers)
    for weight in model.graph.initializer:
        weight.ClearField("raw_data")
        weight.ClearField("float_data")
    onnx.save(model, tmp_path / "empty.onnx")
    outcome = run("compile", tmp_path / "empty.onnx", "-o", tmp_path / "empty.sdx")
    assert outcome.code != 0 and "no contents" in outcome.err
    assert ".." not in outcome.err
