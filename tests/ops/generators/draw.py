"""Random choices for cases: shapes, arrays and axes, all from one seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
import onnx
from onnx import helper

T = TypeVar("T")
Array = np.ndarray

FLOATS: tuple[Any, ...] = (np.float32, np.float64)
HALVES: tuple[Any, ...] = (np.float16, ml_dtypes.bfloat16)
INTS: tuple[Any, ...] = (np.int32, np.int64)
SMALL: tuple[Any, ...] = (np.int8, np.uint8, np.int16, np.uint16)
UNSIGNED: tuple[Any, ...] = (np.uint8, np.uint16, np.uint32, np.uint64)


@dataclass(frozen=True)
class Case:
    """A model of one node, and its feeds.

    Attributes:
        name: The operator.
        opset: The version of the domain.
        inputs: Arrays, lists of arrays for sequences, None for an omitted input.
        attributes: The attributes of the node.
        outputs: Number of requested results.
        domain: The domain of the operator.
    """

    name: str
    opset: int
    inputs: Sequence[Any]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    domain: str = ""

    def model(self) -> onnx.ModelProto:
        """Return the model; no input or output declares its sizes."""
        indices = [i for i, x in enumerate(self.inputs) if x is not None]
        present = self.inputs[: max(indices, default=-1) + 1]
        names = ["" if x is None else f"x{i}" for i, x in enumerate(present)]
        results = [f"y{i}" for i in range(self.outputs)]
        node = helper.make_node(self.name, names, results, domain=self.domain, **self.attributes)
        inputs = [_value_info(name, x) for name, x in zip(names, present, strict=True) if x is not None]
        graph = helper.make_graph([node], "one", inputs, [onnx.ValueInfoProto(name=name) for name in results])
        imports = [helper.make_opsetid(self.domain, self.opset)] + [helper.make_opsetid("", 22)] * bool(self.domain)
        return helper.make_model(graph, opset_imports=imports, ir_version=10)

    def feeds(self) -> dict[str, Any]:
        """Return the inputs by name."""
        return {f"x{i}": x for i, x in enumerate(self.inputs) if x is not None}

    def __str__(self) -> str:
        inputs = " ".join(map(_text, self.inputs))
        attributes = {k: "graph" if isinstance(v, onnx.GraphProto) else v for k, v in self.attributes.items()}
        return f"{self.name} {self.opset} {attributes} {inputs}"


def _value_info(name: str, x: Any) -> onnx.ValueInfoProto:
    if isinstance(x, list):
        element = helper.np_dtype_to_tensor_dtype(x[0].dtype)
        return helper.make_tensor_sequence_value_info(name, element, None)
    if x.dtype == object:
        return helper.make_tensor_value_info(name, onnx.TensorProto.STRING, [None] * x.ndim)
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), [None] * x.ndim)


def _text(x: Any) -> str:
    if x is None:
        return "-"
    if isinstance(x, list):
        return f"[{', '.join(map(_text, x))}]"
    return f"{x.dtype}{list(x.shape)}" + (f"={x.tolist()}" if x.size < 9 else "")


class Draw:
    """Random choices from a seed string."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self.numbers = np.random.default_rng(self.random.getrandbits(64))

    def pick(self, *options: T) -> T:
        """Return one of the options."""
        return self.random.choice(options)

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.random.random() < probability

    def integer(self, low: int, high: int) -> int:
        """Return an integer from low to high, both included."""
        return self.random.randint(low, high)

    def maybe(self, make: Callable[[], T], probability: float = 0.5) -> T | None:
        """Return a made value, or None."""
        return make() if self.chance(probability) else None

    def options(self, **values: Any) -> dict[str, Any]:
        """Return some of these attributes."""
        return {name: value for name, value in values.items() if self.chance(0.7)}

    def shape(self, low: int = 0, high: int = 6, most: int = 3, zero: bool = True) -> tuple[int, ...]:
        """Return sizes of ``low`` to ``high`` axes, one in ten of them 0."""
        return tuple(
            0 if zero and self.chance(0.1 / (1 + rank)) else self.integer(1, most)
            for rank in range(self.integer(low, high))
        )

    def partner(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return sizes that broadcast to these."""
        sizes = [1 if self.chance(0.25) else size for size in shape]
        return tuple(sizes[self.integer(0, len(sizes)) :]) if self.chance(0.5) else tuple(sizes)

    def array(
        self, shape: Sequence[int], dtype: Any = np.float32, low: int | None = None, high: int | None = None,
        special: bool = True,
    ) -> Array:  # fmt: skip
        """Return integers from ``low`` to ``high`` or floats around 0, occasionally with NaN, infinities and -0."""
        kind = np.dtype(dtype)
        if kind.kind == "b":
            return self.numbers.integers(0, 2, shape).astype(np.bool_)
        if kind.kind == "O":
            words = self.numbers.choice(["", "a", "b b", "é", "Straße", "one two  three"], shape)
            return np.asarray(words, object)
        if kind.kind in "iu":
            least = (-9 if kind.kind == "i" else 0) if low is None else low
            return self.numbers.integers(least, 10 if high is None else high + 1, shape).astype(kind)
        x = np.array(self.numbers.standard_normal(shape) * 3).astype(kind)
        if special and x.size and self.chance(0.2):
            x.flat[self.integer(0, x.size - 1)] = self.pick(np.nan, np.inf, -np.inf, 0.0, -0.0)
        return x

    def positive(self, shape: Sequence[int], dtype: Any = np.float32) -> Array:
        """Return floats from 0.5 to 2."""
        return np.asarray(self.numbers.uniform(0.5, 2.0, shape)).astype(dtype)

    def axis(self, rank: int) -> int:
        """Return an axis, which may count from the end."""
        return self.integer(-rank, rank - 1)

    def axes(self, rank: int, count: int | None = None) -> list[int]:
        """Return distinct axes, each counted from the front or from the end."""
        chosen = self.random.sample(range(rank), self.integer(0, rank) if count is None else count)
        return [axis - rank * self.integer(0, 1) for axis in chosen]


def ints(*values: int) -> Array:
    """Return an int64 vector."""
    return np.array(values, np.int64)


def scalar(value: float, dtype: Any = np.int64) -> Array:
    """Return a tensor of rank 0."""
    return np.array(value, dtype)
