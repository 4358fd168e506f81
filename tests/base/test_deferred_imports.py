"""Importing onnx_ir through Sardonyx does not import sympy, and changes nothing for who uses sympy."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sardonyx.base.deferred_imports import imported_module


def run(source: str) -> str:
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("first", ["import sardonyx, onnx_ir", "import sardonyx.core.ir.types, onnx_ir"])
def test_onnx_ir_is_imported_without_sympy(first: str) -> None:
    assert (
        run(f"{first}, sys; print('sympy' in sys.modules, 'onnx_ir._symbolic_shapes' in sys.modules)") == "False False"
    )


def test_symbolic_dimensions_still_compute() -> None:
    source = (
        "import sardonyx, onnx_ir as ir;"
        "d = (ir.SymbolicDim('N') + 1) * 2;"
        "import sympy;"
        "print(d, ir.SymbolicDim(sympy.Symbol('x')))"
    )
    assert run(source) == run(source.replace("import sardonyx, onnx_ir", "import onnx_ir"))


def test_sympy_imported_later_is_sympy() -> None:
    assert (
        run("import sardonyx, onnx_ir, sympy, sympy.core; print(type(sympy).__name__, sympy.Symbol('a'))") == "module a"
    )


def test_modules_in_memory_stay() -> None:
    source = "import onnx_ir, sympy; import sardonyx; sardonyx.load; print(onnx_ir._core.sympy is sympy)"
    assert run(source) == "True"


def test_onnx_is_imported_without_text_formats_and_tools() -> None:
    source = """
import sardonyx, onnx, sys
deferred = ("google.protobuf.json_format", "google.protobuf.text_format", "onnx.compose", "onnx.gen_proto")
print([name for name in deferred if name in sys.modules])
model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 14]> g (float[2] x) => (y)  { y = Abs (x) }')
for format in ("json", "textproto"):
    text = onnx.serialization.registry.get(format).serialize_proto(model)
    print(onnx.load_model_from_string(text, format=format) == model)
from onnx import compose
import onnx.compose as imported
print(compose.merge_models is imported.merge_models, onnx.compose is imported, callable(onnx.gen_proto.main))
"""
    assert run(source).split("\n") == ["[]", "True", "True", "True True True"]


def test_onnx_is_imported_without_the_metadata_of_installations() -> None:
    source = """
import sardonyx, onnx, onnx_ir, sys
deferred = ("importlib.metadata", "onnx.utils", "onnx_ir.schemas", "packaging.version", "tempfile", "calendar")
print([name for name in deferred if name in sys.modules])
import importlib.metadata, tempfile, calendar
print(onnx.__version__ == importlib.metadata.version("onnx"), type(importlib.metadata).__name__)
from onnx.utils import extract_model
print(onnx.utils.extract_model is extract_model, onnx_ir.schemas.OpSignature.__name__)
print(calendar.timegm((1970, 1, 1, 0, 0, 0)))
"""
    assert run(source).split("\n") == ["[]", "True module", "True OpSignature", "0"]


def test_the_version_of_an_installation_without_a_folder_is_asked_for() -> None:
    source = """
import sardonyx, sys
from sardonyx.base.deferred_imports import deferred
with deferred(("importlib.metadata",)):
    import importlib.metadata
    try:
        importlib.metadata.version("no-such-distribution")
    except importlib.metadata.PackageNotFoundError as error:
        print(error.name)
"""
    assert run(source) == "no-such-distribution"


def test_a_module_that_another_thread_imports_is_returned_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_module.py").write_text("import time; BEGUN = True; time.sleep(0.3); REGISTRY = {}")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert imported_module("slow_module") is None
    thread = threading.Thread(target=importlib.import_module, args=("slow_module",))
    thread.start()
    while not hasattr(sys.modules.get("slow_module"), "BEGUN"):
        time.sleep(0.001)
    assert imported_module("slow_module").REGISTRY == {}
    thread.join()
    del sys.modules["slow_module"]
