"""Convolutions and pooling compared with ONNX Runtime: ``python benchmarks/convolutions.py``.

Both run one layer (a convolution with a bias and Relu, or a pooling) in alternation; the minimum time of each counts.
ONNX Runtime's time is the time of its kernel by its own profiler, without conversions of layout at the ends.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from sardonyx.compiler.codegen.kernel_builder import Epilogue, Index, Kernel
from sardonyx.compiler.executor.thread_pool import pool
from sardonyx.compiler.kernels.conv.blocked_pooling import pooling
from sardonyx.compiler.kernels.conv.convolution import convolution, pack_weights
from sardonyx.compiler.kernels.conv.grouped import depthwise, pack_depthwise_weights
from sardonyx.compiler.kernels.conv.window_sweep import Image
from sardonyx.compiler.target.description import NAMED, Target, host
from sardonyx.compiler.tiling.convolution_tiles import choose_tile, grouped_outputs
from sardonyx.compiler.tiling.pooling import PoolingProblem, choose_pooling
from sardonyx.compiler.tiling.windows import Windows
from sardonyx.core.dim import Dim, Size, evaluate
from winograd import aligned, function, multiply_add_peak, seconds_of

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Layer:
    """A layer; without filters, a maximum pooling; transposed, with the input dilated by ``up``."""

    channels: int
    filters: int
    window: int
    stride: int
    extent: int
    groups: int = 1
    up: int = 1

    @property
    def padding(self) -> int:
        return self.window - 1 if self.up > 1 else self.window // 2

    def out_of(self, extent: Size) -> Size:
        return ((extent - 1) * self.up + 2 * self.padding - self.window + 1) // self.stride + 1

    @property
    def out(self) -> int:
        return evaluate(self.out_of(self.extent), {})

    @property
    def operations(self) -> int:
        positions = self.extent if self.up > 1 else self.out
        return 2 * self.filters * (self.channels // self.groups) * self.window**2 * positions**2

    @property
    def text(self) -> str:
        if not self.filters:
            return f"max {self.channels}, {self.window}x{self.window}/{self.stride}, {self.extent}²"
        kind = f" in {self.groups}" if self.groups > 1 else ""
        up = f" up {self.up}" if self.up > 1 else ""
        window = f"{self.window}x{self.window}/{self.stride}{up}"
        return f"{self.channels}→{self.filters}{kind}, {window}, {self.extent}²"


SUITES = {
    "resnet50": [
        Layer(3, 64, 7, 2, 224), Layer(64, 0, 3, 2, 112), Layer(64, 64, 1, 1, 56), Layer(64, 64, 3, 1, 56),
        Layer(64, 256, 1, 1, 56), Layer(256, 64, 1, 1, 56), Layer(256, 512, 1, 2, 56), Layer(128, 128, 3, 2, 56),
        Layer(128, 128, 3, 1, 28), Layer(128, 512, 1, 1, 28), Layer(512, 128, 1, 1, 28), Layer(512, 1024, 1, 2, 28),
        Layer(256, 256, 3, 1, 14), Layer(256, 1024, 1, 1, 14), Layer(1024, 256, 1, 1, 14), Layer(512, 512, 3, 1, 7),
        Layer(512, 2048, 1, 1, 7), Layer(2048, 512, 1, 1, 7),
    ],
    "mobilenetv2": [
        Layer(3, 32, 3, 2, 224), Layer(32, 32, 3, 1, 112, 32), Layer(32, 16, 1, 1, 112), Layer(16, 96, 1, 1, 112),
        Layer(96, 96, 3, 2, 112, 96), Layer(96, 24, 1, 1, 56), Layer(24, 144, 1, 1, 56), Layer(144, 144, 3, 1, 56, 144),
        Layer(144, 32, 1, 1, 28), Layer(192, 192, 3, 1, 28, 192), Layer(64, 384, 1, 1, 14),
        Layer(384, 384, 3, 1, 14, 384), Layer(160, 960, 1, 1, 7), Layer(960, 960, 3, 1, 7, 960),
        Layer(320, 1280, 1, 1, 7),
    ],
    "others": [
        Layer(64, 64, 3, 1, 224), Layer(1024, 256, 1, 1, 128),
        Layer(64, 64, 3, 1, 80), Layer(128, 128, 3, 1, 40), Layer(32, 32, 3, 1, 75),
        Layer(128, 128, 3, 1, 56, 32), Layer(240, 240, 1, 1, 28, 3), Layer(72, 72, 5, 2, 56, 72),
        Layer(240, 240, 5, 1, 14, 240), Layer(64, 32, 2, 1, 56, 1, 2), Layer(16, 16, 3, 1, 320),
        Layer(32, 3, 9, 1, 224), Layer(64, 1, 1, 1, 128), Layer(32, 9, 3, 1, 224), Layer(64, 4, 3, 1, 40),
        Layer(256, 256, 3, 1, 28, 32), Layer(96, 0, 5, 1, 13), Layer(96, 0, 13, 1, 13), Layer(64, 0, 2, 2, 112),
    ],
}  # fmt: skip


class Native:
    """A layer, compiled.

    Args:
        layer: The layer.
        weights: [filters, channels of a group, height, width].
        biases: One for each filter.
        target: The target of the code.
        known: True if the extent is a constant of the code, False if the extent is an argument.
    """

    def __init__(self, layer: Layer, weights: Floats, biases: Floats, target: Target, known: bool) -> None:
        lanes, blocked = target.lanes(32), layer.channels > 4
        kernel = Kernel(target)
        x, w, b, y = (kernel.buffer() for _ in range(4))
        symbols = {"extent": layer.extent}
        extent: Size = layer.extent if known else Dim.symbol("extent")
        out: Size = layer.out_of(extent)
        filters = layer.filters or layer.channels
        one = (layer.window,) * 2
        windows = Windows.of(one, (layer.stride,) * 2, (layer.padding,) * 2, None, (layer.up,) * 2)
        image = Image(x, layer.channels, (extent, extent), blocked)
        epilogue = self._storing(kernel, b, y, filters, out, bool(layer.filters))
        packed: Floats = np.zeros(1, np.float32)
        common = {"x": image, "batch": 1, "windows": windows, "out": (out, out), "epilogue": epilogue}
        if not layer.filters:
            problem = PoolingProblem(windows, (out, out), 32, True)
            items = pooling(kernel, "max", schedule=choose_pooling(problem, target).schedule, **common)
        elif layer.groups == layer.channels == layer.filters:
            packed = pack_depthwise_weights(weights[:, None], target)
            outputs = grouped_outputs(target, 1, layer.window)
            items = depthwise(kernel, weights=w, outputs=outputs, **common)
        else:
            shape = {"channels": layer.channels, "filters": filters, "groups": layer.groups, "blocked": blocked}
            tile = choose_tile(target, **shape, width=out, taps=layer.window**2)
            packed = pack_weights(weights.reshape(layer.groups, -1, *weights.shape[1:]), tile)
            outputs = grouped_outputs(target, layer.channels // layer.groups, layer.window)
            items = convolution(kernel, weights=w, tile=tile, outputs=outputs, **common)
        self._function, self.compile_seconds = function(kernel, target)
        self.items = evaluate(items, symbols)
        self.lanes, self.blocked, self.filters = lanes, blocked, filters
        blocks = (-(-layer.channels // lanes), layer.extent, layer.extent, lanes)
        self.image = aligned(np.zeros(blocks if blocked else (layer.channels, *blocks[1:3]), np.float32))
        self.result = aligned(np.zeros((-(-filters // lanes), layer.out, layer.out, lanes), np.float32))
        padded = np.zeros(self.result.shape[0] * lanes, np.float32)
        padded[:filters] = biases
        self._held = [self.image, aligned(packed), aligned(padded), self.result]
        slots = [array.ctypes.data for array in self._held] + [evaluate(size, symbols) for size in kernel.sizes]
        self._arguments = (ctypes.c_int64 * len(slots))(*slots)
        self._code = ctypes.cast(self._function, ctypes.c_void_p).value  # type: ignore[arg-type]

    @staticmethod
    def _storing(kernel: Kernel, bias: str, result: str, filters: int, out: Size, relu: bool) -> Epilogue:
        e, lanes = kernel.emitter, kernel.target.lanes(32)
        type = f"<{lanes} x float>"

        def epilogue(index: tuple[Index, ...], value: str, mask: str | None) -> None:
            _, filter, y, x = (axis.base for axis in index)
            if relu:
                value = e.let(f"fadd {type} {value}, {e.load(type, e.address(bias, 'float', filter), 4)}")
                value = e.call(type, f"llvm.maxnum.v{lanes}f32", [(type, value), (type, "zeroinitializer")])
            extent = kernel.size(out)
            offset = e.add(e.mul(e.add(e.mul(e.div(filter, lanes), extent), y), extent), x)
            e.store(type, value, e.address(result, "float", e.mul(offset, lanes)), 4 * lanes)

        return epilogue

    def __call__(self, x: Floats) -> Floats:
        """Return the result for an unblocked image [1, C, H, W]."""
        channels, *sizes = x.shape[1:]
        if self.blocked:
            padded = np.zeros((self.image.shape[0] * self.lanes, *sizes), np.float32)
            padded[:channels] = x[0]
            self.image[...] = np.moveaxis(padded.reshape(-1, self.lanes, *sizes), 1, 3)
        else:
            self.image[...] = x[0]
        self.run()
        return np.moveaxis(self.result, 3, 1).reshape(-1, *self.result.shape[1:3])[None, : self.filters]

    def run(self, threads: int = 1) -> None:
        """Run the kernel."""
        arguments = ctypes.addressof(self._arguments)
        if threads == 1:
            self._function(arguments, 0, self.items, 0)
        else:
            assert self._code is not None
            pool(threads).parallel(self._code, arguments, self.items, max(1, self.items // (threads * 8)))

    def seconds(self, threads: int) -> float:
        """Return the seconds of one run; with one thread, processor seconds."""
        if threads == 1:
            return seconds_of(self.run)
        begin = time.perf_counter()
        self.run(threads)
        return time.perf_counter() - begin


class Peer:
    """ONNX Runtime on the layer, with its profiler."""

    def __init__(self, layer: Layer, weights: Floats, biases: Floats, threads: int, folder: str) -> None:
        shape = (1, layer.channels, layer.extent, layer.extent)
        pads = {"pads": [layer.padding] * 4, "strides": [layer.stride] * 2}
        if not layer.filters:
            self.operator = "MaxPool"
            nodes = [helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[layer.window] * 2, **pads)]
        elif layer.up > 1:
            self.operator = "ConvTranspose"
            weights = np.ascontiguousarray(weights[:, :, ::-1, ::-1].transpose(1, 0, 2, 3))
            nodes = [
                helper.make_node("ConvTranspose", ["x", "w", "b"], ["c"], strides=[layer.up] * 2),
                helper.make_node("Relu", ["c"], ["y"]),
            ]
        else:
            self.operator = "Conv"
            nodes = [
                helper.make_node("Conv", ["x", "w", "b"], ["c"], group=layer.groups, **pads),
                helper.make_node("Relu", ["c"], ["y"]),
            ]
        graph = helper.make_graph(
            nodes, "layer", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(biases, "b")],
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "layer")
        self._session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])

    def __call__(self, x: Floats) -> Floats:
        """Return the result for an image."""
        return self._session.run(None, {"x": x})[0]

    def seconds(self) -> float:
        """Return the minimum time of the kernels over all runs; no runs may follow."""
        path = Path(self._session.end_profiling())
        events = [event for event in json.loads(path.read_text()) if event.get("cat") == "Node"]
        path.unlink()
        names = (self.operator, f"Fused{self.operator}")
        own = [e["dur"] for e in events if e["name"].endswith("_kernel_time") and e["args"]["op_name"] in names]
        after = [e["dur"] for e in events if e["name"].endswith("_kernel_time") and e["args"]["op_name"] == "Relu"]
        return (min(own) + (min(after) if after else 0)) / 1e6


def compare(
    layer: Layer, target: Target, known: bool, threads: int, seconds: float, peak: Callable[[], float], folder: str
) -> float:
    """Print a row and return ONNX Runtime's time over Sardonyx's."""
    rng = np.random.default_rng(0)
    filters = layer.filters or layer.channels
    shape = (filters, layer.channels // layer.groups, layer.window, layer.window)
    weights = (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
    biases = rng.standard_normal(filters).astype(np.float32)
    x = rng.standard_normal((1, layer.channels, layer.extent, layer.extent)).astype(np.float32)
    native, peer = Native(layer, weights, biases, target, known), Peer(layer, weights, biases, threads, folder)
    expected = peer(x)
    error = float(np.abs(native(x) - expected).max() / np.abs(expected).max())
    ours, best = np.inf, 0.0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        native.run(threads)
        for _ in range(3):
            ours = min(ours, native.seconds(threads))
        best = max(best, peak())
        for _ in range(3):
            peer(x)
    theirs = peer.seconds()
    rate = layer.operations / ours / 1e9
    print(
        f"| {layer.text} | {ours * 1e6:.0f} | {theirs * 1e6:.0f} | {theirs / ours:.2f} | {rate:.0f}"
        f" | {rate / best / threads:.0%} | {error:.0e} | {native.compile_seconds * 1e3:.0f} |",
        flush=True,
    )
    return theirs / ours


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", default=list(SUITES), help=f"some of {', '.join(SUITES)}")
    parser.add_argument("--target", choices=list(NAMED), help="target of the code; by default this machine")
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds for each layer")
    parser.add_argument("--open", action="store_true", help="open extents: arguments of the code instead of constants")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--layers", help="only layers whose text contains LAYERS")
    arguments = parser.parse_args()
    target = NAMED[arguments.target] if arguments.target else host()
    peak = multiply_add_peak(target)
    print(f"{target.name}, {'open' if arguments.open else 'known'} extents, {arguments.threads} threads\n")
    print("| layer | µs | ONNX Runtime µs | ratio | GFLOP/s | of peak | error | compile ms |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for suite in arguments.suites:
            layers = [layer for layer in SUITES[suite] if arguments.layers is None or arguments.layers in layer.text]
            ratios = [
                compare(layer, target, not arguments.open, arguments.threads, arguments.seconds, peak, folder)
                for layer in layers
            ]
            if ratios:
                print(f"| *{suite}, geometric mean* | | | {np.exp(np.mean(np.log(ratios))):.2f} | | | | |", flush=True)


if __name__ == "__main__":
    main()
