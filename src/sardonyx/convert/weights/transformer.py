"""Parts of transformers as ONNX nodes over a checkpoint's weights: products, norms, activations, rotations."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.convert.graph_builder import GraphBuilder, Names
from sardonyx.convert.weights.architecture import Architecture
from sardonyx.convert.weights.blocks import Blocks
from sardonyx.convert.weights.checkpoint import Checkpoint
from sardonyx.convert.weights.rotary import Rotary
from sardonyx.errors import ModelFileError, UnsupportedError

OPSET = 21
FLOAT = ir.DataType.FLOAT
INT64 = ir.DataType.INT64
HIDDEN_SCORE = float(np.finfo(np.float32).min)
"""Score of positions that are not attended to, as transformers has it."""

Rotation = tuple[ir.Value, ir.Value]
"""Cosines and sines, [batch, 1, sequence, pairs]."""


class TransformerBuilder(GraphBuilder):
    """A transformer under construction.

    Args:
        architecture: Sizes and variants.
        checkpoint: Weights by name.
    """

    def __init__(self, architecture: Architecture, checkpoint: Checkpoint) -> None:
        super().__init__(Names())
        self.a = architecture
        self.family = architecture.family
        self.checkpoint = checkpoint
        self.inputs: list[ir.Value] = []
        self.outputs: list[ir.Value] = []
        self._weights: dict[str, ir.Value] = {}
        self._biases: dict[str, tuple[str, bool]] = {}

    def finished(self) -> ir.Model:
        """Return the model of all nodes so far."""
        graph = ir.Graph(
            self.inputs,
            self.outputs,
            nodes=self.nodes,
            initializers=list(self.initializers.values()),
            opset_imports={"": OPSET},
            name=self.a.name,
        )
        return ir.Model(graph, ir_version=10, producer_name="sardonyx")

    def input(self, name: str, dtype: ir.DataType, *sizes: int | str) -> ir.Value:
        """Add an input."""
        value = ir.Value(name=self.names.fresh(name), type=ir.TensorType(dtype), shape=ir.Shape(sizes))
        self.inputs.append(value)
        return value

    def output(self, name: str, value: ir.Value, *sizes: int | str) -> None:
        """Add an output in float32."""
        result = self.node("Identity", value)
        result.name, result.type, result.shape = name, ir.TensorType(FLOAT), ir.Shape(sizes)
        self.outputs.append(result)

    def ints(self, *numbers: int) -> ir.Value:
        """Return an int64 vector."""
        return self.constant(list(numbers), np.int64)

    def integer(self, number: int) -> ir.Value:
        """Return an int64 scalar."""
        return self.constant(number, np.int64)

    def number(self, value: float) -> ir.Value:
        """Return a float32 scalar."""
        return self.constant(value, np.float32)

    def scaled(self, x: ir.Value, factor: float) -> ir.Value:
        """Return x * factor."""
        return x if factor == 1.0 else self.node("Mul", x, self.number(factor))

    def size_of(self, x: ir.Value, axis: int) -> ir.Value:
        """Return one size as a scalar."""
        return self.node("Squeeze", self.node("Shape", x, start=axis, end=axis + 1), self.ints(0))

    def sizes_of(self, x: ir.Value, start: int, end: int) -> ir.Value:
        """Return sizes as a vector."""
        return self.node("Shape", x, start=start, end=end)

    # Weights

    def tensor(self, name: str, *sizes: int) -> Any:
        """Return a weight as an array or blocks; raises ``ModelFileError`` for other sizes."""
        tensor = self.checkpoint.tensor(name)
        if tuple(tensor.shape) != sizes:
            raise ModelFileError(
                f"tensor '{name}' has sizes {list(tensor.shape)}, the configuration expects {list(sizes)}",
                where=self.checkpoint.where,
            )
        return tensor

    def weight(self, name: str, *sizes: int) -> ir.Value:
        """Return a weight in float32: as stored, converted, or dequantized from its blocks."""
        if name not in self._weights:
            self._weights[name] = self.stored(self.tensor(name, *sizes), name)
        return self._weights[name]

    def stored(self, tensor: Any, name: str) -> ir.Value:
        """Return an array or blocks in float32."""
        if isinstance(tensor, Blocks):
            return self._dequantized(tensor, name)
        value = self.initializer(ir.tensor(tensor), name)
        return value if tensor.dtype == np.float32 else self.node("Cast", value, to=FLOAT)

    def _dequantized(self, blocks: Blocks, name: str) -> ir.Value:
        integers = self.initializer(ir.tensor(blocks.integers), name)
        scales = self.initializer(ir.tensor(blocks.scales), f"{name}.scales")
        axis = blocks.integers.ndim - 1
        result = self.node("DequantizeLinear", integers, scales, axis=axis, block_size=blocks.size)
        if blocks.offsets is None:
            return result
        shape = blocks.shape
        offsets = self.initializer(ir.tensor(blocks.offsets[..., None]), f"{name}.offsets")
        rows = self.node("Reshape", result, self.ints(*blocks.offsets.shape, blocks.size))
        return self.node("Reshape", self.node("Sub", rows, offsets), self.ints(*shape))

    def bias(self, name: str, size: int) -> ir.Value | None:
        """Return a bias, or None if no layer has one.

        Raises:
            ModelFileError: Some layers have the bias and others do not.
        """
        name = f"{name}.bias"
        kind, is_present = re.sub(r"\.\d+\.", ".N.", name), self.checkpoint.has(name)
        first, expected = self._biases.setdefault(kind, (name, is_present))
        if is_present != expected:
            missing, present = (first, name) if is_present else (name, first)
            problem = f"tensor '{missing}' is missing, and the file has '{present}'"
            raise ModelFileError(problem, where=self.checkpoint.where)
        return self.weight(name, size) if is_present else None

    def linear(self, x: ir.Value, name: str, inner: int, outer: int, *, is_transposed: bool = False) -> ir.Value:
        """Return x @ transpose(weight) + bias, if there is one; `is_transposed` for weights [in, out]."""
        w = self.weight(f"{name}.weight", *((inner, outer) if is_transposed else (outer, inner)))
        return self.product(x, w, self.bias(name, outer), is_transposed=is_transposed)

    def product(
        self, x: ir.Value, w: ir.Value, bias: ir.Value | None = None, *, is_transposed: bool = False
    ) -> ir.Value:
        """Return x @ transpose(w) + bias."""
        result = self.node("MatMul", x, w if is_transposed else self.node("Transpose", w, perm=[1, 0]))
        return result if bias is None else self.node("Add", result, bias)

    # Norms and activations

    def norm(self, x: ir.Value, name: str, size: int, epsilon: float | None = None) -> ir.Value:
        """Return the norm over the last axis; x without a name."""
        kind = self.family.norm
        if not name:
            return x
        if kind == "layer without weights":
            return self.normalized(x, size, is_centred=True)
        w = self.weight(f"{name}.weight", size)
        if kind.endswith("+ 1"):
            w = self.node("Add", w, self.number(1.0))
        if kind.startswith("layer"):
            b = self.bias(name, size)
            return self.node("LayerNormalization", x, w, b, axis=-1, epsilon=self.a.epsilon)
        return self.node("Mul", self.normalized(x, size, is_centred=False, epsilon=epsilon), w)

    def normalized(self, x: ir.Value, size: int, *, is_centred: bool, epsilon: float | None = None) -> ir.Value:
        """Return x over its root mean square; `is_centred` for x less its mean."""
        if is_centred:
            ones = self.constant(np.ones(size), np.float32)
            return self.node("LayerNormalization", x, ones, axis=-1, epsilon=self.a.epsilon)
        square = self.node("ReduceMean", self.node("Mul", x, x), self.ints(-1), keepdims=1)
        root = self.node("Sqrt", self.node("Add", square, self.number(epsilon or self.a.epsilon)))
        return self.node("Div", x, root)

    def activated(self, x: ir.Value) -> ir.Value:
        """Return the activation of the architecture."""
        match self.a.activation:
            case "silu" | "swish":
                return self.node("Mul", x, self.node("Sigmoid", x))
            case "gelu" | "gelu_python":
                return self.node("Gelu", x)
            case "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast":
                return self.node("Gelu", x, approximate="tanh")
            case "quick_gelu":
                return self.node("Mul", x, self.node("Sigmoid", self.scaled(x, 1.702)))
            case "relu":
                return self.node("Relu", x)
            case "relu2":
                positive = self.node("Relu", x)
                return self.node("Mul", positive, positive)
            case "relu6":
                return self.node("Clip", x, self.number(0.0), self.number(6.0))
            case "tanh":
                return self.node("Tanh", x)
        raise UnsupportedError(f"activation '{self.a.activation}'", where=self.a.name)

    def limited(self, x: ir.Value, limit: float) -> ir.Value:
        """Return limit * tanh(x / limit), or x if the limit is 0."""
        if not limit:
            return x
        return self.node("Mul", self.node("Tanh", self.node("Div", x, self.number(limit))), self.number(limit))

    # Rotary embeddings

    def rotations(self, positions: ir.Value) -> list[Rotation | None]:
        """Return the cosines and sines of each layer, for positions [batch, sequence]."""
        known: dict[Rotary, Rotation] = {}
        for rotary in self.a.rotary:
            if rotary is not None and rotary not in known:
                known[rotary] = self._rotation(rotary, positions)
        return [None if rotary is None else known[rotary] for rotary in self.a.rotary]

    def _rotation(self, rotary: Rotary, positions: ir.Value) -> Rotation:
        column = self.node("Unsqueeze", self.node("Cast", positions, to=FLOAT), self.ints(1, 3))
        frequencies = self.constant(np.array(rotary.frequencies), np.float32)
        scale: ir.Value | None = None if rotary.scale == 1.0 else self.number(rotary.scale)
        if rotary.limit:
            last = self.node("ReduceMax", positions, keepdims=0)
            is_long = self.node("GreaterOrEqual", last, self.integer(rotary.limit))
            if rotary.long_frequencies:
                longer = self.constant(np.array(rotary.long_frequencies), np.float32)
            else:
                longer = self._stretched(rotary, last)
            frequencies = self.node("Where", is_long, longer, frequencies)
            if rotary.long_frequencies and rotary.long_scale != rotary.scale:
                scale = self.node("Where", is_long, self.number(rotary.long_scale), self.number(rotary.scale))
        angle = self.node("Mul", column, frequencies)
        cosine, sine = self.node("Cos", angle), self.node("Sin", angle)
        if scale is not None:
            return self.node("Mul", cosine, scale), self.node("Mul", sine, scale)
        return cosine, sine

    def _stretched(self, rotary: Rotary, last: ir.Value) -> ir.Value:
        """Return the frequencies of as many positions as the last one has before it, of a base that grows."""
        width = 2 * len(rotary.frequencies)
        count = self.node("Cast", self.node("Add", last, self.integer(1)), to=FLOAT)
        count = self.node("Max", count, self.number(rotary.limit))
        growth = self.node("Div", self.node("Mul", self.number(rotary.factor), count), self.number(rotary.limit))
        growth = self.node("Sub", growth, self.number(rotary.factor - 1))
        base = self.node("Mul", self.node("Pow", growth, self.number(width / (width - 2))), self.number(rotary.base))
        return self.node("Pow", base, self.constant(-np.arange(0, width, 2) / width, np.float32))

    def rotated(self, x: ir.Value, rotation: Rotation | None) -> ir.Value:
        """Return [batch, heads, sequence, size] with the leading elements rotated by position."""
        if rotation is None:
            return x
        width = 2 * max(len(rotary.frequencies) for rotary in self.a.rotary if rotary is not None)
        head, tail = x, None
        if width < self.a.head_size:
            head, tail = self.nodes_of("Split", 2, x, self.ints(width, self.a.head_size - width), axis=-1)
        first, second = self._pairs(head, width)
        cosine, sine = rotation
        left = self.node("Sub", self.node("Mul", first, cosine), self.node("Mul", second, sine))
        right = self.node("Add", self.node("Mul", second, cosine), self.node("Mul", first, sine))
        if self.family.rotates_pairs and not self.family.parts_pairs:
            both = [self.node("Unsqueeze", part, self.ints(-1)) for part in (left, right)]
            joined = self.node("Concat", *both, axis=-1)
            result = self.node("Reshape", joined, self.ints(0, 0, 0, width))
        else:
            result = self.node("Concat", left, right, axis=-1)
        return result if tail is None else self.node("Concat", result, tail, axis=-1)

    def _pairs(self, x: ir.Value, width: int) -> list[ir.Value]:
        """Return the first and the second elements of all rotated pairs."""
        if not self.family.rotates_pairs:
            return self.nodes_of("Split", 2, x, axis=-1, num_outputs=2)
        pairs = self.node("Reshape", x, self.ints(0, 0, 0, width // 2, 2))
        return [self.node("Gather", pairs, self.integer(i), axis=4) for i in range(2)]
