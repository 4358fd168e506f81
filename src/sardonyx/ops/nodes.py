"""Calls of ONNX operators while a function over Core is traced: export writes each call as one node.

A definition over Core may call operators by name, as ``onnx.Conv(x, w, strides=[2, 2])``. The call has the types,
values and gradient of the operator's definition, and :mod:`sardonyx.core.export` writes the node itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from sardonyx.core.eval.tensor import Tensor
from sardonyx.core.eval.trace import call
from sardonyx.core.ir.graph import NodeForm, Value
from sardonyx.core.ir.types import STRING, TensorType, is_integer, kind
from sardonyx.errors import UnsupportedError
from sardonyx.ops import registry
from sardonyx.ops.signatures import signature

_opset: ContextVar[int] = ContextVar("sardonyx_written_opset", default=20)

_called_operators: ContextVar[Collection[str]] = ContextVar("sardonyx_kept_calls", default=())

_SIZE_LENGTH = 64
"""Integer vectors up to this length may hold sizes."""


@contextlib.contextmanager
def kept_calls(names: Collection[str]) -> Iterator[None]:
    """Trace the nodes of these operators of ``ai.onnx`` as calls with a node form, not as their definitions.

    Exporters write such a call as one operator of their target. Arithmetic on integers that may be sizes is traced
    through, because sizes are computed symbolically there.
    """
    token = _called_operators.set(names)
    try:
        yield
    finally:
        _called_operators.reset(token)


def is_kept(operator: registry.Operator, inputs: Sequence[Value | None]) -> bool:
    """Return True if a node is traced as a call."""
    if operator.domain or operator.name not in _called_operators.get() or operator.is_random or operator.host_reason:
        return False
    first = next((value.type for value in inputs if value is not None), None)
    if not isinstance(first, TensorType) or first.shape is None or first.dtype == STRING:
        return False
    if not is_integer(first.dtype) or len(first.shape) > 1:
        return True
    return bool(first.shape) and isinstance(first.shape[0], int) and first.shape[0] > _SIZE_LENGTH


def kept_call(
    operator: registry.Operator,
    inputs: Sequence[Value | None],
    attributes: Mapping[str, Any],
    opset: int,
    outputs: int,
) -> Sequence[Value | None]:
    """Return the results of a node as a call; those of the definition if it counts a size from data."""
    domain, name = operator.domain, operator.name
    results = node(name, *inputs, outputs=outputs, domain=domain, version=opset, **attributes)  # type: ignore[arg-type]
    results = results if isinstance(results, tuple) else (results,)
    source = results[0].operands[0] if results and results[0].op == "get" else None
    if source is not None and source.op == "call" and source.params["function"].defined_symbols:
        return operator(list(inputs), attributes, opset=opset, outputs=outputs, identity=name)
    return results


@contextlib.contextmanager
def written_opset(version: int) -> Iterator[None]:
    """Set the version of ``ai.onnx`` whose operators calls name."""
    token = _opset.set(version)
    try:
        yield
    finally:
        _opset.reset(token)


def node(
    name: str,
    *inputs: Tensor | None,
    outputs: int = 1,
    domain: str = "",
    version: int | None = None,
    body: Callable[..., Sequence[Value]] | None = None,
    **attributes: Any,
) -> Any:
    """Call an operator; return its result, or a tuple of several.

    Args:
        name: The operator.
        *inputs: Its inputs; None for omitted ones.
        outputs: Number of requested results.
        domain: Its domain.
        version: Version of the domain; that of :func:`written_opset` by default.
        body: The same results computed from the present inputs, where the caller knows more of their sizes than the
            operator's definition.
        **attributes: Attributes; None for absent ones.

    Raises:
        UnsupportedError: The operator is unknown in this version.
        InvalidModelError: The operator does not accept these inputs or attributes.
    """
    opset = _opset.get() if version is None else version
    operator = registry.find(domain, name, opset)
    if operator is None:
        raise UnsupportedError(f"no operator {name} in version {opset} of {domain or 'ai.onnx'}.")
    present = {key: _frozen(value) for key, value in attributes.items() if value is not None}
    checked = operator.check_attributes(present)
    inputs_ = list(inputs)
    while inputs_ and inputs_[-1] is None:
        inputs_.pop()
    allowed = signature(domain, name, opset)
    if allowed is not None:
        allowed.check(inputs_)

    def apply(*operands: Value | None) -> Sequence[Value]:
        results = operator(list(operands), checked, opset=opset, outputs=outputs, identity=name)
        return [result for result in results[:outputs] if result is not None]

    operands = [value for value in inputs_ if value is not None]
    if operands and all(_is_static(value) for value in operands) and not operator.is_random:
        return _single(apply(*inputs_))

    def definition(*own: Value) -> Sequence[Value]:
        if body is not None:
            return body(*own)
        # Known operands stay known inside of the function: shapes and axes are read from them.
        arguments = iter([old if _is_static(old) else new for old, new in zip(operands, own, strict=True)])
        return apply(*[None if value is None else next(arguments) for value in inputs_])

    if any(isinstance(value.type, TensorType) and kind(value.type.dtype) == "complex" for value in operands):
        # A model holds complex numbers as pairs of real ones, which the node itself would take for another axis.
        return _single(definition(*operands))
    if operator.host_reason or name == "Compress" or (name == "Range" and body is None):
        # A counted size is defined by the value itself, outside of any function.
        return _single(apply(*inputs_))
    form = NodeForm(name, domain, opset, tuple(value is not None for value in inputs_), tuple(present.items()))
    return _single(call(name, definition, operands, form))


def _is_static(value: Value) -> bool:
    return value.op in ("constant", "dims")


def _single(results: Sequence[Value]) -> Any:
    return results[0] if len(results) == 1 else tuple(results)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


class _Operators:
    """The operators as functions: ``onnx.Relu(x)``."""

    def __getattr__(self, name: str) -> Any:
        def operator(*inputs: Tensor | None, **options: Any) -> Any:
            return node(name, *inputs, **options)

        return operator


onnx = _Operators()
"""The operators of ``ai.onnx`` as functions of tensors, for definitions over Core."""
