"""Schedules are values: they print, round-trip, replay, and refuse what a kernel cannot compute."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx.compiler.explain import ChoiceNote, explain
from sardonyx.compiler.program import Program
from sardonyx.compiler.target.description import NAMED, Target, host
from sardonyx.compiler.tiling import overrides
from sardonyx.compiler.tiling.attention import AttentionProblem, AttentionSchedule, choose_attention
from sardonyx.compiler.tiling.choice import Choice
from sardonyx.compiler.tiling.convolution import (
    ConvolutionProblem,
    ConvolutionSchedule,
    choose_convolution,
    typical_symbols,
)
from sardonyx.compiler.tiling.gemm import choose_gemm
from sardonyx.compiler.tiling.gemm_schedule import GemmProblem, GemmSchedule, Layout
from sardonyx.compiler.tiling.pooling import PoolingProblem, PoolingSchedule, choose_pooling
from sardonyx.compiler.tiling.rows import RowProblem, RowSchedule, choose_rows
from sardonyx.compiler.tiling.trees import TreeProblem, TreeSchedule, choose_trees
from sardonyx.compiler.tiling.windows import Windows
from sardonyx.core import language as L
from sardonyx.core.dim import Dim, ceil_div
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function
from sardonyx.core.ir.types import TensorType
from sardonyx.errors import OptionError

M = Dim.symbol("m")
TARGETS = [NAMED[name] for name in ("sse", "avx2", "avx512", "avx512vnni", "avx512amx", "neon")]


def convolution(channels: int, filters: int, window: int, **changes: Any) -> ConvolutionProblem:
    ones = (1, 1)
    problem = ConvolutionProblem(1, channels, filters, 1, (window, window), ones, ones, ones, (28, 28), t.FLOAT, 1, 1)
    return replace(problem, **changes)


def choices(target: Target) -> Iterator[Choice[Any]]:
    for m in (1, 2, 6, 10, 28, 197, M):
        for n in (1, 5, 40, 768):
            yield choose_gemm(GemmProblem(m, n, 768, t.FLOAT, "packed", t.FLOAT), target)
            yield choose_gemm(GemmProblem(m, n, M, t.FLOAT, "rows", t.FLOAT), target)
            yield choose_gemm(GemmProblem(m, n, 64, t.FLOAT16, "columns", t.FLOAT16), target)
        for gates in (2, 3, 4):
            yield choose_gemm(GemmProblem(m, gates * 64, 64, t.FLOAT, "packed", t.FLOAT, gates=gates), target)
    yield choose_gemm(GemmProblem(7, 64, 4096, t.INT32, "packed", t.INT32, 4), target)
    for queries in (1, 128, M):
        yield choose_attention(AttentionProblem(queries, M, 64, 64), target)
    yield choose_convolution(convolution(3, 32, 3, strides=(2, 2)), target)
    yield choose_convolution(convolution(64, 64, 3), target)
    yield choose_convolution(convolution(64, 64, 3, out=(M, M), threads=2), target)
    yield choose_convolution(convolution(2, 2, 9), target)
    yield choose_convolution(convolution(64, 1, 1), target)
    yield choose_convolution(convolution(32, 32, 3, groups=32), target)
    yield choose_convolution(convolution(32, 32, 3, groups=16), target)
    yield choose_convolution(convolution(32, 32, 3, constant_weights=False), target)
    yield choose_convolution(convolution(32, 32, 3, dtype=t.UINT8, dot_width=4), target)
    for blocked in (False, True):
        yield choose_pooling(PoolingProblem(Windows.of((3, 3), (2, 2)), (56, M), 32, blocked), target)
    for shape, axes, neighbours in (((5, 768), (1,), 5), ((64, 2), (1,), 64), ((64, M), (0,), M), ((1, 1), (1,), 1)):
        for shared in ((), (2,), (13,)):
            yield choose_rows(RowProblem(shape, axes, neighbours, 32, 2, 7, True, 0, shared), target)
    for rows in (1, 500, M):
        for trees in (1, 40, 2000):
            yield choose_trees(TreeProblem(rows, trees, 20, 3, 5000 * trees, trees == 1, 2), target)
    yield choose_rows(RowProblem((1, 64, 7, 7), (2, 3), 64, 32, 1, 1, False, target.lanes(32)), target)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_each_schedule_prints_on_a_line_round_trips_and_is_valid_for_its_problem(target: Target) -> None:
    for choice in choices(target):
        for schedule in (choice.schedule, *(candidate.schedule for candidate in choice.candidates)):
            assert "\n" not in str(schedule)
            assert type(schedule).from_dict(json.loads(json.dumps(schedule.to_dict()))) == schedule
            schedule.validate(choice.problem, target)
        assert all(candidate.reason for candidate in choice.candidates), choice
        assert choice.schedule not in [candidate.schedule for candidate in choice.candidates]


@pytest.mark.parametrize(
    "m, n, k, layout, target, expected",
    [
        (1024, 1024, 1024, "packed", "avx2", "tile 6x2x8, unroll 4, 4 tiles per item, prefetch panel"),
        (
            1024, 1024, 1024, "packed", "avx512",
            "tile 6x4x16, unroll 4, K in blocks of 256, 24 tiles per item, prefetch panel",
        ),
        (1, 768, 768, "packed", "avx2", "tile 6x2x8, unroll 4, 4 chains, 4 tiles per item, prefetch panel"),
        (1, 768, 768, "packed", "avx512", "tile 6x4x16, unroll 4, 2 chains, 4 tiles per item, prefetch stream"),
        (12, 768, 768, "rows", "avx2", "tile 6x2x8, unroll 4, 4 tiles per item"),
    ],
)  # fmt: skip
def test_typical_products_have_these_schedules(
    m: int, n: int, k: int, layout: Layout, target: str, expected: str
) -> None:
    problem = GemmProblem(m, n, k, t.FLOAT, layout, t.FLOAT)
    assert str(choose_gemm(problem, NAMED[target]).schedule) == expected


def test_candidates_have_an_estimated_cost_where_sizes_are_known() -> None:
    choice = choose_gemm(GemmProblem(10, 768, 768, t.FLOAT, "packed", t.FLOAT), NAMED["avx512"])
    assert choice.candidates
    assert all(candidate.cost is not None for candidate in choice.candidates)
    winograd = choose_convolution(convolution(64, 64, 3), NAMED["avx2"])
    assert winograd.schedule.algorithm == "winograd"
    assert winograd.cost is not None
    assert all(candidate.cost is not None and candidate.cost >= winograd.cost for candidate in winograd.candidates)


@pytest.mark.parametrize(("channels", "scale"), [(64, 4), (128, 8), (256, 16), (512, 32)])
def test_open_sizes_of_an_image_have_the_algorithm_of_an_image_of_224(channels: int, scale: int) -> None:
    """A quotient of an image's size is that of a deep layer: few results do not pay for reading transformed weights."""
    height, width = (ceil_div(Dim.symbol(name), scale) for name in ("h", "w"))
    target = NAMED["avx512"]
    of_open = choose_convolution(convolution(channels, channels, 3, out=(height, width)), target).schedule
    of_image = choose_convolution(convolution(channels, channels, 3, out=(224 // scale,) * 2), target).schedule
    assert of_open.algorithm == of_image.algorithm == ("direct" if scale == 32 else "winograd")
    assert of_open.winograd_tile == of_image.winograd_tile


@pytest.mark.parametrize("unit", [1, 8, 32])
def test_multiples_of_a_symbol_have_the_algorithm_of_an_image_of_224(unit: int) -> None:
    h, w = (Dim.symbol(name) for name in ("h", "w"))
    symbols = typical_symbols([Dim.symbol("n"), unit * h, 3, unit * w, h + w])
    assert symbols == ({} if unit == 1 else {"h": 224 // unit, "w": 224 // unit})
    target = NAMED["avx512"]
    for channels, scale in ((64, 4), (128, 8), (256, 16), (512, 32)):
        sizes = [ceil_div(unit * size, scale) for size in (h, w)]
        problem = replace(convolution(channels, channels, 3, out=tuple(sizes)), symbols=tuple(symbols.items()))
        of_image = choose_convolution(convolution(channels, channels, 3, out=(224 // scale,) * 2), target).schedule
        of_open = choose_convolution(problem, target).schedule
        assert (of_open.algorithm, of_open.winograd_tile) == (of_image.algorithm, of_image.winograd_tile)
        assert all(f"{symbol}={value}" in str(problem) for symbol, value in symbols.items())


def test_a_program_knows_the_symbols_of_its_inputs() -> None:
    weights = L.constant(np.ones((16, 8, 3, 3), np.float32))
    image = TensorType(t.FLOAT, (1, 8, 32 * Dim.symbol("h"), 16))
    padding = [(1, 1), (1, 1)]
    function = trace("f", lambda x: [L.convolve(x, weights, strides=(2, 2), padding=padding)], [image])
    assert only_choice(Program.compile(function, threads=1)).problem.endswith(" h=7")


def test_open_sizes_without_an_image_count_as_those_of_the_middle_of_a_network() -> None:
    """A size that no image of 224 has, and one that is a symbol of its own."""
    target = NAMED["avx512"]
    typical = choose_convolution(convolution(64, 64, 3, out=(56, 56)), target).schedule
    for size in (Dim.symbol("h"), Dim.symbol("a") // (Dim.symbol("b") - 224)):
        assert choose_convolution(convolution(64, 64, 3, out=(size, size)), target).schedule == typical


def test_a_problem_names_all_that_the_choice_depends_on() -> None:
    problem = GemmProblem(M, 40, 768, t.FLOAT, "packed", t.FLOAT16, 1, 4)
    assert str(problem) == "gemm m=m n=40 k=768 float b=packed of float16 gates=4"
    texts = {str(choice.problem): choice.problem for choice in choices(NAMED["avx2"])}
    assert len(texts) == len({choice.problem for choice in choices(NAMED["avx2"])})


# Overrides.


def product(m: int, n: int, k: int) -> tuple[Function, np.ndarray]:
    weights = np.random.default_rng(0).standard_normal((k, n)).astype(np.float32)
    return trace("f", lambda x: [L.matmul(x, L.constant(weights))], [TensorType(t.FLOAT, (m, k))]), weights


def texts(program: Program) -> list[str]:
    return [launch.text for launch in program.launches]


def only_choice(program: Program) -> ChoiceNote:
    (choice,) = [choice for kernel in explain(program).kernels for choice in kernel.choices]
    return choice


@pytest.mark.parametrize(("rows", "vectors", "unroll"), [(1, 1, 1), (3, 2, 2), (6, 1, 4), (8, 3, 4), (2, 4, 8)])
def test_any_valid_tile_computes_the_product(rows: int, vectors: int, unroll: int) -> None:
    function, weights = product(13, 70, 37)
    note = only_choice(Program.compile(function, threads=1))
    schedule = {**note.schedule, "rows": rows, "vectors": vectors, "unroll": unroll, "prefetch": "none"}
    x = np.random.default_rng(1).standard_normal((13, 37)).astype(np.float32)
    with overrides.override_schedules({"schedules": {note.problem: schedule}}):
        program = Program.compile(function, threads=1)
    actual = only_choice(program)
    assert (actual.reason, actual.schedule) == ("override", schedule)
    assert actual.candidates[0].text == note.text
    np.testing.assert_allclose(program.run([x])[0], x.astype(float) @ weights, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 0}, "1 to 32 rows"),
        ({"lanes": 3}, "lanes is"),
        ({"rows": 1, "chains": 8}, "at most 4 chains"),
        ({"form": "few_columns"}, "few_columns takes"),
        ({"form": "spiral"}, "expected form to be one of"),
        ({"rows": "six"}, "expected rows to be int"),
        ({"columns": 6}, "unknown fields: columns"),
        ({"kind": "convolution"}, "expected a schedule of kind 'gemm'"),
        ({"k_block": 5}, "multiple of unroll"),
        ({"gates": 2}, "expected 1 or 1 gates"),
        ({"prefetch": "steps"}, "takes a B in place"),
    ],
)
def test_an_invalid_schedule_is_refused(change: dict[str, Any], message: str) -> None:
    function, _ = product(13, 70, 37)
    note = only_choice(Program.compile(function, threads=1))
    with (
        overrides.override_schedules({"schedules": {note.problem: {**note.schedule, **change}}}),
        pytest.raises(OptionError, match=message) as caught,
    ):
        Program.compile(function, threads=1)
    assert note.problem in str(caught.value)


NET = """<ir_version: 9, opset_import: ["": 18]> net (float[1, 16, 24, 24] x) => (float[1, 10] y) {
    a = Conv <pads = [1, 1, 1, 1]> (x, w) r = Relu(a)
    p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
    g = GlobalAveragePool(p) f = Flatten(g) y = MatMul(f, u) }"""


def net() -> onnx.ModelProto:
    rng, model = np.random.default_rng(0), onnx.parser.parse_model(NET)
    for name, shape in (("w", (32, 16, 3, 3)), ("u", (32, 10))):
        array = rng.standard_normal(shape).astype(np.float32) / 10
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def replayable(program: Program) -> dict[str, Any]:
    """The parts of `sardonyx explain --json` that overrides read."""
    explanation = explain(program)
    return json.loads(json.dumps({"target": explanation.target, "kernels": [asdict(k) for k in explanation.kernels]}))


def test_explained_choices_replay_to_the_same_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = sardonyx.Session(net(), compile="wait", threads=1)
    data = replayable(session.program)
    kinds = {choice["schedule"]["kind"] for kernel in data["kernels"] for choice in kernel["choices"]}
    assert kinds == {"convolution", "pooling", "gemm", "rows"}
    path = tmp_path / "schedules.json"
    path.write_text(json.dumps(data))
    monkeypatch.setenv("SARDONYX_SCHEDULE", str(path))
    again = sardonyx.Session(net(), compile="wait", threads=1)
    assert texts(again.program) == texts(session.program)
    assert replayable(again.program) == data


def test_another_valid_convolution_computes_the_same(tmp_path: Path) -> None:
    x = np.random.default_rng(2).standard_normal((1, 16, 24, 24)).astype(np.float32)
    session = sardonyx.Session(net(), compile="wait", threads=1)
    (expected,) = session.run(None, {"x": x})
    (choice,) = [
        choice
        for launch in session.program.launches
        if (choice := launch.choice) and isinstance(choice.schedule, ConvolutionSchedule)
    ]
    others = [choice.schedule, *(candidate.schedule for candidate in choice.candidates)]
    assert len({schedule.algorithm for schedule in others}) > 1
    for schedule in others:
        with overrides.override_schedules({"schedules": {str(choice.problem): schedule.to_dict()}}):
            other = sardonyx.Session(net(), compile="wait", threads=1)
            (result,) = other.run(None, {"x": x})
        assert str(schedule) in [str(launch.choice.schedule) for launch in other.program.launches if launch.choice]
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


def gated(units: int) -> Function:
    """A gated linear unit: the product's columns are two gates."""
    weights = np.random.default_rng(0).standard_normal((32, 2 * units)).astype(np.float32) / 8

    def compute(x: L.Tensor) -> list[L.Tensor]:
        product = L.matmul(x, L.constant(weights))
        first, second = (L.slice_(product, -1, start, start + units) for start in (0, units))
        return [first * L.sigmoid(second)]

    return trace("gated", compute, [TensorType(t.FLOAT, (4, 32))])


def test_gates_that_an_override_separates_replay_separated() -> None:
    function = gated(64)
    fused = Program.compile(function, threads=1)
    assert [launch.title for launch in fused.launches] == ["gates"]
    note = only_choice(fused)
    with overrides.override_schedules({"schedules": {note.problem: {**note.schedule, "gates": 1}}}):
        separate = Program.compile(function, threads=1)
    assert [launch.title for launch in separate.launches] == ["contract", "map"]
    notes = {choice.problem: choice for kernel in explain(separate).kernels for choice in kernel.choices}
    assert (notes[note.problem].reason, notes[note.problem].schedule["gates"]) == ("override", 1)
    assert notes[note.problem].candidates[0].text == note.text
    with overrides.override_schedules(replayable(separate)):
        again = Program.compile(function, threads=1)
    assert texts(again) == texts(separate)
    x = np.random.default_rng(1).standard_normal((4, 32)).astype(np.float32)
    np.testing.assert_allclose(separate.run([x])[0], fused.run([x])[0], rtol=1e-5, atol=1e-6)


def test_schedules_are_part_of_the_fingerprint_of_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    function, _ = product(13, 70, 37)
    plain = Program.compile(function, threads=1)
    note = only_choice(plain)
    with overrides.override_schedules({"schedules": {note.problem: {**note.schedule, "rows": 3}}}):
        inside = overrides.fingerprint()
        other = Program.compile(function, threads=1)
    assert plain.overrides == overrides.fingerprint() == ""
    assert other.overrides == inside != ""
    path = tmp_path / "schedules.json"
    path.write_text(json.dumps({"schedules": {note.problem: {**note.schedule, "rows": 3}}}))
    monkeypatch.setenv(overrides.VARIABLE, str(path))
    assert overrides.fingerprint() == inside


def test_a_file_that_holds_no_schedules_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "schedules.json"
    for content in ("", "[]", "{}", '{"schedules": {"gemm": 3}}'):
        path.write_text(content)
        with pytest.raises(OptionError), overrides.override_schedules(path):
            pass
    with pytest.raises(OptionError, match="cannot read"), overrides.override_schedules(tmp_path / "none.json"):
        pass


def test_schedules_for_another_target_are_refused() -> None:
    function, _ = product(13, 70, 37)
    note = only_choice(Program.compile(function, threads=1))
    other = "neon" if host().name != "neon" else "avx2"
    with (
        overrides.override_schedules({"target": other, "schedules": {note.problem: note.schedule}}),
        pytest.raises(OptionError, match=f"for {other}, the code for {host().name}"),
    ):
        Program.compile(function, threads=1)


def test_every_kind_has_a_schedule() -> None:
    kinds = {type(choice.schedule) for choice in choices(NAMED["avx2"])}
    assert kinds == {
        GemmSchedule, ConvolutionSchedule, AttentionSchedule, PoolingSchedule, RowSchedule, TreeSchedule,
    }  # fmt: skip
