"""Reuse of a rewritten model with other weights, without rewriting again.

While a model of watched weights is rewritten (:mod:`.weight_dependencies`), every dependence on elements is recorded.
With other weights the rewriting would be the same if the elements read are equal, the same weights are equal to each
other, and every query has the same answer; then the derived tensors are computed from the new weights. Otherwise the
model is rewritten again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from sardonyx.errors import TypeMismatchError
from sardonyx.model.copying import copy_model
from sardonyx.model.tensors import tensor_from
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.weight_dependencies import Query, Record, Weight
from sardonyx.rewrite.weight_digest import Contents

_log = logging.getLogger(__name__)


def watch(model: ir.Model, weights: Collection[ir.TensorProtocol]) -> tuple[ir.Model, Record]:
    """Return a copy of a model with watched weights, and the record of accesses to them.

    Args:
        model: The model, without bodies and functions.
        weights: The tensors to watch; string tensors are skipped.
    """
    twin, record = copy_model(model), Record()
    chosen = {id(tensor) for tensor in weights if tensor.dtype != ir.DataType.STRING}
    for value in twin.graph.initializers.values():
        if id(value.const_value) in chosen:
            assert value.const_value is not None
            value.const_value = Weight(value.const_value, record)
    for node in twin.graph:
        for output in node.outputs:
            output.const_value = None  # The value of a Constant, also held by its attribute.
        for name, attribute in list(node.attributes.data.items()):
            if attribute.type == ir.AttributeType.TENSOR and id(attribute.value) in chosen:
                node.attributes[name] = ir.AttrTensor(name, Weight(attribute.value, record))
    return twin, record


class Rewriting:
    """A rewritten model without its weights.

    Args:
        model: The result of rewriting a watched model.
        weights: The weights of the watched model, in the order of replacements.
        record: The record of the rewriting.
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
        """Release the weights; elements that were read stay in memory."""
        for tensor in {*self._weights, *self._held, *self._record.derivations}:
            if isinstance(tensor, Weight):
                tensor.elements = None

    @contextlib.contextmanager
    def over(self, weights: Sequence[ir.TensorProtocol]) -> Iterator[ir.Model | None]:
        """Yield the rewritten model over other weights; None if the rewriting would differ.

        Args:
            weights: The weights, of the same element types and shapes.
        """
        with self._lock:
            tensors = self.tensors(weights)
            if tensors is None:
                yield None
                return
            try:
                for weight, elements in zip(self._held, tensors, strict=True):
                    weight.elements = elements
                yield self._model
            finally:
                self.release()

    def elements(self) -> list[ir.TensorProtocol]:
        """Return the tensors of the rewritten model inside of :meth:`over`, in the order of :meth:`tensors`."""
        return [tensor.unrecorded() for tensor in self._held]

    def held(self, indices: Iterable[int]) -> list[ir.TensorProtocol]:
        """Return tensors of the rewritten model by their indices in :meth:`tensors`."""
        return [self._held[index] for index in indices]

    def tensors(self, weights: Sequence[ir.TensorProtocol]) -> list[ir.TensorProtocol] | None:
        """Return the tensors of the rewritten model over other weights, always in the same order.

        The result is None if the rewriting would differ.

        Args:
            weights: The weights, of the same element types and shapes.
        """
        replay = _Replay(self._record, dict(zip(self._weights, weights, strict=True)))
        try:
            return replay.tensors(self._held) if replay.is_same(self._equal) else None
        except Exception as error:  # Rewriting again meets the same exception of a rule and reports it.
            _log.info("the model is rewritten again, because rules raise %r over these weights", error)
            return None


class _Replay:
    """Repetition of the recorded accesses with other weights.

    Args:
        record: The record of the rewriting.
        replacements: The replacement of each weight.
    """

    def __init__(self, record: Record, replacements: Mapping[ir.TensorProtocol, ir.TensorProtocol]) -> None:
        self._record, self._replacements = record, replacements
        self._tensors = dict(replacements)

    def is_same(self, equal: Sequence[tuple[int, ...]]) -> bool:
        """Return True if rewriting with these weights takes the recorded steps; raises as :meth:`tensor`.

        Args:
            equal: For each compared tensor, the index of the first equal one, group by group.
        """
        record, contents = self._record, Contents()
        return (
            all(was is now or isinstance(was, Weight) for was, now in self._replacements.items())
            and all(contents.equal(was, self.tensor(weight)) for weight, was in record.read.items())
            and equal == [_first_equal(self.tensors(group)) for group in record.compared]
            and all(map(self._has_same_answer, record.queries))
        )

    def tensors(self, tensors: Iterable[ir.TensorProtocol]) -> list[ir.TensorProtocol]:
        """Return the replacements of tensors; raises as :meth:`tensor`."""
        return [self.tensor(tensor) for tensor in tensors]

    def tensor(self, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        """Return the replacement of a tensor, derived if necessary.

        Raises:
            TypeMismatchError: A derived tensor has another type or shape.
            Exception: An exception of the rule that computes the tensor.
        """
        if not isinstance(tensor, Weight):
            return tensor
        if tensor not in self._tensors:
            derivation = self._record.derivations[tensor]
            arrays = derivation.compute(*[self.tensor(operand).numpy() for operand in derivation.operands])
            for was, now in zip(derivation.results, map(tensor_from, arrays), strict=True):
                if was.dtype != now.dtype or tuple(was.shape) != tuple(now.shape):
                    raise TypeMismatchError(
                        f"expected {was.dtype} {list(was.shape)}, got {now.dtype} {list(now.shape)}.",
                        where=str(was.name),
                    )
                self._tensors[was] = now
        return self._tensors[tensor]

    def _has_same_answer(self, query: Query) -> bool:
        return bool(query.evaluate(*[self.tensor(operand).numpy() for operand in query.operands]) == query.answer)


def _first_equal(tensors: Sequence[ir.TensorProtocol]) -> tuple[int, ...]:
    """Return, for each tensor, the index of the first tensor equal to it."""
    contents = Contents()
    alike: dict[Hashable, list[int]] = {}
    firsts: list[int] = []
    for index, tensor in enumerate(tensors):
        key = tensor.dtype, tuple(tensor.shape), contents.glimpse(tensor)
        others = alike.setdefault(key, [])
        first = next((other for other in others if contents.equal(tensors[other], tensor)), index)
        if first == index:
            others.append(index)
        firsts.append(first)
    return tuple(firsts)


def _now(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return tensor.unrecorded() if isinstance(tensor, Weight) else tensor


def _tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    for value in model.graph.initializers.values():
        if value.const_value is not None:
            yield value.const_value
    for node in facts.nodes_of(model.graph):
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                yield attribute.value
