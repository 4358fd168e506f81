from __future__ import annotations

import dataclasses
import inspect
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx.errors import OptionError, UnsupportedError

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "how-to").glob("*.md"))]
NET = '<ir_version: 9, opset_import: ["": 18]> net (float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(NET), tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


@pytest.mark.parametrize("name", sardonyx.__all__)
def test_every_public_name_exists_and_is_documented(name: str) -> None:
    assert getattr(sardonyx, name).__doc__
    assert name in dir(sardonyx)


@pytest.mark.parametrize("name", sorted(set(sardonyx.__all__)))
def test_a_public_name_is_listed_in_one_module(name: str) -> None:
    assert sum(name in names for names in sardonyx.PUBLIC_NAMES.values()) == 1


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        sardonyx.nothing  # type: ignore[attr-defined] # noqa: B018


def test_importing_the_package_imports_no_other_library() -> None:
    script = "import sys, sardonyx; assert not {'onnx', 'onnx_ir', 'numpy', 'onnxruntime'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_stub_for_type_checkers_is_the_table_of_names() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "make_api_stub.py"))
    expected = tool["stub"](sardonyx.PUBLIC_NAMES)
    assert Path(tool["STUB_FILE"]).read_text(encoding="utf-8") == expected, "run tools/make_api_stub.py"


def test_star_import_binds_the_public_names() -> None:
    names: dict[str, object] = {}
    exec("from sardonyx import *", names)
    assert set(sardonyx.__all__) <= set(names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_import_public_functions_from_the_package_itself(page: Path) -> None:
    imports = re.findall(r"^from (sardonyx[\w.]*) import (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    for module, names in imports:
        public = sardonyx.PUBLIC_NAMES.get(module, [])
        assert not set(names.split(", ")) & set(public), f"{page.name}: import from sardonyx, not {module}"


def test_every_session_option_is_a_keyword_of_session() -> None:
    parameters = inspect.signature(sardonyx.Session).parameters
    fields = {field.name for field in dataclasses.fields(sardonyx.SessionOptions)}
    assert fields == set(parameters) - {"model", "options", "watch"}
    assert not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


def test_an_unknown_session_option_is_refused(path: Path) -> None:
    with pytest.raises(TypeError, match="colour"):
        sardonyx.Session(path, colour="red")  # type: ignore[call-arg]


def test_explain_accepts_a_model_or_a_session(path: Path) -> None:
    explanation = sardonyx.explain(path, {"N": 2}, threads=1)
    assert [kernel.main for kernel in explanation.kernels] == ["y"]
    assert explanation.kernels[0].written == 2 * 4 * 4
    session = sardonyx.Session(path, compile="wait", threads=1)
    assert sardonyx.explain(session, {"N": 2}) == explanation


def test_explain_refuses_a_model_that_is_not_compiled(path: Path) -> None:
    with pytest.raises(UnsupportedError, match="not compiled: compiling is off"):
        sardonyx.explain(sardonyx.Session(path, compile="off"))


def test_profile_measures_random_inputs_of_the_requested_sizes(path: Path) -> None:
    profile = sardonyx.profile(path, sizes={"N": 3}, runs=1, threads=1)
    assert [kernel.note.written for kernel in profile.kernels] == [3 * 4 * 4]
    with pytest.raises(OptionError, match="sizes"):
        sardonyx.profile(path, {"x": np.ones((3, 4), np.float32)}, sizes={"N": 3})


def test_compile_writes_a_file_for_sessions(path: Path) -> None:
    compiled = path.with_suffix(".sdx")
    sardonyx.compile(path, compiled, threads=1)
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    np.testing.assert_array_equal(sardonyx.Session(compiled, compile="wait")(x=x), np.maximum(x, 0))
    with pytest.raises(OptionError, match="header"):
        sardonyx.compile(path, compiled, header=path.with_suffix(".h"))


@pytest.mark.skipif(sys.platform != "linux", reason="libraries for C are linked on Linux")
def test_compile_writes_a_library_for_c(path: Path) -> None:
    sardonyx.compile(path, path.parent / "libnet.so", threads=1)
    assert (path.parent / "libnet.so").stat().st_size
    assert "net_run" in (path.parent / "libnet.h").read_text()
