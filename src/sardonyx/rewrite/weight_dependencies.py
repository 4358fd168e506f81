"""Weights that are watched: what a rewriting makes of their elements, and asks of them, is noted.

What rewriting does hangs on a model's structure, and on some elements of its weights. Rules *make* tensors of others,
*ask* questions of them, and *compare* them; where they do so by the functions of this module, these can be done again
over other weights (:mod:`.reweighting`). Elements that a rule takes in any other way are *read*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple, TypeVar, final

import numpy as np
import onnx_ir as ir

T = TypeVar("T")


@final  # Told by `type(…) is`, for which `isinstance` takes long: every tensor's class has a protocol's metaclass.
class Weight(ir.LazyTensor):
    """A tensor of a model that is rewritten; who reads its elements is seen.

    Args:
        elements: The tensor that it stands for.
        record: Where that is noted.
    """

    def __init__(self, elements: ir.TensorProtocol, record: Record) -> None:
        shape = ir.Shape([int(size) for size in elements.shape.numpy()])
        super().__init__(self._read, elements.dtype, shape, name=elements.name)
        self.elements: ir.TensorProtocol | None = elements
        self.record = record

    def _read(self) -> ir.TensorProtocol:
        found = self.unseen()
        if self.record.is_open:
            self.record.read.setdefault(self, found)
        return found

    def unseen(self) -> ir.TensorProtocol:
        """What it stands for, for who notes in another way what becomes of the elements."""
        assert self.elements is not None, "a rewritten model has its weights only while it is made or used"
        return self.elements


class Making(NamedTuple):
    """How some tensors are computed of others.

    Attributes:
        compute: Gives the arrays of the results, of those of the operands.
        operands: What it reads.
        results: What it gives.
    """

    compute: Callable[..., Sequence[np.ndarray]]
    operands: tuple[ir.TensorProtocol, ...]
    results: tuple[Weight, ...]


class Question(NamedTuple):
    """What was asked of some tensors.

    Attributes:
        ask: Gives the answer, of the arrays of the operands.
        operands: What it reads.
        answer: What it was.
    """

    ask: Callable[..., Any]
    operands: tuple[ir.TensorProtocol, ...]
    answer: Any


class Record:
    """What a rewriting saw of the elements of weights.

    Attributes:
        is_open: Whether it is still going on.
        read: The weights of which elements were read, and these.
        compared: Tensors that were compared with each other, in groups.
        makings: How each tensor is made that was made of others.
        questions: What was asked.
    """

    def __init__(self) -> None:
        self.is_open = True
        self.read: dict[Weight, ir.TensorProtocol] = {}
        self.compared: list[Mapping[ir.TensorProtocol, None]] = []
        self.makings: dict[Weight, Making] = {}
        self.questions: list[Question] = []


def made(compute: Callable[..., Sequence[np.ndarray]], *tensors: ir.TensorProtocol) -> tuple[ir.TensorProtocol, ...]:
    """Tensors computed of others.

    Args:
        compute: Gives the arrays of the results, of the arrays of the tensors and of nothing else that hangs on
            elements of weights.
        *tensors: What it is called with.
    """
    found = [tensor_of(array) for array in _called(compute, tensors)]
    record = _record_of(tensors)
    if record is None:
        return tuple(found)
    if any(each.dtype == ir.DataType.STRING for each in found):
        _read(tensors)  # Tensors of texts are not watched.
        return tuple(found)
    making = Making(compute, tensors, tuple([Weight(each, record) for each in found]))
    record.makings.update(dict.fromkeys(making.results, making))
    return making.results


def asked(ask: Callable[..., T], *tensors: ir.TensorProtocol) -> T:
    """The answer to a question about elements.

    Args:
        ask: Gives it, of the arrays of the tensors and of nothing else that hangs on elements of weights. Answers are
            compared by ``==``.
        *tensors: What it is called with.
    """
    answer = _called(ask, tensors)
    record = _record_of(tensors)
    if record is not None:
        record.questions.append(Question(ask, tensors, answer))
    return answer


def compared(tensor: ir.TensorProtocol, group: MutableMapping[ir.TensorProtocol, None]) -> ir.TensorProtocol:
    """A tensor to be read for nothing else but to tell whether it equals others.

    Args:
        tensor: The tensor.
        group: The tensors that it may be compared with; it becomes one of them.
    """
    group[tensor] = None
    if type(tensor) is not Weight:
        return tensor
    if tensor.record.is_open and not any(group is known for known in tensor.record.compared):
        tensor.record.compared.append(group)
    return tensor.unseen()


def is_watched(tensors: Iterable[ir.TensorProtocol]) -> bool:
    """Whether it is noted what is made of any of some tensors."""
    return _record_of(tensors) is not None


def tensor_of(array: np.ndarray) -> ir.TensorProtocol:
    """An array as a tensor; of objects as texts."""
    if array.dtype.kind in "OUS":
        strings = [each.encode() if isinstance(each, str) else bytes(each) for each in array.reshape(-1).tolist()]
        return ir.StringTensor(strings, shape=ir.Shape(list(array.shape)))
    return ir.Tensor(array)


def _record_of(tensors: Iterable[ir.TensorProtocol]) -> Record | None:
    for each in tensors:
        if type(each) is Weight and each.record.is_open:
            return each.record
    return None


def _called(function: Callable[..., T], tensors: Sequence[ir.TensorProtocol]) -> T:
    try:
        return function(*map(_elements, tensors))
    except Exception:
        _read(tensors)  # What it raised hangs on them, and there is no answer to compare.
        raise


def _read(tensors: Iterable[ir.TensorProtocol]) -> None:
    for tensor in tensors:
        tensor.numpy()


def _elements(tensor: ir.TensorProtocol) -> np.ndarray:
    return tensor.unseen().numpy() if type(tensor) is Weight else tensor.numpy()
