"""Modules of torch's quantization are models with integers as weights, and activations rounded to codes."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

from sardonyx.convert.torch import quantized_modules  # noqa: E402
from tests.convert.torch.conversions import converted, drawn  # noqa: E402

quantization = pytest.importorskip("torch.ao.quantization", reason="torch has no quantization of modules")

pytestmark = pytest.mark.filterwarnings("ignore")


class Image(torch.nn.Module):
    """A convolution, a sum with a shortcut, a pool and a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = quantization.QuantStub(), quantization.DeQuantStub()
        self.first, self.relu = torch.nn.Conv2d(3, 4, 3, stride=2, padding=1), torch.nn.ReLU()
        self.second = torch.nn.Conv2d(4, 4, 3, padding=1, groups=2)
        self.sum = torch.ao.nn.quantized.FloatFunctional()
        self.head = torch.nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        x = self.relu(self.first(self.enter(x)))
        x = self.sum.add(x, self.second(x))
        return self.leave(self.head(x.mean((2, 3))))


def static() -> Any:
    module = Image().eval()
    module.qconfig = quantization.get_default_qconfig("x86")
    module = quantization.fuse_modules(module, [["first", "relu"]])
    prepared = quantization.prepare(module)
    prepared(drawn(4, 3, 8, 8))
    return quantization.convert(prepared)


def by_graph() -> Any:
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

    layers = (torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1))
    module = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(4, 2)).eval()
    prepared = prepare_fx(module, quantization.get_default_qconfig_mapping("x86"), (drawn(2, 3, 8, 8),))
    prepared(drawn(4, 3, 8, 8))
    return convert_fx(prepared)


@pytest.mark.parametrize("make", [static, by_graph])
def test_static_modules_are_proved_with_integer_weights(make: Any) -> None:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = converted(make(), drawn(2, 3, 8, 8, seed=1))
    assert result.report.verdict.status == "proved"
    assert len(result.report.sizes["batch"]) > 1
    stored = [value.const_value for value in result.model.graph.initializers.values()]
    assert Counter(t.dtype.name for t in stored if t is not None and len(t.shape) > 1).keys() == {"INT8"}


class Recurrent(torch.nn.Module):
    """A recurrent layer of two directions and a matrix."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.layer, self.head = kind(4, 5, bidirectional=True), torch.nn.Linear(10, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.layer(x)[0])


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
def test_layers_that_quantize_at_run_time_are_proved_with_open_sizes(kind: Any) -> None:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = quantization.quantize_dynamic(Recurrent(kind).eval(), {kind, torch.nn.Linear}, dtype=torch.qint8)
        report = converted(module, drawn(6, 2, 4)).report
    assert report.verdict.status == "proved"
    assert all(len(values) > 1 for values in report.sizes.values()) and len(report.sizes) == 2


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("x", [drawn(3, 5), drawn(3, 5).abs() + 0.5, -drawn(4).abs(), torch.zeros(2)])
def test_activations_are_rounded_at_run_time_as_torch_does(x: Any, reduced: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = torch.quantize_per_tensor_dynamic(x, torch.quint8, reduced).dequantize()
    torch.testing.assert_close(quantized_modules.rounded_at_run_time(x, reduce_range=reduced), expected)


def test_codes_of_tensors_are_those_of_torch() -> None:
    def codes(x: Any) -> Any:
        return torch.quantize_per_tensor(x, 0.05, 10, torch.quint8).int_repr()

    assert converted(codes, drawn(3, 5)).report.verdict.status == "proved"


def test_a_module_without_packed_weights_has_no_mirror() -> None:
    assert quantized_modules.mirror_of(torch.nn.Linear(2, 2)) is None
