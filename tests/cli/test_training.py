"""The training verbs of the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from sardonyx.cli import main
from tests.train.networks import classifier, images


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.onnx").write_bytes(classifier())
    np.savez(tmp_path / "train.npz", **images(96))  # type: ignore[arg-type]
    np.savez(tmp_path / "test.npz", **images(32, 1))  # type: ignore[arg-type]
    return tmp_path


def run(folder: Path, *arguments: str) -> int:
    words = [str(folder / word[1:]) if word.startswith("@") else word for word in arguments]
    with pytest.raises(SystemExit) as exit_:
        main(words)
    return int(exit_.value.code or 0)


def test_train_writes_the_tuned_model_and_a_plot(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(
        folder, "train", "@model.onnx", "--data", "@train.npz", "--lr", "0.03", "--epochs", "3", "--eval", "@test.npz",
        "--metric", "top1", "--schedule", "cosine", "-o", "@tuned.onnx", "--checkpoint", "@states", "--json",
    ) == 0  # fmt: skip
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["history"]) == 3 and answer["difference"] < 1e-4
    assert answer["history"][-1]["loss"] < answer["history"][0]["loss"]
    onnx.checker.check_model(onnx.load(folder / "tuned.onnx"))
    assert (folder / "states" / "training.safetensors").exists()


def test_train_replaces_the_head_and_trains_the_last_layer(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "@model.onnx", "--data", "@train.npz", "--classes", "4", "--trainable", "last", "-o", "@t.onnx"]
    assert run(folder, *words) == 0
    assert "2 tensors trained" in capsys.readouterr().out


def test_scores_of_sequences_name_their_axis_of_classes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    w = onnx.numpy_helper.from_array(np.random.default_rng(0).standard_normal((3, 2)).astype(np.float32), "w")
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17]> g (float[N, 2, 5] x) => (float[N, 3, 5] y) { y = MatMul (w, x) }'
    )
    model.graph.initializer.append(w)
    onnx.save(model, folder / "sequence.onnx")
    x, labels = np.ones((4, 2, 5), np.float32), np.arange(20).reshape(4, 5) % 3
    np.savez(folder / "sequence.npz", x=x, labels=labels)
    words = ["train", "@sequence.onnx", "--data", "@sequence.npz", "-o", "@t.onnx"]
    assert run(folder, *words) == 2
    assert "(`--axis`)" in capsys.readouterr().err
    assert run(folder, *words, "--axis", "1") == 0
    assert run(folder, *words, "--axis", "1", "--loss", "l1") == 2
    assert (
        "--axis: the loss l1 has no such option. Use it with cross-entropy, distillation, focal, kl."
        in capsys.readouterr().err
    )


def test_adapters_merge_into_their_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["finetune", "@model.onnx", "--lora", "2", "--data", "@train.npz", "-o", "@l.onnx", "--adapter", "@a.st"]
    assert run(folder, *words) == 0
    assert run(folder, "merge", "@model.onnx", "--adapter", "@a.st", "-o", "@m.onnx") == 0
    assert run(folder, "merge", "@model.onnx", "--adapter", "@a.st", "--share", "0", "-o", "@n.onnx") == 0
    names = ("l.onnx", "m.onnx", "model.onnx", "n.onnx")
    weights = [
        np.concatenate([onnx.numpy_helper.to_array(w).ravel() for w in onnx.load(folder / name).graph.initializer])
        for name in names
    ]
    np.testing.assert_array_equal(weights[1], weights[0])
    np.testing.assert_array_equal(weights[3], weights[2])
    assert not np.array_equal(weights[0], weights[2])
    assert run(folder, "merge", "@model.onnx", "@l.onnx", "--adapter", "@a.st", "-o", "@x.onnx") == 2
    assert run(folder, "merge", "@model.onnx", "--adapter", "@train.npz", "-o", "@x.onnx") != 0
    assert "expected an adapter of Sardonyx" in capsys.readouterr().err


def test_finetune_distill_and_gradient_write_models(folder: Path) -> None:
    data = ["--data", "@train.npz"]
    assert run(folder, "finetune", "@model.onnx", "--lora", "2", *data, "-o", "@l.onnx", "--adapter", "@a.st") == 0
    assert (folder / "a.st").exists()
    distill = ["distill", "@model.onnx", "--teacher", "@l.onnx", *data, "--alpha", "1", "-o", "@d.onnx"]
    assert run(folder, *distill) == 0
    assert run(folder, "gradient", "@model.onnx", "--wrt", "image", "-o", "@g.onnx") == 0
    assert [output.name for output in onnx.load(folder / "g.onnx").graph.output] == ["logits", "image_gradient"]


@pytest.mark.parametrize(
    "words",
    [
        ["train", "@model.onnx", "--data", "@train.npz", "--optimizer", "adamm", "-o", "@t.onnx"],
        ["train", "@model.onnx", "--data", "@train.npz", "--optimizer", "lion", "--momentum", "0.9", "-o", "@t.onnx"],
        ["train", "@model.onnx", "--data", "@train.npz", "--loss", "cross", "-o", "@t.onnx"],
        ["train", "@model.onnx", "--data", "@train.npz", "--schedule", "steps", "-o", "@t.onnx"],
        ["train", "@model.onnx", "--data", "@train.npz", "--trainable", "heat*", "-o", "@t.onnx"],
        ["gradient", "@model.onnx", "--kind", "hessian", "-o", "@t.onnx"],
    ],
)
def test_bad_options_are_named_and_nothing_is_written(folder: Path, words: list[str]) -> None:
    assert run(folder, *words) == 2
    assert not (folder / "t.onnx").exists()


def test_a_loss_that_is_not_finite_names_options_of_the_command(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "@model.onnx", "--data", "@train.npz", "--lr", "1e30", "--epochs", "9", "-o", "@t.onnx"]
    assert run(folder, *words) == 1
    assert "`--clip-norm`" in " ".join(capsys.readouterr().err.split())
    assert not (folder / "t.onnx").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--plot", "@curves.doc"], "--plot: expected a file of a format of plots"),
        (["--plot", "@curves.pgf"], "--plot: expected a file of a format of plots"),
        (["--plot", "@missing/curves.svg"], "its folder does not exist"),
        (["--plot", "@"], "is not a regular file"),
        (["--plot", "@missing/.."], "its folder does not exist"),
        (["--plot", "@train.npz/curves"], "train.npz' is not a folder"),
        (["--plot", "@dangling.svg"], "its folder does not exist"),
        (["--plot", "@" + "x" * 300], "File name too long"),
    ],
)
def test_a_plot_that_cannot_be_written_is_refused_before_the_training(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    pytest.importorskip("matplotlib", reason="plots require matplotlib")
    (folder / "dangling.svg").symlink_to("missing/curves.svg")
    assert run(folder, "train", "@model.onnx", "--data", "@train.npz", "-o", "@unwritten.onnx", *words) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (folder / "unwritten.onnx").exists()


def test_a_folder_that_is_missing_is_named_before_the_training(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["finetune", "@model.onnx", "--data", "@train.npz"]
    assert run(folder, *words, "-o", "@missing/tuned.onnx", "--checkpoint", "@unwritten") == 2
    assert "--output: " in (message := " ".join(capsys.readouterr().err.split())) and "does not exist" in message
    assert run(folder, *words, "-o", "@tuned.onnx", "--adapter", "@missing/a.safetensors") == 2
    assert "--adapter: " in (message := " ".join(capsys.readouterr().err.split())) and "does not exist" in message
    for path in ("@", "/proc/self/file", "@" + "x" * 300):
        assert run(folder, *words, "-o", path, "--checkpoint", "@unwritten") == 2
        assert "--output: " in capsys.readouterr().err
    assert not (folder / "unwritten").exists()


def test_one_file_for_two_results_is_refused_before_the_training(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["finetune", "@model.onnx", "--data", "@train.npz", "-o", "@unwritten.onnx"]
    assert run(folder, *words, "--adapter", "@./unwritten.onnx") == 2
    assert "--adapter: '" in (message := " ".join(capsys.readouterr().err.split()))
    assert "is the file of --output too" in message and not (folder / "unwritten.onnx").exists()
    words = ["optimize", "@model.onnx", "-o", "@unwritten.onnx", "--report", "@unwritten.onnx"]
    assert run(folder, *words) == 2
    assert "--report: '" in capsys.readouterr().err and not (folder / "unwritten.onnx").exists()


def test_more_memory_than_the_machine_has_is_an_error_of_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "@model.onnx", "--data", "@train.npz", "-o", "@unwritten.onnx", "--classes", "3000000000000"]
    assert run(folder, *words) == 1
    assert "the machine has too little memory" in " ".join(capsys.readouterr().err.split())


def test_an_impossible_rank_names_its_option(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "finetune", "@model.onnx", "--data", "@train.npz", "-o", "@unwritten.onnx", "--lora", "0") == 2
    assert "--lora: expected an integer of at least 1, got 0." in capsys.readouterr().err


def test_options_of_the_loss_and_of_stopping_reach_the_training(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["@model.onnx", "--data", "@train.npz", "--eval", "@test.npz", "-o", "@t.onnx", "--json"]
    several = ["--class-weights", "balanced", "--label-smoothing", "0.1", "--ignore", "2", "--weight-decay", "0.1"]
    assert (
        run(folder, "train", *words, *several, "--patience", "1", "--lr", "9", "--epochs", "20", "--metric", "top5")
        == 0
    )
    history = json.loads(capsys.readouterr().out)["history"]
    assert len(history) < 20 and history[0]["validation_top5"] == 1
    labels = np.eye(3, dtype=np.float32)[images(96)["labels"]]
    np.savez(folder / "soft.npz", image=images(96)["image"], labels=labels)
    soft = ["train", "@model.onnx", "--data", "@soft.npz", "-o", "@t.onnx"]
    assert run(folder, *soft, "--soft-labels", "--schedule", "cosine", "--warmup", "2") == 0
    assert run(folder, *soft) == 2
    assert "`--soft-labels`" in capsys.readouterr().err
    weighted = ["finetune", "@model.onnx", "--data", "@train.npz", "-o", "@t.onnx", "--class-weights", "1,2,0.5"]
    assert run(folder, *weighted, "--accumulate", "2", "--ema", "0.9") == 0


def test_the_rate_falls_at_milestones_and_sharpness_aware_steps_differ(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "@model.onnx", "--data", "@train.npz", "--epochs", "2", "--batch-size", "32", "--json"]
    steps = 2 * -(-96 // 32)
    assert run(folder, *words, "-o", "@a.onnx", "--schedule", "step", "--milestones", f"1,{steps - 1}") == 0
    rates = [row["rate"] for row in json.loads(capsys.readouterr().out)["history"]]
    assert rates == pytest.approx([1e-4, 1e-5])
    assert run(folder, *words, "-o", "@b.onnx", "--sam", "0.5") == 0
    assert run(folder, *words, "-o", "@c.onnx") == 0
    assert (folder / "b.onnx").read_bytes() != (folder / "c.onnx").read_bytes()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--metric", "top1"], "--metric: metrics are those of evaluations. Give --eval."),
        (["--patience", "2"], "--patience: expected data of evaluations. Give --eval."),
        (["--schedule", "plateau"], "--schedule: the schedule plateau watches the loss of --eval. Give --eval."),
        (["--checkpoint-steps", "5"], "--checkpoint-steps: expected a folder of checkpoints. Give --checkpoint."),
        (["--class-weights", "1,2"], "--class-weights: expected 3 factors, one for each class, got 2."),
        (["--class-weights", "1,x,2"], "--class-weights: expected numbers with commas, or balanced, got '1,x,2'."),
        (
            ["--loss", "mse", "--soft-labels"],
            "--soft-labels: the loss mse has no such option. Use it with cross-entropy.",
        ),
        (["--schedule", "step"], "--schedule: the schedule step needs steps. Give --milestones 1000,2000."),
        (
            ["--schedule", "step", "--milestones", "1,b"],
            "--milestones: expected numbers of steps with commas, got '1,b'.",
        ),
        (["--milestones", "5"], "--milestones: the schedule constant has no such option. Use it with step."),
        (["--sam", "0"], "--sam: expected a length above 0, got 0.0."),
        (["--warmup", "5"], "--warmup: the schedule constant has no such option. Use it with cosine, linear."),
        (["--optimizer", "adagrad", "--momentum", "0.5"], "--momentum: the optimizer adagrad has no such option."),
        (["--label-smoothing", "2"], "--label-smoothing: expected a number of at least 0 and of at most 1, got 2.0."),
    ],
)
def test_options_that_do_not_fit_each_other_are_named(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    assert run(folder, "train", "@model.onnx", "--data", "@train.npz", "-o", "@t.onnx", *words) == 2
    assert text in capsys.readouterr().err
    assert not (folder / "t.onnx").exists()


def test_each_option_of_training_is_the_same_in_every_verb() -> None:
    from sardonyx.cli import distill, finetune, train
    from sardonyx.cli.parameters import parameters

    options = [{p.spelling: p for p in parameters(module.command)} for module in (train, finetune, distill)]
    shared = options[0].keys() & options[1].keys() & options[2].keys()
    assert {"--lr X", "--clip-norm X", "--ema X", "--patience N", "--log FOLDER", "--max-memory TEXT"} <= shared
    assert all(options[0][name] == one[name] for name in shared for one in options)
