"""TorchScript, scripted and traced, in memory and from files, proved against torch."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple  # noqa: UP035

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import sardonyx  # noqa: E402
from sardonyx.convert.torch.script import FunctionModule, mirror_of  # noqa: E402
from sardonyx.convert.torch.script_functions import FUNCTIONS  # noqa: E402
from sardonyx.errors import ConversionError  # noqa: E402

if TYPE_CHECKING:
    Tensor = Any
else:
    Tensor = torch.Tensor


def halved(x: Tensor, count: int) -> Tensor:
    if count > 2:
        return x * count
    return torch.nn.functional.relu(x) / 2


class Language(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Loops, branches, containers, functions, optional inputs and methods of TorchScript."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(2)])
        self.norm = torch.nn.BatchNorm1d(4)
        self.scale = 3

    def shifted(self, x: Tensor) -> Tensor:
        return self.norm(x) + self.scale

    def forward(self, x: Tensor, mask: Optional[Tensor] = None) -> Tuple[Tensor, Dict[str, Tensor]]:  # noqa: UP006, UP045
        steps: List[Tensor] = []  # noqa: UP006
        for layer in self.layers:
            x = layer(x)
            steps.append(self.shifted(x))
        if mask is not None:
            x = x.masked_fill(mask, 0.0)
        y = torch.zeros(x.size(0), x.shape[1], dtype=x.dtype)
        y[:, ::2] = x[:, ::2]
        for i in range(4):
            y = y + halved(x, i)
        return torch.stack(steps).sum(0), {"y": y, "count": torch.tensor([len(steps), x.size(0)])}


class Branches(torch.nn.Module):  # type: ignore[misc,name-defined]
    def forward(self, x: Tensor) -> Tuple[Tensor, int]:  # noqa: UP006
        count = 0
        while bool(x.norm() > 1.0) and count < 5:
            x, count = x * 0.5, count + 1
        return x, count


class Recurrent(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(4, 5, 2, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> Tuple[Tensor, Tensor]:  # noqa: UP006
        y, (h, _) = self.lstm(x)
        return y.reshape(x.shape[0], -1), h


def scripted(module: Any, freeze: bool = False) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script = torch.jit.script(module.eval())
        return torch.jit.freeze(script) if freeze else script


def proved(source: Any, *inputs: Any, way: str = "sardonyx") -> Any:
    report = sardonyx.convert(source, inputs).report
    assert (report.verdict.status, report.way) == ("proved", way), report.attempts
    return report


@pytest.mark.parametrize("mask", [None, torch.tensor([[True, False, False, True]])])
def test_a_file_of_script_is_proved_with_open_sizes(mask: Any, tmp_path: Path) -> None:
    path = tmp_path / "script.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(scripted(Language()), path)
    report = proved(path, torch.randn(3, 4), *(() if mask is None else (mask,)))
    assert len(report.sizes["batch"]) > 1


def test_frozen_script_and_traces_are_proved() -> None:
    proved(scripted(Recurrent(), freeze=True), torch.randn(2, 6, 4))
    traced = torch.jit.trace(Recurrent().eval(), torch.randn(2, 6, 4))
    assert all(len(values) > 1 for values in proved(traced, torch.randn(2, 6, 4)).sizes.values())


def test_weights_and_values_have_the_names_of_the_module() -> None:
    model = sardonyx.convert(scripted(torch.nn.Sequential(torch.nn.Linear(3, 2))), (torch.randn(2, 3),)).model
    assert "0.weight" in model.graph.initializers


def test_a_loop_on_data_is_recorded_under_guards() -> None:
    proved(scripted(Branches()), torch.randn(3, 4), way="recorded")


def test_a_scripted_function_with_a_number() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        function = torch.jit.script(halved)
    proved(function, torch.randn(3, 4), 4)


@pytest.mark.parametrize("first", [True, False])
def test_the_fused_layer_of_an_encoder_is_proved(first: bool) -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=first, activation="gelu")
    encoder = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    proved(scripted(encoder), torch.randn(2, 5, 8), None, padding)


def test_numbers_among_the_inputs_are_constants() -> None:
    class Numbers(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any, n: int, flag: bool = False) -> Any:
            return x[:, :n] if flag else x * n

    proved(Numbers(), torch.randn(3, 4), 0)
    proved(Numbers(), torch.randn(3, 4), 2, True)


def test_an_operator_that_writes_files_is_not_executed(tmp_path: Path) -> None:
    class Saved(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self, path: str) -> None:
            super().__init__()
            self.path = path

        def forward(self, x: Any) -> Any:
            torch.save(x, self.path)
            return x

    mirror = mirror_of(scripted(Saved(str(tmp_path / "victim"))))
    with pytest.raises(ConversionError, match="accesses files"):
        mirror(torch.zeros(2))
    assert not (tmp_path / "victim").exists()


def test_formats_are_those_of_script() -> None:
    def counted(x: Tensor) -> Tensor:
        n = len("{0.__class__}".format(3)) + len("%d%%" % 3)  # noqa: UP030, UP031, UP032
        return x * n * len("a{}b{{}}".format(1, 2))  # noqa: F523, UP032

    script = torch.jit.script(counted)
    assert sardonyx.convert(script, (torch.ones(3),)).report.verdict.status == "proved"
    assert (
        FUNCTIONS["aten::format"]("{}|{}", 0.1, [(1, 2.0), {"a": None}]) == "0.10000000000000001|[(1, 2.), {a: None}]"
    )
    assert FUNCTIONS["aten::format"]("{0.__class__}{:9}{{}}", 3) == "{0.__class__}{:9}{3}"
    for kind, text in (("aten::format", "{}{}"), ("aten::percentFormat", "%999999999d")):
        with pytest.raises(ConversionError):
            FUNCTIONS[kind](text, 3)


class Named(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Attributes with names of methods of modules; copies that are written to."""

    def __init__(self) -> None:
        super().__init__()
        self.type = 2
        self.script = torch.nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tuple[Tensor, Tensor]:  # noqa: UP006
        y = x.to(torch.float32, copy=True)
        y.add_(self.type)
        same = x.to(dtype=None, layout=torch.strided, device=torch.device("cpu"))
        return self.script(x) + y + same, torch.tensor(x.shape[0] ** 2)


