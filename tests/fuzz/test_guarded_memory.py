"""Guarded memory ends a process that accesses one byte too many, and hostile values cause no such access."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
from collections.abc import Callable

import numpy as np
import onnx
import pytest

from sardonyx import Session
from sardonyx.compiler import pipeline
from tests.fuzz import gradient_fuzzer
from tests.fuzz.guarded_memory import Edge, guarded
from tests.fuzz.hostile_cases import CASES, GRAPHS, INSIDE, Variant, variant_of
from tests.fuzz.native_fuzzer import compiler_defects, fuzz, run_in_child

RUNS = 6
"""Feeds of a model in the default run, which draws one model of every second generator."""

LONG_RUNS = 100_000

EDGES: tuple[Edge, ...] = ("start", "end")


def signal_of(body: Callable[[], None]) -> int:
    """Return the signal that ends a child process which calls a function; 0 without one."""
    child = os.fork()
    if not child:
        faulthandler.disable()
        try:
            body()
        finally:
            os._exit(0)
    return os.WTERMSIG(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("nbytes", [1, 20, 4096, 4097, 100_000])
def test_one_byte_too_far_ends_the_process(edge: Edge, nbytes: int) -> None:
    def access(offset: int) -> Callable[[], None]:
        def read() -> None:
            with guarded(edge):
                array = np.zeros(nbytes, np.uint8)
                assert ctypes.c_char.from_address(array.ctypes.data + offset).value == b"\0"

        return read

    assert signal_of(access(0)) == signal_of(access(nbytes - 1)) == 0
    assert signal_of(access(nbytes if edge == "end" else -1)) == signal.SIGSEGV


def test_an_access_outside_of_a_buffer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without guards, an attention writes behind its cache."""
    monkeypatch.setenv("SARDONYX_CACHE", "off")
    monkeypatch.setattr(pipeline, "collect_guards", lambda function: [])
    batch = [("com.microsoft.CachedAttention", seed) for seed in range(12)]
    problems = set()
    while batch:
        done, tally = run_in_child(batch, 40)
        problems |= {finding.problem for finding in tally.findings}
        batch = batch[done:]
    assert "SIGSEGV" in problems


def test_a_variant_follows_from_its_seed() -> None:
    def words(variant: Variant) -> list[str]:
        return [variant.label, str(variant.model), *map(str, variant.feeds(5))]

    assert words(variant_of("Slice", 3)) == words(variant_of("Slice", 3)) != words(variant_of("Slice", 4))


@pytest.mark.parametrize("part", range(4))
def test_hostile_values_change_neither_memory_nor_errors(part: int) -> None:
    names = sorted(CASES)[part::8]
    tally = fuzz(names, RUNS * len(names), feeds_per_model=RUNS)
    assert tally.runs >= RUNS * len(names)
    assert tally.outcomes["compiled"] > tally.runs // 5
    assert [str(finding) for finding in tally.findings] == []


def test_declarations_of_values_inside_a_model_change_no_answer() -> None:
    names = [f"{INSIDE}{name}" for name in sorted(set(CASES) - set(GRAPHS))[::8]]
    tally = fuzz(names, RUNS * len(names), 100, feeds_per_model=RUNS)
    assert tally.outcomes["compiled"] > tally.runs // 5
    assert [str(finding) for finding in tally.findings] == []


def test_hostile_values_in_kernels_of_training() -> None:
    names = ["AveragePool", "Conv", "Gather", "LayerNormalization", "MatMul", "MaxPool", "ScatterElements"]
    tally = fuzz(names, RUNS * len(names), 1, feeds_per_model=RUNS, run_variant=gradient_fuzzer.run_gradient)
    assert tally.outcomes["compiled"] > tally.runs // 4
    assert [str(finding) for finding in tally.findings] == []


def test_indices_into_an_axis_without_entries_read_nothing() -> None:
    assert [str(finding) for finding in fuzz(["MaxRoiPool"], 120, 200010, 120).findings] == []


EMPTY = {
    "scan": "g (float[N, 0, 1] x) => (float y) <int64 axis = {0}> { y = CumSum (x, axis) }",
    "reshape": "g (int32[A, 0, B] x) => (int32 y) <int64[3] r = {1, 1, 3}> { z = Tile (x, r)  y = Add (z, z) }",
}


@pytest.mark.parametrize("name", EMPTY)
def test_groups_without_elements_compile(name: str) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {EMPTY[name]}')
    session = Session(model, compile="wait", threads=1)
    assert isinstance(session, Session) and compiler_defects(session) == []


def test_an_endless_number_of_empty_rows_is_no_work() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[N] x, int64[1] n) => (float y) { y = Tile (x, n) }'
    )
    session = Session(model, compile="wait", threads=1, timeout=120)
    (y,) = session.run(None, {"x": np.zeros(0, np.float32), "n": np.array([2**62])})
    assert y.shape == (0,)


@pytest.mark.long
def test_hostile_values_at_length() -> None:
    names = [*sorted(CASES), *(f"{INSIDE}{name}" for name in sorted(set(CASES) - set(GRAPHS)))]
    assert [str(finding) for finding in fuzz(names, LONG_RUNS, first_seed=1).findings] == []
