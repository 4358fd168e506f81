"""Sources of data and of weights: folders, loaders, weights as inputs and in functions, adapters, callbacks."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

import sardonyx
from sardonyx import train
from sardonyx.errors import FeedError, ModelFileError, OptionError
from tests.train.networks import classifier, images, points, regression


def test_folders_of_classes_are_read_batch_by_batch(tmp_path: Path) -> None:
    data = images(48)
    for i, (image, label) in enumerate(zip(data["image"], data["labels"], strict=True)):
        folder = tmp_path / "data" / "abc"[label]
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / f"{i:03}.npy", image)
    trainer = train.Trainer(classifier(), "cross-entropy", train.AdamW(0.02), metrics=["top1"])
    trainer.fit(tmp_path / "data", epochs=12, batch_size=16, progress=False)
    assert trainer.evaluate(tmp_path / "data")["top1"] > 0.9
    (tmp_path / "data" / "a" / "broken.npy").write_bytes(b"nothing")
    with pytest.raises(ModelFileError, match=r"broken\.npy"):
        trainer.evaluate(tmp_path / "data")
    (tmp_path / "empty").mkdir()
    with pytest.raises(OptionError, match="a folder for each class"):
        trainer.evaluate(tmp_path / "empty")


def test_images_in_folders_are_scaled(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    data = images(6)
    for i, (pixels, label) in enumerate(zip(data["image"], data["labels"], strict=True)):
        (tmp_path / str(label)).mkdir(exist_ok=True)
        image.fromarray((pixels[0] * 127).astype(np.uint8)).save(tmp_path / str(label) / f"{i}.png")
    assert np.isfinite(train.Trainer(classifier(), "cross-entropy").evaluate(tmp_path)["loss"])


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_loaders_of_torch_are_read() -> None:
    import torch

    data = images(40)
    pairs = torch.utils.data.TensorDataset(torch.tensor(data["image"]), torch.tensor(data["labels"]))
    trainer = train.Trainer(classifier(), "cross-entropy", train.SGD(0.1))
    trainer.fit(torch.utils.data.DataLoader(pairs, batch_size=16), epochs=2, progress=False)
    plain = train.Trainer(classifier(), "cross-entropy", train.SGD(0.1))
    plain.fit(data, epochs=2, batch_size=16, shuffle=False, progress=False)
    assert all(np.array_equal(plain.state()[name], array) for name, array in trainer.state().items())


def test_datasets_with_a_numpy_iterator_are_read() -> None:
    class Dataset:
        """The form of ``tf.data.Dataset``."""

        def __iter__(self) -> Any:
            raise AssertionError("tensors of TensorFlow are not read")

        def as_numpy_iterator(self) -> Any:
            return iter([(images(8, seed)["image"], images(8, seed)["labels"]) for seed in range(3)])

    trainer = train.Trainer(classifier(), "cross-entropy", train.SGD(0.1))
    assert len(trainer.fit(Dataset(), epochs=2, progress=False)["loss"]) == 2


class Repeated:
    """A dataset without a known length, or without end, in the form of ``tf.data.Dataset``."""

    def __init__(self, cardinality: int, batches: list[Any]) -> None:
        self._cardinality, self._batches = cardinality, batches

    def __len__(self) -> int:
        raise TypeError("The dataset length is unknown.")

    def __iter__(self) -> Any:
        raise AssertionError("tensors of TensorFlow are not read")

    def cardinality(self) -> int:
        return self._cardinality

    def as_numpy_iterator(self) -> Any:
        return itertools.cycle(self._batches) if self._cardinality == -1 else iter(self._batches)


def test_datasets_of_unknown_length_and_without_end_are_read() -> None:
    batches = [({"image": batch["image"]}, batch["labels"]) for batch in (images(8, seed) for seed in range(3))]
    expected = train.Trainer(classifier(), "cross-entropy", "sgd")
    expected.fit([(inputs["image"], labels) for inputs, labels in batches], epochs=2, progress=False)
    for cardinality, steps in ((-2, None), (-1, 3)):
        trainer = train.Trainer(classifier(), "cross-entropy", "sgd")
        trainer.fit(Repeated(cardinality, batches), epochs=2, steps=steps, progress=False)
        assert all(np.array_equal(array, expected.state()[name]) for name, array in trainer.state().items())
    with pytest.raises(OptionError, match="has no end"):
        expected.fit(Repeated(-1, batches), epochs=3)
    with pytest.raises(OptionError, match="beside those by name"):
        expected.fit([({"image": images(8)["image"]},)], epochs=3)


def test_datasets_of_tensorflow_are_read() -> None:
    tensorflow = pytest.importorskip("tensorflow", reason="tensorflow is not installed")
    data = images(40)
    dataset = tensorflow.data.Dataset.from_tensor_slices(({"image": data["image"]}, data["labels"])).batch(8)
    expected = train.Trainer(classifier(), "cross-entropy", "sgd")
    expected.fit(data, epochs=2, batch_size=8, shuffle=False, progress=False)
    for source, steps in ((dataset.prefetch(2), None), (dataset.filter(lambda *_: True), None), (dataset.repeat(), 5)):
        trainer = train.Trainer(classifier(), "cross-entropy", "sgd")
        trainer.fit(source, epochs=2, steps=steps, progress=False)
        assert all(np.array_equal(array, expected.state()[name]) for name, array in trainer.state().items())


def test_weights_that_are_inputs_are_trained() -> None:
    model = onnx.load_model_from_string(regression())
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    del model.graph.initializer[:]
    for name, array in weights.items():
        model.graph.input.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, array.shape))
    trainer = train.Trainer(model, "mse", train.SGD(0.1), weights=weights)
    plain = train.Trainer(regression(), "mse", train.SGD(0.1))
    assert set(trainer.parameters) == {"w", "b"} and set(trainer.batch_types) == {"x", "labels"}
    data = points(16)
    for _ in range(3):
        assert trainer.step(data) == plain.step(data)
    tuned = sardonyx.Session(trainer.model(), compile="off")
    assert [value.name for value in tuned.get_inputs()] == ["x"]
    np.testing.assert_allclose(tuned.run(None, {"x": data["x"]})[0], plain.predict({"x": data["x"]})["y"], rtol=1e-5)
    with pytest.raises(OptionError, match="no input 'v'"):
        train.Trainer(model, "mse", weights={"v": np.zeros(3)})
    with pytest.raises(OptionError, match="expected a weight of shape"):
        train.Trainer(model, "mse", weights={**weights, "b": np.zeros(3)})


def test_weights_inside_functions_are_trained() -> None:
    inner = helper.make_function(
        "local", "Layer", ["x"], ["y"],
        [
            helper.make_node("Constant", [], ["w"], value=helper.make_tensor("w", 1, [4, 2], np.arange(8.0) / 4)),
            helper.make_node("MatMul", ["x", "w"], ["y"]),
        ],
        [helper.make_opsetid("", 17)],
    )  # fmt: skip
    nodes = [helper.make_node("Layer", ["x"], ["y"], domain="local")]
    x = helper.make_tensor_value_info("x", 1, ["N", 4])
    y = helper.make_tensor_value_info("y", 1, ["N", 2])
    graph = helper.make_graph(nodes, "g", [x], [y])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    model = helper.make_model(graph, opset_imports=imports, functions=[inner], ir_version=9)
    trainer = train.Trainer(model, "mse", train.SGD(0.1))
    assert len(trainer.parameters) == 1
    losses = [trainer.step(points(16)) for _ in range(5)]
    assert losses[-1] < losses[0]


def test_several_adapters_change_a_live_session() -> None:
    adapters = {}
    for name, shift in (("one", 1), ("two", 2)):
        trainer = train.Trainer(classifier(), "cross-entropy", train.AdamW(0.02), lora=train.LoRA(2))
        data = images(32)
        data["labels"] = (data["labels"] + shift) % 3
        for _ in range(5):
            trainer.step(data)
        adapters[name] = trainer.adapter()
    session = sardonyx.Session(classifier(), compile="wait")
    feeds = {"image": images(8)["image"]}
    plain = session.run(None, feeds)[0]
    live = train.LiveAdapters(session, adapters)
    live.activate(["one"])
    merged = sardonyx.Session(adapters["one"].merge(classifier()), compile="off").run(None, feeds)[0]
    np.testing.assert_allclose(session.run(None, feeds)[0], merged, rtol=1e-4, atol=1e-5)
    live.activate({"one": 0.5, "two": 0.5})
    assert live.active == {"one": 0.5, "two": 0.5} and not np.allclose(session.run(None, feeds)[0], merged)
    live.activate([])
    np.testing.assert_array_equal(session.run(None, feeds)[0], plain)
    with pytest.raises(OptionError, match="no adapter is named 'three'"):
        live.activate(["three"])


def test_rows_are_logged_to_mlflow_and_tensorboard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import types

    rows: list[tuple[str, float, int]] = []

    class Writer:
        def __init__(self, folder: str) -> None:
            assert folder == str(tmp_path)

        def add_scalar(self, name: str, value: float, step: int) -> None:
            rows.append((name, value, step))

        def flush(self) -> None:
            rows.append(("flush", 0.0, 0))

    monkeypatch.setitem(sys.modules, "tensorboard", None)
    board, flow = types.ModuleType("tensorboardX"), types.ModuleType("mlflow")
    board.SummaryWriter = Writer  # type: ignore[attr-defined]
    flow.active_run = lambda: object()  # type: ignore[attr-defined]
    flow.log_metrics = lambda row, step: rows.extend((f"mlflow {name}", value, step) for name, value in row.items())  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorboardX", board)
    monkeypatch.setitem(sys.modules, "mlflow", flow)
    trainer = train.Trainer(regression(), "mse", train.SGD(0.1))
    trainer.fit(points(64), epochs=2, callbacks=[train.TensorBoard(tmp_path), train.MLflow()], progress=False)
    losses = [(value, step) for name, value, step in rows if name == "loss"]
    assert losses == list(zip(trainer.history["loss"], (2, 4), strict=True))
    assert [(value, step) for name, value, step in rows if name == "mlflow loss"] == losses


def test_tensors_of_other_packages_are_read_or_refused_by_name() -> None:
    class OnDevice:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError

    data = points(8)
    trainer = train.Trainer(regression(), "mse", train.SGD(0.01))
    halves = {"x": data["x"].astype(ml_dtypes.bfloat16), "labels": data["labels"]}
    widened = {"x": halves["x"].astype(np.float32), "labels": data["labels"]}
    assert trainer.evaluate([halves]) == trainer.evaluate([widened])
    with pytest.raises(FeedError, match="batch 0, x: the OnDevice cannot be read: expected a tensor in host memory"):
        trainer.fit([{"x": OnDevice(), "labels": data["labels"]}], epochs=1, progress=False)


def test_tensors_of_torch_with_gradients_are_refused_by_name() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    data = {name: torch.tensor(array) for name, array in points(8).items()}
    trainer = train.Trainer(regression(), "mse", train.SGD(0.01))
    trainer.fit([{**data, "x": data["x"].bfloat16()}], epochs=1, progress=False)
    with pytest.raises(FeedError, match="x: the Tensor cannot be read"):
        trainer.fit([{**data, "x": data["x"].requires_grad_()}], epochs=2, progress=False)


def test_rows_are_written_by_the_package_of_tensorboard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import types

    rows: list[Any] = []
    writer, protos = types.ModuleType("event_file_writer"), types.ModuleType("proto")
    record = type("Record", (), {"__init__": lambda self, **fields: vars(self).update(fields)})
    summary = type("Summary", (record,), {"Value": record})
    file = type("Writer", (), {"__init__": lambda self, folder: None, "flush": lambda self: None})
    file.add_event = lambda self, event: rows.append(event)  # type: ignore[attr-defined]
    writer.EventFileWriter = file  # type: ignore[attr-defined]
    protos.event_pb2 = types.SimpleNamespace(Event=record)  # type: ignore[attr-defined]
    protos.summary_pb2 = types.SimpleNamespace(Summary=summary)  # type: ignore[attr-defined]
    for name in ("", ".compat", ".summary", ".summary.writer"):
        monkeypatch.setitem(sys.modules, f"tensorboard{name}", types.ModuleType(f"tensorboard{name}"))
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", protos)
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", writer)
    trainer = train.Trainer(regression(), "mse", train.SGD(0.1))
    trainer.fit(points(64), epochs=2, callbacks=[train.TensorBoard(tmp_path)], progress=False)
    values = [(row.step, row.summary.value[0].simple_value) for row in rows if row.summary.value[0].tag == "loss"]
    assert values == list(zip((2, 4), trainer.history["loss"], strict=True))


def test_rows_of_a_loader_of_torch_are_read_back_by_tensorboard_and_mlflow(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    events = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed"
    )
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    data = [torch.tensor(array) for array in images(48).values()]
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data), batch_size=16)
    trainer = train.Trainer(classifier(), "cross-entropy", train.AdamW(0.02))
    with mlflow.start_run() as run:
        callbacks = [train.TensorBoard(tmp_path / "log"), train.MLflow()]
        history = trainer.fit(loader, epochs=3, callbacks=callbacks, progress=False)
    written = events.EventAccumulator(str(tmp_path / "log"))
    written.Reload()
    expected = np.asarray(history["loss"], np.float32)
    np.testing.assert_array_equal([event.value for event in written.Scalars("loss")], expected)
    logged = mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss")
    np.testing.assert_allclose([one.value for one in logged], history["loss"])
    assert [one.step for one in logged] == [3, 6, 9]
    train.Trainer(classifier(), "cross-entropy").fit(loader, epochs=2, callbacks=[train.MLflow()], progress=False)
    assert mlflow.active_run() is None  # A run that nobody ends would take the rows of the next training too.
    (own,) = [one for one in mlflow.search_runs(output_format="list") if one.info.run_id != run.info.run_id]
    assert own.info.status == "FINISHED"
    assert len(mlflow.MlflowClient().get_metric_history(own.info.run_id, "loss")) == 2


def test_rows_outside_of_a_run_of_mlflow_belong_to_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    import types

    events: list[object] = []

    class Run:
        info = types.SimpleNamespace(run_id="own")

        def __enter__(self) -> Run:
            events.append("begin")
            return self

        def __exit__(self, *_: object) -> None:
            events.append("end")

    flow = types.ModuleType("mlflow")
    flow.active_run = lambda: None  # type: ignore[attr-defined]
    flow.start_run = lambda run_id: events.append(run_id) or Run()  # type: ignore[attr-defined]
    flow.log_metrics = lambda row, step: events.append(step)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", flow)
    trainer = train.Trainer(regression(), "mse", train.SGD(0.1))
    trainer.fit(points(64), epochs=2, callbacks=[train.MLflow()], progress=False)
    assert events == [None, "begin", 2, "end", "own", "begin", 4, "end"]


def test_a_folder_has_a_folder_for_each_class(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "a.npy", images(1)["image"][0])
    trainer = train.Trainer(classifier(), "cross-entropy", train.SGD(0.1))
    with pytest.raises(OptionError, match=r"expected 3 folders, one for each class of the model, got 2.*--classes 2"):
        trainer.fit(tmp_path, epochs=1, progress=False)
    with pytest.raises(OptionError, match="expected 3 folders"):
        trainer.evaluate(tmp_path)
    (tmp_path / "bird").mkdir()  # A class without samples.
    assert len(trainer.fit(tmp_path, epochs=1, progress=False)["loss"]) == 1


def test_a_model_as_loss_that_reads_no_output_is_refused_by_its_inputs() -> None:
    with pytest.raises(OptionError, match=r"reads an output of the trained model.*one of logits"):
        train.Trainer(classifier(), train.ModelLoss(model=regression()))
