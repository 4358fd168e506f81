"""Model information: declared inputs and outputs, and metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from sardonyx.errors import SardonyxError

if TYPE_CHECKING:
    import onnx_ir as ir


class ValueInfo:
    """An input or output of a session.

    Attributes:
        name: The name.
        type: The type in the notation of the standard: ``tensor(float)``, ``seq(tensor(int64))``.
        shape: The sizes: a number, a text (symbol or expression), or None if undeclared; None for an unknown rank.
    """

    __slots__ = ("name", "shape", "type")

    def __init__(self, name: str, type: str, shape: list[int | str | None] | None) -> None:
        self.name = name
        self.type = type
        self.shape = shape

    @classmethod
    def of(cls, value: ir.Value) -> ValueInfo:
        """Return the declaration of a value."""
        from sardonyx.ops.core_values import declared_type
        from sardonyx.ops.signatures import type_text

        declared = declared_type(value)
        shape = None if value.shape is None else [_size(d) for d in value.shape]
        return cls(value.name or "", "" if declared is None else type_text(declared), shape)

    def __repr__(self) -> str:
        return f"ValueInfo(name={self.name!r}, type={self.type!r}, shape={self.shape})"


def output_infos(model: ir.Model) -> list[ValueInfo]:
    """Return the outputs as declared; where the file declares no type, or no sizes of a tensor, as inferred."""
    outputs = model.graph.outputs
    infos = [ValueInfo.of(value) for value in outputs]
    unknown = [number for number, info in enumerate(infos) if info.shape is None and info.type[:6] in ("", "tensor")]
    if unknown:
        from sardonyx.core.dim import symbols
        from sardonyx.core.ir.types import TensorType
        from sardonyx.ops.inference import infer
        from sardonyx.ops.signatures import type_text

        try:
            inference = infer(model)
        except SardonyxError:  # A call raises the same error, with the model's place.
            return infos
        named = {size for value in model.graph.inputs for size in ValueInfo.of(value).shape or ()}
        for number in unknown:
            inferred = inference.type(outputs[number])
            if inferred is None:
                continue
            infos[number].type = infos[number].type or type_text(inferred)
            if isinstance(inferred, TensorType) and inferred.shape is not None:
                infos[number].shape = [
                    size if isinstance(size, int) else str(size) if symbols(size) <= named else None
                    for size in inferred.shape
                ]
    return infos


def _size(dim: int | ir.SymbolicDim) -> int | str | None:
    """Return a declared size; None for a negative number, which some exporters write for an open size."""
    size = dim if isinstance(dim, int) else dim.value
    return None if isinstance(size, int) and size < 0 else size


@dataclass(frozen=True)
class Metadata:
    """The description of a model in its file; texts that the file lacks are empty.

    Attributes:
        graph_name: The name of the main graph.
        graph_description: The documentation of the main graph.
        description: The documentation of the model.
        domain: The namespace of the model's author, as a reversed host name.
        producer_name: The tool that wrote the file.
        producer_version: The version of this tool.
        version: The version of the model; None if the file has no version.
        custom: Additional texts by key.
    """

    graph_name: str
    graph_description: str
    description: str
    domain: str
    producer_name: str
    producer_version: str
    version: int | None
    custom: Mapping[str, str]

    @classmethod
    def of(cls, model: ir.Model) -> Self:
        """Return the metadata of a model."""
        return cls(
            graph_name=model.graph.name or "",
            graph_description=model.graph.doc_string or "",
            description=model.doc_string or "",
            domain=model.domain or "",
            producer_name=model.producer_name or "",
            producer_version=model.producer_version or "",
            version=model.model_version,
            custom=MappingProxyType(dict(model.metadata_props)),
        )
