"""Shape inference: named sizes, bodies, overrides, and names that never reach a file."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from sardonyx import model as model_io
from sardonyx.errors import InvalidModelError, ShapeError
from sardonyx.rewrite import inference
from tests.rewrite.models import BOOL, info, model, node


def annotated(proto: onnx.ModelProto, **options: object) -> ir.Model:
    loaded = model_io.from_proto(proto)
    inference.infer_shapes(loaded, **options)  # type: ignore[arg-type]
    return loaded


def shape(loaded: ir.Model, name: str) -> list[int | str | None]:
    value = next(v for n in loaded.graph.all_nodes() for v in n.outputs if v.name == name)
    assert value.shape is not None
    return [d if isinstance(d, int) else d.value for d in value.shape]


def reshaped(*dims: int) -> onnx.ModelProto:
    nodes = [node("Reshape", ["x", "target"], ["r"]), node("Tanh", ["r"], ["y"])]
    return model(nodes, [info("x", ["n", "t", 8])], [info("y", None)], {"target": np.array(dims)})


def test_sizes_are_expressions_of_named_ones() -> None:
    assert shape(annotated(reshaped(0, -1)), "r") == ["n", "8*t"]
    assert shape(annotated(reshaped(0, -1, 4)), "y") == ["n", "2*t", 4]


def test_broadcasting_keeps_the_names() -> None:
    nodes = [node("Add", ["x", "b"], ["a"]), node("Mul", ["a", "x"], ["y"])]
    proto = model(nodes, [info("x", ["n", 4]), info("b", [1, 4])], [info("y", None)])
    assert shape(annotated(proto), "y") == ["n", 4]


def test_bodies_are_annotated_too() -> None:
    then = helper.make_graph([node("Concat", ["x", "x"], ["t"], axis=0)], "t", [], [info("t", None)])
    other = helper.make_graph([node("Neg", ["x"], ["e"])], "e", [], [info("e", None)])
    nodes = [node("If", ["c"], ["y"], then_branch=then, else_branch=other)]
    loaded = annotated(model(nodes, [info("c", [], BOOL), info("x", [3, "m"])], [info("y", None)]))
    assert shape(loaded, "t") == [6, "m"]


def test_overrides_are_carried_on() -> None:
    loaded = annotated(reshaped(0, -1), input_shapes={"x": [2, "t", 8]})
    assert shape(loaded, "r") == [2, "8*t"]


@pytest.mark.parametrize(("shapes", "told"), [({"z": [1]}, "Inputs are: x"), ({"x": [1, 2]}, "rank 3")])
def test_overrides_that_do_not_fit_are_an_error(shapes: dict[str, list[int]], told: str) -> None:
    with pytest.raises(ShapeError, match=told):
        annotated(reshaped(0, -1), input_shapes=shapes)


def test_made_up_names_do_not_stay() -> None:
    nodes = [node("NonZero", ["x"], ["i"]), node("Transpose", ["i"], ["t"]), node("Cast", ["t"], ["y"], to=1)]
    loaded = annotated(model(nodes, [info("x", ["n", 3])], [info("y", None)]))
    inference.forget_made_up(loaded)
    assert shape(loaded, "t") == [None, 2]


def test_a_name_that_inputs_declare_stays_whatever_it_looks_like() -> None:
    nodes = [node("Tanh", ["x"], ["t"]), node("Neg", ["t"], ["y"])]
    loaded = annotated(model(nodes, [info("x", ["unk__0", 3])], [info("y", None)]))
    inference.forget_made_up(loaded)
    assert shape(loaded, "t") == ["unk__0", 3]


def test_a_model_without_operator_sets_is_an_error() -> None:
    proto = reshaped(0, -1)
    del proto.opset_import[:]
    with pytest.raises(InvalidModelError, match="types cannot be inferred"):
        annotated(proto)


def test_a_size_that_names_make_too_long_has_a_name_of_its_own() -> None:
    """Values are named as exporters name them, at length; equal sizes still have equal names."""
    counts = [f"{'/scope' * 40}/NonZero_{i}" for i in range(24)]
    nodes = [node("Add", ["x", f"c{i}"], [f"s{i}"]) for i in range(24)]
    nodes += [node("NonZero", [f"s{i}"], [name]) for i, name in enumerate(counts)]
    nodes += [node("Concat", counts, ["all"], axis=1), node("Cast", ["all"], ["y"], to=1)]
    weights = {f"c{i}": np.array(i, np.float32) for i in range(24)}
    found = annotated(model(nodes, [info("x", ["n"])], [info("y", None)], weights))
    assert shape(found, "all") == [1, "?all.1.whole"]
    assert shape(found, "y") == shape(found, "all")
