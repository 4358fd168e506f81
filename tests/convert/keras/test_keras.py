"""Models of Keras become proved models with the sizes open that they declare."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed, the backend of these tests")
os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras", reason="keras is not installed")

import sardonyx  # noqa: E402
from sardonyx.convert.keras.loading import load_file  # noqa: E402
from sardonyx.convert.keras.recurrence import whole_recurrences  # noqa: E402
from sardonyx.errors import ModelFileError, OptionError  # noqa: E402

layers = keras.layers


def chain(shape: tuple[int | None, ...], *parts: Any, dtype: str = "float32") -> Any:
    return keras.Sequential([layers.Input(shape, dtype=dtype, name="x"), *parts])


PROGRAMS: dict[str, tuple[Callable[[], Any], set[str]]] = {
    "convolution": (
        lambda: chain((8, 8, 3), layers.Conv2D(4, 3, padding="same"), layers.BatchNormalization(), layers.ReLU()),
        {"batch"},
    ),
    "lstm": (lambda: chain((None, 4), layers.Bidirectional(layers.LSTM(3)), layers.Dense(2, "gelu")), {"batch", "x_1"}),
    "cells": (lambda: chain((None, 4), layers.GRU(3, reset_after=False)), {"batch", "x_1"}),
    "masked": (
        lambda: chain((None,), layers.Embedding(9, 4, mask_zero=True), layers.LSTM(3), dtype="int32"),
        {"batch", "x_1"},
    ),
    "normalization": (lambda: chain((6, 8), layers.LayerNormalization(), layers.GroupNormalization(4)), {"batch"}),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_model_is_proved_with_the_sizes_open_that_it_declares(name: str) -> None:
    keras.utils.set_random_seed(0)
    make, sizes = PROGRAMS[name]
    report = sardonyx.convert(make()).report
    assert report.verdict.status == "proved", report.verdict.reason
    assert {size for size, values in report.sizes.items() if len(values) > 1} == sizes


def test_inputs_outputs_and_values_are_named_as_in_keras() -> None:
    x = layers.Input((4,), name="features")
    model = keras.Model(x, layers.Dense(2, name="head")(layers.Dense(3, "relu", name="body")(x)))
    result = sardonyx.convert(model, simplify=False)
    assert [value.name for value in result.model.graph.inputs] == ["features"]
    assert [value.name for value in result.model.graph.outputs] == ["head"]
    assert "body/kernel" in result.model.graph.initializers
    assert any(str(node.outputs[0].name).startswith("body.") for node in result.model.graph)


def test_a_subclassed_model_needs_examples() -> None:
    class Double(keras.Model):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            return x * 2

    with pytest.raises(OptionError, match="declares no inputs"):
        sardonyx.convert(Double())
    report = sardonyx.convert(Double(), (np.ones((3, 2), np.float32),)).report
    assert report.verdict.status == "proved"


@pytest.mark.parametrize("kind", [layers.LSTM, layers.GRU, layers.SimpleRNN])
def test_states_that_a_layer_keeps_are_those_of_the_next_call(kind: Any) -> None:
    model = keras.Sequential([layers.Input((7, 3), batch_size=2), kind(5, stateful=True), layers.Dense(2)])
    x = np.random.default_rng(0).standard_normal((2, 7, 3)).astype(np.float32)
    model(x)
    before = [np.array(keras.ops.convert_to_numpy(state)) for state in keras.tree.flatten(model.layers[0].states)]
    converted = sardonyx.convert(model)
    assert converted.report.verdict.status == "proved"
    assert any("states of" in note for note in converted.report.notes)
    after = [keras.ops.convert_to_numpy(state) for state in keras.tree.flatten(model.layers[0].states)]
    assert all(np.array_equal(first, second) for first, second in zip(before, after, strict=True))
    session = sardonyx.Session(converted.model, compile="off")
    result = session.run(None, {session.get_inputs()[0].name: x})[0]
    np.testing.assert_allclose(result, keras.ops.convert_to_numpy(model(x)), atol=1e-5)


def test_a_file_is_converted(tmp_path: Path) -> None:
    chain((5,), layers.Dense(3)).save(tmp_path / "model.keras")
    assert sardonyx.convert(str(tmp_path / "model.keras")).report.verdict.status == "proved"


def test_a_file_with_python_code_is_refused(tmp_path: Path) -> None:
    chain((5,), layers.Lambda(lambda x: x + 1)).save(tmp_path / "model.keras")
    with pytest.raises(ModelFileError, match="holds Python code"):
        sardonyx.convert(str(tmp_path / "model.keras"))


def test_versions_with_unsafe_loading_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "model.keras")
    chain((5,), layers.Dense(3)).save(path)
    for version in ("3.11.3", "3.12.0", "3.13.1"):
        monkeypatch.setattr(keras, "__version__", version)
        with pytest.raises(ModelFileError, match=version):
            load_file(path, trust=False)
    monkeypatch.setattr(keras, "__version__", "3.13.2")
    assert load_file(path, trust=False).count_params() == 18


def test_files_in_external_storage_are_not_read(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    path, secret = tmp_path / "model.keras", tmp_path / "secret"
    chain((5,), layers.Dense(3)).save(path)
    secret.write_bytes(np.full(15, 7.0, np.float32).tobytes())
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    weights = tmp_path / "model.weights.h5"
    weights.write_bytes(members[weights.name])
    with h5py.File(weights, "a") as file:
        paths: list[str] = []
        file.visititems(lambda name, item: paths.append(name) if getattr(item, "shape", None) == (5, 3) else None)
        del file[paths[0]]
        file.create_dataset(paths[0], (5, 3), np.float32, external=[(str(secret), 0, 60)])
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, weights.read_bytes() if name == weights.name else data)
    with pytest.raises(ModelFileError, match="external"):
        load_file(str(path), trust=False)


def test_a_path_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path, message in ((tmp_path, "directory"), (tmp_path / "absent.keras", "No such file")):
        with pytest.raises(ModelFileError, match=message):
            load_file(path, trust=False)


def test_refusals_of_whole_recurrences_are_those_that_keras_catches() -> None:
    from keras.src import backend

    with whole_recurrences():
        for name, count in (("lstm", 7), ("gru", 6)):
            with pytest.raises(NotImplementedError, match=f"{name}: expected tanh"):
                getattr(backend, name)(*[None] * count, activation="relu", recurrent_activation="sigmoid")


def test_damaged_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "model.keras"
    path.write_bytes(b"text")
    with pytest.raises(ModelFileError, match="expected an archive"):
        sardonyx.convert(str(path))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other.json", "{}")
    with pytest.raises(ModelFileError, match=r"config\.json"):
        sardonyx.convert(str(path))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", json.dumps({"class_name": " " * 10_000_000}))
    with pytest.raises(ModelFileError, match="unpacks to"):
        sardonyx.convert(str(path))


def test_a_configuration_with_more_weights_than_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.keras"
    keras.Sequential([keras.Input((3,)), layers.Dense(2)]).save(path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["config.json"] = members["config.json"].replace(b'"units": 2', b'"units": 1000000000')
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    with pytest.raises(ModelFileError, match=r"has [34]000000000 weights or more, the file holds"):
        sardonyx.convert(path)
