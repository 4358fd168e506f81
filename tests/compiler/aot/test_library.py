"""C libraries: the same bits as the session that wrote them, whatever is called how often and by how many threads."""

from __future__ import annotations

import ctypes
import itertools
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx.compiler.aot import cpu_check, instance_code
from sardonyx.compiler.aot.c_interface import Status
from sardonyx.compiler.aot.writer import LinkError
from sardonyx.compiler.executor.fork_join import has_futex
from sardonyx.compiler.target.description import NAMED, host
from sardonyx.errors import MissingDependencyError, ModelFileError, OptionError, UnsupportedError

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="there is no cc to link with"),
    pytest.mark.skipif(not has_futex(host()), reason="C libraries are for Linux"),
]

RNG = np.random.default_rng(0)
NUMBERS = itertools.count()


def parsed(graph: str, **weights: np.ndarray) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {graph}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    return model


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


PRODUCT = parsed(
    """net (float[5, 8] x, int64[3] rows) => (float[3, 4] y, float[5, 4] h) {
        h = MatMul(x, w)
        s = Softmax(h)
        y = Gather(s, rows)
    }""",
    w=normal(8, 4),
)
FEEDS = {"x": normal(5, 8), "rows": np.array([3, 0, -1])}

COPIES = parsed(
    """net (float[2, 3] x, float[4] unused)
        => (float[2, 3] same, float[2, 3] y, float[2, 3] again, int64[2] k, int64[2] s) {
        same = Identity(x)
        y = Neg(x)
        again = Identity(y)
        k = Constant<value_ints=[7, 8]>()
        s = Shape(x)
    }"""
)

CONTROL = parsed(
    """net (float[64] x, int64 n, bool c) => (float[64] y, float[5, 64] rows, float[64] z) {
        yes = Constant<value = bool {1}>()
        five = Constant<value = int64 {5}>()
        y, rows = Loop(five, yes, x) <body = step (int64 i, bool go, float[64] a)
            => (bool on, float[64] b, float[64] row) {
            on = Identity(go)
            f = Cast<to = 1>(i)
            half = Constant<value = float {0.5}>()
            c = Mul(a, half)
            b = Add(c, f)
            row = Sin(b)
        }>
        z = If(c) <
            then_branch = t () => (float[64] p) { p = Exp(y) },
            else_branch = e () => (float[64] q) { q = Tanh(y) }
        >
    }"""
)

TYPES = parsed(
    """net (float16[3, 5] a, bool[7] b, int8[4] c, double d, float[0, 2] e, int32[2, 2] f)
        => (float16[3, 5] p, bool[7] q, int8[4] r, double s, float[0, 2] t, int32[2, 2] u) {
        p = Mul(a, a)
        q = Not(b)
        r = Neg(c)
        s = Sqrt(d)
        t = Abs(e)
        u = Add(f, f)
    }"""
)

RECURRENT = parsed(
    """net (float[7, 1, 6] x) => (float[7, 2, 1, 20] y, float[2, 1, 20] h) {
        y, h = LSTM<hidden_size = 20, direction = "bidirectional">(x, w, r)
    }""",
    w=normal(2, 80, 6),
    r=normal(2, 80, 20),
)

MODELS: dict[str, tuple[onnx.ModelProto, dict[str, np.ndarray]]] = {
    "product": (PRODUCT, FEEDS),
    "copies": (COPIES, {"x": normal(2, 3), "unused": normal(4)}),
    "control": (CONTROL, {"x": normal(64), "n": np.array(3), "c": np.array(True)}),
    "recurrent": (RECURRENT, {"x": normal(7, 1, 6)}),
    "types": (
        TYPES,
        {
            "a": normal(3, 5).astype(np.float16), "b": RNG.random(7) > 0.5, "c": np.arange(-2, 2, dtype=np.int8),
            "d": np.array(2.0), "e": np.zeros((0, 2), np.float32), "f": np.arange(4, dtype=np.int32).reshape(2, 2),
        },
    ),
}  # fmt: skip


