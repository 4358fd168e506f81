"""Figures of a model on the target: bytes of its file, time, memory and energy of a run.

Times and energies are measured, or estimated by the cost model: the operations of every value of the compiled Core
graph by the types of its operands, and the bytes that the kernels move, weighted by the tables here.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import onnx_ir as ir

from sardonyx.compiler.program import Program
from sardonyx.core.dim import evaluate
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import TensorType
from sardonyx.core.transform.cost import computed_in_runs, cost
from sardonyx.errors import ShapeError, UnsupportedError
from sardonyx.model import save, to_proto
from sardonyx.report.alternation import alternate, ratio
from sardonyx.report.bench import energy
from sardonyx.report.latency import measure_in_child
from sardonyx.rewrite.measure import median_interval
from sardonyx.runtime.session import Session
from sardonyx.runtime.shortcuts import explain

Target = Literal["native", "onnxruntime"]
"""The engine on which a model is judged."""

OPERATIONS_PER_CYCLE = {"float32": 4.0, "int8": 4.0, "int8 dot": 16.0, "depthwise": 2.0, "other": 1.0}
"""Operations per cycle and float32 lane: two multiply-adds; dot instructions add four products of a lane at once."""

BYTES_PER_CYCLE = 8.0
"""Bytes that a kernel moves in a cycle."""

CYCLES_PER_KERNEL = 400.0
"""Cycles to start a kernel and distribute its work."""

CYCLES_PER_SECOND = 3e9

PICOJOULES = {"float32": 2.3, "int8": 0.15, "int8 dot": 0.15, "depthwise": 2.3, "other": 0.9}
"""Energy of an operation in 45 nm: the mean of a multiplication and an addition.

Source: M. Horowitz, Computing's energy problem (and what we can do about it), ISSCC 2014.
"""

PICOJOULES_PER_BYTE = 12.5
"""Energy of a byte from a cache of 1 MB, of the same source."""

MOST_EXACT_BYTES = 1 << 30
"""Weights up to which the bytes of a file are those of the file written."""


@dataclass(frozen=True)
class Figures:
    """Figures of a model.

    Attributes:
        size: Bytes of the file.
        seconds: Seconds of a run on one sample.
        memory: Bytes of weights as the engine reads them, and of live values; None if the engine does not tell.
        joules: Energy of a run.
        is_measured: True if seconds were measured, else by the cost model.
        is_energy_measured: True if joules were measured, else by the table.
        slower: The interval of the time over the original's, if measured; None otherwise.
    """

    size: int
    seconds: float
    memory: int | None
    joules: float
    is_measured: bool
    is_energy_measured: bool
    slower: tuple[float, float] | None = None

    def time_share(self, first: Figures) -> float:
        """Return the time over that of another model; 1 if the cost model knows no work of it, as of strings."""
        return self.seconds / first.seconds if first.seconds else 1.0


def file_bytes(model: ir.Model) -> int:
    """Return the bytes of the file of a model, with its external data."""
    weights = sum(
        value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None
    )
    if weights <= MOST_EXACT_BYTES:
        return int(to_proto(model).ByteSize())
    with tempfile.TemporaryDirectory(prefix="sardonyx-size-") as folder:
        path = Path(folder) / "model.onnx"
        save(model, path)
        return sum(file.stat().st_size for file in Path(folder).iterdir())


def estimate(session: Session, feeds: Mapping[str, Any]) -> tuple[float, float]:
    """Return seconds and joules of a run by the cost model.

    Args:
        session: The compiled session of the model.
        feeds: A sample, which determines open sizes.

    Raises:
        UnsupportedError: The model is not compiled as a whole, or a size follows from values.
    """
    session.wait()
    program = session.program
    if program is None:
        raise UnsupportedError(f"the model is not compiled: {session.not_compiled}.")
    sizes = _sizes(session, feeds)
    kernels = explain(session, sizes).kernels
    operations: dict[str, float] = {}
    try:
        for value in computed_in_runs(program.function.values):
            kind = _kind(value, program)
            operations[kind] = operations.get(kind, 0.0) + evaluate(cost(value).operations, sizes)
    except ShapeError as error:
        raise UnsupportedError(f"a size of the model follows from values: {error.problem}") from error
    if any(kernel.read is None or kernel.written is None for kernel in kernels):
        moved = sum(_moved(value, sizes) for value in computed_in_runs(program.function.values))
    else:
        moved = sum((kernel.read or 0) + (kernel.written or 0) for kernel in kernels)
    lanes = program.target.lanes(32)
    cycles = sum(count / (OPERATIONS_PER_CYCLE[kind] * lanes) for kind, count in operations.items())
    cycles += moved / BYTES_PER_CYCLE + CYCLES_PER_KERNEL * len(kernels)
    joules = 1e-12 * (sum(PICOJOULES[kind] * count for kind, count in operations.items()) + PICOJOULES_PER_BYTE * moved)
    return cycles / CYCLES_PER_SECOND, joules


def _kind(value: Value, program: Program) -> str:
    """Return the row of the tables for a value's operations."""
    if value.op not in ("contract", "convolve"):
        return "other"
    types = [operand.type for operand in value.operands[:2]]
    if value.op == "convolve" and isinstance(types[1], TensorType) and types[1].shape:
        groups, _, channels = types[1].shape[:3]
        if channels == 1 and groups != 1:
            return "depthwise"
    if all(isinstance(type, TensorType) and type.dtype.name in ("INT8", "UINT8") for type in types):
        return "int8 dot" if any(mark in program.target.features for mark in ("vnni", "dotprod")) else "int8"
    return "float32"


