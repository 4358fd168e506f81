"""Winograd convolution compared with ONNX Runtime, one thread: ``python benchmarks/winograd.py``.

Both run one 3x3 convolution with a bias and Relu in alternation; the minimum time of each counts. ONNX Runtime uses a
layout of its own: its time is the time of a chain of convolutions minus that of a shorter chain, so that conversions at
the ends do not count.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import os
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from sardonyx.compiler.codegen.kernel_builder import Epilogue, Index, Kernel
from sardonyx.compiler.kernels.conv import winograd
from sardonyx.compiler.kernels.conv.window_sweep import Image
from sardonyx.compiler.llvm.ir_builder import Emitter
from sardonyx.compiler.llvm.object_code import LoadedCode, compiled, module_text
from sardonyx.compiler.target.description import Target, host
from sardonyx.compiler.tiling import winograd as winograd_plan
from sardonyx.compiler.tiling.winograd import Winograd
from sardonyx.core.dim import Size, evaluate

Floats = npt.NDArray[np.float32]

SHAPES = ((64, 56), (128, 28), (256, 14), (512, 7), (32, 256))
loaded: list[LoadedCode] = []
held: list[Floats] = []
"""References to the memory of compiled calls."""
SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_int64] * 3)


def aligned(values: Floats) -> Floats:
    """Return a copy at a multiple of 64 bytes."""
    room = np.empty(values.size + 16, np.float32)
    start = -room.ctypes.data % 64 // 4
    copy = room[start : start + values.size].reshape(values.shape)
    copy[...] = values
    return copy


def function(kernel: Kernel, target: Target) -> tuple[Callable[..., None], float]:
    """Return the compiled kernel, and the seconds of its compilation."""
    begin = time.perf_counter()
    text = module_text(target, [kernel.definition("kernel")], kernel.emitter.declarations)
    loaded.append(LoadedCode([compiled(text, target)], target))
    return SIGNATURE(loaded[-1].address("kernel")), time.perf_counter() - begin


def chain(weights: Floats, biases: Floats, extent: int, length: int) -> onnxruntime.InferenceSession:
    """Return ONNX Runtime on a chain of convolutions."""
    nodes, at = [], "x"
    for i in range(length):
        nodes += [
            helper.make_node("Conv", [at, "w", "b"], [f"c{i}"], pads=[1] * 4),
            helper.make_node("Relu", [f"c{i}"], [f"r{i}"]),
        ]
        at = f"r{i}"
    shape = (1, weights.shape[1], extent, extent)
    graph = helper.make_graph(
        nodes, "chain", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(at, TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(biases, "b")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


class Layer:
    """One convolution with bias and Relu, compiled for its sizes."""

    def __init__(
        self,
        weights: Floats,
        biases: Floats,
        extent: int,
        tile: tuple[int, int],
        *,
        staged: bool = False,
        fresh: bool = False,
    ) -> None:
        filters, channels = weights.shape[:2]
        self.plan = plan = Winograd(host(), tile, 1, channels, filters, (extent, extent), staged=staged, fresh=fresh)
        lanes = plan.lanes
        self.image = aligned(np.zeros((channels // lanes, extent, extent, lanes), np.float32))
        self.result = aligned(np.zeros((filters // lanes, extent, extent, lanes), np.float32))
        self.compile_seconds = 0.0
        self._calls: list[Callable[[], None]] = []
        packed = (
            winograd_plan.pack_weights(weights, plan.target)
            if fresh else winograd_plan.transform_weights(weights, plan.tile, plan.target)
        )  # fmt: skip
        scratch = aligned(np.zeros(plan.scratch // 4, np.float32))
        stage = aligned(np.zeros(evaluate(plan.transformed, {}) // 4 if staged else 0, np.float32))
        inputs = [self.image, stage]
        kernel = Kernel(plan.target)
        if staged:
            x, target = (kernel.buffer() for _ in range(2))
            self._add(kernel, winograd.transform(kernel, plan, Image(x, channels, plan.out), target), inputs)
            kernel = Kernel(plan.target)
        source, weight, room, bias, result = (kernel.buffer() for _ in range(5))
        relu = self._relu(kernel, bias, result)
        if staged:
            items = winograd.multiply(kernel, plan, source, weight, room, relu)
        else:
            items = winograd.convolve(kernel, plan, Image(source, channels, plan.out), weight, room, relu)
        self._add(kernel, items, [inputs[staged], aligned(packed), scratch, aligned(biases), self.result])

    def _relu(self, kernel: Kernel, bias: str, result: str) -> Epilogue:
        e, plan = kernel.emitter, self.plan
        type = f"<{plan.lanes} x float>"

        def relu(index: tuple[Index, ...], value: str, mask: str | None) -> None:
            _, filter, y, x = (axis.base for axis in index)
            value = e.let(f"fadd {type} {value}, {e.load(type, e.address(bias, 'float', filter), 4)}")
            value = e.call(type, f"llvm.maxnum.v{plan.lanes}f32", [(type, value), (type, "zeroinitializer")])
            height, width = (kernel.size(axis) for axis in plan.out)
            offset = e.add(e.mul(e.add(e.mul(e.div(filter, plan.lanes), height), y), width), x)
            e.store(type, value, e.address(result, "float", e.mul(offset, plan.lanes)), 4)

        return relu

    def _add(self, kernel: Kernel, items: Size, buffers: list[Floats]) -> None:
        run, seconds = function(kernel, self.plan.target)
        self.compile_seconds += seconds
        slots = [entry.ctypes.data for entry in buffers] + [evaluate(entry, {}) for entry in kernel.sizes]
        arguments, last = (ctypes.c_int64 * len(slots))(*slots), evaluate(items, {})
        held.extend(buffers)
        self._calls.append(lambda: run(ctypes.addressof(arguments), 0, last, 0))

    def __call__(self, x: Floats) -> Floats:
        """Return the result for an unblocked image [1, C, H, W]."""
        height, width = x.shape[2:]
        self.image[...] = np.moveaxis(x.reshape(-1, self.plan.lanes, height, width), 1, 3)
        self.run()
        return np.moveaxis(self.result, 3, 1).reshape(1, -1, height, width)

    def run(self) -> None:
        """Run the kernels."""
        for call in self._calls:
            call()


def multiply_add_peak(target: Target) -> Callable[[], float]:
    """Return a function that measures the GFLOP/s of multiply-adds in registers."""
    kernel, count = Kernel(target), 200_000
    e: Emitter = kernel.emitter
    result = kernel.buffer()
    lanes = target.lanes(32)
    type = f"<{lanes} x float>"
    sums = [e.variable(type, e.load(type, e.address(result, "float", i * lanes), 4)) for i in range(12)]
    factor = e.load(type, e.address(result, "float", 12 * lanes), 4)
    with e.loop(0, count):
        for total in sums:
            total.set(e.multiply_add(type, factor, factor, total.get()))
    for i, total in enumerate(sums):
        e.store(type, total.get(), e.address(result, "float", i * lanes), 4)
    run, _ = function(kernel, target)
    room = np.zeros(13 * lanes, np.float32)
    arguments = (ctypes.c_int64 * 1)(room.ctypes.data)

    def measure() -> float:
        return 2 * 12 * lanes * count / seconds_of(lambda: run(ctypes.addressof(arguments), 0, 1, 0)) / 1e9

    return measure


def seconds_of(call: Callable[[], object]) -> float:
    """Return the processor seconds of one call, which other programs disturb less."""
    begin = time.thread_time()
    call()
    return time.thread_time() - begin


def compare(channels: int, extent: int, tiles: list[tuple[int, int]], rounds: int) -> None:
    """Print a row for each tile: staged too if tiles are few, weights transformed before and at run time."""
    few = extent < 28
    rng = np.random.default_rng(0)
    weights = (rng.standard_normal((channels, channels, 3, 3)) / np.sqrt(9 * channels)).astype(np.float32)
    biases = rng.standard_normal(channels).astype(np.float32)
    x = rng.standard_normal((1, channels, extent, extent)).astype(np.float32)
    short, long = (chain(weights, biases, extent, length) for length in (1, 4))
    expected = short.run(None, {"x": x})[0]
    ways = [
        (tile, staged, fresh)
        for tile in tiles for staged in ((False, True) if few else (False,)) for fresh in (False, True)
    ]  # fmt: skip
    layers = [Layer(weights, biases, extent, tile, staged=staged, fresh=fresh) for tile, staged, fresh in ways]
    errors = [float(np.abs(layer(x) - expected).max() / np.abs(expected).max()) for layer in layers]
    ours, theirs = [np.inf] * len(layers), [np.inf, np.inf]
    for _ in range(rounds):
        for i, layer in enumerate(layers):
            layer.run()
            ours[i] = min(ours[i], seconds_of(layer.run))
        for i, session in enumerate((short, long)):
            theirs[i] = min(theirs[i], seconds_of(functools.partial(session.run, None, {"x": x})))
    peer = (theirs[1] - theirs[0]) / 3
    operations = 2 * 9 * channels**2 * extent**2
    for ((rows, columns), staged, fresh), layer, seconds, error in zip(ways, layers, ours, errors, strict=True):
        cells = [
            f"{channels} ch, {extent}²",
            f"F({rows},3) x F({columns},3){' staged' * staged}{' fresh' * fresh}",
            f"{seconds * 1e6:.0f} ({operations / seconds / 1e9:.0f})",
            f"{peer * 1e6:.0f} ({operations / peer / 1e9:.0f})",
            f"{peer / seconds:.2f}",
            f"{error:.1e}",
            f"{layer.compile_seconds * 1e3:.0f}",
        ]
        print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60, help="number of runs of each layer")
    parser.add_argument("--tiles", nargs="+", default=["2x2", "4x2", "4x4", "6x6"], help="tiles, rows x columns")
    parser.add_argument("--shapes", type=int, nargs="+", help="indices of the shapes, from 0")
    arguments = parser.parse_args()
    tiles = [(int(rows), int(columns)) for rows, columns in (text.split("x") for text in arguments.tiles)]
    peak = multiply_add_peak(host())
    print(f"multiply-add peak {max(peak() for _ in range(20)):.0f} GFLOP/s, {host().name}\n")
    print("| layer | algorithm | µs (direct GFLOP/s) | ONNX Runtime | ratio | error | compile ms |")
    print("|---|---|---|---|---|---|---|")
    for number, (channels, extent) in enumerate(SHAPES):
        if arguments.shapes is None or number in arguments.shapes:
            compare(channels, extent, tiles, arguments.rounds)
    print(f"\nmultiply-add peak {max(peak() for _ in range(20)):.0f} GFLOP/s")


if __name__ == "__main__":
    main()