NETWORK = parsed(
    """net (float[N, 3, H, W] image, float[N, K] more) => (float[N, 4, P, Q] y, int64[4] shape, z, float[K] k) {
        a = Conv<kernel_shape = [3, 3], strides = [2, 2]>(image, w)
        y = Relu(a)
        shape = Shape(a)
        m = GlobalAveragePool(y)
        axes = Constant<value_ints = [2, 3]>()
        s = Squeeze(m, axes)
        z = Concat<axis = 1>(s, more)
        k = ReduceMax<keepdims = 0>(more, first)
    }""",
    w=normal(4, 3, 3, 3),
    first=np.array([0]),
)

REPEATED = parsed(
    """net (float[N] x, int64 count) => (float[N] y, float[5, N] rows) {
        yes = Constant<value = bool {1}>()
        five = Constant<value = int64 {5}>()
        y, rows = Loop(five, yes, x) <body = step (int64 i, bool go, float[N] a)
            => (bool on, float[N] b, float[N] row) {
            on = Identity(go)
            f = Cast<to = 1>(i)
            b = Add(a, f)
            row = Sin(b)
        }>
    }"""
)

JOINED = parsed("net (float[N, 2] a, float[M, 2] b) => (float[N, 2] c, float[M, 2] d) { c = Add(a, b) d = Neg(b) }")


def images(n: int, h: int, w: int, k: int) -> dict[str, np.ndarray]:
    return {"image": normal(n, 3, h, w), "more": normal(n, k)}


OPEN: dict[str, tuple[onnx.ModelProto, list[tuple[list[int], dict[str, np.ndarray]]]]] = {
    "network": (
        NETWORK,
        [
            ([n, h, w, k], images(n, h, w, k))
            for n, h, w, k in [(1, 9, 9, 2), (3, 40, 21, 5), (1, 9, 9, 2), (2, 3, 4, 0)]
        ],
    ),
    "repeated": (REPEATED, [([n], {"x": normal(n), "count": np.array(3)}) for n in (4, 100, 0, 7)]),
    "joined": (JOINED, [([n, m], {"a": normal(n, 2), "b": normal(m, 2)}) for n, m in [(3, 3), (2, 2), (4, 1)]]),
}
"""Models of open sizes; numbers for these, and feeds."""


class Described(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("bytes", ctypes.c_size_t),
    )


class Library:
    """A library as a C program sees it, by the names of its header."""

    def __init__(self, path: Path, prefix: str) -> None:
        loaded = ctypes.CDLL(str(path))
        self.input, self.output, self.create, self.run, self.destroy, self.message = (
            getattr(loaded, f"{prefix}_{name}") for name in ("input", "output", "create", "run", "destroy", "message")
        )
        self.input.restype = self.output.restype = ctypes.POINTER(Described)
        self.message.restype = ctypes.c_char_p
        self.run.argtypes = [ctypes.c_void_p] * 3
        self.destroy.argtypes = [ctypes.c_void_p]
        self.destroy.restype = None
        if hasattr(loaded, f"{prefix}_resize"):
            self.resize, self.input_shape, self.output_shape = (
                getattr(loaded, f"{prefix}_{name}") for name in ("resize", "input_shape", "output_shape")
            )
            self.resize.argtypes = [ctypes.c_void_p] * 2
            self.input_shape.argtypes = self.output_shape.argtypes = [
                ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p,
            ]  # fmt: skip

    def resized(self, instance: Any, sizes: Sequence[int]) -> int:
        return int(self.resize(instance, (ctypes.c_int64 * len(sizes))(*sizes)))

    def shapes(self, instance: Any, count: int, of: str = "output_shape") -> list[tuple[tuple[int, ...], int]]:
        shapes = []
        for number in range(count):
            sizes, bytes_ = (ctypes.c_int64 * 8)(*[-2] * 8), ctypes.c_size_t()
            assert getattr(self, of)(instance, number, sizes, ctypes.byref(bytes_)) == Status.OK
            shapes.append((tuple(size for size in sizes if size != -2), bytes_.value))
        return shapes

    def instance(self, threads: int = 0) -> ctypes.c_void_p:
        instance = ctypes.c_void_p()
        assert self.create(threads, ctypes.byref(instance)) == Status.OK
        return instance

    def call(self, instance: Any, inputs: Sequence[np.ndarray | None], outputs: Sequence[np.ndarray | None]) -> int:
        input_addresses, output_addresses = (
            (ctypes.c_void_p * len(part))(*[None if array is None else array.ctypes.data for array in part])
            for part in (inputs, outputs)
        )
        return int(self.run(instance, input_addresses, output_addresses))


