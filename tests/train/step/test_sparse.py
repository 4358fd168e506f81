"""Sparse steps: of an embedding, the rows that a batch reads are updated, and all others stay to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from sardonyx import train
from sardonyx.errors import OptionError

WORDS, WIDTH, CLASSES = 50, 8, 3


def model(body: str = "e = Gather(table, ids)") -> onnx.ModelProto:
    """A classifier of the mean of embedded words."""
    graph = f"""net (int64[N, L] ids) => (float[N, {CLASSES}] y) <float[{WORDS}, {WIDTH}] table, float[{WIDTH}, 3] w>
        {{ {body} axes = Constant <value_ints = [1]> () m = ReduceMean <keepdims = 0> (e, axes) y = MatMul(m, w) }}"""
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {graph}')
    rng = np.random.default_rng(0)
    for name, shape in (("table", (WORDS, WIDTH)), ("w", (WIDTH, CLASSES))):
        array = rng.standard_normal(shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return proto


def batches(count: int, seed: int = 1) -> list[dict[str, np.ndarray]]:
    """Batches of several sizes, with repeated and negative indices."""
    rng = np.random.default_rng(seed)
    shapes = [(int(rng.integers(1, 5)), int(rng.integers(1, 6))) for _ in range(count)]
    return [{"ids": rng.integers(-5, 30, shape), "labels": rng.integers(0, CLASSES, shape[0])} for shape in shapes]


def trained(optimizer: Any, steps: int = 12, **options: Any) -> dict[str, np.ndarray]:
    trainer = train.Trainer(model(), "cross-entropy", optimizer, **options)
    for batch in batches(steps):
        trainer.step(batch)
    state: dict[str, np.ndarray] = trainer.state()
    return state


@pytest.mark.parametrize("optimizer", [train.SGD(0.1), train.Adagrad(0.1)], ids=["sgd", "adagrad"])
@pytest.mark.parametrize("options", [{}, {"clip_norm": 0.1}, {"clip_value": 0.01}], ids=["plain", "norm", "value"])
def test_sparse_steps_of_memoryless_optimizers_are_steps_over_all_rows(optimizer: Any, options: Any) -> None:
    dense, sparse = trained(optimizer, **options), trained(optimizer, sparse="embeddings", **options)
    for name, array in dense.items():
        np.testing.assert_allclose(sparse[name], array, rtol=1e-6, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("amsgrad", [False, True])
def test_lazy_adam_is_adam_of_the_rows_that_a_batch_reads(amsgrad: bool, tmp_path: Path) -> None:
    optimizer = train.Adam(0.05, amsgrad=amsgrad)
    trainer = train.Trainer(model(), "cross-entropy", optimizer, sparse="table")
    assert any("table" in note for note in trainer.notes)
    for batch in batches(8):
        before = trainer.state()
        dense = train.Trainer(model(), "cross-entropy", optimizer)
        trainer.save_checkpoint(tmp_path)
        dense.load_checkpoint(tmp_path)
        assert dense.step(batch) == trainer.step(batch)
        rows = np.zeros(WORDS, bool)
        rows[batch["ids"]] = True
        for name, array in trainer.state().items():
            expected = dense.state()[name]
            if name.endswith(":table"):
                assert array[~rows].tobytes() == before[name][~rows].tobytes()
                array, expected = array[rows], expected[rows]
            np.testing.assert_allclose(array, expected, rtol=1e-6, atol=1e-7, err_msg=name)


def test_a_table_of_several_lookups_has_the_rows_of_all() -> None:
    proto = model("a = Gather(table, ids) i = Neg(ids) b = Gather(table, i) e = Add(a, b)")
    dense, sparse = (train.Trainer(proto, "cross-entropy", train.SGD(0.1), sparse=names) for names in ((), ["tab*"]))
    for batch in batches(5):
        assert dense.step(batch) == pytest.approx(sparse.step(batch), rel=1e-6)
    np.testing.assert_allclose(
        sparse.state()["parameter:table"], dense.state()["parameter:table"], rtol=1e-6, atol=1e-7
    )


def test_a_run_that_resumes_is_equal_to_the_bit(tmp_path: Path) -> None:
    def trainer() -> train.Trainer:
        return train.Trainer(model(), "cross-entropy", train.Adam(0.05), sparse="embeddings")

    whole, first, second = trainer(), trainer(), trainer()
    data = batches(6)
    whole.fit(data, epochs=2)
    first.fit(data, epochs=1, checkpoint=tmp_path)
    second.fit(data, epochs=2, checkpoint=tmp_path, resume=True)
    for name, array in whole.state().items():
        assert second.state()[name].tobytes() == array.tobytes()
    assert whole.save(tmp_path / "tuned.onnx") < 1e-5


def test_a_step_written_into_the_file_updates_rows_alone() -> None:
    trainer = train.Trainer(model(), "cross-entropy", train.Adam(0.05), sparse="embeddings")
    algorithm = train.TrainingAlgorithm(train.with_training_info(trainer))
    batch = batches(1)[0]
    algorithm.step({**batch, "step_numbers": trainer.step_numbers()[0]})
    trainer.step(batch)
    table = trainer.state()["parameter:table"]
    np.testing.assert_allclose(algorithm.state["table"], table, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sparse": "tabel"}, "no trained parameter matches 'tabel'.*'table'"),
        ({"sparse": 3}, "expected patterns of names"),
        ({"sparse": "w"}, "the gradient has more than the rows"),
        ({"sparse": "table", "optimizer": train.AdamW()}, "the optimizer changes rows whose gradient is zero"),
        ({"sparse": "table", "optimizer": train.SGD(0.1, momentum=0.9)}, "the optimizer changes rows"),
        ({"sparse": "table", "optimizer": train.Lion()}, "the optimizer changes rows"),
        ({"sparse": "table", "accumulate": 2}, "change all rows"),
        ({"sparse": "table", "ema": 0.9}, "change all rows"),
        ({"sparse": "table", "reduce": lambda arrays: None}, "of all rows"),
    ],
)
def test_what_no_sparse_step_can_do_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        train.Trainer(model(), **{"optimizer": train.SGD(0.1), **options})


def test_decay_of_other_parameters_is_a_matter_of_groups() -> None:
    groups = {"table": {"weight_decay": 0.0}}
    trainer = train.Trainer(model(), optimizer=train.AdamW(0.01), sparse="table", groups=groups)
    before = trainer.state()["parameter:table"]
    trainer.step({"ids": np.array([[1, 2]]), "labels": np.array([0])})
    after = trainer.state()["parameter:table"]
    assert np.flatnonzero((before != after).any(axis=1)).tolist() == [1, 2]
