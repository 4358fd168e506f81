"""Short names of inner tensors: in small models names are a tenth of the file."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator

import onnx_ir as ir

from sardonyx.model.copying import copy_model
from sardonyx.rewrite.analysis import facts

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def shorten_names(model: ir.Model) -> ir.Model:
    """Return a copy of a model whose inner tensors have short names, without names of nodes and notes on tensors.

    Names of inputs, outputs and functions stay, and so does every result.

    Args:
        model: The model.
    """
    result = copy_model(model)
    fixed = {str(value.name) for value in (*result.graph.inputs, *result.graph.outputs)}
    names = (name for name in _names() if name not in fixed)
    for graph in facts.graphs_of(result.graph):
        inner = [value for value in graph.inputs if graph is not result.graph]
        for value in [*graph.initializers.values(), *inner, *(v for node in graph for v in node.outputs)]:
            if value.name and str(value.name) not in fixed:
                if value.const_value is not None:
                    # A value renames its tensor too, and the original shares the tensor.
                    value.const_value = copy.copy(value.const_value)
                value.name = next(names)
        for node in graph:
            node.name = ""
            node.doc_string = None
            node.metadata_props.clear()
    return result


def _names() -> Iterator[str]:
    for length in itertools.count(1):
        yield from ("".join(letters) for letters in itertools.product(_LETTERS, repeat=length))
