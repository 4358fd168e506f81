"""What a text leaves to convention: whether small things that the syntax cannot state are set or unset.

onnx's parser sets a node's domain, an attribute tensor's name and an operator set's domain to empty strings where the
text has none, never sets a node's doc string, and stores every number in a typed field. Exporters differ. The first
line of a text, ``#@ defaults …``, names the conventions of its model; single exceptions are annotated.
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
    """The conventions of one text; without the first line, those of onnx's parser.

    Attributes:
        raw: Numbers are stored in ``raw_data`` rather than in a typed field.
        node_domain_unset: A node written without domain has none, rather than an empty one.
        node_doc_set: Every node has a doc string, an empty one unless annotated.
        tensor_name_unset: A tensor in an attribute that is written without name has none, rather than an empty one.
        opset_domain_unset: An operator set with an empty domain has none.
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


def of_model(model: ModelProto) -> Conventions:
    """The conventions that need the fewest exceptions in this model."""
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
        raise TextFormatError("nests graphs deeper than protobuf can read", where="the model")
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
    """The first line of a text; empty when its conventions are those of onnx's parser."""
    words = [word for word, name in _WORDS.items() if getattr(conventions, name)]
    return f"#@ {_INTRODUCTION} {' '.join(words)}\n" if words else ""


def read(scanner: Scanner) -> Conventions:
    """Read the first line of a text, if it states conventions.

    Raises:
        TextFormatError: The line has a word that names no convention.
    """
    start = scanner.position
    found = scanner.annotation()
    if found is None or found[0].split()[:1] != [_INTRODUCTION]:
        scanner.position = start
        return Conventions()
    body, offset = found
    return Conventions(**{_WORDS[word]: True for word in _known(scanner, body, offset)})


def _known(scanner: Scanner, body: str, offset: int) -> Iterator[str]:
    for word in body.split()[1:]:
        if word not in _WORDS:
            raise scanner.error(
                f"expected one of {', '.join(_WORDS)}, found {word[:40]!r}", at=offset + body.index(word)
            )
        yield word
