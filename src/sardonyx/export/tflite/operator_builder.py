"""Operators of a TensorFlow Lite subgraph, by methods that know the limits of each operator.

A method has the name of its operator. Limits are element types, ranks of broadcasting and types of index inputs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.core.dim import Dim, linear_symbol, symbols
from sardonyx.core.dim.polynomial import Atom
from sardonyx.errors import UnsupportedError
from sardonyx.export.tflite.file_builder import DTYPES, NAMES, Quantization, Size, SubgraphBuilder, Tensor
from sardonyx.export.tflite.operator_limits import ACCEPTED, FLOAT, LONG_SUM, MOST_AXES, OPTIONS, WIDENED
from sardonyx.rewrite.analysis.sizes import parsed


class OperatorBuilder(ABC):
    """Adds operators to one subgraph.

    Args:
        builder: The subgraph.
    """

    def __init__(self, builder: SubgraphBuilder) -> None:
        self.builder = builder
        self._open: dict[str, tuple[Tensor, int]] = {}
        self._linear: dict[str, tuple[str, int, int]] = {}
        self._count = 0
        self._casts: dict[tuple[Tensor, str], Tensor] = {}

    @abstractmethod
    def is_known_outside(self, size: str) -> bool:
        """Return True if an open size follows from sizes of the graph around a body."""

    @abstractmethod
    def captured_size(self, size: str) -> Tensor:
        """Return the input of a body that holds an open size of the graph around, as a vector of one element."""

    def fresh_size(self) -> str:
        """Return the name of a size that nothing is known about."""
        self._count += 1
        return f"?tflite{self.builder.number}_{self._count}"

    def computed(
        self, type: str, shape: Sequence[Size], quantization: Quantization | None = None, name: str = ""
    ) -> Tensor:
        """Return a new tensor that an operator computes."""
        tensor = Tensor(type, tuple(shape), quantization=quantization, name=name)
        self.builder.index_of(tensor)
        for axis, size in enumerate(tensor.shape):
            if isinstance(size, str):
                self._open.setdefault(size, (tensor, axis))
                expression = parsed(size)
                if isinstance(expression, Dim) and (linear := linear_symbol(expression)) is not None:
                    symbol, factor, offset = linear
                    self._linear.setdefault(symbol, (size, factor, offset))
        return tensor

    def constant(self, array: Any, dtype: Any = None, quantization: Quantization | None = None) -> Tensor:
        """Return a constant tensor."""
        array = np.asarray(array, dtype)
        if array.dtype.name in ("float16", "bfloat16"):
            array = array.astype(np.float32)
        if array.dtype not in NAMES or array.dtype == np.float64:
            raise UnsupportedError(f"element type {array.dtype.name} has no builtin operators", where="a constant")
        return Tensor(NAMES[array.dtype], array.shape, array, quantization)

    def op(
        self,
        name: str,
        inputs: Sequence[Tensor | None],
        shape: Sequence[Size],
        type: str | None = None,
        options: tuple[str, Mapping[str, Any]] | None = None,
        quantization: Quantization | None = None,
    ) -> Tensor:
        """Add an operator with one output; the type is that of the first input by default."""
        first = next(tensor for tensor in inputs if tensor is not None)
        output = self.computed(type or first.type, shape, quantization)
        self.builder.operator(name, inputs, [output], options)
        return output

    def checked(self, name: str, tensor: Tensor) -> Tensor:
        """Return a tensor in an element type that an operator accepts.

        Raises:
            UnsupportedError: No type with the same values is accepted.
        """
        accepted = ACCEPTED.get(name, FLOAT)
        if tensor.type in accepted:
            return tensor
        wider = WIDENED.get(tensor.type)
        if wider in accepted:
            return self.cast(tensor, wider)
        raise UnsupportedError(f"{name} does not accept {tensor.type}", where=tensor.name)

    def unary(self, name: str, x: Tensor, options: tuple[str, Mapping[str, Any]] | None = None) -> Tensor:
        """Add an elementwise operator of one input."""
        y = self.checked(name, x)
        result = self.op(name, [y], x.shape, options=options)
        return result if y is x else self.cast(result, x.type)

    def binary(self, name: str, a: Tensor, b: Tensor, *, type: str | None = None, where: bool = False) -> Tensor:
        """Add an elementwise operator of two inputs, which broadcast.

        Args:
            name: The operator.
            a: First input.
            b: Second input.
            type: Element type of the result; by default that of the inputs.
            where: False.
        """
        left, right = self.checked(name, a), self.checked(name, b)
        result = self.broadcast(name, [left, right], type or left.type)
        return result if type is not None or left is a else self.cast(result, a.type)

    def broadcast(self, name: str, inputs: Sequence[Tensor], type: str) -> Tensor:
        """Add an elementwise operator whose inputs broadcast, also beyond the ranks that the operator broadcasts."""
        shape = self.joint_shape([tensor.shape for tensor in inputs])
        options: tuple[str, Mapping[str, Any]] | None = (OPTIONS[name], {}) if name in OPTIONS else None
        limit = MOST_AXES.get(name, 4)
        if len(shape) <= limit or all(tensor.shape == shape for tensor in inputs):
            return self.op(name, inputs, shape, type, options)
        groups = self._groups([tensor.shape for tensor in inputs], shape)
        if len(groups) <= limit:
            merged = [self.reshape(tensor, self._merged(tensor, len(shape), groups)) for tensor in inputs]
            result = self.op(name, merged, self.joint_shape([tensor.shape for tensor in merged]), type, options)
            return self.reshape(result, shape)
        wide = [tensor if tensor.shape == shape else self.broadcast_to(tensor, shape) for tensor in inputs]
        return self.op(name, wide, shape, type, options)

    @staticmethod
    def _groups(shapes: Sequence[Sequence[Size]], shape: Sequence[Size]) -> list[list[int]]:
        """Return adjacent axes that broadcast alike."""
        rank = len(shape)
        padded = [(1,) * (rank - len(one)) + tuple(one) for one in shapes]
        groups: list[list[int]] = []
        before: tuple[bool, ...] | None = None
        for axis in range(rank):
            kind = tuple(one[axis] == shape[axis] for one in padded)
            known = all(one[axis] == shape[axis] or one[axis] == 1 for one in padded)
            if groups and kind == before and known:
                groups[-1].append(axis)
            else:
                groups.append([axis])
            before = kind if known else None
        return groups

    def _merged(self, tensor: Tensor, rank: int, groups: Sequence[Sequence[int]]) -> list[Size]:
        padded = (1,) * (rank - tensor.rank) + tensor.shape
        return [self.product([padded[axis] for axis in group]) for group in groups]

    def product(self, sizes: Sequence[Size]) -> Size:
        """Return the product of sizes, an expression if open."""
        total: Dim | int = 1
        for size in sizes:
            total = total * (size if isinstance(size, int) else parsed(size))
        return total if isinstance(total, int) else str(total)

    def joint_shape(self, shapes: Sequence[Sequence[Size]]) -> tuple[Size, ...]:
        """Return the sizes of the result of broadcasting."""
        rank = max(len(shape) for shape in shapes)
        result: list[Size] = []
        for axis in range(rank):
            sizes = [shape[axis - rank + len(shape)] for shape in shapes if axis - rank + len(shape) >= 0]
            others = list(dict.fromkeys(size for size in sizes if size != 1))
            numbers = [size for size in others if isinstance(size, int)]
            if numbers:
                result.append(numbers[0])
            elif len(others) > 1:
                result.append(self.fresh_size())
            else:
                result.append(others[0] if others else 1)
        return tuple(result)

    def cast(self, x: Tensor, type: str) -> Tensor:
        """Convert to another element type."""
        if x.type == type:
            return x
        if x.array is not None and x.quantization is None:
            return self.constant(x.array.astype(DTYPES[type]))
        if (x, type) not in self._casts:
            self._casts[x, type] = self.op("CAST", [x], x.shape, type)
        return self._casts[x, type]

    def copy(self, x: Tensor) -> Tensor:
        """Return another tensor with the same elements."""
        if x.quantization is not None:
            return self.op("RESHAPE", [x, self.shape_tensor(x.shape)], x.shape, quantization=x.quantization)
        return self.op("CAST", [x], x.shape, x.type)

    def reshape(self, x: Tensor, shape: Sequence[Size]) -> Tensor:
        """Change the sizes; an open size may be one that is known from other tensors."""
        shape = tuple(shape)
        if x.shape == shape:
            return x
        if x.array is not None and all(isinstance(size, int) for size in shape):
            return Tensor(x.type, shape, x.array.reshape([int(size) for size in shape]), x.quantization)
        return self.op("RESHAPE", [x, self.shape_tensor(shape, infer=True)], shape, quantization=x.quantization)

    def reshape_by(self, x: Tensor, sizes: Tensor, shape: Sequence[Size]) -> Tensor:
        """Change the sizes to those in a tensor."""
        return self.op("RESHAPE", [x, self.cast(sizes, "INT32")], shape, quantization=x.quantization)

    def shape_tensor(self, shape: Sequence[Size], *, infer: bool = False, type: str = "INT32") -> Tensor:
        """Return sizes as an integer vector.

        Args:
            shape: The sizes.
            infer: Let one open size be -1.
            type: Element type.

        Raises:
            UnsupportedError: An open size is that of no tensor.
        """
        unknown = [size for size in shape if not isinstance(size, int)]
        if not unknown or (infer and len(unknown) == 1 and 0 not in shape):
            return self.cast(self.constant([n if isinstance(n, int) else -1 for n in shape], np.int32), type)
        if infer:
            missing = [size for size in unknown if not self.knows(size)]
            if len(missing) == 1 and 0 not in shape:
                rest = [self.size(size) if size != missing[0] else self.constant([-1], np.int32) for size in shape]
                return self.cast(self.concatenation(rest, 0), type)
        return self.cast(self.concatenation([self.size(size) for size in shape], 0), type)

    def knows(self, size: Size) -> bool:
        """Return True if a size is a number, or follows from sizes of tensors."""
        if isinstance(size, int) or size in self._open:
            return True
        names = symbols(parsed(size))
        known = names and all(name in self._open or name in self._linear for name in names)
        return bool(known) or self.is_known_outside(size)

    def size(self, size: Size) -> Tensor:
        """Return one size as an int32 vector of one element.

        Raises:
            UnsupportedError: The size does not follow from sizes of tensors.
        """
        if isinstance(size, int):
            return self.constant([size], np.int32)
        if size in self._open:
            tensor, axis = self._open[size]
            shape = self.op("SHAPE", [tensor], [tensor.rank], "INT32", ("ShapeOptions", {"out_type": 2}))
            return self.slice(shape, [axis], [axis + 1])
        if size in self._linear:
            return self._solved(*self._linear[size])
        expression = parsed(size)
        names = symbols(expression)
        is_known = all(name in self._open or name in self._linear for name in names)
        if isinstance(expression, Dim) and names and names != {size} and is_known:
            return self._sum(expression)
        if self.is_known_outside(size):
            return self.captured_size(size)
        raise UnsupportedError(f"size {size} is not known before the operator runs")

    def _solved(self, size: str, factor: int, constant: int) -> Tensor:
        """Return the symbol of a known size ``factor * symbol + constant``."""
        result = self.size(size)
        if constant:
            result = self.binary("SUB", result, self.constant([constant], np.int32))
        return self.binary("FLOOR_DIV", result, self.constant([factor], np.int32)) if factor != 1 else result

    def _sum(self, size: Dim) -> Tensor:
        total: Tensor | None = None
        for _, atoms, factor in size.terms:
            product = self.constant([factor], np.int32)
            for atom in atoms:
                part = self._atom(atom)
                product = part if product.array is not None and factor == 1 else self.binary("MUL", product, part)
                factor = 0
            total = product if total is None else self.binary("ADD", total, product)
        assert total is not None
        return total

    def _atom(self, atom: Atom) -> Tensor:
        if atom.kind == "symbol":
            return self.size(atom.name)
        args = [self.size(arg if isinstance(arg, int) else str(arg)) for arg in atom.args]
        if atom.kind == "//":
            return self.binary("FLOOR_DIV", args[0], args[1])
        result = args[0]
        for arg in args[1:]:
            if atom.kind == "broadcast":
                is_one = self.binary("EQUAL", result, self.constant([1], np.int32), type="BOOL")
                result = self.broadcast("SELECT_V2", [is_one, arg, result], "INT32")
            else:
                result = self.binary(f"{atom.kind.upper()}IMUM", result, arg)
        return result

    def slice(self, x: Tensor, begins: Sequence[int], ends: Sequence[int]) -> Tensor:
        """Return a static part of a tensor, over all axes."""
        shape = [end - begin for begin, end in zip(begins, ends, strict=True)]
        return self.op(
            "STRIDED_SLICE",
            [self.checked("STRIDED_SLICE", x), *(self.constant(v, np.int32) for v in (begins, ends, [1] * x.rank))],
            shape,
            options=("StridedSliceOptions", {}),
            quantization=x.quantization,
        )

    def slice_open(self, x: Tensor, begins: Sequence[int], ends: Sequence[int | None]) -> Tensor:
        """Return a part of a tensor; an end that is None is that of the axis."""
        shape: list[Size] = [n if end is None else end - b for n, b, end in zip(x.shape, begins, ends, strict=True)]
        mask = sum(1 << axis for axis, end in enumerate(ends) if end is None)
        bounds = [self.constant(v, np.int32) for v in (begins, [end or 0 for end in ends], [1] * x.rank)]
        y = self.checked("STRIDED_SLICE", x)
        return self.op("STRIDED_SLICE", [y, *bounds], shape, options=("StridedSliceOptions", {"end_mask": mask}))

    def concatenation(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        """Join tensors along an axis."""
        if len(parts) == 1:
            return parts[0]
        arrays = [part.array for part in parts]
        if all(array is not None for array in arrays) and not any(part.quantization for part in parts):
            return self.constant(np.concatenate([array for array in arrays if array is not None], axis))
        sizes = [part.shape[axis] for part in parts]
        total: Size = sum(int(n) for n in sizes) if all(isinstance(n, int) for n in sizes) else self.fresh_size()
        shape = list(parts[0].shape)
        for other in parts[1:]:
            shape = [a if isinstance(a, int) else b for a, b in zip(shape, other.shape, strict=True)]
        shape[axis] = total
        checked = [self.checked("CONCATENATION", part) for part in parts]
        return self.op(
            "CONCATENATION",
            checked,
            shape,
            options=("ConcatenationOptions", {"axis": axis}),
            quantization=parts[0].quantization,
        )

    def broadcast_to(self, x: Tensor, shape: Sequence[Size], sizes: Tensor | None = None) -> Tensor:
        """Repeat along axes of size 1."""
        x = self.checked("BROADCAST_TO", x)
        return self.op("BROADCAST_TO", [x, sizes or self.shape_tensor(shape)], shape, quantization=x.quantization)

    def transpose(self, x: Tensor, order: Sequence[int]) -> Tensor:
        """Permute axes.

        Raises:
            UnsupportedError: More than 6 axes.
        """
        order = [int(axis) for axis in order]
        if order == list(range(x.rank)):
            return x
        if x.array is not None:
            array = np.ascontiguousarray(x.array.transpose(order))
            q = x.quantization
            moved = None if q is None else Quantization(q.scale, q.zero_point, order.index(q.axis) if x.rank else 0)
            return Tensor(x.type, array.shape, array, moved)
        shape = [x.shape[axis] for axis in order]
        y = self.checked("TRANSPOSE", x)
        wide, narrow = _merged_axes(order)
        if len(narrow) > 6:
            raise UnsupportedError(f"TRANSPOSE of {x.rank} axes, expected at most 6", where=x.name)
        if len(narrow) < x.rank and x.rank > 5:
            y = self.reshape(y, [self.product([x.shape[axis] for axis in group]) for group in wide])
            moved_shape = [y.shape[axis] for axis in narrow]
            result = self.op(
                "TRANSPOSE", [y, self.constant(narrow, np.int32)], moved_shape, quantization=x.quantization
            )
            return self.reshape(result, shape)
        return self.op("TRANSPOSE", [y, self.constant(order, np.int32)], shape, quantization=x.quantization)

    def reduce(self, name: str, x: Tensor, axes: Sequence[int], *, keepdims: bool = True) -> Tensor:
        """Reduce along axes."""
        axes = sorted(axis % x.rank for axis in axes) if x.rank else []
        if keepdims:
            shape: list[Size] = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
        else:
            shape = [size for axis, size in enumerate(x.shape) if axis not in axes]
        if not axes:
            return x
        if name in ("SUM", "MEAN") and len(axes) > 1 and self._is_long(x, axes):
            # Kernels add numbers one after another in float32: axis by axis, the error stays small.
            for axis in reversed(axes):
                x = self.reduce(name, x, [axis], keepdims=keepdims)
            return x
        y = self.checked(name, x)
        options = ("ReducerOptions", {"keep_dims": keepdims})
        result = self.op(name, [y, self.constant(axes, np.int32)], shape, options=options)
        return result if y is x else self.cast(result, x.type)

    @staticmethod
    def _is_long(x: Tensor, axes: Sequence[int]) -> bool:
        sizes = [x.shape[axis] for axis in axes]
        numbers = [size for size in sizes if isinstance(size, int)]
        return len(numbers) < len(sizes) or math.prod(numbers) > LONG_SUM

    def like(self, number: Any, x: Tensor) -> Tensor:
        """Return a scalar constant of the type of `x`."""
        return self.constant(np.asarray(number).astype(DTYPES[x.type]))


def _merged_axes(order: Sequence[int]) -> tuple[list[list[int]], list[int]]:
    """Return groups of axes that stay adjacent under a permutation, and the permutation of the groups."""
    runs: list[list[int]] = []
    for axis in order:
        if runs and axis == runs[-1][-1] + 1:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    groups = sorted(runs)
    return groups, [groups.index(run) for run in runs]
