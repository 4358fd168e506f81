from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

MARKER = np.frombuffer(bytes.fromhex("aae7c25e"), np.float32)[0]
"""A float of which the weights of test models consist, so that its bytes are found in any layout."""


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test read or write the user's memory of files, cache or keys."""
    monkeypatch.setenv("SARDONYX_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SARDONYX_KEYS", raising=False)


def network(scale: float = 1.0) -> onnx.ModelProto:
    """A network of two products with weights of 64 KiB and 4 KiB."""
    first = np.full((64, 256), MARKER, np.float32) * np.float32(scale)
    second = np.full((256, 4), MARKER, np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["private_image", "first"], ["h"], name="secret_layer"),
            helper.make_node("Relu", ["h"], ["r"]),
            helper.make_node("MatMul", ["r", "second"], ["y"]),
        ],
        "net",
        [helper.make_tensor_value_info("private_image", TensorProto.FLOAT, ["N", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
        [numpy_helper.from_array(first, "first"), numpy_helper.from_array(second, "second")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(network(), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


@pytest.fixture
def external_model(tmp_path: Path) -> Path:
    folder = tmp_path / "external"
    folder.mkdir()
    onnx.save(network(), folder / "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    return folder / "model.onnx"


def feeds() -> dict[str, Any]:
    return {"private_image": np.arange(128, dtype=np.float32).reshape(2, 64)}
