"""Files of PyTorch: exported programs and TorchScript, which execute nothing but operators on tensors."""

from __future__ import annotations

import json
import threading
import warnings
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Tuple  # noqa: UP035

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import sardonyx  # noqa: E402
from sardonyx.convert.torch.loading import load_file  # noqa: E402
from sardonyx.convert.torch.pickles import without_pickles  # noqa: E402
from sardonyx.errors import ModelFileError, OptionError  # noqa: E402

if TYPE_CHECKING:
    Tensor = Any
else:
    Tensor = torch.Tensor


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


class Restored(torch.nn.Module):  # type: ignore[misc,name-defined]
    """A module whose state is restored by code, which runs when the file is read."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 1

    def forward(self, x: Tensor) -> Tensor:
        return x + 1

    @torch.jit.export  # type: ignore[untyped-decorator]
    def __getstate__(self) -> Tuple[int, bool]:  # noqa: UP006
        return self.count, self.training

    @torch.jit.export  # type: ignore[untyped-decorator]
    def __setstate__(self, state: Tuple[int, bool]) -> None:  # noqa: UP006
        self.count, self.training = state


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    path = tmp_path_factory.mktemp("scripts") / "ok.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(Restored()), path)
    load_file(path)
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def written(path: Path, entries: Iterable[tuple[str, bytes]], compression: int = zipfile.ZIP_STORED) -> Path:
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", compression) as archive:
        warnings.simplefilter("ignore")
        for name, data in entries:
            archive.writestr(name, data)
    return path


def hostile(members: dict[str, bytes], line: str) -> dict[str, bytes]:
    """Return members whose code has one more line in ``__setstate__``."""
    (name,) = (name for name in members if name.endswith(".py"))
    head, _, body = members[name].decode().partition("__setstate__")
    start, _, rest = body.partition("-> NoneType:\n")
    return {**members, name: f"{head}__setstate__{start}-> NoneType:\n    {line}\n{rest}".encode()}


@pytest.mark.parametrize(
    "call",
    [
        'torch.save(1, "{}")',
        'getattr(torch, "save")(1, "{}")',
        'getattr(torch, "sa" "ve")(1, "{}")',
        'getattr(torch, "\\x73ave")(1, "{}")',
    ],
)
def test_code_that_writes_a_file_when_it_is_read_is_refused(
    members: dict[str, bytes], tmp_path: Path, call: str
) -> None:
    bad = hostile(members, "_9 = " + call.format(tmp_path / "victim"))
    with pytest.raises(ModelFileError, match="may execute any code"):
        load_file(written(tmp_path / "bad.pt", bad.items()))
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize("how", ["first", "last", "upper case", "coding", "carriage return"])
def test_code_that_a_reader_of_archives_hides_is_refused(members: dict[str, bytes], tmp_path: Path, how: str) -> None:
    bad = hostile(members, f'_9 = torch.save(1, "{tmp_path / "victim"}")')
    (name,) = (name for name in members if name.endswith(".py"))
    entries = list(bad.items())
    if how == "first":
        entries.append((name, members[name]))
    elif how == "last":
        entries.insert(0, (name, members[name]))
    elif how == "upper case":
        entries = [(key.replace(".py", ".PY"), data) for key, data in entries]
    else:
        head, tail = (b"# coding: cp037\n", b"") if how == "coding" else (b'#\r"""\n', b'#\r"""\n')
        entries = [(key, head + data + tail if key == name else data) for key, data in entries]
    with pytest.raises(ModelFileError):
        load_file(written(tmp_path / "bad.pt", entries))
    assert not (tmp_path / "victim").exists()


def test_parts_of_any_name_are_read(tmp_path: Path) -> None:
    class Numbered(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Sequential(torch.nn.ReLU()), torch.nn.Tanh())

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x)

    torch.jit.save(torch.jit.script(Numbered()), tmp_path / "numbered.pt")
    assert load_file(tmp_path / "numbered.pt")(torch.zeros(2)).tolist() == [0, 0]


