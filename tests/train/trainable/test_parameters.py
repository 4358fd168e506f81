"""Parameters of exported models: weights that training changes, and constants that it leaves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import sardonyx
from sardonyx import train
from sardonyx.errors import OptionError

RNG = np.random.default_rng(0)


def tensor(name: str, array: np.ndarray | float) -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(np.asarray(array, np.float32), name)


def weight(name: str, *shape: int) -> onnx.TensorProto:
    """Return a random weight, which depends on its name and shape alone: not on the tests before."""
    rng = np.random.default_rng([*name.encode(), *shape])
    return tensor(name, rng.standard_normal(shape) * 0.3)


def model(
    nodes: Sequence[onnx.NodeProto], tensors: Sequence[onnx.TensorProto], features: int = 4, results: int = 4,
) -> onnx.ModelProto:  # fmt: skip
    """Return a model of an input x [N, features] and an output y [N, results]."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", features])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", results])
    graph = helper.make_graph(list(nodes), "g", [x], [y], list(tensors))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def names(source: onnx.ModelProto) -> set[str]:
    return set(train.Trainer(source, "mse", train.SGD(0.01)).parameters)


def node(kind: str, inputs: str, output: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(kind, inputs.split(), [output], **attributes)


def constant(name: str, array: np.ndarray) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=tensor(name, array))


def test_a_normalized_weight_is_trained_by_its_parts() -> None:
    nodes = [
        node("ReduceL2", "v", "length"), node("Div", "v length", "unit"), node("Mul", "unit g", "w"),
        node("MatMul", "x w", "y"),
    ]  # fmt: skip
    assert names(model(nodes, [weight("v", 4, 4), weight("g", 4)])) == {"v", "g"}


def test_angles_of_rotations_are_constants() -> None:
    nodes = [
        node("Einsum", "steps frequencies", "angles", equation="i,j->ij"), node("Cos", "angles", "factors"),
        node("MatMul", "x w", "h"), node("Mul", "h factors", "y"),
    ]  # fmt: skip
    tensors = [tensor("steps", np.arange(4)), tensor("frequencies", [1, 0.1, 0.01, 0.001]), weight("w", 4, 4)]
    assert names(model(nodes, tensors)) == {"w"}


@pytest.mark.parametrize("is_table", [True, False])
def test_tables_of_sines_are_constants(is_table: bool) -> None:
    angles = np.arange(8)[:, None] * 10.0 ** -np.arange(4)
    table = np.sin(angles + np.arange(4) % 2 * np.pi / 2) if is_table else RNG.standard_normal((8, 4)) * 0.3
    nodes = [
        node("Gather", "table indices", "rows"), node("MatMul", "x w", "h"), node("Add", "h rows", "y"),
    ]  # fmt: skip
    indices = onnx.numpy_helper.from_array(np.array(2), "indices")
    trained = names(model(nodes, [tensor("table", table), weight("w", 4, 4), indices]))
    assert trained == {"w"} | (set() if is_table else {"table"})


def test_ones_and_zeros_of_a_normalization_without_scale_are_constants() -> None:
    nodes = [
        node("Reshape", "x groups", "r"), constant("ones", np.ones(2)), constant("zeros", np.zeros(2)),
        node("InstanceNormalization", "r ones zeros", "n"), node("Reshape", "n flat", "f"), node("Mul", "f g", "y"),
    ]  # fmt: skip
    sizes = [onnx.numpy_helper.from_array(np.array(a), name) for name, a in (("groups", [0, 2, 2]), ("flat", [0, 4]))]
    assert names(model(nodes, [*sizes, weight("g", 4)])) == {"g"}
    nodes = [one for one in nodes if one.op_type != "Constant"]
    stored = [*sizes, tensor("ones", np.ones(2)), tensor("zeros", np.zeros(2)), weight("g", 4)]
    assert names(model(nodes, stored)) == {"g"}


def test_vectors_that_are_equal_by_chance_are_trained_apart() -> None:
    nodes = [
        node("Gemm", "x w1 zeros", "h"), node("Relu", "h", "r"), node("Gemm", "r w2 zeros", "y"),
    ]  # fmt: skip
    source = model(nodes, [weight("w1", 4, 4), weight("w2", 4, 4), tensor("zeros", np.zeros(4))])
    trainer = train.Trainer(source, "mse", train.SGD(0.1))
    assert set(trainer.parameters) == {"w1", "w2", "zeros", "zeros_1"}
    trainer.step({"x": np.ones((3, 4), np.float32), "labels": np.ones((3, 4), np.float32)})
    state = trainer.state()
    assert not np.array_equal(state["parameter:zeros"], state["parameter:zeros_1"])
    shared = [node("Gemm", "x w zeros", "h"), node("Relu", "h", "r"), node("Gemm", "r w zeros", "y")]
    assert names(model(shared, [weight("w", 4, 4), tensor("zeros", np.zeros(4))])) == {"w", "zeros"}