def written(model: onnx.ModelProto, folder: Path, threads: int = 2) -> tuple[Library, sardonyx.Session]:
    session = sardonyx.Session(model, compile="wait", threads=threads)
    # The loader knows a library by its path, so that each has one of its own.
    path = folder / f"lib{next(NUMBERS)}.so"
    session.save_library(path, prefix="net")
    return Library(path, "net"), session


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> tuple[Library, sardonyx.Session]:
    return written(PRODUCT, tmp_path_factory.mktemp("product"))


def tasks() -> set[str]:
    return {path.name for path in Path("/proc/self/task").iterdir()}


def ordered(session: sardonyx.Session, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    return [feeds[info.name] for info in session.get_inputs()]


@pytest.mark.parametrize("name", MODELS)
def test_it_computes_the_same_bits_on_any_number_of_threads(name: str, tmp_path: Path) -> None:
    model, feeds = MODELS[name]
    library, session = written(model, tmp_path)
    expected = session.run(None, feeds)
    for threads in (0, 1, 2):
        instance = library.instance(threads)
        for _ in range(3):
            actual = [np.full_like(array, 1) for array in expected]
            assert library.call(instance, ordered(session, feeds), actual) == Status.OK
            for one, other in zip(actual, expected, strict=True):
                np.testing.assert_array_equal(one, other)
        library.destroy(instance)


@pytest.mark.parametrize("name", OPEN)
def test_open_sizes_are_given_and_change(name: str, tmp_path: Path) -> None:
    model, calls = OPEN[name]
    library, session = written(model, tmp_path)
    instances = [library.instance(threads) for threads in (1, 2)]
    for sizes, feeds in calls:
        expected = session.run(None, feeds)
        for instance in instances:
            assert library.resized(instance, sizes) == Status.OK
            operands = ordered(session, feeds)
            for of, arrays in (("input_shape", operands), ("output_shape", expected)):
                assert library.shapes(instance, len(arrays), of) == [(array.shape, array.nbytes) for array in arrays]
            actual = [np.full_like(array, 1) for array in expected]
            for _ in range(2):
                assert library.call(instance, operands, actual) == Status.OK
            for one, other in zip(actual, expected, strict=True):
                np.testing.assert_array_equal(one, other)
    for instance in instances:
        library.destroy(instance)


def test_sizes_that_do_not_fit_have_a_status_and_do_no_harm(tmp_path: Path) -> None:
    library, session = written(JOINED, tmp_path)
    instance = library.instance(1)
    feeds = {"a": normal(3, 2), "b": normal(3, 2)}
    expected = session.run(None, feeds)
    actual = [np.empty_like(array) for array in expected]
    operands = ordered(session, feeds)
    assert library.call(instance, operands, actual) == Status.BAD_SIZES, "none were given"
    assert library.output_shape(instance, 0, None, None) == Status.BAD_SIZES
    for sizes in ([3, 2], [-1, -1], [1 << 62, 1 << 62]):
        assert library.resized(instance, sizes) == Status.BAD_SIZES
        assert library.call(instance, operands, actual) == Status.BAD_SIZES
    assert library.resize(instance, None) == library.resize(None, None) == Status.BAD_ARGUMENT
    assert library.resized(instance, [3, 3]) == Status.OK
    for number in (-1, 2):
        assert library.output_shape(instance, number, None, None) == Status.BAD_ARGUMENT
    assert library.output_shape(instance, 1, None, None) == Status.OK
    assert library.call(instance, [operands[0], None], actual) == Status.BAD_ARGUMENT
    assert library.call(instance, operands, actual) == Status.OK
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    library.destroy(instance)


def test_a_header_tells_open_sizes(tmp_path: Path) -> None:
    session = sardonyx.Session(NETWORK, compile="wait", threads=2)
    session.save_library(tmp_path / "libnet.so", tmp_path / "net.h")
    text = (tmp_path / "net.h").read_text()
    assert "Open sizes, in order:\n *   0: N\n *   1: H\n *   2: W\n *   3: K\n" in text
    assert "#define NET_SIZES 4" in text
    assert '0: "image", float (float) [N][3][H][W]\n' in text
    description = Library(tmp_path / "libnet.so", "net").input(0).contents
    assert (tuple(description.shape[: description.rank]), description.bytes) == ((-1, 3, -1, -1), 0)
    (tmp_path / "main.c").write_text('#include "net.h"\n')
    subprocess.run(["cc", "-std=c99", "-Wall", "-Werror", "-pedantic", "-c", "main.c"], check=True, cwd=tmp_path)


@pytest.mark.parametrize("name", MODELS)
def test_it_describes_its_tensors(name: str, tmp_path: Path) -> None:
    model, feeds = MODELS[name]
    library, session = written(model, tmp_path)
    outputs = {value.name: array for value, array in zip(model.graph.output, session.run(None, feeds), strict=True)}
    for describe, values, arrays in (
        (library.input, model.graph.input, feeds),
        (library.output, model.graph.output, outputs),
    ):
        for number, value in enumerate(values):
            description = describe(number).contents
            array = arrays[value.name]
            assert (description.name.decode(), description.type) == (value.name, value.type.tensor_type.elem_type)
            assert tuple(description.shape[: description.rank]) == array.shape
            assert description.bytes == array.nbytes
        assert not describe(len(values)) and not describe(-1)


def test_wrong_calls_have_a_status_and_do_no_harm(product: tuple[Library, sardonyx.Session]) -> None:
    library, session = product
    expected = session.run(None, FEEDS)
    actual = [np.empty_like(array) for array in expected]
    inputs = ordered(session, FEEDS)
    instance = library.instance()
    assert library.call(instance, [inputs[0], np.array([7, 0, 0])], actual) == Status.NO_RESULT
    assert library.call(instance, [None, inputs[1]], actual) == Status.BAD_ARGUMENT
    assert library.call(instance, inputs, [actual[0], None]) == Status.BAD_ARGUMENT
    assert library.call(None, inputs, actual) == Status.BAD_ARGUMENT
    assert library.run(instance, None, None) == Status.BAD_ARGUMENT
    assert library.call(instance, inputs, actual) == Status.OK
    np.testing.assert_array_equal(actual[0], expected[0])
    library.destroy(instance)
    library.destroy(None)
    other = ctypes.c_void_p(1)
    assert library.create(3, ctypes.byref(other)) == Status.BAD_ARGUMENT and not other.value
    assert library.create(-1, ctypes.byref(other)) == Status.BAD_ARGUMENT
    assert library.create(1, None) == Status.BAD_ARGUMENT
    messages = [library.message(status) for status in Status]
    assert len(set(messages)) == len(Status) and all(messages)


def test_an_instance_is_one_callers_at_a_time(product: tuple[Library, sardonyx.Session]) -> None:
    library, session = product
    actual = [np.empty_like(array) for array in session.run(None, FEEDS)]
    instance = library.instance()
    busy = ctypes.c_int32.from_address(instance.value or 0)
    busy.value = 1
    assert library.call(instance, ordered(session, FEEDS), actual) == Status.BUSY
    busy.value = 0
    assert library.call(instance, ordered(session, FEEDS), actual) == Status.OK
    library.destroy(instance)


def test_instances_run_at_once(product: tuple[Library, sardonyx.Session]) -> None:
    library, session = product
    wrong: list[int] = []

    def work(seed: int) -> None:
        feeds = {**FEEDS, "x": np.random.default_rng(seed).standard_normal((5, 8)).astype(np.float32)}
        expected = session.run(None, feeds)
        for _ in range(10):
            instance = library.instance(2)
            actual = [np.empty_like(array) for array in expected]
            for _ in range(50):
                status = library.call(instance, ordered(session, feeds), actual)
                if status or any((a != b).any() for a, b in zip(actual, expected, strict=True)):
                    wrong.append(seed)
            library.destroy(instance)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


def test_threads_end_with_their_instance(product: tuple[Library, sardonyx.Session]) -> None:
    library, _ = product
    before = tasks()
    instance = library.instance(2)
    (started,) = tasks() - before
    library.destroy(instance)
    # Whoever joins a thread may be told before the system has taken it off the list.
    deadline = time.monotonic() + 300
    while started in tasks():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_lesser_processor_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if host().architecture != "x86_64":
        pytest.skip("only x86-64 has levels")
    reserved = {(1, 2): 1 << 16}
    for wanting in (cpu_check.Needs(reserved, 0), cpu_check.Needs({(1, 2): 1 << 27}, 1 << 30)):
        monkeypatch.setattr(instance_code, "needs", lambda target, wanting=wanting: wanting)
        library, _ = written(PRODUCT, tmp_path)
        assert library.create(1, ctypes.byref(ctypes.c_void_p())) == Status.WRONG_PROCESSOR


@pytest.mark.parametrize("name", [name for name in NAMED if NAMED[name].architecture == "x86_64"])
def test_what_every_target_needs_is_known(name: str) -> None:
    needs = cpu_check.needs(NAMED[name])
    assert bool(needs.saved) == ("+avx" in NAMED[name].features)
    assert needs.bits[1, 2] >> 20 & 1, "sse4.2"


MAIN = """
#include <stdio.h>
#include "one.h"
#include "other.h"
int main(void) {
  one_instance *a;
  other_instance *b;
  float x[40] = {1, 2, 3}, y[12], h[20], z[6], p[6], q[6];
  int64_t rows[3] = {0, 0, 0}, k[2], s[2];
  const void *in[] = {x, rows}, *into[] = {x, x};
  void *out[] = {y, h}, *outof[] = {z, p, q, k, s};
  if (one_create(1, &a) || other_create(0, &b)) return 1;
  if (one_run(a, in, out) != ONE_OK || other_run(b, into, outof) != OTHER_OK) return 2;
  printf("%.9g %.9g %lld", h[0], p[2], (long long)k[1]);
  one_destroy(a);
  other_destroy(b);
  return ONE_INPUTS == 2 && OTHER_OUTPUTS == 5 ? 0 : 3;
}
"""


@pytest.mark.parametrize("language", ["c", "c++"])
def test_two_libraries_in_a_strict_program(language: str, tmp_path: Path) -> None:
    compiler = {"c": ["cc", "-std=c99"], "c++": ["c++", "-std=c++11"]}[language]
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"there is no {compiler[0]}")
    for name, model in (("one", PRODUCT), ("other", COPIES)):
        session = sardonyx.Session(model, compile="wait", threads=2)
        session.save_library(tmp_path / f"lib{name}.so", tmp_path / f"{name}.h")
    source = tmp_path / f"main.{'c' if language == 'c' else 'cpp'}"
    source.write_text(MAIN)
    strict = ["-Wall", "-Wextra", "-Werror", "-pedantic"]
    command = [*compiler, *strict, source.name, "-L.", "-lone", "-lother", "-Wl,-rpath,$ORIGIN", "-o", "main"]
    subprocess.run(command, check=True, cwd=tmp_path)
    ended = subprocess.run([tmp_path / "main"], check=True, capture_output=True, text=True, env={})
    x = np.array([1, 2, 3, 0, 0, 0, 0, 0], np.float32)
    (weights,) = (onnx.numpy_helper.to_array(initializer) for initializer in PRODUCT.graph.initializer)
    first, third, number = ended.stdout.split()
    np.testing.assert_allclose(float(first), (x @ weights)[0], rtol=1e-5)
    assert (float(third), int(number)) == (-3, 8)