@pytest.mark.parametrize("name", ["ok/../x", "ok//x", "/ok/x", "ok/a\\x", "other/x", "x", "OK/VERSION"])
def test_names_that_readers_take_differently_are_refused(members: dict[str, bytes], tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelFileError, match=r"bad\.pt"):
        load_file(written(tmp_path / "bad.pt", [*members.items(), (name, b"")]))


def test_damaged_programs_are_refused_by_name(program: Path, tmp_path: Path) -> None:
    raw = program.read_bytes()
    with zipfile.ZipFile(program) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    (model,) = (name for name in entries if name.endswith("models/model.json"))
    expression = b'{"expr_str": "' + b"-" * 200_000 + b'1"}'
    damaged = {
        "crc": raw.replace(b'"graph_module"', b"'graph_module'", 1),
        "encrypted": _set_in_directory(raw, 8, 1),
        "compression": _set_in_directory(raw, 10, 99),
        "directory": raw.replace(b"PK\1\2", b"PK\0\2", 1),
        "prefix": b"PK\3\4" + raw,
        "suffix": raw + b"more",
    }
    for name, data in damaged.items():
        (tmp_path / f"{name}.pt2").write_bytes(data)
    for name, data in {"deep": b"[" * 200_000, "expression": expression, "text": b'"\xff\xfe"'}.items():
        written(tmp_path / f"{name}.pt2", {**entries, model: data}.items())
        damaged[name] = b""
    for name in damaged:
        with pytest.raises(ModelFileError, match=rf"{name}\.pt2"):
            load_file(tmp_path / f"{name}.pt2")


def _set_in_directory(raw: bytes, field: int, value: int) -> bytes:
    """Return an archive with a changed byte of a field in every entry of its directory."""
    changed_bytes, start = bytearray(raw), raw.find(b"PK\1\2")
    while start >= 0:
        changed_bytes[start + field] = value
        start = raw.find(b"PK\1\2", start + 4)
    return bytes(changed_bytes)


def test_members_that_expand_without_bound_are_refused(
    members: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sardonyx.convert.torch.members.MOST_BYTES", 1 << 16)
    bomb = {name: b"#" * (1 << 20) if name.endswith(".py") else data for name, data in members.items()}
    with pytest.raises(ModelFileError, match="expand to"):
        load_file(written(tmp_path / "bomb.pt", bomb.items(), zipfile.ZIP_DEFLATED))
    with pytest.raises(ModelFileError, match="bytes, more than"):
        load_file(written(tmp_path / "large.pt", bomb.items()))


def test_overlapping_readings_restore_the_readers_of_torch(tmp_path: Path) -> None:
    own = torch.load
    torch.save(Written(tmp_path / "made"), tmp_path / "pickle")
    first, second = without_pickles(), without_pickles()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    with pytest.raises(Exception, match="Weights only"):
        torch.load(tmp_path / "pickle", weights_only=False)
    assert not (tmp_path / "made").exists()
    other = threading.Thread(target=torch.load, args=(tmp_path / "pickle",), kwargs={"weights_only": False})
    other.start()
    other.join()
    second.__exit__(None, None, None)
    assert (tmp_path / "made").exists()
    assert torch.load is own


def test_the_samples_of_a_caller_are_those_of_an_exported_program(tmp_path: Path) -> None:
    path = tmp_path / "program.pt2"
    batch = {0: torch.export.Dim("batch")}
    torch.export.save(torch.export.export(torch.nn.Linear(4, 2), (torch.ones(3, 4),), dynamic_shapes=(batch,)), path)
    result = sardonyx.convert(path, {"input": torch.full((5, 4), 2.0)})
    assert result.report.verdict.status == "proved" and 5 in result.report.sizes["batch"]
    with pytest.raises(OptionError, match="refuses the example inputs"):
        sardonyx.convert(path, {"input": torch.ones(3, 5)})


@pytest.mark.parametrize("is_scripted", [False, True])
def test_a_sample_with_a_name_that_is_no_input_names_the_inputs(is_scripted: bool) -> None:
    module = torch.nn.Linear(4, 2)
    with pytest.raises(OptionError, match=r"the module has no input x. Inputs are: input\."):
        sardonyx.convert(torch.jit.script(module) if is_scripted else module, {"x": torch.ones(3, 4)})
