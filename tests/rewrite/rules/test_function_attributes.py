"""Nodes of a function whose attributes come from the call: no rule may use their defaults."""

from __future__ import annotations

import copy
import importlib
import pkgutil

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, helper

import tests.rewrite.rules as package
from sardonyx.errors import EvaluationError
from sardonyx.rewrite import evaluate, pipeline
from sardonyx.rewrite.rewrite_context import Settings
from tests.rewrite.fuzz import GENERATORS, GraphMaker, Law, Unsuitable

FAMILIES = [
    module.name
    for module in pkgutil.iter_modules(package.__path__)
    if module.name.startswith("test_") and module.name != __name__.rsplit(".", 1)[-1]
]
INLINING = ("inline_functions", "inline_small_functions")


def in_a_function(proto: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    """The model as one call of a function, which is given about half of its nodes' attributes.

    Raises:
        Unsuitable: nothing is given, or no evaluator runs it.
    """
    parameters: list[AttributeProto] = []
    inputs, outputs = [v.name for v in proto.graph.input], [v.name for v in proto.graph.output]
    weights = [tensor for tensor in proto.graph.initializer if tensor.name not in inputs]
    nodes = [helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in weights]
    nodes += [copy.deepcopy(node) for node in proto.graph.node]
    for node in nodes:
        _refer(node, parameters, rng)
    function = helper.make_function(
        "lifted", "F", inputs, outputs, nodes, proto.opset_import, [a.name for a in parameters]
    )
    call = helper.make_node("F", inputs, outputs, domain="lifted")
    call.attribute.extend(parameters)
    defaults = [tensor for tensor in proto.graph.initializer if tensor.name in inputs]
    graph = helper.make_graph([call], "g", proto.graph.input, proto.graph.output, defaults)
    imports = [*proto.opset_import, helper.make_opsetid("lifted", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10, functions=[function, *proto.functions])
    try:
        evaluate.runner(model)
    except EvaluationError as error:
        raise Unsuitable(str(error)) from error
    if not parameters:
        raise Unsuitable("no attribute is given")
    return model


def _refer(node: onnx.NodeProto, parameters: list[AttributeProto], rng: np.random.Generator) -> None:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            for inner in attribute.g.node:
                _refer(inner, parameters, rng)
        elif attribute.type != AttributeProto.TENSOR and node.op_type != "Constant" and rng.random() < 0.6:
            value = copy.deepcopy(attribute)
            value.name = f"a{len(parameters)}"
            parameters.append(value)
            reference = AttributeProto(name=attribute.name, type=attribute.type, ref_attr_name=value.name)
            attribute.CopyFrom(reference)


def hold(family: str, seeds: range) -> int:
    """Check the generators of a file of rules; return the number of graphs checked."""
    module = importlib.import_module(f"{package.__name__}.{family}")
    makes = dict.fromkeys(
        make for generators in GENERATORS.values() for make in generators if make.__module__ == module.__name__
    )
    selection = pipeline.select(skip=INLINING)
    checked = 0
    for make in makes:
        for seed in seeds:
            maker = GraphMaker(seed)
            try:
                make(maker)
                law = Law.of(maker)
                law.proto = in_a_function(law.proto, np.random.default_rng(seed))
            except Unsuitable:
                continue
            law.kept_by(selection, Settings(), f"seed {seed}, {make.__name__}", thorough=False)
            checked += 1
    return checked


@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_stay_equal(family: str) -> None:
    hold(family, range(2))


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_stay_equal_for_many(family: str) -> None:
    hold(family, range(2, 102))