def test_it_exports_its_six_functions_and_needs_the_c_library_alone(tmp_path: Path) -> None:
    if shutil.which("readelf") is None:
        pytest.skip("there is no readelf")
    sardonyx.Session(PRODUCT, compile="wait", threads=2).save_library(tmp_path / "libnet.so")
    read = ["readelf", "-W", "--dyn-syms", "-d", tmp_path / "libnet.so"]
    lines = subprocess.run(read, check=True, capture_output=True, text=True).stdout.splitlines()
    symbols = [line.split() for line in lines if " FUNC " in line or " OBJECT " in line]
    own = {symbol[7] for symbol in symbols if symbol[6] != "UND"}
    assert own == {f"net_{name}" for name in ("input", "output", "create", "run", "destroy", "message")}
    needed = [line.split("[")[1].rstrip("]") for line in lines if "(NEEDED)" in line]
    assert all(name.startswith(("libc.", "libm.", "libpthread.")) for name in needed)
    assert [path.name for path in tmp_path.iterdir()] == ["libnet.so"]


# What cannot be written.


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    assert list(tmp_path.iterdir()) == []


def refused(graph: str, folder: Path, **weights: np.ndarray) -> str:
    with pytest.raises(UnsupportedError) as raised:
        sardonyx.Session(parsed(graph, **weights), compile="wait").save_library(folder / "net.so", folder / "net.h")
    return str(raised.value)


