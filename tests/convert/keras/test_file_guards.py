"""Files of Keras are loaded without code and beyond their size on no backend; each backend has a process of its own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="keras is not installed")

BACKENDS = ("torch", "jax", "tensorflow")

PROGRAM = """
import sys, zipfile
import numpy as np
import keras
from sardonyx.convert.keras.loading import load_file
from sardonyx.errors import ModelFileError
folder, backend = sys.argv[1:]
assert keras.config.backend() == backend
layers, path = keras.layers, folder + "/model.keras"

def refused(text):
    try:
        load_file(path, trust=False)
    except ModelFileError as error:
        assert text in str(error), error
    else:
        raise AssertionError("loaded")

def changed(old, new):
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    assert old in members["config.json"]
    members["config.json"] = members["config.json"].replace(old, new)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)

def saved(*parts):
    model = keras.Sequential([keras.Input((5,)), *parts])
    model.save(path)
    return model

x = np.ones((2, 5), np.float32)
model = saved(layers.Dense(4), layers.BatchNormalization(), layers.Dropout(0.5), layers.Dense(3))
assert np.allclose(load_file(path, trust=False).predict(x, verbose=0), model.predict(x, verbose=0), atol=1e-6)
saved(layers.Lambda(lambda x: x + 1))
refused("holds Python code")
for layer, old, new in (
    (layers.Dense(2), b'"units": 2', b'"units": 1000000000'),
    (layers.RepeatVector(2), b'"n": 2', b'"n": 2'),
    (layers.Normalization(), b'"axis": [-1]', b'"axis": [-1]'),
):
    saved(layers.Dense(3), layer)
    if old != new:
        changed(old, new)
        refused("weights or more, the file holds")
    else:
        load_file(path, trust=False)
keras.Sequential([keras.Input((5,)), layers.Embedding(7, 2), layers.LSTM(2)]).save(path)
changed(b'"input_dim": 7', b'"input_dim": 7000000000')
refused("weights or more, the file holds")
assert not hasattr(keras.Variable.__init__, "__wrapped__") and keras.Variable(np.zeros(3)).shape == (3,)
print("refused")
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_files_with_code_and_with_large_configurations_are_refused(tmp_path: Path, backend: str) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    environment = {**os.environ, "KERAS_BACKEND": backend}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), backend]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.stdout.strip().endswith("refused"), result.stdout + result.stderr[-2000:]
