"""Shape inference: named sizes, bodies, overrides, and names that never reach a file."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from sardonyx import model as model_io
from sardonyx.errors import InvalidModelError, ShapeError
from sardonyx.rewrite import evaluate, pipeline
from sardonyx.rewrite.analysis import inference
from sardonyx.rewrite.rewrite_context import Settings
from tests.rewrite.models import BOOL, INT64, info, model, node


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


def test_overrides_are_propagated() -> None:
    loaded = annotated(reshaped(0, -1), input_shapes={"x": [2, "t", 8]})
    assert shape(loaded, "r") == [2, "8*t"]


@pytest.mark.parametrize(
    ("shapes", "message"), [({"z": [1]}, "Inputs are: x"), ({"x": [1, 2]}, "expected 3 dimensions, got 2")]
)
def test_overrides_that_do_not_fit_are_an_error(shapes: dict[str, list[int]], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        annotated(reshaped(0, -1), input_shapes=shapes)


def test_generated_names_are_cleared() -> None:
    nodes = [node("NonZero", ["x"], ["i"]), node("Transpose", ["i"], ["t"]), node("Cast", ["t"], ["y"], to=1)]
    loaded = annotated(model(nodes, [info("x", ["n", 3])], [info("y", None)]))
    inference.forget_generated_names(loaded)
    assert shape(loaded, "t") == [None, 2]


def test_a_declared_name_stays_even_if_it_looks_generated() -> None:
    nodes = [node("Tanh", ["x"], ["t"]), node("Neg", ["t"], ["y"])]
    loaded = annotated(model(nodes, [info("x", ["unk__0", 3])], [info("y", None)]))
    inference.forget_generated_names(loaded)
    assert shape(loaded, "t") == ["unk__0", 3]


def test_a_model_without_operator_sets_is_an_error() -> None:
    proto = reshaped(0, -1)
    del proto.opset_import[:]
    with pytest.raises(InvalidModelError, match="types cannot be inferred"):
        annotated(proto)


def test_a_size_too_long_to_write_gets_a_name() -> None:
    """Values are named as exporters name them, at length; equal sizes still have equal names."""
    counts = [f"{'/scope' * 40}/NonZero_{i}" for i in range(24)]
    nodes = [node("Add", ["x", f"c{i}"], [f"s{i}"]) for i in range(24)]
    nodes += [node("NonZero", [f"s{i}"], [name]) for i, name in enumerate(counts)]
    nodes += [node("Concat", counts, ["all"], axis=1), node("Cast", ["all"], ["y"], to=1)]
    weights = {f"c{i}": np.array(i, np.float32) for i in range(24)}
    inferred = annotated(model(nodes, [info("x", ["n"])], [info("y", None)], weights))
    assert shape(inferred, "all") == [1, "?all.1.whole"]
    assert shape(inferred, "y") == shape(inferred, "all")


def test_a_size_too_long_for_shape_arithmetic_is_unchanged() -> None:
    """The size is a product of two sums of values with long names."""
    counts = [f"{'/scope' * 12}/NonZero_{i}" for i in range(8)]
    nodes = [node("Add", ["x", f"c{i}"], [f"s{i}"]) for i in range(8)]
    nodes += [node("NonZero", [f"s{i}"], [name]) for i, name in enumerate(counts)]
    nodes += [node("Concat", counts, ["row"], axis=1), node("Transpose", ["row"], ["column"])]
    nodes += [node("Mul", ["row", "column"], ["table"]), node("Reshape", ["table", "target"], ["y"])]
    weights = {f"c{i}": np.array(i, np.float32) for i in range(8)} | {"target": np.array([-1])}
    inferred = annotated(model(nodes, [info("x", ["n"])], [info("y", None, INT64)], weights))
    assert len(shape(inferred, "y")) == 1


def beside_its_first_row() -> list[onnx.NodeProto]:
    """Return nodes that replace the first row of ``x`` and add ``x``: the row counts are equal."""
    return [
        node("Slice", ["x", "one", "most", "zero"], ["rest"]),
        node("Concat", ["row", "rest"], ["c"], axis=0),
        node("Add", ["c", "x"], ["a"]),
        node("Shape", ["x"], ["sizes"]),
        node("Gather", ["sizes", "zero"], ["n"]),
        node("Concat", ["n", "open"], ["target"], axis=0),
        node("Reshape", ["a", "target"], ["r"]),
        node("Tanh", ["r"], ["t"]),
        node("Reshape", ["t", "same"], ["y"]),
    ]


ROWS = {
    "zero": np.array([0]),
    "one": np.array([1]),
    "most": np.array([2**62]),
    "row": np.ones((1, 8), np.float32),
    "open": np.array([-1, 4]),
    "same": np.array([0, 2, 4]),
}


def test_sizes_that_differ_for_an_empty_tensor_are_not_equal() -> None:
    """The replaced first row is a row also where ``x`` has none; it broadcasts to the rows of ``x``, none too."""
    proto = model(beside_its_first_row(), [info("x", ["n", 8])], [info("y", None)], ROWS)
    inferred = annotated(proto)
    assert [shape(inferred, name)[0] for name in ("c", "r")] == ["max(0, n - 1) + 1", "n"]
    once = pipeline.transform(model_io.from_proto(proto), pipeline.select(), Settings()).model
    assert not pipeline.transform(once, pipeline.select(), Settings()).applied
    for rows in (0, 1, 3):
        (answer,) = evaluate.evaluate(model_io.to_proto(once), {"x": np.ones((rows, 8), np.float32)}).values()
        assert answer.shape == (rows, 2, 4)