def test_steps_of_the_interpreter_are_all_named(empty: Path) -> None:
    message = refused(
        """net (float[4] x) => (float[4] y, float[4] z) {
            a = RandomNormalLike(x)
            y = Add(a, x)
            b = RandomUniformLike(x)
            z = Mul(b, x)
        }""",
        empty,
    )
    assert "not compiled as a whole" in message
    assert message.count("is left to the interpreter") >= 2


def test_other_things_than_numbers_are_refused(empty: Path) -> None:
    assert "expected a tensor of numbers" in refused("net (string[2] x) => (string[2] y) { y = Identity(x) }", empty)


def test_wrong_names_places_and_linkers(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = sardonyx.Session(PRODUCT, compile="wait", threads=1)
    for prefix in ("", "1net", "a-b", "a b", "é"):
        with pytest.raises(OptionError, match="expected a C identifier"):
            session.save_library(empty / "net.so", prefix=prefix)
    with pytest.raises(ModelFileError, match="cannot be written"):
        session.save_library(empty / "none" / "net.so")
    with pytest.raises(ModelFileError, match="cannot be written"):
        session.save_library(empty / "net.so", empty / "none" / "net.h")
    monkeypatch.setenv("CC", "no-such-compiler -m64")
    with pytest.raises(MissingDependencyError, match="linker `no-such-compiler -m64` was not found"):
        session.save_library(empty / "net.so")
    monkeypatch.setenv("CC", "cc -no-such-option")
    with pytest.raises(LinkError, match="no-such-option"):
        session.save_library(empty / "net.so")


def test_names_that_c_does_not_take_are_spelt(tmp_path: Path) -> None:
    strange = 'x*/ \\ é "\n'
    model = parsed("net (float[2] x) => (float[2] y) { y = Neg(x) }")
    model.graph.input[0].name = model.graph.node[0].input[0] = strange
    session = sardonyx.Session(model, compile="wait", threads=1)
    session.save_library(tmp_path / "lib7-net.v2.so", tmp_path / "net.h")
    text = (tmp_path / "net.h").read_text()
    assert "m7_net_status m7_net_create(" in text
    assert Library(tmp_path / "lib7-net.v2.so", "m7_net").input(0).contents.name.decode() == strange
    (tmp_path / "main.c").write_text('#include "net.h"\n')
    subprocess.run(["cc", "-std=c99", "-Wall", "-Werror", "-pedantic", "-c", "main.c"], check=True, cwd=tmp_path)
