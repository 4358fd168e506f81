"""Products by weights of few bits and of bfloat16, beside ONNX Runtime and float32.

    python benchmarks/low_bits.py --sections int4,int8,bf16 --rows 1,4,32,256
    python benchmarks/low_bits.py --sections convolutions
    SARDONYX_SUITES=… python benchmarks/low_bits.py --sections models --models resnet18 resnet50 minilm vit_s

A model is a chain of products of one size. Sardonyx with weights of few bits, ONNX Runtime with the same model, and
Sardonyx with float32 weights run in alternation, and so does a read of a large array by as many threads, after which
the weights come from memory; the minimum of each counts, of processor times if there is one thread. The share of the
bandwidth relates the bytes of codes, scales and zero points to the bytes that the threads read of the array in the same
time. ONNX Runtime's processor provider has no products of bfloat16. ``SARDONYX_TARGET`` names a lesser processor for
Sardonyx. Sections ``convolutions`` (layers between pointwise ones) and ``models`` compare sessions with
``precision="bf16"`` and sessions of float32.
"""

from __future__ import annotations

import argparse
import functools
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import rich.console
import rich.table
from onnx import TensorProto, helper, numpy_helper

import sardonyx
import suites
from sardonyx.compiler.executor.thread_pool import pool
from sardonyx.compiler.machine_peak import MemoryStream
from sardonyx.compiler.target.description import host


