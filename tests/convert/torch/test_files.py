"""Files of PyTorch: exported programs and TorchScript, which execute nothing but operators on tensors."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import sardonyx  # noqa: E402
from sardonyx.convert.torch.loading import load_file  # noqa: E402
from sardonyx.errors import ModelFileError  # noqa: E402


class Rows(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.arange(4.0))

    def forward(self, x: Any, scale: Any) -> Any:
        both = torch.cond(x.sum() > 0, lambda a: a * 2, lambda a: a - 1, (x,))
        return {"rows": both + self.offset + torch.zeros(x.shape[0] * 2 - x.shape[0], 4), "q": scale["k"] * x.shape[0]}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    auto = torch.export.Dim.AUTO
    sizes = {"x": {0: auto}, "scale": {"k": {0: auto}}}
    exported = torch.export.export(Rows(), (torch.randn(3, 4), {"k": torch.randn(2)}), dynamic_shapes=sizes)
    path = tmp_path_factory.mktemp("programs") / "rows.pt2"
    torch.export.save(exported, path)
    return path


def changed(program: Path, path: Path, change: Callable[[Any], None], suffix: str = "models/model.json") -> Path:
    """Return a copy of a program with one changed record."""
    with zipfile.ZipFile(program) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name.endswith(suffix):
                record = json.loads(data)
                change(record)
                data = json.dumps(record).encode()
            new.writestr(name, data)
    return path


def test_an_exported_program_is_read_and_proved(program: Path) -> None:
    assert sardonyx.convert(program, exporter="sardonyx").report.verdict.status == "proved"


def _call(target: str) -> Callable[[Any], None]:
    def change(record: Any) -> None:
        record["graph_module"]["graph"]["nodes"][0]["target"] = target

    return change


def _expression(record: Any) -> None:
    record["graph_module"]["graph"]["tensor_values"]["x"]["sizes"][0]["as_expr"]["expr_str"] = "lambdify(x, '1')(0)"


def _comment(record: Any) -> None:
    record["graph_module"]["graph"]["nodes"][0]["metadata"]["stack_trace"] = 'File "a\rimport os#", line 1, in f\n    x'


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_call("torch.serialization.os.system"), "calls 'torch.serialization.os.system'"),
        (_call("torch.ops.aten.from_file.default"), "calls 'torch.ops.aten.from_file.default'"),
        (_call("_operator.call"), "calls '_operator.call'"),
        (_call("#verifier:evil"), "calls '#verifier:evil'"),
        (_expression, "expected a size"),
        (_comment, "control characters"),
    ],
)
def test_a_program_that_executes_code_is_refused(
    program: Path, tmp_path: Path, change: Callable[[Any], None], problem: str
) -> None:
    with pytest.raises(ModelFileError, match=problem):
        load_file(changed(program, tmp_path / "bad.pt2", change))


class Written:
    """A pickle that writes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self._path,)


def test_pickled_weights_of_a_program_are_not_loaded(program: Path, tmp_path: Path) -> None:
    def change(record: Any) -> None:
        record["config"]["offset"]["use_pickle"] = True

    bad, written = tmp_path / "bad.pt2", tmp_path / "written"
    torch.save(Written(written), tmp_path / "pickle")
    changed(program, tmp_path / "flagged.pt2", change, "model_weights_config.json")
    with zipfile.ZipFile(tmp_path / "flagged.pt2") as old, zipfile.ZipFile(bad, "w") as new:
        for name in old.namelist():
            is_weight = name.endswith("/weight_0")
            new.writestr(name, (tmp_path / "pickle").read_bytes() if is_weight else old.read(name))
    with pytest.raises(ModelFileError, match="cannot be read"):
        load_file(bad)
    assert not written.exists()


def test_script_that_writes_files_is_refused(tmp_path: Path) -> None:
    class Saved(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            torch.save(x, "written")
            return x

    torch.jit.save(torch.jit.script(Saved()), tmp_path / "saved.pt")
    with pytest.raises(ModelFileError, match="calls 'save'"):
        load_file(tmp_path / "saved.pt")