def test_tokens_are_trained() -> None:
    nodes = [
        node("Greater", "x limit", "mask"), node("Where", "mask x token", "h"), node("Shape", "x", "shape"),
        node("Expand", "first shape", "e"), node("Concat", "h e", "c", axis=1), node("MatMul", "c w", "y"),
    ]  # fmt: skip
    tensors = [tensor("limit", 0.0), tensor("token", np.zeros(4)), weight("first", 1, 4), weight("w", 8, 4)]
    assert names(model(nodes, tensors)) == {"token", "first", "w"}


@pytest.mark.parametrize("token", [RNG.standard_normal((1, 4)), np.zeros((1, 4))])
def test_class_tokens_before_positions_and_norms_are_trained(token: np.ndarray) -> None:
    nodes = [
        node("MatMul", "x w", "h"), node("Concat", "h token", "c", axis=0), node("Add", "c position", "p"),
        node("LayerNormalization", "p scale", "n"), node("MatMul", "n v", "y"),
    ]  # fmt: skip
    tensors = [tensor("token", token), weight("position", 1, 4), weight("w", 4, 4), weight("v", 4, 4)]
    assert names(model(nodes, [*tensors, tensor("scale", np.ones(4))])) >= {"token", "w", "v", "scale"}


def test_a_column_of_ones_beside_data_is_no_weight() -> None:
    nodes = [
        node("Shape", "x", "all"), node("Slice", "all zero one", "rows"), node("Concat", "rows one", "shape", axis=0),
        node("Expand", "ones shape", "column"), node("Concat", "x column", "c", axis=1), node("MatMul", "c w", "y"),
    ]  # fmt: skip
    axes = [onnx.numpy_helper.from_array(np.array([number]), name) for name, number in (("zero", 0), ("one", 1))]
    assert names(model(nodes, [tensor("ones", np.ones((1, 1))), weight("w", 5, 4), *axes])) == {"w"}


def test_tensors_that_join_results_of_layers_are_trained() -> None:
    centers = [
        node("MatMul", "x w", "h"), node("Unsqueeze", "h one", "u"), node("Sub", "u centers", "d"),
        node("Mul", "d d", "s"), node("ReduceSum", "s last", "y", keepdims=0),
    ]  # fmt: skip
    axes = [onnx.numpy_helper.from_array(np.array([axis]), name) for name, axis in (("one", 1), ("last", 2))]
    assert names(model(centers, [weight("w", 4, 4), weight("centers", 4, 4), *axes])) == {"w", "centers"}
    # A grid, a table with the number of an exporter, and a scale of the input are constants.
    grid = tensor("centers", np.stack([np.linspace(0, 1, 4), np.linspace(0, 3, 4)] * 2))
    assert names(model(centers, [weight("w", 4, 4), grid, *axes])) == {"w"}
    numbered = [
        node("MatMul", "x w", "h"), node("Unsqueeze", "h one", "u"), node("Sub", "u 465", "d"),
        node("Mul", "d d", "s"), node("ReduceSum", "s last", "y", keepdims=0),
    ]  # fmt: skip
    assert names(model(numbered, [weight("w", 4, 4), weight("465", 4, 4), *axes])) == {"w"}
    raw = [node("Unsqueeze", "x one", "u"), node("Mul", "u m", "e"), node("ReduceSum", "e last", "s", keepdims=0)]
    raw.append(node("MatMul", "s w", "y"))
    assert names(model(raw, [weight("m", 4, 4), weight("w", 4, 4), *axes])) == {"w"}


def test_masks_and_bounds_of_weights_are_constants() -> None:
    masked = [node("Mul", "w mask", "m"), node("MatMul", "x m", "y")]
    assert names(model(masked, [weight("w", 4, 4), tensor("mask", np.eye(4)[:, [1, 2, 0, 3]])])) == {"w"}
    bounded = [
        node("ReduceL2", "w", "n"), node("Max", "n bound", "b"), node("Div", "w b", "u"), node("MatMul", "x u", "y"),
    ]  # fmt: skip
    assert names(model(bounded, [weight("w", 4, 4), tensor("bound", np.array([1e-12]))])) == {"w"}