def _moved(value: Value, sizes: Mapping[str, int]) -> int:
    """Return the bytes that a value's computation moves, if products alone read and write memory."""
    if value.op not in ("contract", "convolve", "gather"):
        return 0
    work = cost(value)
    return evaluate(work.read + work.written, sizes)


def _sizes(session: Session, feeds: Mapping[str, Any]) -> dict[str, int]:
    """Return the values of open sizes that a sample determines."""
    sizes: dict[str, int] = {}
    for value in session.model.graph.inputs:
        array = feeds.get(str(value.name))
        if value.shape is None or array is None:
            continue
        for dim, size in zip(value.shape, array.shape, strict=False):
            if isinstance(dim, ir.SymbolicDim) and dim.value is not None:
                sizes[str(dim.value)] = int(size)
    return sizes


@dataclass(frozen=True)
class Measured:
    """Times of a model beside the original's in alternating runs.

    Attributes:
        seconds: Seconds of a run of the original, and of the model.
        interval: The interval of the ratio that holds the median with 95 %; a point with too few rounds.
    """

    seconds: tuple[float, float]
    interval: tuple[float, float]


def measure_beside(
    before: Session, after: Session, models: tuple[ir.Model, ir.Model], feeds: Mapping[str, Any], target: Target,
    seconds: float,
) -> Measured:  # fmt: skip
    """Measure a model beside the original on the target.

    Args:
        before: The session of the original.
        after: The session of the model.
        models: The original and the model, for other engines.
        feeds: A sample.
        target: The engine.
        seconds: Duration of the measurement.

    Raises:
        EvaluationError: Another engine does not run the model.
    """
    if target == "onnxruntime":
        with tempfile.TemporaryDirectory(prefix="sardonyx-compress-") as folder:
            paths = [Path(folder) / name for name in ("before.onnx", "after.onnx")]
            for model, path in zip(models, paths, strict=True):
                save(model, path)
            latency = measure_in_child([os.fspath(path) for path in paths], feeds=feeds, budget=seconds)
        first = latency.seconds[0]
        return Measured((first, first * latency.ratio), latency.interval or (latency.ratio, latency.ratio))
    calls: dict[str, Callable[[], object]] = {
        "before": lambda: before.run(None, feeds),
        "after": lambda: after.run(None, feeds),
    }
    times = alternate(calls, seconds)
    middle = ratio(times["after"], times["before"])
    ratios = sorted(b / a for a, b in zip(times["before"], times["after"], strict=True))
    first = sorted(times["before"])[len(times["before"]) // 2]
    return Measured((first, first * middle), median_interval(ratios) or (middle, middle))


def measured_joules(session: Session, feeds: Mapping[str, Any], seconds: float) -> float | None:
    """Return the energy of a run by the machine's counters (RAPL); None if the machine has none."""
    return energy(lambda: session.run(None, feeds), seconds)


def memory_of(session: Session) -> int | None:
    """Return the bytes of weights and live values of a session after a run; None for other engines."""
    memory = session.memory()
    return None if memory.unknown else memory.weights + memory.peak


__all__ = [
    "Figures",
    "Measured",
    "Target",
    "estimate",
    "file_bytes",
    "measure_beside",
    "measured_joules",
    "memory_of",
]
