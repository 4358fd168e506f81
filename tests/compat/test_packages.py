"""Drop-in packages have the modules that programs import; other modules are those of the installed package."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

MODEL = '<ir_version: 9, opset_import: ["": 18]> n (float[2, 3] x) => (float[2, 3] y) { a = Identity(x) y = Neg(a) }'

PROGRAMS = {
    "onnxslim": """
import onnxslim.cli
from onnxslim import register_fusion_pattern, slim
from onnxslim.cli._main import main
from onnxslim.version import __version__
import sardonyx.compat.onnxslim as ours
assert slim is ours.slim is onnxslim.cli.slim and __version__ == onnxslim.__version__
assert [node.op_type for node in slim("net.onnx").graph.node] == ["Neg"]
""",
    "onnxsim": """
import onnxsim
from onnxsim.onnx_simplifier import main, simplify
import sardonyx.compat.onnxsim as ours
assert simplify is ours.simplify is onnxsim.simplify and main is onnxsim.main
model, is_equal = simplify("net.onnx")
assert is_equal and [node.op_type for node in model.graph.node] == ["Neg"]
""",
    "onnxconverter_common": """
import onnx
import onnxconverter_common
from onnxconverter_common import convert_float_to_float16
from onnxconverter_common.float16 import convert_np_to_float16, remove_identity_node_from_model
from sardonyx.compat import float16_converter
assert convert_float_to_float16 is float16_converter.convert_float_to_float16
model = onnx.load("net.onnx")
assert [node.op_type for node in remove_identity_node_from_model(model).graph.node] == ["Neg"]
assert not hasattr(onnxconverter_common, "absent")
""",
}

BORROWED = {
    "onnxslim": """
import onnxslim.third_party.onnx_graphsurgeon
from onnxslim import utils
assert utils.summarize_model("net.onnx", "net").op_type_counts["Neg"] == 1
assert "sardonyx" not in utils.__file__
""",
    "onnxsim": """
from onnxsim import model_info
assert "sardonyx" not in model_info.__file__ and model_info.__name__ == "onnxsim.model_info"
""",
    "onnxconverter_common": """
from onnxconverter_common import FloatTensorType, optimizer
assert FloatTensorType.__module__ == "onnxconverter_common.data_types", FloatTensorType
""",
}


def run(folder: Path, package: str, program: str) -> None:
    onnx.save(onnx.parser.parse_model(MODEL), folder / "net.onnx")
    source = f"import sardonyx.compat\nsardonyx.compat.install({package!r})\n{program}\nprint('done')\n"
    (folder / "program.py").write_text(source)
    outcome = subprocess.run(
        [sys.executable, "program.py"], cwd=folder, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert outcome.stdout.endswith("done\n"), outcome.stderr


@pytest.mark.parametrize("package", PROGRAMS)
def test_a_package_has_the_modules_of_the_original(package: str, tmp_path: Path) -> None:
    run(tmp_path, package, PROGRAMS[package])


@pytest.mark.parametrize("package", BORROWED)
def test_other_modules_are_those_of_the_installed_package(package: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    run(tmp_path, package, BORROWED[package])


@pytest.mark.parametrize(
    ("package", "arguments"),
    [
        ("onnxslim", ["net.onnx", "result.onnx", "--input-shapes", "x:4,3"]),
        ("onnxsim", ["net.onnx", "result.onnx", "--overwrite-input-shape", "4,3"]),
    ],
)
def test_the_command_line_writes_the_result(package: str, arguments: list[str], tmp_path: Path) -> None:
    run(tmp_path, package, f"import sys, {package}.{'cli' if package == 'onnxslim' else 'onnx_simplifier'} as module\n"
        f"sys.argv = {[package, *arguments]!r}\nmodule.main()")  # fmt: skip
    result = onnx.load(tmp_path / "result.onnx")
    assert [node.op_type for node in result.graph.node] == ["Neg"]
    assert result.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 4


def test_patterns_of_onnxslim_are_refused(tmp_path: Path) -> None:
    run(tmp_path, "onnxslim", """
import onnxslim
try:
    onnxslim.register_fusion_pattern(object())
except Exception as error:
    assert "Write the pattern as a rule" in str(error), error
else:
    raise SystemExit("accepted")
""")  # fmt: skip
