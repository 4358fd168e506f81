"""What sessions are fed and give: arrays of every layout, DLPack in and out, arrays for outputs, lists, dicts, None."""

from __future__ import annotations

import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from sardonyx import Session, Value
from sardonyx.base.dlpack import from_capsule
from sardonyx.errors import FeedError

X = np.arange(24, dtype=np.float32).reshape(4, 6)
WAYS = pytest.mark.parametrize("compile", ["off", "wait"])


def session(graph: str, compile: str, opset: int = 21) -> Session:
    text = f'<ir_version: 10, opset_import: ["": {opset}, "ai.onnx.ml": 3]> {graph}'
    return Session(onnx.parser.parse_model(text), compile=compile)  # type: ignore[arg-type]


def doubling(compile: str, element: str = "float") -> Session:
    return session(f"g ({element}[N, M] x) => ({element}[N, M] y) {{ y = Add(x, x) }}", compile)


def read_only(array: np.ndarray) -> np.ndarray:
    created = array.copy()
    created.flags.writeable = False
    return created


def unaligned(array: np.ndarray) -> np.ndarray:
    created = np.zeros(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
    created[...] = array
    return created


class Exporter:
    """Somebody who speaks DLPack, and nothing else of numpy's."""

    def __init__(self, array: np.ndarray, device: int = 1) -> None:
        self._value, self._device = Value(array), device

    def __dlpack__(self, **options: Any) -> Any:
        return self._value.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device, 0


class OldExporter(Exporter):
    """One of before DLPack had versions."""

    def __dlpack__(self, stream: Any = None) -> Any:  # type: ignore[override]
        return self._value.__dlpack__()


FEEDS = {
    "transposed": X.T, "every second": np.repeat(np.repeat(X, 2, 0), 2, 1)[::2, ::2], "backward": X[::-1, ::-1],
    "columns first": np.asfortranarray(X), "repeated": np.broadcast_to(X[0], (4, 6)), "read-only": read_only(X),
    "other byte order": X.astype(">f4"), "unaligned": unaligned(X), "empty": X[:0], "one row": X[1:2],
    "value": Value(X), "value of another's": Value(Exporter(X)), "exporter": Exporter(X),
    "exporter without versions": OldExporter(X),
}  # fmt: skip


@WAYS
def test_arrays_of_every_layout_are_fed(compile: str) -> None:
    created = doubling(compile)
    for _ in range(3):
        for name, fed in FEEDS.items():
            arguments = X if isinstance(fed, Exporter) else np.asarray(fed).copy()
            (actual,) = created.run(None, {"x": fed})
            np.testing.assert_array_equal(actual, 2 * arguments.astype(np.float32), err_msg=name)
            actual[...] = 0  # It is the caller's own.
            np.testing.assert_array_equal(arguments, X if isinstance(fed, Exporter) else np.asarray(fed))


@WAYS
def test_arrays_are_read_where_they_lie(compile: str) -> None:
    created = session("g (float[N] x) => (float y) { y = ReduceMax <keepdims = 0> (x) }", compile)
    large = np.zeros(4_000_000, np.float32)
    for fed in (large, read_only(large), Exporter(large), Value(large)):
        created.run(None, {"x": fed})
        tracemalloc.start()
        try:
            created.run(None, {"x": fed})
            used = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert used < large.nbytes / 10


@WAYS
@pytest.mark.parametrize(
    ("element", "dtype"),
    [
        ("bfloat16", ml_dtypes.bfloat16), ("float16", np.float16), ("double", np.float64), ("int64", np.int64),
        ("uint8", np.uint8), ("bool", np.bool_), ("float8e4m3fn", ml_dtypes.float8_e4m3fn),
        ("float8e5m2", ml_dtypes.float8_e5m2),
    ],
)  # fmt: skip
def test_every_element_type_goes_in_and_out_by_dlpack(compile: str, element: str, dtype: Any) -> None:
    created = session(f"g ({element}[N, M] x) => ({element}[M, N] y) {{ y = Transpose(x) }}", compile)
    arguments = (X % 2).astype(dtype)
    for _ in range(3):
        (actual,) = created.run(None, {"x": Exporter(arguments)})
        assert actual.dtype == dtype
        back = Value(Exporter(actual))
        assert (back.shape, back.dtype) == ((6, 4), np.dtype(dtype))
        assert back.numpy().ctypes.data == actual.ctypes.data
        np.testing.assert_array_equal(np.asarray(back).astype(np.float32), arguments.T.astype(np.float32))


def test_torch_takes_and_gives_bfloat16() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")
    created = doubling("wait", "bfloat16")
    x = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    for arguments in (x, x.t(), x[:, ::2]):
        (actual,) = created.run(None, {"x": arguments})
        back = torch.from_dlpack(Value(actual))
        assert back.dtype == torch.bfloat16 and torch.equal(back, arguments + arguments)
    into = torch.zeros(2, 3, dtype=torch.bfloat16)
    binding = created.bind({"x": x}, {"y": into})
    x += 1
    binding()
    assert torch.equal(into, x + x)
    with pytest.raises(FeedError, match=r"^x: .*requires? grad"):
        created.run(None, {"x": x.float().requires_grad_()})


def test_what_cannot_be_read_says_why() -> None:
    created = doubling("off")
    with pytest.raises(FeedError, match=r"^x: the Exporter cannot be read: expected a tensor in host memory"):
        created.run(None, {"x": Exporter(X, device=2)})
    with pytest.raises(FeedError, match=r"^x: expected .* type float, got double\. Convert the array to float32\."):
        created.run(None, {"x": Exporter(X.astype(np.float64))})
    with pytest.raises(FeedError, match=r"^data: expected an array, got list"):
        Value([1.0])
    value = Value(X)
    capsule = value.__dlpack__()
    np.testing.assert_array_equal(from_capsule(capsule), X)
    with pytest.raises(BufferError, match="unconsumed DLPack capsule"):
        from_capsule(capsule)


# Arrays for outputs.


@WAYS
def test_outputs_go_where_they_are_bound_to(compile: str) -> None:
    created = session(
        "g (float[N, M] x) => (float[N, M] y, float[N] s) <int64[1] axis = {1}>"
        " { y = Add(x, x) s = ReduceSum <keepdims = 0> (y, axis) }",
        compile,
    )
    x, y = X.copy(), np.zeros_like(X)
    binding = created.bind({"x": Exporter(x)}, {"y": Exporter(y)})
    for number in range(3):
        x[...] = number
        binding()
        np.testing.assert_array_equal(y, 2 * x)
        np.testing.assert_array_equal(binding.outputs["s"], 2 * x.sum(1))
    # Adjacent parts of one array do not overlap.
    both = np.zeros((8, 6), np.float32)
    both[:4] = X
    created.bind({"x": both[:4]}, {"y": both[4:]})()
    np.testing.assert_array_equal(both, np.concatenate([X, 2 * X]))


OVERLAPPING = np.zeros((6, 6), np.float32)

WRONG_OUTPUTS = {
    "another type": (X, np.zeros((4, 6)), r"expected an array float32\[4, 6\] .* got float64\[4, 6\]"),
    "another shape": (X, np.zeros((4, 5), np.float32), r"expected an array float32\[4, 6\] .* got float32\[4, 5\]"),
    "not contiguous": (X, np.zeros((6, 4), np.float32).T, "contiguous"),
    "not aligned": (X, unaligned(X), "contiguous"),
    "other byte order": (X, X.astype(">f4"), "native byte order"),
    "read-only": (X, read_only(X), "writable"),
    "a list": (X, X.tolist(), "expected an array, got list"),
    "the input itself": (OVERLAPPING, OVERLAPPING, "shares memory with the array of 'x'"),
    "a part of the input": (OVERLAPPING[:4], OVERLAPPING[2:], "shares memory with the array of 'x'"),
    "on a device": (X, Exporter(X, device=2), "a device of kind 2"),
}


@WAYS
@pytest.mark.parametrize("case", WRONG_OUTPUTS)
def test_arrays_that_outputs_cannot_go_into_are_refused(compile: str, case: str) -> None:
    x, y, message = WRONG_OUTPUTS[case]
    created = doubling(compile)
    with pytest.raises(FeedError, match=f"^y: .*{message}"):
        created.bind({"x": x}, {"y": y})
    with pytest.raises(FeedError, match=r"^z: the model has no such output\. It has: y"):
        created.bind({"x": X}, {"z": np.zeros_like(X)})
    np.testing.assert_array_equal(created.run(None, {"x": X})[0], 2 * X)


@WAYS
def test_one_array_is_not_for_two_outputs(compile: str) -> None:
    created = session("g (float[N] x) => (float[N] y, float[N] z) { y = Neg(x) z = Abs(x) }", compile)
    both = np.zeros(3, np.float32)
    with pytest.raises(FeedError, match=r"^z: .*shares memory with the array of 'y'"):
        created.bind({"x": X[0, :3]}, {"y": both, "z": both})


@WAYS
def test_inputs_that_would_be_read_wrongly_are_not_bound(compile: str) -> None:
    created = doubling(compile)
    for wrong in (X.T, X.astype(">f4"), unaligned(X)):
        with pytest.raises(FeedError, match=r"^x: expected a contiguous, aligned array"):
            created.bind({"x": wrong})


# What is no tensor of numbers.


@WAYS
def test_texts(compile: str) -> None:
    created = session("g (string[N] a, string[N] b) => (string[N] y) { y = StringConcat(a, b) }", compile)
    a = np.array(["h", "wö"], object)
    for b in (np.array(["i", "rld"]), np.array(["i", "rld"], object), np.array([b"i", b"rld"])):
        (actual,) = created.run(None, {"a": a, "b": b})
        assert actual.dtype == object and actual.tolist() == ["hi", "wörld"]
    with pytest.raises(FeedError, match=r"^b: .*got elements of type int"):
        created.run(None, {"a": a, "b": np.array([1, 2], object)})


@WAYS
def test_sequences(compile: str) -> None:
    created = session("g (seq(float[N]) s, float[M] x) => (seq(float[K]) y) { y = SequenceInsert(s, x) }", compile)
    for first in (X[0], Exporter(X[0]), X.T[:, 0]):
        (actual,) = created.run(None, {"s": [first, np.zeros(0, np.float32)], "x": X[1]})
        assert isinstance(actual, list)
        assert [item.tolist() for item in actual] == [X[0].tolist(), [], X[1].tolist()]
    assert [item.tolist() for item in created.run(None, {"s": [], "x": X[2]})[0]] == [X[2].tolist()]
    with pytest.raises(FeedError, match=r"^s: expected a list"):
        created.run(None, {"s": X, "x": X[0]})
    with pytest.raises(FeedError, match=r"^s: expected elements of type float, got double"):
        created.run(None, {"s": [X[0].astype(np.float64)], "x": X[0]})


@WAYS
def test_optionals(compile: str) -> None:
    created = session(
        "g (optional(float[N]) x) => (bool there, optional(float[N]) y)"
        " { there = OptionalHasElement(x) y = Identity(x) }",
        compile,
    )
    for fed in (X[0], Exporter(X[0])):
        there, actual = created.run(None, {"x": fed})
        assert bool(there)
        np.testing.assert_array_equal(actual, X[0])
    there, actual = created.run(None, {"x": None})
    assert not there and actual is None
    with pytest.raises(FeedError, match=r"^x: expected elements of type float, got double"):
        created.run(None, {"x": X[0].astype(np.float64)})


@WAYS
def test_maps(compile: str) -> None:
    used = session(
        "g (map(int64, float) m) => (float[1, N] y)"
        ' { y = ai.onnx.ml.CastMap <cast_to = "TO_FLOAT", map_form = "SPARSE", max_map = 4> (m) }',
        compile,
    )
    np.testing.assert_array_equal(used.run(None, {"m": {1: 2.5, 3: np.float32(7)}})[0], [[0, 2.5, 0, 7]])
    with pytest.raises(FeedError, match=r"^m: expected a dict"):
        used.run(None, {"m": [1, 2]})
    arguments = session(
        "g (float[N, 2] x) => (seq(map(string, float)) y)"
        ' { y = ai.onnx.ml.ZipMap <classlabels_strings = ["a", "b"]> (x) }',
        compile,
    )
    (actual,) = arguments.run(None, {"x": X[:2, :2]})
    assert actual == [{"a": 0.0, "b": 1.0}, {"a": 6.0, "b": 7.0}]
