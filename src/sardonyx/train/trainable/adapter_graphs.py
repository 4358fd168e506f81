"""Models with low-rank adapters: beside the layers that read a weight where possible, else added to the weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import numpy as np
import onnx_ir as ir

from sardonyx.base.option_checks import require_instance
from sardonyx.errors import OptionError
from sardonyx.model.copying import copy_model
from sardonyx.rewrite.analysis.names import Names, node_label, node_names, value_names
from sardonyx.train.trainable.lora import LoRA, summed_axis
from sardonyx.train.trainable.parameters import find_parameters, fixed_shape, select_parameters

_MOST_NAMES = 5
"""Names that a message lists."""


def with_adapters(model: ir.Model, lora: LoRA, seed: int, besides: Sequence[str] = ()) -> tuple[ir.Model, list[str]]:
    """Return a model whose weights are sums of themselves and of adapters, and the names of the adapters' tensors.

    The answers are those of the model, because the second matrix is zero.

    Args:
        model: A model in trainable form, which is not changed.
        lora: The options.
        seed: Seed of the first matrix.
        besides: Weights that are trained whole, and so get no adapter.

    Raises:
        OptionError: `lora` is no :class:`LoRA`, or no matrix matches the patterns.
    """
    require_instance(lora, LoRA, "lora", "a LoRA")
    result = copy_model(model)
    parameters = find_parameters(result)
    names = set(select_parameters(parameters, lora.targets, "targets")) - set(besides)
    targets = [one for one in parameters if one.name in names and len(one.shape) > 1 and min(one.shape[:2]) > 0]
    if not targets:
        raise OptionError("no weight matches: adapters need tensors of rank 2 or more.", where="targets")
    for where, patterns in (("ranks", lora.ranks), ("alphas", lora.alphas)):
        for pattern in patterns:
            if not any(one.name == pattern or fnmatchcase(one.name, pattern) for one in targets):
                adapted = ", ".join(one.name for one in targets[:_MOST_NAMES])
                raise OptionError(
                    f"no weight with an adapter matches {pattern!r}.", where=where,
                    remedy=f"Weights with adapters are {adapted}{', …' * (len(targets) > _MOST_NAMES)}.",
                )  # fmt: skip
    writer, rng = _Writer(result, lora.dropout), np.random.default_rng(seed)
    adapters: list[str] = []
    for one in targets:
        rows, columns = one.shape[0], int(np.prod(one.shape[1:]))
        rank = min(lora.rank_of(one.name), rows, columns)
        a = (rng.standard_normal((rows, rank)) / np.sqrt(rows)).astype(np.float32)
        tensors = {f"{one.name}.lora_a": a, f"{one.name}.lora_b": np.zeros((rank, columns), np.float32)}
        tensor = result.graph.initializers[one.name].const_value
        assert tensor is not None
        if lora.dora:
            matrix = tensor.numpy().reshape(rows, columns).astype(np.float32)
            axis = summed_axis(result.graph.initializers[one.name])
            tensors[f"{one.name}.lora_m"] = np.sqrt(np.square(matrix).sum(axis, keepdims=True))
        writer.adapt(one.name, one.shape, tensors, lora)
        adapters += tensors
    result.graph.sort()
    return result, adapters


class _Writer:
    """Writes sums of weights and adapters into the graph of a model."""

    def __init__(self, model: ir.Model, dropout: float) -> None:
        self._graph, self._dropout = model.graph, dropout
        self._names, self._node_names = Names(value_names(model)), Names(node_names(model))
        self._opset = model.graph.opset_imports.get("", 1)

    def adapt(self, name: str, shape: Sequence[int], tensors: Mapping[str, np.ndarray], lora: LoRA) -> None:
        """Let all readers of a weight compute with its adapter."""
        weight = self._graph.initializers[name]
        assert weight.const_value is not None
        a, b, *m = (self._initializer(key, array) for key, array in tensors.items())
        readers, scale = list(weight.uses()), lora.scale_of(name)
        if not m and weight.const_value.dtype == ir.DataType.FLOAT:
            readers = [use for use in readers if not self._adapt_reader(use.node, use.idx, a, b, scale)]
        if not readers:
            return
        if self._dropout:
            raise OptionError(
                f"{node_label(readers[0].node)} computes with the sum of weight and adapter, so that no inputs are left"
                " out.",
                where=f"dropout, {name}",
                remedy="Leave out `dropout`, or this weight from `targets`.",
            )
        x: ir.Value = weight
        if weight.const_value.dtype != ir.DataType.FLOAT:
            x = self._node("Cast", [x], ir.AttrInt64("to", int(ir.DataType.FLOAT)))
        matrix_shape = np.array([shape[0], -1], np.int64)
        matrix = self._node("Reshape", [x, self._initializer(f"{name}.matrix", matrix_shape)])
        product = self._node("MatMul", [a, b])
        factor = self._initializer(f"{name}.scale", np.array(scale, np.float32))
        matrix = self._node("Add", [matrix, self._node("Mul", [product, factor])])
        if m:
            squares = self._node("Mul", [matrix, matrix])
            axes: list[ir.Value] = []
            attributes = [ir.AttrInt64("keepdims", 1)]
            axis = 1 if tensors[f"{name}.lora_m"].shape == (shape[0], 1) else 0
            if self._opset >= 13:
                axes = [self._initializer(f"{name}.axes", np.array([axis], np.int64))]
            else:
                attributes.append(ir.AttrInt64s("axes", [axis]))
            lengths = self._node("Sqrt", [self._node("ReduceSum", [squares, *axes], *attributes)])
            matrix = self._node("Mul", [self._node("Div", [matrix, lengths]), m[0]])
        y = self._node("Reshape", [matrix, self._initializer(f"{name}.shape", np.array(shape, np.int64))])
        if weight.const_value.dtype != ir.DataType.FLOAT:
            y = self._node("Cast", [y], ir.AttrInt64("to", int(weight.const_value.dtype)))
        y.type, y.shape = ir.TensorType(weight.const_value.dtype), fixed_shape(weight.const_value)
        for node, index in readers:
            node.replace_input_with(index, y)

    def _adapt_reader(self, reader: ir.Node, index: int, a: ir.Value, b: ir.Value, scale: float) -> bool:
        """Add the product of an adapter to the result of a layer; False if the layer reads the weight otherwise.

        The frozen weight has no gradient then, and no step computes the product of the two matrices.
        """
        if reader.domain or reader.graph is not self._graph or len(reader.outputs) != 1:
            return False
        x = reader.inputs[0]
        assert x is not None and a.shape is not None and b.shape is not None
        rank = a.shape[1]
        kind = (reader.op_type, index)
        if kind == ("MatMul", 1) and len(a.shape) == 2 and self._is_matrix(reader, 1):
            change = self._node("MatMul", [self._node("MatMul", [self._with_dropout(x), a]), b])
        elif kind == ("Gemm", 1) and not reader.attributes.get_int("transA", 0):
            first, second = a, b
            if reader.attributes.get_int("transB", 0):
                first, second = self._transposed(b), self._transposed(a)
            change = self._node("MatMul", [self._node("MatMul", [self._with_dropout(x), first]), second])
            scale *= reader.attributes.get_float("alpha", 1.0)
        elif kind == ("Gather", 0) and not reader.attributes.get_int("axis", 0) and self._is_matrix(reader, 0):
            indices = reader.inputs[1]
            assert indices is not None
            change = self._node("MatMul", [self._node("Gather", [a, indices]), b])
        elif kind == ("Conv", 1) and reader.attributes.get_int("group", 1) == 1:
            shape = [rank, *self._shape(reader, 1)[1:]]
            kernel = self._node("Reshape", [b, self._initializer(f"{b.name}.kernel", np.array(shape, np.int64))])
            point = [*self._shape(reader, 1)[:1], rank, *[1] * (len(shape) - 2)]
            mixing = self._node("Reshape", [a, self._initializer(f"{a.name}.kernel", np.array(point, np.int64))])
            attributes = [one for one in reader.attributes.values() if one.name != "kernel_shape"]
            change = self._node("Conv", [self._node("Conv", [self._with_dropout(x), kernel], *attributes), mixing])
        elif kind == ("Transpose", 0) and [*reader.attributes.get_ints("perm", (1, 0))] == [1, 0]:
            return self._adapt_transposed(reader, a, b, scale)
        else:
            return False
        self._add(reader.outputs[0], change, scale)
        return True

    def _adapt_transposed(self, reader: ir.Node, a: ir.Value, b: ir.Value, scale: float) -> bool:
        """Adapt the products that read a transposed weight; False unless these are all of its readers."""
        uses = list(reader.outputs[0].uses())
        products = [node for node, index in uses if (node.op_type, node.domain, index) == ("MatMul", "", 1)]
        if len(products) != len(uses) or reader.outputs[0].is_graph_output() or not self._is_matrix(reader, 0):
            return False
        first, second = self._transposed(b), self._transposed(a)
        return all(self._adapt_reader(node, 1, first, second, scale) for node in products)

    def _add(self, old: ir.Value, change: ir.Value, scale: float) -> None:
        """Let readers of a result read the sum of it and a scaled change, under its name."""
        factor = self._initializer("lora_scale", np.array(scale, np.float32))
        new = self._node("Add", [old, self._node("Mul", [change, factor])])
        adding = new.producer()
        for node, index in list(old.uses()):
            if node is not adding:
                node.replace_input_with(index, new)
        new.type, new.shape = old.type, old.shape
        outputs = self._graph.outputs
        for number, value in enumerate(outputs):
            if value is old:
                outputs[number] = new
        old.name, new.name = new.name, old.name

    def _with_dropout(self, x: ir.Value) -> ir.Value:
        """Return inputs of an adapter, of which steps leave some out; nodes of dropout act in training alone."""
        if not self._dropout:
            return x
        if self._opset < 12:
            return self._node("Dropout", [x], ir.AttrFloat32("ratio", self._dropout))
        return self._node("Dropout", [x, self._initializer("lora_dropout", np.array(self._dropout, np.float32))])

    def _shape(self, reader: ir.Node, index: int) -> list[int]:
        value = reader.inputs[index]
        assert value is not None and value.const_value is not None
        return [int(size) for size in value.const_value.shape.numpy()]

    def _is_matrix(self, reader: ir.Node, index: int) -> bool:
        value = reader.inputs[index]
        tensor = None if value is None else value.const_value
        return tensor is None or len(tensor.shape) == 2

    def _transposed(self, matrix: ir.Value) -> ir.Value:
        assert matrix.shape is not None
        result = self._node("Transpose", [matrix], ir.AttrInt64s("perm", [1, 0]))
        result.type, result.shape = matrix.type, ir.Shape([matrix.shape[1], matrix.shape[0]])
        return result

    def _initializer(self, name: str, array: np.ndarray) -> ir.Value:
        tensor = ir.tensor(array, name=self._names.fresh(name))
        value = ir.Value(
            name=tensor.name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor
        )
        self._graph.register_initializer(value)
        return value

    def _node(self, op_type: str, inputs: Sequence[ir.Value], *attributes: ir.Attr) -> ir.Value:
        node = ir.Node("", op_type, inputs, attributes, name=self._node_names.fresh(f"lora_{op_type}"))
        node.outputs[0].name = self._names.fresh(f"lora_{op_type}")
        self._graph.append(node)
        return node.outputs[0]