@dataclass(frozen=True)
class Form:
    """Weights of one storage.

    Attributes:
        name: The name in tables.
        bits: Bits of a code or number.
        block: Weights along K that share a scale; 0 for bfloat16.
        zero: True if blocks have zero points.
        operator: ``MatMulNBits``, ``DequantizeLinear`` before ``MatMul``, or ``MatMul``.
    """

    name: str
    bits: int
    block: int
    zero: bool
    operator: str = "MatMulNBits"

    def bytes(self, k: int, n: int) -> int:
        """Return the bytes of the weights of one product."""
        blocks = -(-k // self.block) if self.block else 0
        return k * n * self.bits // 8 + blocks * n * (4 + self.zero)


SECTIONS = {
    "int4": (
        Form("4 bits, blocks of 32", 4, 32, False), Form("4 bits, blocks of 32, zero points", 4, 32, True),
        Form("4 bits, blocks of 128", 4, 128, False), Form("int4 QDQ, blocks of 32", 4, 32, False, "DequantizeLinear"),
    ),
    "int2": (Form("2 bits, blocks of 32", 2, 32, False),),
    "int8": (
        Form("8 bits, blocks of 32", 8, 32, False), Form("int8 QDQ, blocks of 128", 8, 128, False, "DequantizeLinear"),
    ),
    "bf16": (Form("bfloat16", 16, 0, False, "MatMul"),),
}  # fmt: skip


def model(form: Form | None, rows: int, size: int, layers: int) -> onnx.ModelProto:
    """Return a chain of products; of float32 weights without a form."""
    rng = np.random.default_rng(0)
    nodes, weights = [], []
    name = "x"
    if form is not None and form.operator == "MatMul":
        nodes.append(helper.make_node("Cast", ["x"], ["converted"], to=TensorProto.BFLOAT16))
        name = "converted"
    for layer in range(layers):
        if form is None:
            weights.append(numpy_helper.from_array(_floats(rng, size), f"w{layer}"))
            nodes.append(helper.make_node("MatMul", [name, f"w{layer}"], [f"y{layer}"]))
        elif form.operator == "MatMul":
            weights.append(numpy_helper.from_array(_floats(rng, size).astype(ml_dtypes.bfloat16), f"w{layer}"))
            nodes.append(helper.make_node("MatMul", [name, f"w{layer}"], [f"y{layer}"]))
        elif form.operator == "MatMulNBits":
            weights += _packed(rng, form, size, layer)
            inputs = [name, f"w{layer}", f"s{layer}", *[f"z{layer}"] * form.zero]
            nodes.append(
                helper.make_node(
                    form.operator, inputs, [f"y{layer}"], domain="com.microsoft", K=size, N=size, bits=form.bits,
                    block_size=form.block,
                )
            )  # fmt: skip
        else:
            codes = rng.integers(-(1 << form.bits - 1), 1 << form.bits - 1, (size, size))
            dtype = {4: TensorProto.INT4, 8: TensorProto.INT8}[form.bits]
            weights.append(helper.make_tensor(f"w{layer}", dtype, codes.shape, codes.ravel()))
            weights.append(numpy_helper.from_array(_scales(rng, form, (size // form.block, size)), f"s{layer}"))
            nodes.append(
                helper.make_node(
                    form.operator, [f"w{layer}", f"s{layer}"], [f"d{layer}"], axis=0, block_size=form.block
                )
            )
            nodes.append(helper.make_node("MatMul", [name, f"d{layer}"], [f"y{layer}"]))
        name = f"y{layer}"
    if form is not None and form.operator == "MatMul":
        nodes.append(helper.make_node("Cast", [name], ["y"], to=TensorProto.FLOAT))
        name = "y"
    values = [helper.make_tensor_value_info(end, TensorProto.FLOAT, [rows, size]) for end in ("x", name)]
    graph = helper.make_graph(nodes, "chain", values[:1], values[1:], weights)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _floats(rng: np.random.Generator, size: int) -> np.ndarray:
    return rng.standard_normal((size, size), np.float32) / np.float32(np.sqrt(size))


def _scales(rng: np.random.Generator, form: Form, shape: tuple[int, ...]) -> np.ndarray:
    return (rng.random(shape, np.float32) + np.float32(0.5)) / np.float32(1 << form.bits) / np.float32(16)


def _packed(rng: np.random.Generator, form: Form, size: int, layer: int) -> list[onnx.TensorProto]:
    blocks = size // form.block
    shape = (size, blocks, form.block * form.bits // 8)
    arrays = {"w": rng.integers(0, 256, shape, np.uint8), "s": _scales(rng, form, (size, blocks))}
    if form.zero:
        middle = 1 << (form.bits - 1)
        zeros = rng.integers(middle - 1, middle + 2, (size, blocks), np.uint8).reshape(size, -1, 8 // form.bits)
        shifts = np.arange(0, 8, form.bits, dtype=np.uint8)
        arrays["z"] = np.bitwise_or.reduce(zeros << shifts, -1)
    return [numpy_helper.from_array(array, f"{name}{layer}") for name, array in arrays.items()]


def least_seconds(runs: dict[str, Callable[[], Any]], rounds: int, threads: int) -> dict[str, float]:
    """Return the least time of each function, in alternation: processor time with one thread."""
    clock = time.process_time if threads == 1 else time.perf_counter
    least = dict.fromkeys(runs, float("inf"))
    for run in runs.values():
        run()
    for _ in range(rounds):
        for name, run in runs.items():
            begin = clock()
            run()
            least[name] = min(least[name], clock() - begin)
    return least


def measure(
    form: Form, floats: Any, read: MemoryStream, rows: int, size: int, layers: int, threads: int, rounds: int
) -> dict[str, float]:
    """Return seconds of Sardonyx, ONNX Runtime, a session with float32 weights, and a read of memory."""
    low = model(form, rows, size, layers)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    feeds = {"x": np.random.default_rng(1).standard_normal((rows, size), np.float32)}
    sessions = {"sardonyx": sardonyx.Session(low, compile="wait", threads=threads), "float32": floats}
    if form.operator != "MatMul":
        sessions["onnxruntime"] = onnxruntime.InferenceSession(low.SerializeToString(), options)
    runs: dict[str, Callable[[], Any]] = {}
    for name, session in sessions.items():
        runs |= {f"read before {name}": read, name: functools.partial(session.run, None, feeds)}
    least = least_seconds(runs, rounds, threads)
    return {**least, "read": min(seconds for name, seconds in least.items() if name.startswith("read"))}


def table(section: str, arguments: argparse.Namespace, read: MemoryStream) -> rich.table.Table:
    """Measure the forms of a section."""
    result = rich.table.Table(title=f"{section}: {arguments.layers} products of {arguments.size}²")
    for column in ("weights", "rows", "sardonyx, ms", "onnxruntime, ms", "float32, ms", "× onnxruntime", "× float32"):
        result.add_column(column)
    result.add_column("GB/s read")
    result.add_column("of bandwidth")
    sizes = arguments.size, arguments.layers
    for rows in arguments.rows:
        floats = sardonyx.Session(model(None, rows, *sizes), compile="wait", threads=arguments.threads)
        for form in SECTIONS[section]:
            least = measure(form, floats, read, rows, *sizes, arguments.threads, arguments.rounds)
            ours, bandwidth = least["sardonyx"], read.bytes / least["read"]
            share = arguments.layers * form.bytes(arguments.size, arguments.size) / ours / bandwidth
            others = [least.get(name) for name in ("onnxruntime", "float32")]
            result.add_row(
                form.name, str(rows), *(f"{1e3 * seconds:.2f}" if seconds else "—" for seconds in (ours, *others)),
                *(f"{seconds / ours:.2f}" if seconds else "—" for seconds in others), f"{bandwidth / 1e9:.1f}",
                f"{share:.2f}",
            )  # fmt: skip
    return result


LAYERS = (
    (64, 256, 1, 1, 56), (256, 64, 1, 1, 56), (256, 256, 1, 1, 14), (512, 2048, 1, 1, 7), (24, 144, 1, 1, 56),
    (64, 64, 3, 1, 56), (128, 128, 3, 1, 28), (256, 256, 3, 1, 14), (512, 512, 3, 1, 7), (64, 128, 3, 2, 56),
    (48, 40, 5, 1, 20), (8, 16, 3, 2, 112), (16, 8, 1, 1, 112),
)  # fmt: skip
"""Channels, filters, taps along an axis, stride, and rows and columns of an image."""


def convolution(channels: int, filters: int, taps: int, stride: int, size: int) -> onnx.ModelProto:
    """Return a network of a pointwise convolution, the convolution of a layer, and another pointwise one."""
    rng = np.random.default_rng(0)
    nodes, weights, name = [], [], "x"
    for number, (before, after, window, step) in enumerate(
        [(channels, channels, 1, 1), (channels, filters, taps, stride), (filters, channels, 1, 1)]
    ):
        array = rng.standard_normal((after, before, window, window), np.float32) / np.float32(before**0.5 * window)
        weights.append(numpy_helper.from_array(array, f"w{number}"))
        nodes.append(
            helper.make_node("Conv", [name, f"w{number}"], [f"c{number}"], pads=[window // 2] * 4, strides=[step, step])
        )
        nodes.append(helper.make_node("Relu", [f"c{number}"], [f"y{number}"]))
        name = f"y{number}"
    values = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, channels, size, size]),
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None),
    ]
    graph = helper.make_graph(nodes, "layer", values[:1], values[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def networks(section: str, arguments: argparse.Namespace) -> Iterator[tuple[str, Any, dict[str, np.ndarray]]]:
    """Yield the networks of a section: name, model and inputs."""
    if section == "convolutions":
        for layer in LAYERS:
            x = np.random.default_rng(1).standard_normal((1, layer[0], layer[4], layer[4]), np.float32)
            yield "{}->{} {}x{} stride {} of {}²".format(*layer[:3], *layer[2:]), convolution(*layer), {"x": x}
        return
    with tempfile.TemporaryDirectory() as folder:
        for case in suites.cases(Path(folder), arguments.models):
            yield case.name, case.path, case.feeds(suites.LATENCY_SIZES)


def compare_precisions(section: str, arguments: argparse.Namespace) -> rich.table.Table:
    """Measure sessions of bfloat16 beside sessions of float32."""
    result = rich.table.Table(title=section)
    for column in ("network", "float32, ms", "bfloat16, ms", "× float32", "error"):
        result.add_column(column)
    ratios = []
    for name, source, feeds in networks(section, arguments):
        options: dict[str, Any] = {"compile": "wait", "threads": arguments.threads}
        floats = sardonyx.Session(source, **options)
        try:
            narrow = sardonyx.Session(source, precision="bf16", precision_tolerance=arguments.tolerance, **options)
        except sardonyx.SardonyxError as error:
            result.add_row(name, "", "", "", str(error))
            continue
        assert narrow.precision is not None
        runs = {
            form: functools.partial(session.run, None, feeds)
            for form, session in (("float32", floats), ("bf16", narrow))
        }
        seconds = least_seconds(runs, 2, arguments.threads)["bf16"]
        least = least_seconds(runs, max(arguments.rounds, int(arguments.rounds * 0.01 / seconds)), arguments.threads)
        ratios.append(least["float32"] / least["bf16"])
        result.add_row(
            name, *(f"{1e3 * seconds:.3f}" for seconds in least.values()), f"{ratios[-1]:.2f}",
            f"{narrow.precision.forms[-1].error:.1e}",
        )  # fmt: skip
    result.add_row("geometric mean", "", "", f"{np.exp(np.mean(np.log(ratios))):.2f}", "")
    return result


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--sections", default="int4,int2,int8",
        help="int4, int2, int8, bf16, convolutions, models, separated by commas",
    )  # fmt: skip
    parser.add_argument("--models", nargs="*", default=["resnet18", "resnet50", "minilm", "vit_s", "mobilenetv2"])
    parser.add_argument("--tolerance", type=float, default=0.02, help="the largest error of a model in bfloat16")
    parser.add_argument("--rows", default="1,4,32,256", type=lambda text: [int(part) for part in text.split(",")])
    parser.add_argument("--size", type=int, default=4096, help="rows and columns of the weights")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    console = rich.console.Console(width=140)
    chosen = arguments.sections.split(",")
    for section in chosen:
        if section in ("convolutions", "models"):
            console.print(compare_precisions(section, arguments))
    chosen = [section for section in chosen if section in SECTIONS]
    if not chosen:
        return
    read = MemoryStream(host(), pool(arguments.threads))
    console.print(f"{host().name}, {arguments.threads} threads")
    for section in chosen:
        console.print(table(section, arguments, read))


if __name__ == "__main__":
    main()
