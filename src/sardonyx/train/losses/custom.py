"""Losses of users: an output of the model, a Python function over Core, an ONNX graph."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
import onnx_ir as ir

from sardonyx.core import language as L
from sardonyx.core.eval.trace import inline, trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import TensorType
from sardonyx.core.language import Tensor
from sardonyx.errors import OptionError, SardonyxError
from sardonyx.model import Loadable, load
from sardonyx.ops.core_values import declared_type
from sardonyx.ops.graph import prepare
from sardonyx.train.losses.loss import Loss, Outputs, OutputTypes, Terms, label_shape, mean_over, shape_of


@dataclass(frozen=True)
class OutputLoss(Loss):
    """The mean of an output of the model, for models that compute their own loss."""

    def labels(self, outputs: OutputTypes) -> dict[str, TensorType]:
        self.output_name(outputs)
        return {}

    def terms(self, outputs: Outputs, labels: Outputs) -> Terms:
        return mean_over(L.widened(outputs[self.output_name({name: x.type for name, x in outputs.items()})]))


class _MissingLabelError(Exception):
    """A function reads a label of unknown type."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class _Labels(dict[str, Tensor]):
    """Labels by name, which say the name of a missing one."""

    def __missing__(self, name: str) -> Tensor:
        raise _MissingLabelError(name)


@dataclass(frozen=True)
class FunctionLoss(Loss):
    """A Python function over Core.

    Attributes:
        function: Returns the loss, a scalar or a tensor to average, from outputs and labels by name.
        label_types: Returns the types of the labels by name, from the types of outputs; by default the labels that the
            function reads have the type and shape of the first output.
        outputs: The outputs that the function reads; the first floating-point one by default.

    Example:
        >>> from sardonyx.core import language as L
        >>> loss = FunctionLoss(function=lambda outputs, labels: L.abs_(outputs["y"] - labels["labels"]))
    """

    function: Callable[[Outputs, Outputs], Tensor] = field(default=lambda outputs, labels: next(iter(outputs.values())))
    label_types: Callable[[OutputTypes], dict[str, TensorType]] | None = None
    outputs: Sequence[str] = ()

    def labels(self, outputs: OutputTypes) -> dict[str, TensorType]:
        if self.label_types is not None:
            return dict(self.label_types(outputs))
        read = outputs[self.output_name(outputs)]
        label = TensorType(read.dtype, label_shape(shape_of(read)))
        names: list[str] = []
        while (missing := self._missing_label(outputs, dict.fromkeys(names, label))) is not None:
            names.append(missing)
        return dict.fromkeys(names, label)

    def _missing_label(self, outputs: OutputTypes, labels: Mapping[str, TensorType]) -> str | None:
        """Return a label that the function reads beside known ones; None if it reads no other."""
        first = len(outputs)

        def body(*values: Any) -> list[Any]:
            named = _Labels(zip(labels, values[first:], strict=True))
            return [self._called(dict(zip(outputs, values[:first], strict=True)), named)]

        try:
            trace("loss", body, [*outputs.values(), *labels.values()])
        except _MissingLabelError as error:
            return error.name
        return None

    def _called(self, outputs: Mapping[str, Any], labels: _Labels) -> Any:
        """Return what the function returns.

        Raises:
            OptionError: The function raises an error other than one of Sardonyx.
        """
        try:
            return self.function(outputs, labels)
        except (SardonyxError, _MissingLabelError):
            raise
        except Exception as error:
            name = next(iter(outputs))
            raise OptionError(
                f"the function raised {type(error).__name__}: {error}",
                where="loss",
                remedy=f'Read tensors by name, as outputs["{name}"] - labels["labels"].',
            ) from error

    def reads(self, outputs: OutputTypes) -> tuple[str, ...]:
        return tuple(self.outputs) or super().reads(outputs)

    def terms(self, outputs: Outputs, labels: Outputs) -> Terms:
        try:
            value = self._called(outputs, _Labels(labels))
        except _MissingLabelError as error:
            raise OptionError(
                f"the function reads the label {error.name!r}, which has no type.",
                where="loss",
                remedy="Name its type in `label_types`.",
            ) from error
        if not isinstance(value, Tensor) or t.kind(value.dtype) != "float":
            raise OptionError("expected a floating-point tensor from the function.", where="loss")
        return mean_over(value)


@dataclass(frozen=True)
class ModelLoss(Loss):
    """The first output of an ONNX model whose inputs are outputs of the trained model, and labels.

    Attributes:
        model: A path or a model.
    """

    model: Loadable = field(default="", metadata={"kind": object})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.model, (str, os.PathLike, bytes, onnx.ModelProto, ir.Model)):
            raise OptionError(f"expected a path or a model, got {type(self.model).__name__}.", where="model")

    def labels(self, outputs: OutputTypes) -> dict[str, TensorType]:
        self.reads(outputs)
        return {name: type for name, type in self._inputs().items() if name not in outputs}

    def reads(self, outputs: OutputTypes) -> tuple[str, ...]:
        names = tuple(name for name in self._inputs() if name in outputs)
        if not names:
            raise OptionError(
                "expected a model that reads an output of the trained model.",
                where="loss",
                remedy=f"Name an input as one of {', '.join(outputs)}.",
            )
        return names

    def terms(self, outputs: Outputs, labels: Outputs) -> Terms:
        prepared = prepare(load(self.model))
        values: Mapping[str, Any] = {**outputs, **labels}
        arguments = [values[str(value.name)] for value in prepared.inputs]
        function = trace("loss", lambda *inputs: list(prepared.call(list(inputs)))[:1], [x.type for x in arguments])
        (result,) = inline(function, arguments)
        if not isinstance(result, Tensor) or t.kind(result.dtype) != "float":
            raise OptionError("expected a model whose first output is a floating-point tensor.", where="loss")
        return mean_over(L.widened(result))

    def _inputs(self) -> dict[str, TensorType]:
        types = {}
        for value in load(self.model).graph.inputs:
            declared = declared_type(value)
            if not isinstance(declared, TensorType) or declared.shape is None:
                raise OptionError("expected inputs with declared types and ranks.", where=f"loss, {value.name}")
            types[str(value.name)] = declared
        return types