def test_a_sparse_selection_of_embeddings_leaves_positions() -> None:
    nodes = [
        node("Cast", "x", "i", to=TensorProto.INT64), node("Gather", "table i", "e"), node("Add", "e positions", "p"),
        node("ReduceSum", "p last", "y", keepdims=0),
    ]  # fmt: skip
    last = onnx.numpy_helper.from_array(np.array([2]), "last")
    source = model(nodes, [weight("table", 9, 3), weight("positions", 4, 3), last])
    trainer = train.Trainer(source, "mse", train.SGD(0.01), sparse="embeddings")
    assert set(trainer.parameters) == {"table", "positions"}
    trainer.step({"x": np.ones((2, 4), np.float32), "labels": np.ones((2, 4), np.float32)})


def test_last_layers_are_those_of_the_graph_not_of_the_list_of_tensors() -> None:
    shape = onnx.numpy_helper.from_array(np.array([0, 1, 4]), "shape")
    axis = onnx.numpy_helper.from_array(np.array([1]), "axis")
    flat = onnx.numpy_helper.from_array(np.array([0, 4]), "flat")
    nodes = [
        node("Reshape", "x shape", "s", allowzero=0),
        helper.make_node("GRU", ["s", "W", "R", "B"], ["h"], hidden_size=4, layout=1),
        node("Reshape", "h flat", "f"), node("Gemm", "f head.weight head.bias", "y", transB=1),
    ]  # fmt: skip
    tensors = [weight("head.weight", 4, 4), weight("head.bias", 4), shape, axis, flat]
    tensors += [weight("W", 1, 12, 4), weight("R", 1, 12, 4), weight("B", 1, 24)]

    def last(pattern: str) -> set[str]:
        return set(train.Trainer(model(nodes, tensors), "mse", train.SGD(0.01), trainable=pattern).parameters)

    assert last("last") == {"head.weight", "head.bias"}
    assert last("last:2") == {"head.weight", "head.bias", "W", "R", "B"}


def test_a_number_is_selected_by_its_exact_name() -> None:
    nodes = [node("MatMul", "x w", "h"), node("Exp", "t", "e"), node("Mul", "h e", "y")]
    source = model(nodes, [weight("w", 4, 4), tensor("t", 0.5)])
    assert names(source) == {"w"}
    trainer = train.Trainer(source, "mse", train.SGD(0.1), trainable=["*", "t"])
    assert set(trainer.parameters) == {"w", "t"}
    trainer.step({"x": np.ones((3, 4), np.float32), "labels": np.ones((3, 4), np.float32)})
    assert trainer.state()["parameter:t"] != np.float32(0.5)
    with pytest.raises(OptionError, match="no parameter matches"):
        train.Trainer(source, "mse", train.SGD(0.1), trainable="tt")


def test_weights_of_branches_and_loops_are_trained() -> None:
    def branch(name: str, stored: bool) -> onnx.GraphProto:
        result = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None)
        array = weight("w", 4, 4)
        nodes = [] if stored else [constant("w", onnx.numpy_helper.to_array(array))]
        nodes.append(node("MatMul", "x w", f"{name}_y"))
        return helper.make_graph(nodes, name, [], [result], [array] if stored else [])

    nodes = [
        node("ReduceSum", "x", "sum", keepdims=0), node("Greater", "sum limit", "is_large"),
        node("If", "is_large", "y", then_branch=branch("a", True), else_branch=branch("b", False)),
    ]  # fmt: skip
    source = model(nodes, [tensor("limit", 0.0)])
    trainer = train.Trainer(source, "mse", train.SGD(0.1))
    assert len(trainer.parameters) == 2
    before = trainer.state()
    trainer.step({"x": np.ones((3, 4), np.float32), "labels": np.ones((3, 4), np.float32)})
    changed = [name for name, array in trainer.state().items() if not np.array_equal(array, before[name])]
    assert len(changed) == 1
    feeds = {"x": -np.ones((2, 4), np.float32)}
    np.testing.assert_allclose(
        trainer.predict(feeds)["y"], feeds["x"] @ trainer.state()[f"parameter:{trainer.parameters[1]}"], rtol=1e-5
    )


