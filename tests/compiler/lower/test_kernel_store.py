"""Kernels in the store: found by canonical form before emission, equal to emitted ones, safe to damage and to share."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.core.programs import random_program
from tests.random_cases import cases

from sardonyx.base import artifact_store
from sardonyx.base.artifact_store import Store
from sardonyx.compiler import pipeline
from sardonyx.compiler.explain import explain
from sardonyx.compiler.llvm.object_code import CodeGenerationError
from sardonyx.compiler.lower import kernel_store
from sardonyx.compiler.lower.groups import Lowering
from sardonyx.compiler.lower.kernel_store import KernelStore, StoredKernelError
from sardonyx.compiler.lower.shared_kernels import SharedKernels
from sardonyx.compiler.program import Program
from sardonyx.compiler.target.description import NAMED, Target, host
from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.tensor import Tensor, constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function
from sardonyx.core.ir.types import TensorType
from sardonyx.core.transform.simplify import simplify


def network(seed: int = 0, rows: Any = 7, scale: float = 0.5) -> Function:
    """Return a product with an epilogue, a normalization of rows, and a map, over drawn weights."""
    random = np.random.default_rng(seed)

    def body(x: Tensor) -> list[Tensor]:
        weight = constant(random.standard_normal((48, 48)).astype(np.float32))
        bias = constant(random.standard_normal(48).astype(np.float32))
        y = L.maximum(L.matmul(x, weight) * scale + bias, 0)
        y = y / (L.reduce_sum(y, (1,), keepdims=True) + 1)
        return [y, L.exp(L.permute(y, (1, 0)))]

    return simplify(trace("network", body, [TensorType(t.FLOAT, (rows, 48))]))


@pytest.fixture
def emitted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The primitives around which the emitted groups are built."""
    roots: list[str] = []
    lower = Lowering.lower

    def counted(self: Lowering, group: Any) -> Any:
        roots.append(group.root.op)
        return lower(self, group)

    monkeypatch.setattr(Lowering, "lower", counted)
    return roots


def compiled(function: Function, folder: Path | None, threads: int = 2, target: Target | None = None) -> Program:
    with artifact_store.using(Store(folder)):
        return Program.compile(function, threads=threads, target=target, stores_kernels=True)


def answers(program: Program, rows: int = 7) -> list[np.ndarray]:
    x = np.random.default_rng(3).standard_normal((rows, 48)).astype(np.float32)
    return program.run([x])


def assert_same(program: Program, other: Program) -> None:
    for one, two in zip(answers(program), answers(other), strict=True):
        np.testing.assert_array_equal(one, two)


def test_another_model_of_the_same_kernels_emits_nothing(tmp_path: Path, emitted: list[str]) -> None:
    compiled(network(0), tmp_path)
    assert len(emitted) == len([*tmp_path.glob("kernel/*")]) > 1
    emitted.clear()
    program = compiled(network(1), tmp_path)
    assert not emitted
    assert_same(program, compiled(network(1), None))


def test_sizes_of_other_names_share_kernels(tmp_path: Path, emitted: list[str]) -> None:
    compiled(network(0, Dim.symbol("rows")), tmp_path)
    emitted.clear()
    program = compiled(network(1, Dim.symbol("some batch")), tmp_path)
    assert not emitted
    assert_same(program, compiled(network(1), None))


@pytest.mark.parametrize("names", [("m", "n"), ("n", "m"), ("z z", "s000"), ("s001", "s000")])
def test_kernels_of_several_open_sizes_are_those_that_are_emitted(tmp_path: Path, names: tuple[str, str]) -> None:
    def function(first: str, second: str) -> Function:
        a, b = Dim.symbol(first), Dim.symbol(second)

        def body(x: Tensor, y: Tensor) -> list[Tensor]:
            rows = L.reshape(L.concat([x, y], 0), ((a + b) * 3, 4))
            return [L.reduce_sum(rows, (1,)), L.exp(L.permute(x, (2, 0, 1)))]

        return simplify(trace("f", body, [TensorType(t.FLOAT, (a, 3, 4)), TensorType(t.FLOAT, (b, 3, 4))]))

    verified(function("a", "b"), tmp_path)
    stored = verified(function(*names), tmp_path)
    assert stored.reused and not stored.emitted


@pytest.mark.parametrize(
    "other",
    [
        lambda folder: compiled(network(0, scale=0.25), folder),
        lambda folder: compiled(network(0, rows=9), folder),
        lambda folder: compiled(network(0), folder, threads=1),
        lambda folder: compiled(network(0), folder, target=NAMED["sse"]),
    ],
    ids=["scale", "rows", "threads", "target"],
)
def test_what_emission_reads_is_part_of_the_key(
    tmp_path: Path, emitted: list[str], other: Callable[[Path], Program]
) -> None:
    compiled(network(0), tmp_path)
    emitted.clear()
    other(tmp_path)
    assert emitted