def test_names_copies_and_powers_are_those_of_script() -> None:
    source = scripted(Named())
    x = torch.randn(2, 3)
    for expected, actual in zip(source(x), mirror_of(source)(x), strict=True):
        assert expected.dtype == actual.dtype
        torch.testing.assert_close(actual, expected)


def test_a_frozen_constant_of_one_element_keeps_its_type() -> None:
    class Scaled(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor([2.0], dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return self.scale + x.size(0)

    source = scripted(Scaled(), freeze=True)
    actual = mirror_of(source)(torch.zeros(3, 2))
    assert (actual.tolist(), actual.dtype) == ([5.0], torch.float64)


def test_an_argument_may_have_the_name_of_a_keyword_of_python() -> None:
    unit = torch.jit.CompilationUnit("def f(async, x):\n    return async + x\n")
    assert mirror_of(FunctionModule(unit.f))(torch.ones(2), torch.ones(2)).tolist() == [2, 2]


class Counting(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls


def test_a_script_that_counts_its_calls_is_the_model_of_the_first() -> None:
    script = torch.jit.script(Counting())
    result = sardonyx.convert(script, (torch.ones(2, 3),), exporter="sardonyx")
    assert result.report.verdict.status == "proved" and script.calls == 0
    name = str(result.model.graph.inputs[0].name)
    assert (sardonyx.Session(result.model).run(None, {name: torch.full((4, 3), 2.0).numpy()})[0] == 2).all()


class Parts(torch.nn.Module):  # type: ignore[misc,name-defined]
    """A plain module with parts of TorchScript, of which one counts, and packed weights."""

    def __init__(self) -> None:
        super().__init__()
        self.counted = scripted(Counting())
        self.traced = torch.jit.trace(torch.nn.Linear(4, 5), torch.randn(2, 4))
        self.function = torch.jit.script(halved)
        plain = torch.nn.Sequential(torch.nn.Linear(5, 3))
        self.packed = torch.ao.quantization.quantize_dynamic(plain, {torch.nn.Linear})

    def forward(self, x: Any) -> Any:
        return self.packed(self.traced(self.function(self.counted(x), 3)))


def test_scripted_parts_of_plain_modules_are_captured() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = Parts().eval()
    report = proved(module, torch.randn(3, 4))
    assert len(report.sizes["batch"]) > 1
