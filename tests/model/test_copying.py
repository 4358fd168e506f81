"""Copies of models: equal when saved, and independent of each other except for shared tensors."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from sardonyx.model import load, to_proto
from sardonyx.model.copying import copy_model

NESTED = """<ir_version: 10, opset_import: ["": 18, "own": 1], producer_name: "me", model_version: 3, doc_string: "doc">
nested (float[N, 4] x, bool c) => (float[N, 4] y, z) <float[4] w = {1, 2, 3, 4}, float[4] spare> {
    a = Add(x, w)
    y = If (c) <
        then_branch = inner () => (t) { u = Mul(a, w)  t = Identity(u) },
        else_branch = other () => (e) { e = own.twice(a) }
    >
    z = Dropout <seed = 3> (y, , )
}
<domain: "own", opset_import: ["": 18]> twice (v) => (r) { r = Add(v, v) }"""


def nested() -> ir.Model:
    proto = onnx.parser.parse_model(NESTED)
    proto.metadata_props.add(key="k", value="v")
    proto.graph.node[0].metadata_props.add(key="k", value="v")
    proto.graph.node[0].doc_string = "adds"
    return load(proto)


def test_a_copy_is_written_like_the_model() -> None:
    model = nested()
    assert to_proto(copy_model(model)).SerializeToString(True) == to_proto(model).SerializeToString(True)


def test_a_copy_shares_only_tensors_and_plain_attributes() -> None:
    model = nested()
    twin = copy_model(model)
    for graph, own in zip([model.graph, *model.graph.subgraphs()], [twin.graph, *twin.graph.subgraphs()], strict=True):
        mine = {value for node in own for value in (*node.inputs, *node.outputs) if value is not None}
        theirs = {value for node in graph for value in (*node.inputs, *node.outputs) if value is not None}
        assert mine.isdisjoint(theirs) and set(own).isdisjoint(graph)
        for name, value in own.initializers.items():
            assert value is not graph.initializers[name]
            assert value.const_value is graph.initializers[name].const_value
    before = to_proto(model).SerializeToString(True)
    for node in twin.graph.all_nodes():
        node.metadata_props["new"] = "1"
        for value in node.outputs:
            value.name, value.shape = f"{value.name}_", ir.Shape([1])
    twin.graph.inputs[0].shape[0] = 7  # type: ignore[index]
    assert to_proto(model).SerializeToString(True) == before


def test_unsorted_graphs_are_copied() -> None:
    model = nested()
    last = model.graph[-1]
    model.graph.remove(last)
    model.graph.insert_before(model.graph[0], last)
    twin = copy_model(model)
    twin.graph.sort()
    model.graph.sort()
    assert to_proto(twin).SerializeToString(True) == to_proto(model).SerializeToString(True)


def test_meta_is_copied() -> None:
    model = nested()
    model.meta["model"], model.graph.meta["graph"] = 1, 2
    model.graph[0].meta["node"], model.graph[0].outputs[0].meta["value"] = 3, 4
    twin = copy_model(model)
    metas = twin.meta, twin.graph.meta, twin.graph[0].meta, twin.graph[0].outputs[0].meta
    names = ("model", "graph", "node", "value")
    assert [meta[name] for meta, name in zip(metas, names, strict=True)] == [1, 2, 3, 4]


def test_sharding_refers_to_the_copied_values() -> None:
    model = nested()
    node = model.graph[0]
    spec = ir.ShardingSpec(value=node.outputs[0], device=(0,))
    node.device_configurations = (ir.NodeDeviceConfiguration(sharding_specs=(spec,)),)
    (configuration,) = copy_model(model).graph[0].device_configurations
    assert configuration.sharding_specs[0].value is not node.outputs[0]
    assert configuration.sharding_specs[0].value.name == node.outputs[0].name  # type: ignore[union-attr]
