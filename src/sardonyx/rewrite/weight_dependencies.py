"""Watched weights: a record of the tensors and decisions derived from weight elements by a rewriting.

A rewriting depends on a model's structure, and on some elements of its weights. Rules *derive* tensors from others,
*query* elements, and *compare* tensors. Through the functions of this module, each of these steps can be repeated over
other weights (:mod:`.weight_update`). Elements accessed in any other way are recorded as *read*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple, TypeVar, final

import numpy as np
import onnx_ir as ir

from sardonyx.model.tensors import tensor_from

T = TypeVar("T")


@final  # Tested by `type(…) is`: `isinstance` is slow because tensor classes have a protocol's metaclass.
class Weight(ir.LazyTensor):
    """A tensor of a model under rewriting, which records reads of its elements.

    Args:
        elements: The represented tensor.
        record: The record of the rewriting.
    """

    def __init__(self, elements: ir.TensorProtocol, record: Record) -> None:
        shape = ir.Shape([int(size) for size in elements.shape.numpy()])
        super().__init__(self._read, elements.dtype, shape, name=elements.name)
        self.elements: ir.TensorProtocol | None = elements
        self.record = record

    def _read(self) -> ir.TensorProtocol:
        elements = self.unrecorded()
        if self.record.is_open:
            self.record.read.setdefault(self, elements)
        return elements

    def unrecorded(self) -> ir.TensorProtocol:
        """Return the represented tensor without recording a read; the caller records the access."""
        assert self.elements is not None, (
            "internal: weights are attached to a rewritten model only during creation and use"
        )
        return self.elements


class Derivation(NamedTuple):
    """Derivation of some tensors from others.

    Attributes:
        compute: Returns the arrays of the results, given the arrays of the operands.
        operands: The tensors passed to ``compute``.
        results: The derived tensors.
    """

    compute: Callable[..., Sequence[np.ndarray]]
    operands: tuple[ir.TensorProtocol, ...]
    results: tuple[Weight, ...]


class Query(NamedTuple):
    """Query of the elements of some tensors.

    Attributes:
        evaluate: Returns the answer, given the arrays of the operands.
        operands: The tensors passed to ``evaluate``.
        answer: The recorded answer.
    """

    evaluate: Callable[..., Any]
    operands: tuple[ir.TensorProtocol, ...]
    answer: Any


class Record:
    """Record of the accesses of a rewriting to elements of weights.

    Attributes:
        is_open: True while the rewriting is in progress.
        read: The weights whose elements were read, and the represented tensors.
        compared: Tensors compared with each other, in groups.
        derivations: The derivation of each derived tensor.
        queries: The queries with their answers.
    """

    def __init__(self) -> None:
        self.is_open = True
        self.read: dict[Weight, ir.TensorProtocol] = {}
        self.compared: list[Mapping[ir.TensorProtocol, None]] = []
        self.derivations: dict[Weight, Derivation] = {}
        self.queries: list[Query] = []


def derive(compute: Callable[..., Sequence[np.ndarray]], *tensors: ir.TensorProtocol) -> tuple[ir.TensorProtocol, ...]:
    """Compute tensors from others and record the derivation.

    Args:
        compute: Returns the arrays of the results, given the arrays of the tensors; must not depend on any other
            elements of weights.
        *tensors: The operands of ``compute``.
    """
    results = [tensor_from(array) for array in _call(compute, tensors)]
    record = _record_of(tensors)
    if record is None:
        return tuple(results)
    if any(result.dtype == ir.DataType.STRING for result in results):
        _read(tensors)  # String tensors are not watched.
        return tuple(results)
    derivation = Derivation(compute, tensors, tuple([Weight(result, record) for result in results]))
    record.derivations.update(dict.fromkeys(derivation.results, derivation))
    return derivation.results


def query(evaluate: Callable[..., T], *tensors: ir.TensorProtocol) -> T:
    """Return the answer to a query of elements and record it.

    Args:
        evaluate: Returns the answer, given the arrays of the tensors; must not depend on any other elements of
            weights. Answers are compared by ``==``.
        *tensors: The operands of ``evaluate``.
    """
    answer = _call(evaluate, tensors)
    record = _record_of(tensors)
    if record is not None:
        record.queries.append(Query(evaluate, tensors, answer))
    return answer


def for_comparison(tensor: ir.TensorProtocol, group: MutableMapping[ir.TensorProtocol, None]) -> ir.TensorProtocol:
    """Record a comparison within a group of tensors and return the tensor to read elements from.

    Args:
        tensor: The tensor.
        group: The tensors to compare with; extended by ``tensor``.
    """
    group[tensor] = None
    if type(tensor) is not Weight:
        return tensor
    if tensor.record.is_open and not any(group is known for known in tensor.record.compared):
        tensor.record.compared.append(group)
    return tensor.unrecorded()


def is_watched(tensors: Iterable[ir.TensorProtocol]) -> bool:
    """Return True if accesses to any of the tensors are recorded."""
    return _record_of(tensors) is not None


def _record_of(tensors: Iterable[ir.TensorProtocol]) -> Record | None:
    for tensor in tensors:
        if type(tensor) is Weight and tensor.record.is_open:
            return tensor.record
    return None


def _call(function: Callable[..., T], tensors: Sequence[ir.TensorProtocol]) -> T:
    try:
        return function(*map(_elements, tensors))
    except Exception:
        _read(tensors)  # The exception depends on the elements, and no answer exists to compare.
        raise


def _read(tensors: Iterable[ir.TensorProtocol]) -> None:
    for tensor in tensors:
        tensor.numpy()


def _elements(tensor: ir.TensorProtocol) -> np.ndarray:
    return tensor.unrecorded().numpy() if type(tensor) is Weight else tensor.numpy()
