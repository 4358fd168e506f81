"""Modules with a state in Python: the model is that of the caller's state, which a conversion leaves as it is."""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import sardonyx  # noqa: E402
from sardonyx.convert.torch import state  # noqa: E402
from tests.convert.torch.conversions import converted, drawn  # noqa: E402

if TYPE_CHECKING:
    Tensor = Any
else:
    Tensor = torch.Tensor


class Memory:
    """An object of a program with attributes."""

    def __init__(self) -> None:
        self.values = [1]


class Stateful(torch.nn.Module):  # type: ignore[misc,name-defined]
    """A module that counts its calls in one of several ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.count, self.values, self.names, self.memory = way, 1, [1], {"a": [1]}, Memory()
        self.lock = threading.Lock()  # No deep copy of such a module exists.
        self.register_buffer("calls", torch.ones(1))

    def forward(self, x: Any) -> Any:
        if self.way == "number":
            self.count += 1
            return x * self.count
        if self.way == "buffer":
            self.calls += 1
            return x * self.calls
        values = {"list": self.values, "dict": self.names["a"], "object": self.memory.values}[self.way]
        values.append(1)
        return x * len(values)

    def state(self) -> Any:
        return self.count, self.values, self.names, self.memory.values, float(self.calls)


@pytest.mark.parametrize("way", ["number", "buffer", "list", "dict", "object"])
def test_a_module_that_counts_its_calls_is_the_model_of_the_first(way: str) -> None:
    module = Stateful(way)
    parts = module.values, module.names, module.memory, module.calls
    result = converted(module, drawn(2, 3))
    assert result.report.verdict.status == "proved"
    assert module.state() == Stateful(way).state()
    now = module.values, module.names, module.memory, module.calls
    assert all(a is b for a, b in zip(parts, now, strict=True))
    name = str(result.model.graph.inputs[0].name)
    assert (sardonyx.Session(result.model).run(None, {name: torch.ones(4, 3).numpy()})[0] == 2).all()


class Once(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.was_called = False

    def forward(self, x: Any) -> Any:
        if not self.was_called:
            self.was_called = True
            return x * 10
        return x


def test_a_module_that_is_prepared_by_its_first_call_is_the_model_of_that() -> None:
    module = Once()
    result = converted(module, drawn(2, 3))
    name = str(result.model.graph.inputs[0].name)
    assert result.report.verdict.status == "proved" and not module.was_called
    assert (sardonyx.Session(result.model).run(None, {name: torch.ones(2, 3).numpy()})[0] == 10).all()


@pytest.mark.parametrize("once", [False, True], ids=["always", "once"])
def test_a_state_outside_of_the_module_proves_nothing(once: bool) -> None:
    calls: list[int] = []

    def program(x: Any) -> Any:
        calls.append(1)
        return x * (min(len(calls), 2) if once else len(calls))

    verdict = converted(program, drawn(2, 3)).report.verdict
    assert verdict.status == "not proved" and "equal inputs differently" in verdict.reason


class Growing(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.items = [1]

    def forward(self, x: Tensor) -> Tensor:
        self.items.append(1)
        return x * len(self.items)


def test_a_script_that_appends_to_a_list_is_the_model_of_the_first_call() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script = torch.jit.script(Growing())
    result = sardonyx.convert(script, (torch.ones(2, 3),), exporter="sardonyx")
    assert result.report.verdict.status == "proved" and script.items == [1]
    name = str(result.model.graph.inputs[0].name)
    assert (sardonyx.Session(result.model).run(None, {name: torch.ones(4, 3).numpy()})[0] == 2).all()


class Writing(torch.nn.Module):  # type: ignore[misc,name-defined]
    """A module that writes to its weight in one of several ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.weight = torch.nn.Parameter(torch.ones(3, 3))

    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            if self.way == "element":
                self.weight[0].mul_(2)
            elif self.way == "data":
                self.weight.data.mul_(2)
            elif self.way == "out":
                torch.mul(self.weight, 2, out=self.weight)
            elif self.way == "parameter":
                self.weight = torch.nn.Parameter(self.weight * 2)
            elif self.way == "replaced":
                self.weight.data = self.weight.data * 2
            elif self.way == "transposed":
                self.weight.data = self.weight.data.t()
        return x @ self.weight


@pytest.mark.parametrize("way", ["element", "data", "out", "parameter", "replaced"])
def test_a_module_that_writes_to_its_weight_keeps_it(way: str) -> None:
    module = Writing(way)
    weight, memory = module.weight, module.weight.data_ptr()
    result = converted(module, drawn(2, 3))
    assert module.weight is weight and weight.data_ptr() == memory and (weight == 1).all()
    # torch.export keeps the values of a parameter whose `data` are replaced.
    assert result.report.verdict.status == ("different" if way == "replaced" else "proved")


def test_a_weight_that_is_read_in_another_way_is_read_as_before() -> None:
    module = Writing("transposed")
    values = torch.arange(9.0).reshape(3, 3)
    module.weight.data.copy_(values)
    with state.State(module).watched():
        module(drawn(2, 3))
    assert torch.equal(module.weight, values) and module.weight.is_contiguous()


def test_a_weight_of_another_type_in_the_same_memory_has_its_type_again() -> None:
    module = torch.nn.Linear(3, 3)
    before = module.weight.detach().clone()
    with state.State(module).watched():
        module.weight.requires_grad_(False)
        module.weight.data = module.weight.data.view(torch.int32)
    assert module.weight.dtype == torch.float32 and torch.equal(module.weight, before)


def test_a_parameter_too_large_for_a_copy_leaves_the_watch_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "MOST_BYTES", 100)
    module = torch.nn.ParameterList([torch.zeros(10), torch.zeros(20), torch.zeros(5)])
    with torch.no_grad(), state.State(module).watched():
        for parameter in module:
            parameter += 1
    assert [parameter[0].item() for parameter in module] == [0, 1, 0]