def test_scales_of_inputs_are_constants() -> None:
    nodes = [
        node("Sub", "x mean", "c"), node("Reshape", "c flat", "r"), node("Div", "r deviation", "s"),
        node("MatMul", "s w", "m"), node("Mul", "m g", "y"),
    ]  # fmt: skip
    flat = onnx.numpy_helper.from_array(np.array([0, 4]), "flat")
    tensors = [weight("mean", 4), weight("deviation", 4), weight("w", 4, 4), weight("g", 4), flat]
    assert names(model(nodes, tensors)) == {"w", "g"}


@pytest.mark.parametrize("kind", ["GatherND", "GatherElements"])
def test_gathered_weights_are_trained_and_grids_are_not(kind: str) -> None:
    indices = onnx.numpy_helper.from_array(np.array([[0], [2]] if kind == "GatherND" else [[0, 1, 0, 2]] * 2), "i")
    for array, is_trained in ((RNG.standard_normal((3, 4)), True), (np.arange(12).reshape(3, 4), False)):
        nodes = [
            node(kind, "table i", "rows"), node("ReduceSum", "rows axes", "row"), node("MatMul", "x w", "h"),
            node("Mul", "h row", "y"),
        ]  # fmt: skip
        axes = onnx.numpy_helper.from_array(np.array([0]), "axes")
        trained = names(model(nodes, [tensor("table", array), weight("w", 4, 4), indices, axes]))
        assert trained == {"w"} | ({"table"} if is_trained else set())


@pytest.mark.parametrize("is_learned", [True, False])
def test_learned_initial_states_are_trained(is_learned: bool) -> None:
    nodes = [
        node("Unsqueeze", "x axes", "steps"), node("Expand", "h0 shape", "h"),
        helper.make_node("RNN", ["steps", "w", "r", "b", "", "h"], ["all"], hidden_size=4),
        node("Squeeze", "all two", "y"),
    ]  # fmt: skip
    integers = {"axes": [1], "shape": [1, 1, 4], "two": [1, 2]}
    tensors = [onnx.numpy_helper.from_array(np.array(array), name) for name, array in integers.items()]
    tensors += [weight("w", 1, 4, 4), weight("r", 1, 4, 4), weight("b", 1, 8)]
    tensors.append(weight("h0", 1, 1, 4) if is_learned else tensor("h0", np.zeros((1, 1, 4))))
    assert names(model(nodes, tensors)) == {"w", "r", "b"} | ({"h0"} if is_learned else set())


def test_scales_of_quantized_weights_are_constants() -> None:
    codes = onnx.numpy_helper.from_array(RNG.integers(-9, 9, (4, 4)).astype(np.int8), "codes")
    zeros = onnx.numpy_helper.from_array(np.zeros(4, np.int8), "zeros")
    nodes = [node("DequantizeLinear", "codes scale zeros", "w"), node("MatMul", "x w", "h"), node("Add", "h b", "y")]
    source = model(nodes, [codes, zeros, tensor("scale", RNG.random(4)), weight("b", 4)])
    kinds = {one.name: one.kind for one in train.find_parameters(sardonyx.load(source))}
    assert kinds == {"scale": "constant", "b": "bias"}


@pytest.mark.parametrize(
    ("scale", "is_trained"),
    [("norm.weight", True), ("constant", False), ("constant_3", False), ("/n/n.5/Constant_2_output_0", False)],
)
def test_the_ones_that_an_exporter_writes_for_a_norm_without_a_scale_stay(scale: str, is_trained: bool) -> None:
    nodes = [
        node("Gemm", "x w", "h"), node("Reshape", "h wide", "r"),
        node("InstanceNormalization", f"r {scale} zeros", "n"), node("Relu", "n", "f"), node("Reshape", "f flat", "y"),
    ]  # fmt: skip
    tensors = [
        weight("w", 4, 4), tensor(scale, np.ones(2)), tensor("zeros", np.zeros(2)),
        onnx.numpy_helper.from_array(np.array([-1, 2, 2]), "wide"),
        onnx.numpy_helper.from_array(np.array([-1, 4]), "flat"),
    ]  # fmt: skip
    assert (scale in names(model(nodes, tensors))) == is_trained


