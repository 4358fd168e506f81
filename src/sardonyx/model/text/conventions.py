"""Conventions of a text: the default for small fields that the syntax cannot express, set or unset.

onnx's parser sets a node's domain, an attribute tensor's name and an operator set's domain to empty strings if absent
from the text, never sets a node's doc string, and stores every number in a typed field. Exporters differ. The first
line of a text, ``#@ defaults …``, states the conventions of its model; exceptions are annotated one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Final

from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from sardonyx.errors import TextFormatError
from sardonyx.model.text.lexer import Scanner
from sardonyx.model.text.vocabulary import MAX_DEPTH, STORAGE

_INTRODUCTION: Final = "defaults"


@dataclass(frozen=True, slots=True)
class Conventions:
    """The conventions of one text; without the first line, the conventions of onnx's parser.

    Attributes:
        raw: Numbers are stored in ``raw_data`` rather than in a typed field.
        node_domain_unset: The domain of a node written without one is unset, rather than empty.
        node_doc_set: The doc string of every node is set, to an empty string unless annotated.
        tensor_name_unset: The name of an attribute's tensor written without one is unset, rather than empty.
        opset_domain_unset: An empty domain of an operator set is unset.
    """

    raw: bool = False
    node_domain_unset: bool = False
    node_doc_set: bool = False
    tensor_name_unset: bool = False
    opset_domain_unset: bool = False


_WORDS: Final = {
    "raw": "raw",
    "unset(NodeProto.domain)": "node_domain_unset",
    "set(NodeProto.doc_string)": "node_doc_set",
    "unset(TensorProto.name)": "tensor_name_unset",
    "unset(OperatorSetIdProto.domain)": "opset_domain_unset",
}


def choose(model: ModelProto) -> Conventions:
    """Return the conventions that need the fewest exceptions in a model."""
    votes: Counter[str] = Counter()
    for entry in model.opset_import:
        if not entry.domain:
            votes["opset_domain_unset"] += -1 if entry.HasField("domain") else 1
    _count_graph(model.graph, votes, depth=0)
    for function in model.functions:
        _count_nodes(function.node, votes, depth=0)
    return Conventions(**{field.name: votes[field.name] > 0 for field in fields(Conventions)})


def _count_graph(graph: GraphProto, votes: Counter[str], depth: int) -> None:
    for tensor in graph.initializer:
        _count_tensor(tensor, votes)
    _count_nodes(graph.node, votes, depth)


def _count_nodes(nodes: Iterable[NodeProto], votes: Counter[str], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise TextFormatError("nests graphs deeper than protobuf's limit of 100 levels", where="the model")
    for node in nodes:
        if not node.domain:
            votes["node_domain_unset"] += -1 if node.HasField("domain") else 1
        votes["node_doc_set"] += 1 if node.HasField("doc_string") and not node.doc_string else -1
        for attribute in node.attribute:
            for tensor in (*((attribute.t,) if attribute.HasField("t") else ()), *attribute.tensors):
                _count_tensor(tensor, votes)
                if not tensor.name:
                    votes["tensor_name_unset"] += -1 if tensor.HasField("name") else 1
            for graph in (*((attribute.g,) if attribute.HasField("g") else ()), *attribute.graphs):
                _count_graph(graph, votes, depth + 3)


def _count_tensor(tensor: TensorProto, votes: Counter[str]) -> None:
    storage = STORAGE.get(tensor.data_type)
    if tensor.HasField("raw_data"):
        votes["raw"] += 1
    elif storage is not None and len(getattr(tensor, storage.field)):
        votes["raw"] -= 1


def write(conventions: Conventions) -> str:
    """Format the first line of a text; empty for the conventions of onnx's parser."""
    words = [word for word, name in _WORDS.items() if getattr(conventions, name)]
    return f"#@ {_INTRODUCTION} {' '.join(words)}\n" if words else ""


def read(scanner: Scanner) -> Conventions:
    """Parse the first line of a text, if the line states conventions.

    Raises:
        TextFormatError: A word of the line is not the name of a convention.
    """
    start = scanner.position
    block = scanner.annotation()
    if block is None or block[0].split()[:1] != [_INTRODUCTION]:
        scanner.position = start
        return Conventions()
    body, offset = block
    return Conventions(**{_WORDS[word]: True for word in _check_words(scanner, body, offset)})


def _check_words(scanner: Scanner, body: str, offset: int) -> Iterator[str]:
    for word in body.split()[1:]:
        if word not in _WORDS:
            raise scanner.error(f"expected one of {', '.join(_WORDS)}, got {word[:40]!r}", at=offset + body.index(word))
        yield word
