"""Models as a graph and weights apart: other weights need no copy of the graph.

A publication of new weights replaces tensors in a dictionary. The graph is copied when a caller requests the model, for
instance to save it or to edit its nodes.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.base.gc_pause import collector_paused
from sardonyx.base.recycled_arrays import RecycledArrays
from sardonyx.compiler.target.alignment import aligned_arrays, aligned_zeros
from sardonyx.model.copying import copy_model
from sardonyx.rewrite.analysis.facts import STANDARD
from sardonyx.runtime.editing.fingerprint import Structure

_LEAST_RECYCLED = 1 << 16
"""Bytes of an array from which its memory is used again."""

Copy = Callable[[Sequence[tuple[np.ndarray, np.ndarray]]], None]
"""A function that copies the second array of each pair to the first."""

_EMPTY: ir.TensorProtocol = ir.Tensor(np.zeros(0, np.float32))


@dataclass(frozen=True)
class _Slot:
    """A weight that other elements may replace.

    Attributes:
        index: Index of the weight in the structure; None if no output needs the weight.
        dtype: The element type.
        shape: The shape.
        declared: Element type and shape as tensors of the model state them.
        nbytes: The size, which is known here because ``onnx_ir`` computes it anew each time.
        memory: The memory of copies; None for few bytes.
    """

    index: int | None
    dtype: np.dtype
    shape: tuple[int, ...]
    declared: tuple[ir.DataType, ir.Shape]
    nbytes: int
    memory: RecycledArrays | None

    @classmethod
    def of(cls, tensor: ir.TensorProtocol, index: int | None) -> _Slot | None:
        """Return the slot of a tensor of floats; None for other tensors."""
        dtype = tensor.dtype
        if not dtype.is_floating_point() or dtype.bitwidth != 8 * dtype.numpy().itemsize:
            return None
        shape, size = tuple(tensor.shape.numpy()), tensor.nbytes
        memory = None if size < _LEAST_RECYCLED else RecycledArrays(functools.partial(aligned_zeros, (size,), np.uint8))
        return cls(index, dtype.numpy(), shape, (dtype, ir.Shape(shape, frozen=True)), size, memory)

    def accepts(self, array: Any) -> bool:
        """Return True if an array has the type and shape of the weight."""
        return isinstance(array, np.ndarray) and array.dtype == self.dtype and array.shape == self.shape


@dataclass(frozen=True)
class _Graph:
    """A model without the tensors of its weights.

    Attributes:
        model: The model.
        slots: The weights that may be replaced, by name.
    """

    model: ir.Model
    slots: Mapping[str, _Slot]


class WeightedModel:
    """A graph with weights; the weights are never changed.

    Args:
        graph: The graph, shared by models with other weights.
        weights: The weights by name.
        structure: The structure of the model, with these weights.

    Attributes:
        structure: See above.
    """

    def __init__(self, graph: _Graph, weights: Mapping[str, ir.TensorProtocol], structure: Structure) -> None:
        self._graph, self._weights, self.structure = graph, weights, structure

    @classmethod
    def of(cls, model: ir.Model, structure: Structure) -> WeightedModel:
        """Return a model as graph and weights.

        Args:
            model: The model, which is not changed.
            structure: The structure of the model.
        """
        with collector_paused():
            twin = copy_model(model)
        tensors = {name: tensor for name, value in _weights(twin) if (tensor := _tensor_of(value)) is not None}
        count = Counter(map(id, (*structure.weights, *tensors.values())))
        indices = {id(tensor): index for index, tensor in enumerate(structure.weights)}
        slots = {}
        for name, tensor in tensors.items():
            index = indices.get(id(tensor))
            # A tensor of several names is several weights, and one of them is replaced.
            if count[id(tensor)] == 1 + (index is not None) and (slot := _Slot.of(tensor, index)) is not None:
                slots[name] = slot
        for name, value in _weights(twin):
            if name in slots:
                _put(value, None)
        return cls(_Graph(twin, slots), {name: tensors[name] for name in slots}, structure)

    def replaced(self, arrays: Mapping[str, Any], copy: Copy) -> WeightedModel | None:
        """Return the model with copies of arrays as weights.

        The result is None if an array is not of the type and shape of a weight of floats in the main graph.

        Args:
            arrays: The arrays by name.
            copy: Copies arrays to others.
        """
        slots = self._graph.slots
        if not all(name in slots and slots[name].accepts(array) for name, array in arrays.items()):
            return None
        copies = _lent({name: slots[name] for name in arrays})
        copy(list(zip(copies.values(), arrays.values(), strict=True)))
        tensors = dict[str, ir.TensorProtocol]()
        for name, array in copies.items():
            array.setflags(write=False)
            dtype, shape = slots[name].declared
            tensors[name] = ir.Tensor(array, dtype, shape=shape, name=name)
        weights = list(self.structure.weights)
        for name, tensor in tensors.items():
            if (index := slots[name].index) is not None:
                weights[index] = tensor
        structure = Structure(self.structure.form, tuple(weights))
        return WeightedModel(self._graph, {**self._weights, **tensors}, structure)

    @functools.cached_property
    def model(self) -> ir.Model:
        """The model; callers must not change it."""
        with collector_paused():
            model = copy_model(self._graph.model)
            for name, value in _weights(model):
                if name in self._weights:
                    _put(value, self._weights[name])
        return model

    @property
    def bytes_of_weights(self) -> dict[int, int]:
        """The bytes of the weights by the identity of their tensors."""
        slots = self._graph.slots
        return {id(tensor): slots[name].nbytes for name, tensor in self._weights.items()}


def _lent(slots: Mapping[str, _Slot]) -> dict[str, np.ndarray]:
    """Return memory for copies of weights, with any elements, as kernels read it: they need no other copy."""
    few = [slot for slot in slots.values() if slot.memory is None]
    small = iter(aligned_arrays([(slot.shape, slot.dtype) for slot in few]) if few else ())
    return {
        name: next(small) if slot.memory is None else slot.memory.lend().view(slot.dtype).reshape(slot.shape)
        for name, slot in slots.items()
    }


def _weights(model: ir.Model) -> Iterator[tuple[str, ir.Value]]:
    """Yield the initializers of the main graph and the results of its ``Constant`` nodes."""
    for value in model.graph.initializers.values():
        yield str(value.name), value
    for node in model.graph:
        if node.op_type == "Constant" and node.domain in STANDARD and "value" in node.attributes:
            yield str(node.outputs[0].name), node.outputs[0]


def _tensor_of(value: ir.Value) -> ir.TensorProtocol | None:
    node = value.producer()
    tensor: ir.TensorProtocol | None = value.const_value if node is None else node.attributes["value"].as_tensor()
    return tensor


def _put(value: ir.Value, tensor: ir.TensorProtocol | None) -> None:
    """Set the tensor of a weight; None leaves a weight of the same name without elements."""
    node = value.producer()
    if node is not None:
        node.attributes["value"] = ir.AttrTensor("value", _EMPTY if tensor is None else tensor)
    value.const_value = tensor
