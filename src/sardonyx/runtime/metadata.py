"""What a model says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

import onnx_ir as ir


@dataclass(frozen=True)
class Metadata:
    """What a model says of itself, as far as the file says it; texts are empty where it does not.

    Attributes:
        graph_name: The name of its main graph.
        graph_description: What the main graph is said to do.
        description: What the model is said to do.
        domain: The namespace of its maker, in reverse order of a host's name.
        producer_name: What made the file.
        producer_version: And in which version.
        version: The model's own version; None where it has none.
        custom: Pairs of names and texts that the maker added.
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
        """What is said of a model."""
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
