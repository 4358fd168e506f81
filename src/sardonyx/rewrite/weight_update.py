"""A rewritten model over other weights, without rewriting it again.

While a model of watched weights is rewritten (:mod:`.watching`), it is noted what hangs on elements. Over other weights
the rewriting would do the same if what was read is the same, the same weights are equal to each other, and every
question has the same answer; then what was made of weights is made of the others. Else the model is rewritten anew.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from sardonyx.errors import TypeMismatchError
from sardonyx.model.copying import copy_model
from sardonyx.rewrite import facts
from sardonyx.rewrite.weight_dependencies import Question, Record, Weight, tensor_of
from sardonyx.rewrite.weight_digest import Contents

_log = logging.getLogger(__name__)


def watched(model: ir.Model, weights: Collection[ir.TensorProtocol]) -> tuple[ir.Model, Record]:
    """A copy of a model whose weights are watched while it is rewritten, and the record of that.

    Args:
        model: The model, without bodies and functions.
        weights: The tensors to watch; those of texts are not.
    """
    twin, record = copy_model(model), Record()
    chosen = {id(tensor) for tensor in weights if tensor.dtype != ir.DataType.STRING}
    for value in twin.graph.initializers.values():
        if id(value.const_value) in chosen:
            assert value.const_value is not None
            value.const_value = Weight(value.const_value, record)
    for node in twin.graph:
        for output in node.outputs:
            output.const_value = None  # Of a constant, what its attribute holds.
        for name, attribute in list(node.attributes.data.items()):
            if attribute.type == ir.AttributeType.TENSOR and id(attribute.value) in chosen:
                node.attributes[name] = ir.AttrTensor(name, Weight(attribute.value, record))
    return twin, record


class Rewriting:
    """A rewritten model without its weights.

    Args:
        model: What became of a watched model.
        weights: The weights of the watched model, in an order in which others are given.
        record: What its rewriting saw of elements.
    """

    def __init__(self, model: ir.Model, weights: Sequence[ir.TensorProtocol], record: Record) -> None:
        record.is_open = False
        self._model = model
        self._weights = tuple(weights)
        self._record = record
        self._equal = [_first_equal(list(map(_now, group))) for group in record.compared]
        self._held = [tensor for tensor in _tensors(model) if isinstance(tensor, Weight)]
        self._lock = threading.Lock()

    def release(self) -> None:
        """Let go of the weights; what was read of them is kept."""
        for tensor in {*self._weights, *self._held, *self._record.makings}:
            if isinstance(tensor, Weight):
                tensor.elements = None

    @contextlib.contextmanager
    def over(self, weights: Sequence[ir.TensorProtocol]) -> Iterator[ir.Model | None]:
        """The rewritten model over other weights, as long as the context lasts; None where it would be another.

        Args:
            weights: The weights, of the same element types and shapes.
        """
        with self._lock:
            anew = _Anew(self._record, dict(zip(self._weights, weights, strict=True)))
            try:
                found = anew.tensors(self._held) if anew.is_alike(self._equal) else None
            except Exception as error:  # Whatever rules raise over these weights, rewriting meets it and tells it.
                _log.info("the model is rewritten anew, since over these weights rules raise %r", error)
                found = None
            if found is None:
                yield None
                return
            try:
                for weight, elements in zip(self._held, found, strict=True):
                    weight.elements = elements
                yield self._model
            finally:
                self.release()


class _Anew:
    """What hangs on elements, of other weights.

    Args:
        record: What there was of the weights before.
        given: What stands for each weight now.
    """

    def __init__(self, record: Record, given: Mapping[ir.TensorProtocol, ir.TensorProtocol]) -> None:
        self._record, self._given = record, given
        self._found = dict(given)

    def is_alike(self, equal: Sequence[tuple[int, ...]]) -> bool:
        """Whether a rewriting of these weights does what the one that was recorded did; raises as :meth:`tensor`.

        Args:
            equal: Of each tensor that was compared, the place of the first equal one, group by group.
        """
        record, contents = self._record, Contents()
        return (
            all(was is now or isinstance(was, Weight) for was, now in self._given.items())
            and all(contents.equal(was, self.tensor(weight)) for weight, was in record.read.items())
            and equal == [_first_equal(self.tensors(group)) for group in record.compared]
            and all(map(self._answers_alike, record.questions))
        )

    def tensors(self, tensors: Iterable[ir.TensorProtocol]) -> list[ir.TensorProtocol]:
        """What stands for tensors now; raises as :meth:`tensor`."""
        return [self.tensor(each) for each in tensors]

    def tensor(self, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        """What stands for a tensor now.

        Raises:
            TypeMismatchError: What is made is of another type or shape.
            Exception: What a rule raises that makes it.
        """
        if not isinstance(tensor, Weight):
            return tensor
        if tensor not in self._found:
            making = self._record.makings[tensor]
            arrays = making.compute(*[self.tensor(each).numpy() for each in making.operands])
            for was, now in zip(making.results, map(tensor_of, arrays), strict=True):
                if was.dtype != now.dtype or tuple(was.shape) != tuple(now.shape):
                    raise TypeMismatchError("other weights make a tensor of another type.", where=str(was.name))
                self._found[was] = now
        return self._found[tensor]

    def _answers_alike(self, question: Question) -> bool:
        return bool(question.ask(*[self.tensor(each).numpy() for each in question.operands]) == question.answer)


def _first_equal(tensors: Sequence[ir.TensorProtocol]) -> tuple[int, ...]:
    """Of each tensor the place of the first that equals it."""
    contents = Contents()
    alike: dict[Hashable, list[int]] = {}
    found: list[int] = []
    for place, tensor in enumerate(tensors):
        key = tensor.dtype, tuple(tensor.shape), contents.glimpse(tensor)
        others = alike.setdefault(key, [])
        first = next((other for other in others if contents.equal(tensors[other], tensor)), place)
        if first == place:
            others.append(place)
        found.append(first)
    return tuple(found)


def _now(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return tensor.unseen() if isinstance(tensor, Weight) else tensor


def _tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    for value in model.graph.initializers.values():
        if value.const_value is not None:
            yield value.const_value
    for node in facts.nodes_of(model.graph):
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                yield attribute.value
