"""A process that finds its compiled model in the store imports neither onnx_ir, nor rules, nor LLVM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

SCRIPT = """
import json, sys
import numpy as np
from sardonyx import Session

session = Session(sys.argv[1], compile="wait", threads=2)
(y,) = session.run(None, {"x": np.arange(32, dtype=np.float32).reshape(2, 16)})
print(json.dumps({"modules": sorted(sys.modules), "y": y.tolist()}))
"""

DROP_IN = """
import json, sys
import numpy as np
from sardonyx.compat import install
install("onnxruntime")
import onnxruntime

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 2
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
assert [info.shape for info in session.get_inputs()] == [["N", 16]]
binding = session.io_binding()
x = onnxruntime.OrtValue.ortvalue_from_numpy(np.arange(32, dtype=np.float32).reshape(2, 16))
binding.bind_ortvalue_input("x", x)
binding.bind_output("y")
session.run_with_iobinding(binding)
print(json.dumps({"modules": sorted(sys.modules), "y": binding.get_outputs()[0].numpy().tolist()}))
"""

HEAVY = ("onnx", "onnx_ir", "sympy", "llvmlite.binding", "asyncio")
"""Packages that take longer to import than the rest of a warm start."""

COLD = ("model", "ops", "rewrite", "compiler.codegen", "compiler.kernels", "compiler.passes", "compiler.pipeline")
"""Packages of Sardonyx that only make programs."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    weights = helper.make_tensor("w", TensorProto.FLOAT, [16, 8], rng.standard_normal(128).astype(np.float32))
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
        "warm",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 8])],
        [weights],
    )
    path = tmp_path_factory.mktemp("warm") / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), path)
    return path


def start(model: Path, cache: Path, script: str = SCRIPT) -> dict:
    environment = {**os.environ, "SARDONYX_CACHE": str(cache)}
    environment.pop("SARDONYX_COMPILE", None)
    done = subprocess.run(
        [sys.executable, "-c", script, str(model)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("script", [SCRIPT, DROP_IN], ids=["session", "drop-in"])
def test_a_warm_start_imports_what_it_runs(script: str, model: Path, tmp_path: Path) -> None:
    cold, warm = start(model, tmp_path / "cache", script), start(model, tmp_path / "cache", script)
    assert warm["y"] == cold["y"]
    modules = set(warm["modules"])
    assert not modules & set(HEAVY)
    assert not [name for name in modules if any(name.startswith(f"sardonyx.{package}") for package in COLD)]


def test_a_cold_start_imports_the_compiler(model: Path, tmp_path: Path) -> None:
    """The test above would otherwise hold for a session that never compiles."""
    assert {"sardonyx.compiler.pipeline", "llvmlite.binding"} <= set(start(model, tmp_path / "cache")["modules"])


@pytest.mark.parametrize("first", ["sardonyx.core.ir.types", "onnx_ir"])
def test_element_types_are_those_of_onnx_ir(first: str) -> None:
    source = f"import {first}, onnx_ir, sardonyx.core.ir.types as t; assert t.DataType is onnx_ir.DataType"
    subprocess.run([sys.executable, "-c", source], check=True)


def test_a_server_is_imported_without_onnx() -> None:
    pytest.importorskip("msgspec", reason="msgspec is not installed (extra: serve)")
    script = "import sys, sardonyx.serve.server; assert not {'onnx', 'onnx_ir', 'llvmlite.binding'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
