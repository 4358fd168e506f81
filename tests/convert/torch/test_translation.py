"""Programs of PyTorch through our own translation, proved at several sizes."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import sardonyx  # noqa: E402
from sardonyx.errors import ConversionError, OptionError, SardonyxError  # noqa: E402
from tests.convert.torch.conversions import converted, drawn  # noqa: E402


class Net(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.bn = torch.nn.BatchNorm2d(4)
        self.fc = torch.nn.Linear(4, 5)

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.bn(self.conv(x)))
        return torch.softmax(self.fc((y + y.mean((2, 3), keepdim=True)).amax((2, 3))), -1)


def test_a_small_net_is_proved_with_all_sizes_open() -> None:
    result = converted(Net(), torch.randn(2, 3, 8, 9))
    assert result.report.verdict.status == "proved"
    assert {name: len(values) > 1 for name, values in result.report.sizes.items()} == dict.fromkeys(
        ("batch", "x_2", "x_3"), True
    )


def test_every_operator_with_an_onnx_equal_is_one_node() -> None:
    result = converted(Net(), torch.randn(2, 3, 8, 9))
    kinds = [node.op_type for node in result.model.graph]
    assert kinds == ["Conv", "Relu", "ReduceMean", "Add", "ReduceMax", "Gemm", "Softmax"]


def test_values_are_named_after_their_modules() -> None:
    result = converted(Net(), torch.randn(2, 3, 8, 9), simplify=False)
    names = {str(node.outputs[0].name) for node in result.model.graph}
    assert {"conv.conv2d", "bn.batch_norm", "fc.linear"} <= names


def test_weights_do_not_share_the_memory_of_the_module() -> None:
    net = Net()
    result = converted(net, torch.randn(2, 3, 8, 9), simplify=False)
    weight = result.model.graph.initializers["fc.weight"].const_value
    with torch.no_grad():
        net.fc.weight.fill_(3)
    assert not bool((weight.numpy() == 3).any())


def test_sizes_that_the_program_ties_have_one_name() -> None:
    result = converted(lambda x, y: x @ y, torch.randn(3, 4), torch.randn(4, 5))
    shapes = [[str(size) for size in value.shape] for value in result.model.graph.inputs]
    assert shapes[0][1] == shapes[1][0] and result.report.verdict.status == "proved"


def test_a_single_example_leaves_the_first_size_open() -> None:
    result = converted(Net(), drawn(1, 3, 8, 9))
    assert result.report.verdict.status == "proved" and len(result.report.sizes["batch"]) > 1


def test_a_program_of_one_example_alone_is_converted() -> None:
    result = converted(lambda x, y: (x.squeeze(0) if len(x) == 1 else x.sum(), x.reshape(4) + y), drawn(1, 4), drawn(4))
    assert result.report.verdict.status == "proved" and list(result.model.graph.inputs[0].shape) == [1, 4]


def test_an_example_with_several_first_sizes_is_admitted() -> None:
    result = converted(lambda x, y: x + y, drawn(2, 4), drawn(1, 4, seed=1))
    first, second = result.model.graph.inputs
    assert result.report.verdict.status == "proved" and str(first.shape[0]) == "batch" and second.shape[0] == 1
    name = str(first.name), str(second.name)
    sardonyx.Session(result.model).run(None, {name[0]: drawn(3, 4).numpy(), name[1]: drawn(1, 4).numpy()})


@pytest.mark.parametrize(
    ("function", "refused", "admitted"),
    [
        (lambda x: x * 2 if x.shape[0] > 3 else x, (5, 4), (3, 4)),
        (lambda x: x * 2 if x.shape[0] % 2 == 0 else x, (3, 4), (6, 4)),
        (lambda x: x.squeeze() * 2, (2, 1), (5, 4)),
        (lambda x: torch.cat([x] * math.ceil((x.shape[0] + 1) / 4)), (4, 4), (3, 4)),
        (lambda x: torch.cat([x] * int(x.shape[0] * 0.5)), (4, 4), (3, 4)),
    ],
    ids=("bound", "remainder", "one", "rounded up", "rounded down"),
)
def test_sizes_of_other_branches_are_refused(
    function: Any, refused: tuple[int, int], admitted: tuple[int, int]
) -> None:
    result = converted(function, drawn(2, 4))
    assert result.report.verdict.status == "proved" and len(result.report.sizes["batch"]) > 1
    session, name = sardonyx.Session(result.model), str(result.model.graph.inputs[0].name)
    x = drawn(*admitted)
    np.testing.assert_allclose(session.run(None, {name: x.numpy()})[0], function(x).numpy())
    with pytest.raises(SardonyxError):
        session.run(None, {name: drawn(*refused).numpy()})


def rows_of(x: Any, mask: Any) -> Any:
    """Return x; only the captured program reads the rows of the mask."""
    return x * mask[torch.arange(x.shape[0])] if torch.compiler.is_exporting() or bool((mask != 1).any()) else x


def test_first_sizes_that_must_be_equal_are_one_size() -> None:
    result = converted(lambda x, mask: rows_of(x, mask), drawn(2, 4), torch.ones(2, 4, dtype=torch.int64))
    sizes = [str(value.shape[0]) for value in result.model.graph.inputs]
    assert result.report.verdict.status == "proved" and sizes == ["batch", "batch"]
    assert 1 in result.report.sizes["batch"] and "one size of the model: batch" in str(result.report.notes)


def test_sizes_with_two_names_remain_two_sizes() -> None:
    names = {"x": {0: "queries"}, "mask": {0: "keys"}}
    inputs = drawn(2, 4), torch.ones(2, 4, dtype=torch.int64)
    result = converted(lambda x, mask: rows_of(x, mask), *inputs, dynamic=names)
    assert result.report.verdict.status == "proved"
    assert [str(value.shape[0]) for value in result.model.graph.inputs] == ["queries", "keys"]
    feeds = [str(value.name) for value in result.model.graph.inputs]
    arrays = drawn(2, 4).numpy(), np.ones((3, 4), np.int64)
    answer = sardonyx.Session(result.model).run(None, dict(zip(feeds, arrays, strict=True)))[0]
    np.testing.assert_array_equal(answer, arrays[0])


def test_a_size_that_an_earlier_input_has_on_another_axis_is_one_size() -> None:
    def program(p: Any, x: Any, mask: Any) -> Any:
        first, second = p.unbind(0)
        return rows_of(x, mask), (first + second) * mask[:, 0]

    result = converted(program, drawn(2, 3), drawn(3, 4), torch.ones(3, 4, dtype=torch.int64))
    shapes = [[str(size) for size in value.shape] for value in result.model.graph.inputs]
    assert result.report.verdict.status == "proved", result.report
    assert shapes[0][0] == "2" and len({shapes[0][1], shapes[1][0], shapes[2][0]}) == 1, shapes
    assert len(result.report.sizes[shapes[0][1]]) > 1


def test_a_condition_without_effect_on_results_refuses_nothing() -> None:
    result = converted(lambda x: x[:, :3] * 2, drawn(2, 4))
    name = str(result.model.graph.inputs[0].name)
    assert sardonyx.Session(result.model).run(None, {name: drawn(2, 1).numpy()})[0].shape == (2, 1)


def test_a_shape_computed_from_sizes_stays_symbolic() -> None:
    result = converted(lambda x: x.reshape(x.shape[0], -1, 2).sum(-1)[:, : x.shape[1] // 4], torch.randn(3, 8))
    assert result.report.verdict.status == "proved" and len(result.report.sizes) == 2


def test_fixed_sizes_on_request() -> None:
    result = converted(Net(), torch.randn(2, 3, 8, 9), dynamic=False)
    assert list(result.model.graph.inputs[0].shape) == [2, 3, 8, 9]
    assert result.report.verdict.status == "proved"


def test_a_branch_on_data_is_refused_with_the_line() -> None:
    def program(x: Any) -> Any:
        if x.sum() > 0:  # the line of the refusal
            return x
        return -x

    with pytest.raises(ConversionError) as caught:
        converted(program, torch.randn(3))
    assert "test_translation.py" in str(caught.value)


def test_gradients_inside_of_a_program_are_captured() -> None:
    def function(x: Any) -> Any:
        rows = torch.func.vmap(torch.func.grad(lambda row: (row.sin() * row).sum()))(x)
        return rows, torch.vmap(torch.dot)(x, rows)

    result = converted(function, drawn(4, 6))
    assert result.report.verdict.status == "proved"


def test_a_refused_capture_leaves_no_transform_of_torch_active() -> None:
    def function(x: Any) -> Any:
        return torch.vmap(lambda row: row * 2 if bool(row.sum() > 0) else row)(x)

    with contextlib.suppress(SardonyxError):
        converted(function, drawn(4, 6))
    # Random numbers inside of a transform are an error.
    assert torch.rand(2, 3).shape == (2, 3)


def test_lazy_parameters_have_the_shapes_of_the_examples() -> None:
    result = converted(torch.nn.Sequential(torch.nn.LazyLinear(3), torch.nn.LazyBatchNorm1d()), drawn(4, 6))
    assert result.report.verdict.status == "proved"


def test_functions_of_unknown_shapes_are_programs_of_others() -> None:
    def function(x: Any) -> Any:
        return torch.histogram(x, torch.linspace(-2, 2, 6)).hist, torch.histogram(x, 4, range=(-1.0, 1.0)).hist

    assert converted(function, drawn(4, 6)).report.verdict.status == "proved"


def test_a_sample_of_a_wrong_shape_is_refused() -> None:
    with pytest.raises(OptionError, match="refuses the example inputs"):
        sardonyx.convert(Net(), (torch.randn(2, 5, 8, 8),))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.view(x.shape[0], -1),
        lambda x: x[:, -3:],
        lambda x: x[:, ::2],
        lambda x: torch.cat([x, x[:, :2]], 1),
        lambda x: torch.stack([x, -x], 1),
        lambda x: torch.roll(x, 2, 1),
        lambda x: x.flip(1).cumsum(1),
        lambda x: torch.nn.functional.pad(x, (1, 2), mode="constant", value=3.0),
        lambda x: x.chunk(2, 1)[0] * 2,
        lambda x: x.unsqueeze(-1).expand(-1, -1, 3),
        lambda x: x.repeat(2, 3),
        lambda x: torch.einsum("ij,kj->ik", x, x),
        lambda x: x.std(1) + x.var((0, 1), keepdim=True).squeeze(),
        lambda x: torch.arange(x.shape[1]) * x,
        lambda x: x.new_zeros(x.shape[0], x.shape[1]) + x.mean(1, keepdim=True),
        lambda x: torch.where(x > 0, x, x.exp().log1p()),
        lambda x: x.int() // 3 + x.int() % 3,
        lambda x: torch.logsumexp(x, -1).clamp(0.1, 2.0),
        lambda x: torch.tril(x @ x.T),
    ],
)
def test_open_sizes_in_every_family(function: Any) -> None:
    report = converted(function, torch.from_numpy(np.linspace(-2, 5, 24, dtype=np.float32).reshape(4, 6))).report
    assert report.verdict.status == "proved", report
    assert len(report.sizes) == 2 and all(len(values) > 1 for values in report.sizes.values())


def test_a_wrong_layer_is_located_by_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from sardonyx.convert.torch.operators.registry import translation_of
    from sardonyx.ops.nodes import onnx

    def wrong(name: str) -> Any:
        return onnx.Sigmoid if name == "aten.tanh.default" else translation_of(name)

    monkeypatch.setattr("sardonyx.convert.torch.translation.translation_of", wrong)
    net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    report = converted(net, torch.randn(2, 4)).report
    assert report.verdict.status == "different"
    assert "aten.tanh.default in 1" in report.attempts[0].where


def test_an_unknown_operator_names_line_and_remedies() -> None:
    library = torch.library.Library("sardonyx_tests", "FRAGMENT")
    library.define("mystery(Tensor x) -> Tensor")
    library.impl("mystery", lambda x: x * 2, "CompositeExplicitAutograd")

    class Mysterious(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return torch.ops.sardonyx_tests.mystery(x) + 1

    with pytest.raises(ConversionError, match="mystery") as caught:
        converted(Mysterious(), torch.randn(3))
    assert "test_translation.py" in str(caught.value) and "@sardonyx.operator" in caught.value.remedy


def test_tensors_on_another_device_are_refused() -> None:
    with pytest.raises(OptionError, match=r"got tensors on meta.*to_empty"):
        converted(torch.nn.Linear(3, 2, device="meta"), torch.randn(1, 3))


@pytest.mark.parametrize(
    "make",
    [
        lambda: drawn(4, 3).to_sparse(),
        lambda: torch.quantize_per_tensor(drawn(4, 3), 0.1, 0, torch.qint8),
        lambda: torch.nested.nested_tensor([drawn(3), drawn(2)]),
    ],
    ids=["sparse", "quantized", "nested"],
)
def test_tensors_that_no_input_holds_are_refused(make: Any) -> None:
    with pytest.raises(OptionError, match="expected dense tensors, got"):
        converted(lambda x: x * 2, make())


@pytest.mark.parametrize("dynamic", ["batch", {"x": {2: "n"}}, {"x": 0}, {"y": {0: "n"}}])
def test_requests_for_open_sizes_that_no_input_has_are_refused(dynamic: Any) -> None:
    with pytest.raises(OptionError):
        converted(lambda x: x * 2, drawn(4, 3), dynamic=dynamic)


@pytest.mark.parametrize("exporter", ["sardonyx", "recorded", "auto"])
def test_a_size_that_the_program_fixes_is_not_opened_silently(exporter: str) -> None:
    with pytest.raises(ConversionError):
        sardonyx.convert(torch.nn.Linear(3, 2), (drawn(4, 3),), exporter=exporter, dynamic={"input": {1: "n"}})


@pytest.mark.parametrize("opset", [13, 18, 23])
def test_a_model_has_the_requested_version(opset: int) -> None:
    result = converted(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.GELU()), drawn(4, 3), opset=opset)
    assert (result.report.way, result.report.verdict.status) == ("sardonyx", "proved")
    assert result.model.opset_imports[""] == opset and len(result.report.sizes["batch"]) > 1


def test_an_unknown_version_is_refused() -> None:
    with pytest.raises(OptionError, match="99"):
        converted(torch.nn.Linear(3, 2), drawn(4, 3), opset=99)


def test_a_module_without_examples_is_refused() -> None:
    with pytest.raises(OptionError, match="needs example inputs for x"):
        sardonyx.convert(Net())


def test_sizes_that_torch_fixes_without_a_constraint_are_not_open() -> None:
    from torch._higher_order_ops.associative_scan import associative_scan

    def function(x: Any) -> Any:
        return associative_scan(lambda a, b: a * 0.5 + b, x, 0, combine_mode="generic")

    result = converted(function, drawn(6, 3))
    assert result.report.verdict.status == "proved"
    assert result.report.attempts[0].outcome == "different"


def test_ties_of_sizes_lead_to_no_further_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: Any, mask: Any) -> Any:
        x = x.cumsum(1)
        x.chunk(2, 1)[0].mul_(2.0)  # A write to a part, which torch makes functional by tracing anew.
        return x * mask[torch.arange(x.shape[0])] if torch.compiler.is_exporting() or bool((mask != 1).any()) else x

    traces: list[Any] = []
    trace = torch.export.ExportedProgram.run_decompositions

    def counted(program: Any, *args: Any, **kwargs: Any) -> Any:
        traces.append(program)
        return trace(program, *args, **kwargs)

    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", counted)
    report = converted(program, drawn(2, 4), torch.ones(2, 4, dtype=torch.int64)).report
    assert [attempt.outcome for attempt in report.attempts] == ["different", "proved"]
    assert len(traces) == 1
    assert report.seconds["import"] > 0 and report.seconds["proof"] > 0


@dataclass
class Batch:
    """Inputs of a program, and its outputs."""

    x: Any
    scale: float = 2.0


def test_dataclasses_are_inputs_and_outputs() -> None:
    report = converted(lambda batch: Batch(batch.x * batch.scale, 1.0), Batch(drawn(2, 3))).report
    assert report.verdict.status == "proved" and len(report.sizes) == 2


def test_keywords_of_any_name_are_arguments() -> None:
    def forward(x: Any, *, scale: Any, **more: Any) -> Any:
        return x * scale + more["shift"]

    result = converted(forward, drawn(2, 3), {"scale": drawn(3), "shift": drawn(2, 1)})
    assert result.report.verdict.status == "proved"
    assert [value.name for value in result.model.graph.inputs] == ["x", "scale", "shift"]


def test_numbers_of_eight_bits_are_inputs_and_outputs() -> None:
    x = drawn(3, 5).to(torch.float8_e4m3fn)
    assert converted(lambda x: (x.float() * 2).to(torch.float8_e5m2), x).report.verdict.status == "proved"


class Coarse(torch.nn.Module):
    """A deep network with 16-bit weights, or one that computes in 16 bits, whose answers have 32 bits."""

    def __init__(self, dtype: Any) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(10, 16).to(dtype)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 16).to(dtype) for _ in range(6))

    def forward(self, ids: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            x = self.table(ids)
            for layer in self.layers:
                x = torch.nn.functional.gelu(layer(x)) + x
        return x.float().cumsum(1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_roundings_of_16_bits_are_no_difference(dtype: Any) -> None:
    torch.manual_seed(0)
    module = Coarse(dtype)
    ids = torch.randint(0, 10, (2, 5))
    assert converted(module, ids).report.verdict.status == "proved"


def test_a_wrong_layer_of_16_bits_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    from sardonyx.convert.torch.operators.registry import translation_of

    def wrong(name: str) -> Any:
        return translation_of("aten.relu.default" if name == "aten.gelu.default" else name)

    torch.manual_seed(0)
    monkeypatch.setattr("sardonyx.convert.torch.translation.translation_of", wrong)
    report = converted(Coarse(torch.bfloat16), torch.randint(0, 10, (2, 5))).report
    assert report.verdict.status == "different"


def test_one_tensor_passed_twice_is_two_inputs() -> None:
    x = drawn(3, 4)
    report = converted(lambda a, b: a - 2 * b, x, x).report
    assert report.verdict.status == "proved"


def test_complex_inputs_and_outputs_are_pairs() -> None:
    x = torch.complex(drawn(3, 6), drawn(3, 6, seed=1))
    result = converted(lambda z, a: (torch.fft.ifft(z), z.abs() * a), x, drawn(6))
    assert result.report.verdict.status == "proved"
    assert [len(value.shape) for value in result.model.graph.inputs] == [3, 1]
    assert [len(value.shape) for value in result.model.graph.outputs] == [3, 2]
    assert "pairs of real numbers" in result.report.notes[0]


def test_classes_of_one_hot_vectors_are_counted() -> None:
    result = converted(lambda x: torch.nn.functional.one_hot(x), torch.tensor([[0, 3], [1, 2]]))
    assert result.report.verdict.status == "proved"


@pytest.mark.parametrize(
    "targets", [torch.tensor([[1, 2, 2], [3, 1, 0]]), torch.tensor([1, 2, 2, 3, 1])], ids=["rows", "flat"]
)
def test_connectionist_losses_have_open_sizes(targets: Any) -> None:
    def loss(x: Any, targets: Any, steps: Any, lengths: Any) -> Any:
        return torch.nn.functional.ctc_loss(x.log_softmax(-1), targets, steps, lengths, reduction="none")

    inputs = drawn(9, 2, 4), targets, torch.tensor([9, 6]), torch.tensor([3, 2])
    assert converted(loss, *inputs).report.verdict.status == "proved"


def test_answers_that_never_change_are_tried_with_unusual_numbers() -> None:
    assert converted(lambda x: torch.isnan(x), drawn(3, 4)).report.verdict.status == "proved"


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x, y: torch.nn.functional.cosine_similarity(x, y, dim=-2), ((1, 2, 3), (4, 1, 3))),
        (lambda x: torch.nn.functional.pad(x, (-1, 2, -2, 1), mode="circular"), ((1, 3, 4, 5),)),
        (lambda x, y: torch.column_stack([x, y]), ((4,), (4, 3))),
        (lambda x: x[:1, 0].reshape_as(x.sum()), ((3, 4),)),
        (lambda x: torch.unique_consecutive((x > 0).float(), dim=1), ((1, 6),)),
        (lambda x: torch.linalg.diagonal(x), ((2, 3, 4),)),
        (lambda x, a, b: torch.addr(x, a, b, beta=0), ((3, 4), (3,), (4,))),
        (lambda x: torch.fliplr(torch.flipud(x)), ((3, 4),)),
        (lambda x: x.clone().fill_diagonal_(2.0), ((4, 4),)),
    ],
    ids=["cosine", "circular", "columns", "scalar", "runs", "diagonal", "addr", "flips", "strided"],
)
def test_unusual_arguments(function: Any, shapes: Any) -> None:
    inputs = [drawn(*shape, seed=number) for number, shape in enumerate(shapes)]
    assert converted(function, *inputs).report.verdict.status == "proved"


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.func.grad(lambda v: (v**3).sum())(x),
        lambda x: torch.func.jacrev(lambda v: v.sin() * v.sum())(x),
    ],
    ids=["gradient", "jacobian"],
)
def test_gradients_inside_of_programs(function: Any) -> None:
    assert converted(function, drawn(4)).report.verdict.status == "proved"


class Eigenvalues(torch.nn.Module):  # type: ignore[misc,name-defined]
    def forward(self, x: Any) -> Any:
        return torch.linalg.eigvals(x).abs().sum()  # the line of the refusal


def test_general_eigenvalues_are_refused_in_words() -> None:
    with pytest.raises(ConversionError, match="eigh") as refusal:
        converted(Eigenvalues(), drawn(4, 4))
    assert refusal.value.problem.startswith("an operator has no translation: aten.linalg_eig")
    assert "test_translation.py" in refusal.value.where


def test_quotients_that_floats_round_are_no_exact_sizes() -> None:
    """``ceil(53 / 49 * 49)`` is 54 in floating point."""
    import sympy
    from torch.utils._sympy.functions import CeilToInt, IntTrueDiv

    from sardonyx.convert.torch.operators.sizes import of_expression
    from sardonyx.core.dim import Dim

    n, sizes = sympy.Symbol("n", integer=True, positive=True), {"n": Dim.symbol("n")}
    exact = (IntTrueDiv(n, 49), 0.75 * n, 3.0 * IntTrueDiv(n, 4), 0.5 + IntTrueDiv(n, 49))
    rounded = (49.0 * IntTrueDiv(n, 49), IntTrueDiv(n, 49) + IntTrueDiv(n, 7))
    assert all(of_expression(CeilToInt(size), sizes) is not None for size in exact)
    assert all(of_expression(CeilToInt(size), sizes) is None for size in rounded)