def test_matrices_whose_products_are_summed_are_trained() -> None:
    nodes = [
        node("MatMul", "x w", "h"), node("Reshape", "h heads", "r"), node("LeakyRelu", "r", "a"),
        node("Mul", "a attention", "m"), node("ReduceSum", "m last", "s", keepdims=0),
        node("Mul", "r mask", "k"), node("ReduceSum", "k last", "t", keepdims=0), node("Add", "s t", "y"),
    ]  # fmt: skip
    integers = [("heads", [-1, 4, 1, 1]), ("last", [2, 3])]
    tensors = [onnx.numpy_helper.from_array(np.array(array), name) for name, array in integers]
    tensors += [weight("w", 4, 4), tensor("mask", np.tri(4).reshape(1, 4, 1, 4))]
    assert names(model(nodes, [*tensors, weight("attention", 1, 4, 1, 3)])) == {"w", "attention"}


@pytest.mark.parametrize(
    ("name", "array", "is_trained"),
    [
        ("mixer.A_log", np.log(np.arange(1, 5) * np.ones((4, 1))), True),
        ("val_12", np.log(np.arange(1, 5) * np.ones((4, 1))), False),
        ("frequencies", np.arange(1, 5)[:, None] * 10.0 ** -np.arange(4), False),
    ],
)
def test_matrices_of_state_space_models_are_trained(name: str, array: np.ndarray, is_trained: bool) -> None:
    nodes = [
        node("MatMul", "x w", "h"), node("Softplus", "h", "p"), node("Unsqueeze", "p last", "d"),
        node("Exp", name, "e"), node("Neg", "e", "n"), node("Mul", "d n", "m"), node("Exp", "m", "decay"),
        node("ReduceSum", "decay last", "y", keepdims=0),
    ]  # fmt: skip
    last = onnx.numpy_helper.from_array(np.array([-1]), "last")
    trained = names(model(nodes, [weight("w", 4, 4), tensor(name, array), last]))
    assert trained == {"w"} | ({name} if is_trained else set())


def test_a_weight_keeps_its_role_if_its_type_or_sizes_are_read() -> None:
    nodes = [
        node("Shape", "w", "shape"), node("ConstantOfShape", "shape", "zeros"), node("MatMul", "x w", "h"),
        node("CastLike", "g h", "c"), node("Mul", "h c", "scaled"), node("CastLike", "x w", "z"),
        node("MatMul", "z zeros", "none"), node("Add", "scaled none", "y"),
    ]  # fmt: skip
    source = model(nodes, [weight("w", 4, 4), weight("g", 4)])
    kinds = {one.name: (one.kind, len(one.readers)) for one in train.find_parameters(sardonyx.load(source))}
    assert kinds == {"w": ("weight", 1), "g": ("norm", 1)}


def test_parameters_that_a_program_declares_are_trained_and_no_others() -> None:
    nodes = [
        node("MatMul", "x w", "a"), node("Mul", "a temperature", "b"), node("Add", "b bias", "c"),
        node("MatMul", "c basis", "y"),
    ]  # fmt: skip
    tensors = [weight("w", 4, 4), tensor("temperature", 0.7), weight("bias", 4), weight("basis", 4, 4)]
    plain = model(nodes, tensors)
    assert names(plain) == {"w", "bias", "basis"}
    for key, text in (("parameters", '["w", "temperature", "bias", "gone"]'), ("constants", '["basis"]')):
        plain.metadata_props.add(key=f"sardonyx.{key}", value=text)
    assert names(plain) == {"w", "temperature", "bias"}


@pytest.mark.parametrize("text", ["", "{", "3", "[[" * 5000, '[1, {"w": 2}]'])
def test_metadata_of_another_form_declare_nothing(text: str) -> None:
    plain = model([node("MatMul", "x w", "y")], [weight("w", 4, 4)])
    plain.metadata_props.add(key="sardonyx.constants", value=text)
    assert names(plain) == {"w"}


def test_centers_of_a_grid_and_first_shares_of_a_routing_are_constants() -> None:
    nodes = [
        node("MatMul", "x w", "a"), node("Sub", "a grid", "b"), node("Mul", "b /Constant_9_output_0", "c"),
        node("ReduceSum", "c axes", "y", keepdims=0),
    ]  # fmt: skip
    axes = onnx.numpy_helper.from_array(np.array([0]), "axes")
    shares = tensor("/Constant_9_output_0", np.full((3, 1, 4), 1 / 3))
    assert names(model(nodes, [weight("w", 4, 4), tensor("grid", np.linspace(-2, 2, 4)), shares, axes])) == {"w"}