def test_another_revision_has_other_keys(tmp_path: Path, emitted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(network(0), tmp_path)
    entries = {*tmp_path.glob("kernel/*")}
    emitted.clear()
    monkeypatch.setattr(kernel_store, "build_digest", lambda: "another revision")
    compiled(network(0), tmp_path)
    assert len(emitted) == len(entries)
    assert entries < {*tmp_path.glob("kernel/*")}


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: b"",
        lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :],
    ],
    ids=["truncated", "empty", "changed"],
)
def test_a_damaged_entry_is_replaced(
    tmp_path: Path, emitted: list[str], damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    expected = compiled(network(0), tmp_path)
    entries = {path: path.read_bytes() for path in tmp_path.glob("kernel/*")}
    for path, data in entries.items():
        path.write_bytes(damage(data))
    emitted.clear()
    with caplog.at_level(logging.WARNING):
        program = compiled(network(0), tmp_path)
    assert len(emitted) == len(entries)
    assert "is damaged and is replaced" in caplog.text
    assert_same(program, expected)
    assert {path: path.read_bytes() for path in tmp_path.glob("kernel/*")} == entries


@pytest.mark.parametrize(
    "contents",
    [b"", b"\2\0\0\0[]x\x9c\3\0\0\0\0\1", b"\xff\xff\xff\x7f{}", b"\2\0\0\0{}\x00", b"\1\0\0\0["],
    ids=["empty", "no launches", "length", "no text", "no head"],
)
def test_a_malformed_entry_is_replaced(
    tmp_path: Path, emitted: list[str], contents: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    expected = compiled(network(0), tmp_path)
    entries = [path.name for path in tmp_path.glob("kernel/*")]
    for name in entries:
        Store(tmp_path).put("kernel", name, contents)
    emitted.clear()
    with caplog.at_level(logging.WARNING):
        program = compiled(network(0), tmp_path)
    assert len(emitted) == len(entries)
    assert "is malformed and is replaced" in caplog.text
    assert_same(program, expected)


def test_an_entry_names_classes_of_the_compiler_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    compiled(network(0), tmp_path)
    store, replaced = Store(tmp_path), 0
    for path in tmp_path.glob("kernel/*"):
        data = store.get("kernel", path.name)
        assert data is not None
        end = 4 + int.from_bytes(data[:4], "little")
        head = json.loads(data[4:end])
        head[0]["items"] = {"record": ["subprocess", "Popen", {"args": "false"}]}
        changed = json.dumps(head).encode()
        store.put("kernel", path.name, len(changed).to_bytes(4, "little") + changed + data[end:])
        replaced += 1
    with caplog.at_level(logging.WARNING):
        program = compiled(network(0), tmp_path)
    assert caplog.text.count("is not a dataclass of the compiler") == replaced
    assert_same(program, compiled(network(0), None))


def test_a_wrong_entry_is_noticed_where_kernels_are_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled(network(0), tmp_path)
    monkeypatch.setenv("SARDONYX_DEBUG", "5")
    compiled(network(0), tmp_path)
    # The entries of another function under the names of this one's.
    store, names = Store(tmp_path), sorted(path.name for path in tmp_path.glob("kernel/*"))
    contents = [store.get("kernel", name) for name in names]
    for name, other in zip(names, [*contents[1:], contents[0]], strict=True):
        assert other is not None
        store.put("kernel", name, other)
    with pytest.raises(StoredKernelError, match="differs from the one that is emitted"):
        compiled(network(0), tmp_path)
    capsys.readouterr()


def test_missing_object_code_is_compiled_again(tmp_path: Path, emitted: list[str]) -> None:
    expected = compiled(network(0), tmp_path)
    for path in tmp_path.glob("object/*"):
        path.unlink()
    emitted.clear()
    assert_same(compiled(network(0), tmp_path), expected)
    assert not emitted


def test_stored_kernels_are_explained_alike(tmp_path: Path) -> None:
    expected = explain(compiled(network(0), tmp_path))
    assert any(kernel.choices for kernel in expected.kernels)
    assert explain(compiled(network(0), tmp_path)) == expected


def test_a_kernel_that_llvm_refuses_is_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bytes:
        raise CodeGenerationError("refused")

    monkeypatch.setattr("sardonyx.compiler.llvm.parallel_build.compiled", refuse)
    with pytest.raises(CodeGenerationError):
        compiled(network(0), tmp_path)
    assert not [*tmp_path.glob("kernel/*")]


def test_a_folder_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert_same(compiled(network(0), blocked / "cache"), compiled(network(0), None))


def verified(function: Function, folder: Path) -> KernelStore:
    """Lower a function with a store that is verified, and put the new kernels there."""
    stored = KernelStore(Store(folder), host(), 2, verifies=True)
    shared = SharedKernels(stored)
    pipeline.lower_function(pipeline.rewrite_core(function, host()), host(), 2, kernels=shared)
    shared.keep()
    return stored


@settings(
    max_examples=cases(10),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 2**32 - 1))
def test_random_programs_find_the_kernels_that_they_would_emit(seed: int, tmp_path: Path) -> None:
    function = simplify(random_program(np.random.default_rng(seed), 20, without=("random",)).traced())
    verified(function, tmp_path)
    assert verified(function, tmp_path).reused or not [*tmp_path.glob("kernel/*")]


PROCESS = """
import sys
from pathlib import Path
from tests.compiler.lower.test_kernel_store import answers, compiled, network
from sardonyx.compiler.lower import kernel_store
reads = []
read = kernel_store.read
kernel_store.read = lambda *arguments: reads.append(1) or read(*arguments)
sums = [float(array.sum()) for array in answers(compiled(network(int(sys.argv[2])), Path(sys.argv[1])))]
print(sums, len(reads))
"""


def test_processes_share_kernels_and_may_write_at_the_same_time(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}

    def start(seed: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PROCESS, str(tmp_path / "cache"), str(seed)]
        return subprocess.Popen(command, cwd=root, env=environment, stdout=subprocess.PIPE, text=True)

    together = [start(0), start(0)]
    outputs = [process.communicate(timeout=120)[0] for process in together]
    assert [process.returncode for process in together] == [0, 0]
    assert len({output.rpartition("]")[0] for output in outputs}) == 1
    assert not [*(tmp_path / "cache").rglob(".*")]
    later = start(1)
    output = later.communicate(timeout=120)[0]
    assert later.returncode == 0
    assert int(output.split()[-1]) == len([*(tmp_path / "cache").glob("kernel/*")])
