"""The interface of one revision of a model: inputs and outputs as the protocol describes them."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sardonyx.errors import RequestError, UnsupportedError
from sardonyx.runtime.model_info import ValueInfo
from sardonyx.runtime.snapshot import Snapshot
from sardonyx.serve.models.concatenation import Concatenation
from sardonyx.serve.protocol import datatypes
from sardonyx.serve.protocol.datatypes import Datatype, shortened


@dataclass(frozen=True)
class Tensor:
    """An input or output.

    Attributes:
        name: The name.
        datatype: The element type.
        shape: The sizes: a number, a text (symbol or expression) or None; None for an unknown rank.
        is_optional: True for an input with a default value.
    """

    name: str
    datatype: Datatype
    shape: tuple[int | str | None, ...] | None
    is_optional: bool = False

    @property
    def sizes(self) -> list[int]:
        """The sizes as the protocol writes them: -1 for an open size."""
        return [size if isinstance(size, int) else -1 for size in self.shape or ()]


class Signature:
    """Inputs and outputs that requests are checked against.

    Args:
        inputs: The inputs by name; inputs with a default value come last.
        outputs: The outputs by name.

    Attributes:
        inputs: As passed.
        outputs: As passed.
    """

    def __init__(self, inputs: dict[str, Tensor], outputs: dict[str, Tensor]) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self._required = [name for name, tensor in inputs.items() if not tensor.is_optional]

    def check(self, feeds: Mapping[str, np.ndarray], supplied: Container[str] = ()) -> None:
        """Check the inputs of a request: names, types, ranks, fixed sizes.

        Args:
            feeds: The inputs of the request.
            supplied: Inputs that the server feeds.

        Raises:
            RequestError: An input is missing, unknown or of another form.
        """
        for name, array in feeds.items():
            tensor = self.inputs.get(name)
            if tensor is None:
                raise RequestError(
                    f"unknown input {shortened(name)}.", where=name[:64], remedy=f"Inputs: {', '.join(self.inputs)}."
                )
            if array.dtype != tensor.datatype.dtype:
                raise RequestError(
                    f"expected datatype {tensor.datatype.name}, got {datatypes.of_array(array).name}.", where=name
                )
            shape = tensor.shape
            if shape is None:
                continue
            if len(shape) != array.ndim:
                raise RequestError(f"expected {len(shape)} sizes {tensor.sizes}, got {list(array.shape)}.", where=name)
            for size, actual in zip(shape, array.shape, strict=True):
                if size != actual and isinstance(size, int):
                    raise RequestError(f"expected the shape {tensor.sizes}, got {list(array.shape)}.", where=name)
        if len(feeds) < len(self._required) or not all(name in feeds for name in self._required):
            missing = next((name for name in self._required if name not in feeds and name not in supplied), None)
            if missing is not None:
                raise RequestError("the input is missing.", where=missing)


class Interface(Signature):
    """The inputs and outputs of one revision.

    Args:
        snapshot: The revision.
        concatenation: The inputs that runs get concatenated; requests have an axis of rows before their axes.
        declared: Sizes that requests must have where the model leaves them open, by input or output; -1 for any.

    Attributes:
        revision: The number of the revision.
        inputs: The inputs by name; inputs with a default value come last.
        outputs: The outputs by name.
        computed: Element types of the inputs that the server computes; they are not among `inputs`.

    Raises:
        UnsupportedError: An input or output is not a tensor, or the model has none of this name.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        concatenation: Concatenation | None = None,
        declared: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self.revision = snapshot.revision
        self.inputs = {info.name: _tensor(info) for info in snapshot.inputs}
        self.inputs |= {info.name: _tensor(info, True) for info in snapshot.defaults}
        self.outputs = {info.name: _tensor(info) for info in snapshot.outputs}
        self.computed: dict[str, np.dtype[Any]] = {}
        if concatenation is not None:
            self._concatenate(concatenation)
        for tensors in (self.inputs, self.outputs):
            for name in tensors.keys() & (declared or {}):
                tensors[name] = _narrowed(tensors[name], (declared or {})[name])
        super().__init__(self.inputs, self.outputs)

    def _concatenate(self, concatenation: Concatenation) -> None:
        """Describe the inputs and outputs as requests have them."""
        for name in concatenation.inputs:
            self.inputs[name] = _with_rows(self.inputs, name)
        for name in concatenation.outputs:
            self.outputs[name] = _with_rows(self.outputs, name)
        for size in concatenation.sizes:
            self.computed[size.input] = _named(self.inputs, size.input).datatype.dtype
            del self.inputs[size.input]


def _narrowed(tensor: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return a tensor with declared sizes in place of open ones; an edit may have changed the rank."""
    shape = (None,) * len(sizes) if tensor.shape is None else tensor.shape
    if len(shape) != len(sizes):
        return tensor
    narrowed = (old if size < 0 or isinstance(old, int) else size for old, size in zip(shape, sizes, strict=True))
    return replace(tensor, shape=tuple(narrowed))


def _named(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in tensors:
        raise UnsupportedError(f"expected one of {', '.join(tensors)}.", where=f"concatenation: {name}")
    return tensors[name]


def _with_rows(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    """Return a tensor with an axis of rows before its axes."""
    tensor = _named(tensors, name)
    if not tensor.shape or isinstance(tensor.shape[0], int):
        raise UnsupportedError("expected a first axis of open size.", where=f"concatenation: {name}")
    return replace(tensor, shape=(None, None, *tensor.shape[1:]))


def _tensor(info: ValueInfo, is_optional: bool = False) -> Tensor:
    datatype = datatypes.of_onnx(info.type)
    if datatype is None:
        raise UnsupportedError(f"expected a tensor, got {info.type or 'an unknown type'}.", where=info.name)
    return Tensor(info.name, datatype, None if info.shape is None else tuple(info.shape), is_optional)
