"""Matrix products and attention compared with ONNX Runtime: ``python benchmarks/kernels.py``.

A kernel and a model of the one operator run in alternation; the minimum time of each counts. The share of the peak is
relative to multiply-adds in registers on as many cores, measured before. `--constants` measures the constants of the
cost models.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from program_sweeps import (
    Programs,
    chain,
    column_sums,
    column_sums_of_chains,
    forest,
    mapped,
    recomputed,
    recurrent,
    requantized,
    row_sums,
    shared_values,
    short_row_sums,
)
from sardonyx.compiler.codegen import load_store
from sardonyx.compiler.codegen.kernel_builder import Index, Kernel
from sardonyx.compiler.executor.thread_pool import pool
from sardonyx.compiler.kernels.attention import Heads, attention
from sardonyx.compiler.kernels.attention import scratch_bytes as attention_scratch
from sardonyx.compiler.kernels.gemm.gemm import Matrix, Packed, gemm, pack, scratch_bytes
from sardonyx.compiler.kernels.gemm.operands import b_layout
from sardonyx.compiler.target.description import NAMED, Target, host
from sardonyx.compiler.tiling import costs
from sardonyx.compiler.tiling import gemm as gemm_schedules
from sardonyx.compiler.tiling.attention import AttentionProblem, AttentionSchedule, choose_attention
from sardonyx.compiler.tiling.gemm import choose_gemm
from sardonyx.compiler.tiling.gemm_schedule import GemmProblem, GemmSchedule, Layout
from sardonyx.core import language as L
from sardonyx.core.dim import Size, evaluate
from sardonyx.core.ir.types import FLOAT
from winograd import aligned, function, multiply_add_peak

PRODUCTS = (
    (1024, 1024, 1024), (512, 512, 512), (1024, 1024, 64), (128, 384, 384), (128, 1536, 384), (128, 384, 1536),
    (128, 768, 768), (128, 2304, 768), (128, 3072, 768), (128, 768, 3072), (197, 768, 768), (49, 512, 2048),
    (128, 128, 64), (128, 64, 128), (10, 1000, 512),
)  # fmt: skip
"""Rows, columns and depth (M, N, K)."""
VECTORS = (
    (1, 1000, 2048),
    (1, 768, 768),
    (1, 3072, 768),
    (1, 768, 3072),
    (1, 4096, 4096),
    (4, 768, 768),
    (4, 4096, 4096),
)
HEADS = ((12, 128, 32), (12, 128, 64), (12, 197, 64), (12, 1024, 64), (16, 577, 64), (8, 4096, 40), (12, 1, 64))
"""Heads, queries and keys, columns of a head."""


@dataclass
class Bench:
    """A kernel with its buffers, ready to run."""

    run: int
    arguments: ctypes.Array[ctypes.c_int64]
    items: int
    result: np.ndarray
    held: list[np.ndarray]
    compile_seconds: float
    call: Callable[..., None]

    def __call__(self, threads: int) -> None:
        address = ctypes.addressof(self.arguments)
        if threads == 1:
            self.call(address, 0, self.items, 0)
        else:
            pool(threads).parallel(self.run, address, self.items, max(1, self.items // (threads * 8)))


def bench(kernel: Kernel, items: Size, buffers: list[np.ndarray], result: np.ndarray) -> Bench:
    call, seconds = function(kernel, kernel.target)
    slots = [entry.ctypes.data for entry in buffers] + [evaluate(entry, {}) for entry in kernel.sizes]
    address = ctypes.cast(call, ctypes.c_void_p).value  # type: ignore[arg-type]
    assert address is not None
    return Bench(address, (ctypes.c_int64 * len(slots))(*slots), evaluate(items, {}), result, buffers, seconds, call)


def product(
    target: Target, a: np.ndarray, b: np.ndarray, packed: bool, threads: int, schedule: GemmSchedule | None = None
) -> Bench:
    (m, k), n = a.shape, b.shape[1]
    kernel = Kernel(target)
    e, lanes = kernel.emitter, target.lanes(32)
    left, right, out, scratch = (kernel.buffer() for _ in range(4))

    def epilogue(index: tuple[Index, ...], value: str, mask: str | None) -> None:
        row, column = index
        where = Index(e.add(e.mul(row.base, n), column.base), 1)
        load_store.store(e, FLOAT, value, out, where, lanes, mask)

    second = Packed(right, FLOAT) if packed else Matrix(right, FLOAT, n, 1)
    left_matrix = Matrix(left, FLOAT, k, 1)
    layout = "packed" if isinstance(second, Packed) else b_layout(left_matrix, second, FLOAT)
    schedule = schedule or choose_gemm(GemmProblem(m, n, k, FLOAT, layout, FLOAT), target).schedule
    items = gemm(
        kernel, schedule=schedule, m=m, n=n, k=k, a=left_matrix, b=second, epilogue=epilogue,
        scratch=None if packed else scratch,
    )  # fmt: skip
    result = aligned(np.zeros((m, n), np.float32))
    room = aligned(np.zeros(threads * evaluate(scratch_bytes(schedule, k), {}) // 4, np.float32))
    return bench(
        kernel, items, [aligned(a), aligned(pack(b, schedule.packed_layout) if packed else b), result, room], result
    )


def attentive(
    target: Target, q: np.ndarray, k: np.ndarray, v: np.ndarray, threads: int,
    schedule: AttentionSchedule | None = None,
) -> Bench:  # fmt: skip
    """Return the attention kernel for operands [1, heads, rows, columns]."""
    _, heads, queries, depth = q.shape
    keys = k.shape[2]
    kernel = Kernel(target)
    e, lanes = kernel.emitter, target.lanes(32)
    pointers = [kernel.buffer() for _ in range(3)]
    out, scratch = kernel.buffer(), kernel.buffer()

    def epilogue(index: tuple[Index, ...], value: str, mask: str | None) -> None:
        _, head, query, column = index
        row = e.add(e.mul(head.base, queries), query.base)
        load_store.store(e, FLOAT, value, out, Index(e.add(e.mul(row, depth), column.base), 1), lanes, mask)

    operands = [
        Heads(pointer, FLOAT, 0, array.shape[2] * depth, depth, 1)
        for pointer, array in zip(pointers, (q, k, v), strict=True)
    ]
    problem = AttentionProblem(queries, keys, depth, depth)
    schedule = schedule or choose_attention(problem, target).schedule
    items = attention(
        kernel, schedule=schedule, batch=1, heads=heads, queries=queries, keys=keys, depth=depth, width=depth,
        q=operands[0], k=operands[1], v=operands[2], epilogue=epilogue, scratch=scratch, scale=depth**-0.5,
    )  # fmt: skip
    result = aligned(np.zeros(q.shape, np.float32))
    room = aligned(np.zeros(threads * evaluate(attention_scratch(schedule, keys, depth, depth), {}) // 4, np.float32))
    return bench(kernel, items, [*(aligned(array) for array in (q, k, v)), result, room], result)


def session(nodes: list, feeds: dict[str, np.ndarray], constants: dict[str, np.ndarray], threads: int):
    """Return ONNX Runtime on a graph with the output ``out``: a run, and the result of the last run."""
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape) for name, array in feeds.items()]
    held = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    outputs = [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "one", inputs, outputs, held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    peer = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    binding = peer.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    binding.bind_output("out")
    return lambda: peer.run_with_iobinding(binding), lambda: binding.copy_outputs_to_cpu()[0]


def alternate(
    first: Callable[[], None], second: Callable[[], None], seconds: float, threads: int
) -> tuple[float, float]:
    """Return the minimum times of two calls in alternating short series: the other's threads rest.

    With one thread, processor time counts, which other programs disturb less.
    """
    clock = time.thread_time if threads == 1 else time.perf_counter
    best, end = [np.inf, np.inf], time.perf_counter() + seconds
    while time.perf_counter() < end:
        for i, call in enumerate((first, second)):
            for _ in range(5):
                begin = clock()
                call()
                best[i] = min(best[i], clock() - begin)
    return best[0], best[1]


def row(name: str, kernel: Bench, peer: tuple, operations: int, moved: int, peak: float, threads: int, seconds: float):
    kernel(threads)
    run, outputs = peer
    run()
    expected = outputs()
    error = float(np.abs(kernel.result.reshape(expected.shape) - expected).max() / np.abs(expected).max())
    ours, theirs = alternate(lambda: kernel(threads), run, seconds, threads)
    print(
        f"| {name} | {ours * 1e6:.1f} | {operations / ours / 1e9:.0f} | {operations / ours / 1e9 / peak:.0%}"
        f" | {moved / ours / 1e9:.0f} | {theirs * 1e6:.1f} | {theirs / ours:.2f} | {error:.0e}"
        f" | {kernel.compile_seconds * 1e3:.0f} |",
        flush=True,
    )  # fmt: skip


def products(
    target: Target, shapes: Sequence[tuple[int, int, int]], packed: bool, threads: int, peak: float, seconds: float
):
    rng = np.random.default_rng(0)
    for m, n, k in shapes:
        a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
        node = [helper.make_node("MatMul", ["a", "b"], ["out"])]
        feeds, constants = ({"a": a}, {"b": b}) if packed else ({"a": a, "b": b}, {})
        peer = session(node, feeds, constants, threads)
        name = f"{m} x {n} x {k}" + ("" if packed else ", B computed")
        kernel = product(target, a, b, packed, threads)
        row(name, kernel, peer, 2 * m * n * k, 4 * (m * k + k * n + m * n), peak, threads, seconds)


def attentions(target: Target, threads: int, peak: float, seconds: float) -> None:
    rng = np.random.default_rng(0)
    for heads, length, depth in HEADS:
        queries = length
        keys = 512 if length == 1 else length
        q = rng.standard_normal((1, heads, queries, depth), np.float32)
        k, v = (rng.standard_normal((1, heads, keys, depth), np.float32) for _ in range(2))
        nodes = [
            helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
            helper.make_node("Mul", ["q", "scale"], ["qs"]),
            helper.make_node("MatMul", ["qs", "kt"], ["s"]),
            helper.make_node("Softmax", ["s"], ["p"], axis=-1),
            helper.make_node("MatMul", ["p", "v"], ["out"]),
        ]
        constants = {"scale": np.float32(depth**-0.5)}
        peer = session(nodes, {"q": q, "k": k, "v": v}, {k: np.asarray(v) for k, v in constants.items()}, threads)
        kernel = attentive(target, q, k, v, threads)
        operations = 4 * heads * queries * keys * depth
        moved = 8 * heads * (queries + keys) * depth
        row(f"{heads} heads, {queries} x {keys} x {depth}", kernel, peer, operations, moved, peak, threads, seconds)


@dataclass(frozen=True)
class Sweep:
    """Values of a constant of :mod:`sardonyx.compiler.tiling.costs`, and the kernels whose time decides.

    Attributes:
        name: The constant.
        values: The compared values.
        build: Builds the kernels for a value, while the constant has this value.
    """

    name: str
    values: tuple[float, ...]
    build: Callable[[Any], Bench | Programs]


def sweeps(target: Target, threads: int) -> list[Sweep]:
    """Return the constants of all kernels but convolutions, which have benchmarks of their own."""
    return [*product_sweeps(target, threads), *program_sweeps_of(target, threads)]


def product_sweeps(target: Target, threads: int) -> list[Sweep]:
    """Return the constants of products and attention."""
    rng = np.random.default_rng(0)

    def multiply(m: int, n: int, k: int, packed: bool = True, **changes: Any) -> Bench:
        a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
        layout: Layout = "packed" if packed else "rows"
        schedule = choose_gemm(GemmProblem(m, n, k, FLOAT, layout, FLOAT), target).schedule
        return product(target, a, b, packed, threads, replace(schedule, **changes))

    def attend(queries: int, keys: int, **changes: Any) -> Bench:
        q = rng.standard_normal((1, 4, queries, 64), np.float32)
        k, v = (rng.standard_normal((1, 4, keys, 64), np.float32) for _ in range(2))
        schedule = choose_attention(AttentionProblem(queries, keys, 64, 64), target).schedule
        return attentive(target, q, k, v, threads, replace(schedule, **changes))

    return [
        Sweep("FMAS_IN_FLIGHT", (1, 2, 4, 8, 16), lambda _: multiply(1, 768, 768)),
        Sweep("GEMM_TILES_PER_ITEM", (1, 2, 4, 8, 16), lambda value: multiply(512, 512, 512, tiles_per_item=value)),
        Sweep("GEMM_TILES_PER_DEEP_ITEM", (4, 12, 24, 48), lambda value: multiply(576, 256, 4096)),
        Sweep("ROW_TILES_WORTH_PACKING", (0, 1, 2, 4), lambda _: multiply(12, 768, 768, False)),
        Sweep("STREAM_PREFETCH_BYTES", (1024, 2048, 4096, 8192), lambda _: multiply(8, 4096, 4096, prefetch="stream")),
        Sweep("STRIDED_PREFETCH_STEPS", (4, 8, 16, 32), lambda _: multiply(1, 4096, 1024, False)),
        Sweep("MOST_PREFETCH_LINES", (0, 1, 2, 4, 8), lambda _: multiply(24, 768, 768)),
        Sweep("ATTENTION_KEYS", (256, 512, 1024), lambda value: attend(1024, 1024, key_block=value)),
        Sweep("ATTENTION_TILES_PER_ITEM", (2, 4, 8, 16), lambda value: attend(1024, 1024, tiles_per_item=value)),
        Sweep("QUERIES_WORTH_PACKING", (8, 16, 24, 48), lambda _: attend(24, 512)),
    ]


def program_sweeps_of(target: Target, threads: int) -> list[Sweep]:
    """Return the constants of fusion, row kernels and tree ensembles."""

    def programs() -> Programs:
        return Programs(target, threads)

    def sweep(name: str, values: tuple[float, ...], build: Callable[[Programs], Programs]) -> Sweep:
        return Sweep(name, values, lambda _: build(programs()))

    def trees(name: str, values: tuple[float, ...], *sizes: Any) -> Sweep:
        return Sweep(name, values, lambda _: forest(programs(), *sizes))

    return [
        sweep("SPILL_FMAS", (0, 2, 4, 8, 16), recurrent),
        sweep("GATE_FUSION_SLACK", (0.8, 1.0, 1.1, 1.3, 2.0), recurrent),
        sweep("RECOMPUTED_OPERATIONS", (0, 2, 4, 6, 8, 12, 16), recomputed),
        sweep("MAP_UNIT_OPERATIONS", (1, 2, 4, 8, 16), mapped),
        sweep("TABLE_OPERATIONS", (0, 10, 1000), requantized),
        sweep("ROW_CHAINS", (1, 2, 4, 8), row_sums),
        sweep("ROW_ITEM_ELEMENTS", (1024, 4096, 8192, 32768), short_row_sums),
        sweep("ROW_STORE_OPERATIONS", (1, 4, 6, 8, 10, 14, 1000), shared_values),
        sweep("ROW_SUM_VECTORS", (1, 2, 4, 8), column_sums),
        sweep("ROW_SUM_OPERATIONS", (0, 4, 8, 12, 24), column_sums_of_chains),
        trees("TREE_GROUP_ROWS", (9, 13, 18, 22, 26), (10, 14, 17, 20, 24), (100,), 8),
        trees("TREE_SHALLOW_GROUP_ROWS", (1, 2, 3, 4, 6), (1, 2, 3, 5), (100,), 4),
        trees("TREE_SHARED_TREES", (128, 256, 512, 1024), (1,), (200, 400, 800), 8),
        trees("TREE_ITEM_TREES", (32, 64, 128, 256), (1,), (1000,), 8),
        trees("TREE_ROW_WAYS", (4, 8, 16, 32), (1,), (500,), 8),
        trees("TREE_GROUP_WAYS", (2, 4, 8, 16), (1000,), (100,), 8),
        trees("TREE_ROW_STEPS", (1, 2, 4, 8), (1,), (500,), 14, 0.25),
        trees("TREE_GROUP_STEPS", (1, 2, 4, 8), (1000,), (100,), 14, 0.25),
        trees("TREE_PREFETCH_LINES", (0, 8, 32, 128), (1000,), (300,), 10),
    ]


def measure_operations(target: Target, seconds: float) -> tuple[float, float]:
    """Return the additions in the time of a division, and of a function, from chains of two lengths."""

    def repeat(step: Callable[[L.Tensor], L.Tensor], count: int) -> Programs:
        def body(x: L.Tensor) -> list[L.Tensor]:
            for _ in range(count):
                x = step(x)
            return [x]

        return Programs(target, 1).add(body, (64, 1024))

    steps = ((lambda x: chain(x, 2), 32), (lambda x: L.constant(np.float32(0.7)) / x, 8), (L.tanh, 4))
    programs = [[repeat(step, count), repeat(step, 2 * count)] for step, count in steps]
    best, end = np.full((len(steps), 2), np.inf), time.perf_counter() + seconds * 2 * len(steps)
    while time.perf_counter() < end:
        for row, pair in enumerate(programs):
            for column, program in enumerate(pair):
                begin = time.thread_time()
                program(1)
                best[row, column] = min(best[row, column], time.thread_time() - begin)
    addition, division, tanh = (best[:, 1] - best[:, 0]) / [2 * steps[0][1], steps[1][1], steps[2][1]]
    return division / addition, tanh / addition


def measure_load(target: Target, seconds: float) -> float:
    """Return the vector FMAs in the time of one vector load of B from L2: one row of A, a B of half of L2."""
    n, rng = 256, np.random.default_rng(0)
    k = target.l2 // 2 // 4 // n
    a, b = rng.standard_normal((1, k), np.float32), rng.standard_normal((k, n), np.float32)
    kernel, peak = product(target, a, b, True, 1), multiply_add_peak(target)
    best, rate, end = np.inf, 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.thread_time()
        kernel(1)
        best, rate = min(best, time.thread_time() - begin), max(rate, peak())
    return best * rate * 1e9 / (2 * k * n)


def measure_constants(target: Target, threads: int, seconds: float, only: str | None) -> None:
    """Print the time of each value of each constant, and the fastest next to the value in the file.

    The minimum time counts: of the processor with one thread, of the clock with more. A constant whose values do not
    change the kernels' text does not matter for the problem of its sweep on this target. Differences below 3 % are
    noise: repeat before changing a value.
    """
    print("| constant | in tiling/costs.py | measured optimum | times by value |\n|---|---|---|---|")
    if only is None:
        division, tanh = measure_operations(target, seconds)
        for name, measured in (
            ("L2_LOAD_FMAS", measure_load(target, seconds)),
            ("DIVISION_OPERATIONS", division),
            ("FUNCTION_OPERATIONS", tanh),
        ):
            print(f"| {name} | {getattr(costs, name)} | {measured:.1f} (measured directly) | |", flush=True)
    for sweep in sweeps(target, threads):
        if only in (None, sweep.name):
            measure_sweep(sweep, threads, seconds)


def measure_sweep(sweep: Sweep, threads: int, seconds: float) -> None:
    """Print the time of each value of a constant."""
    current = getattr(costs, sweep.name)
    kernels: dict[float, Bench | Programs] = {}
    for value in sweep.values:
        setattr(costs, sweep.name, value)
        gemm_schedules.clear_cache()
        kernels[value] = sweep.build(value)
    setattr(costs, sweep.name, current)
    gemm_schedules.clear_cache()
    clock = time.thread_time if threads == 1 else time.perf_counter
    best = dict.fromkeys(kernels, np.inf)
    end = time.perf_counter() + seconds * len(kernels)
    while time.perf_counter() < end:
        for value, kernel in kernels.items():
            begin = clock()
            kernel(threads)
            best[value] = min(best[value], clock() - begin)
    fastest = min(best, key=best.__getitem__)
    times = ", ".join(f"{value}: {seconds_of_run * 1e6:.1f} µs" for value, seconds_of_run in best.items())
    near = "" if best.get(current, 0) > 1.03 * best[fastest] else " (within 3 %)"
    print(f"| {sweep.name} | {current} | {fastest}{near} | {times} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="number of threads")
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds for each row")
    parser.add_argument("--target", choices=sorted(NAMED), help="target of the code; by default this machine")
    parser.add_argument("--constants", action="store_true", help="measure the constants of tiling/costs.py instead")
    parser.add_argument("--constant", metavar="NAME", help="measure one constant of tiling/costs.py instead")
    parser.add_argument(
        "--only", choices=["products", "computed", "vectors", "attention"], help="only the rows of this kind"
    )
    arguments = parser.parse_args()
    target = NAMED[arguments.target] if arguments.target else host()
    threads, seconds = arguments.threads, arguments.seconds
    if arguments.constants or arguments.constant:
        print(f"{target.name}, {threads} threads\n")
        measure_constants(target, threads, seconds, arguments.constant)
        return
    measure = multiply_add_peak(target)
    peak = max(measure() for _ in range(20)) * threads
    print(f"{target.name}, {threads} threads, multiply-add peak {peak:.0f} GFLOP/s\n")
    print("| M x N x K | µs | GFLOP/s | of peak | GB/s | ONNX Runtime µs | ratio | error | compile ms |")
    print("|---|---|---|---|---|---|---|---|---|")
    if arguments.only in (None, "products"):
        products(target, PRODUCTS, True, threads, peak, seconds)
    if arguments.only in (None, "vectors"):
        products(target, VECTORS, True, threads, peak, seconds)
    if arguments.only in (None, "computed"):
        products(target, [*PRODUCTS, *VECTORS], False, threads, peak, seconds)
    if arguments.only in (None, "attention"):
        attentions(target, threads, peak, seconds)
    after = max(measure() for _ in range(20)) * threads
    print(f"\nmultiply-add peak {after:.0f} GFLOP/s")


if __name__ == "__main__":
    main()
