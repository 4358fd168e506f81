"""Edits of a live session: each change, transactions, what is refused, and taking back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.runtime.edited_net import HEAD, B, H, W, X, net, parsed, relu

from sardonyx import Node, Session
from sardonyx.errors import (
    EditError,
    InvalidModelError,
    ModelFileError,
    SardonyxError,
    ShapeError,
    TypeMismatchError,
    UnsupportedError,
)

FEEDS = {"x": X}


@pytest.fixture(params=["off", "wait"])
def session(request: pytest.FixtureRequest) -> Session:
    return Session(net(), compile=request.param)


def run(session: Session, *names: str, **feeds: np.ndarray) -> Any:
    results = session.run(list(names) or None, {**FEEDS, **feeds})
    return results[0] if len(results) == 1 else results


def same(actual: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_a_node_is_added_and_asked_for(session: Session) -> None:
    name = session.add_node(Node("Neg", inputs=["h"], outputs=["n"], name="negated"))
    assert name == "negated"
    same(run(session, "n"), -H)
    same(run(session), relu(H + B))


def test_a_node_that_no_output_needs_has_no_say_in_a_call(session: Session) -> None:
    with session.edit() as g:
        g.add_weight("sizes", np.array([3, 5]))
        g.add_node(Node("Reshape", inputs=["h", "sizes"], outputs=["r"]))
    same(run(session), relu(H + B))
    same(run(session, "h"), H)


def test_names_are_made_up(session: Session) -> None:
    with session.edit() as g:
        first, second = g.add_node(Node("Neg", inputs=["h"])), g.add_node(Node("Neg", inputs=["h"]))
    assert first != second


def test_nodes_of_an_edit_come_in_any_order(session: Session) -> None:
    with session.edit() as g:
        g.add_node(Node("Add", inputs=["late", "h"], outputs=["sum"]))
        g.add_node(Node("Neg", inputs=["s"], outputs=["late"]))
        g.add_output("sum")
    same(run(session)[1], -B + 0 * H)


def test_a_node_behind_a_tensor_takes_its_readers(session: Session) -> None:
    session.insert_after("h", "Neg", name="minus")
    same(run(session), relu(-H + B))
    session.remove_node("minus")
    same(run(session), relu(H + B))


def test_an_output_keeps_its_name_and_carries_the_new_value(session: Session) -> None:
    session.insert_after("y", "Exp", name="exp")
    assert [value.name for value in session.get_outputs()] == ["y"]
    same(run(session), np.exp(relu(H + B)))
    session.remove_node("exp")
    assert [value.name for value in session.get_outputs()] == ["y"]
    same(run(session), relu(H + B))
    assert [value.name for node in session.model.graph for value in node.outputs] == ["h", "s", "y"]


def test_a_node_behind_an_input(session: Session) -> None:
    session.insert_after("x", "Abs")
    same(run(session), relu(np.abs(X) @ W + B))


def test_attributes(session: Session) -> None:
    session.insert_after("h", "LeakyRelu", alpha=0.5)
    same(run(session), relu(np.where(H < 0, H / 2, H) + B))


def test_a_changed_shape_is_inferred(session: Session) -> None:
    session.replace_node("relu", Node("ReduceMax", axes=[1], keepdims=0))
    assert session.get_outputs()[0].shape == ["N"]
    same(run(session), (H + B).max(1))


def test_a_node_is_replaced(session: Session) -> None:
    session.replace_node("add", Node("Sub", name="difference"))
    same(run(session), relu(H - B))
    session.replace_node("difference", Node("Mul", inputs=["h", "h"]))
    same(run(session), H * H)


def test_an_input_of_a_node_is_another_tensor(session: Session) -> None:
    session.rewire("add", 1, "h")
    same(run(session), relu(H + H))
    session.rewire("add", "h", "b")
    same(run(session), relu(B + B))


def test_outputs_come_and_go(session: Session) -> None:
    session.add_output("h")
    same(run(session)[1], H)
    session.remove_output("y")
    assert [value.name for value in session.get_outputs()] == ["h"]
    same(run(session), H)


def test_inputs_come_and_go(session: Session) -> None:
    with session.edit() as g:
        g.add_input("scale", np.float32, [])
        g.add_node(Node("Mul", inputs=["h", "scale"], outputs=["scaled"]))
        g.rewire("add", "h", "scaled")
    assert [value.name for value in session.get_inputs()] == ["x", "scale"]
    same(run(session, scale=np.array(2, np.float32)), relu(2 * H + B))
    with session.edit() as g:
        g.rewire("add", "scaled", "h")
        g.remove_node("scaled")
        g.remove_input("scale")
    same(run(session), relu(H + B))


@pytest.mark.parametrize("dtype", ["float32", "tensor(float)", "float", np.float32, "FLOAT"])
def test_element_types_have_many_names(dtype: Any) -> None:
    session = Session(net(), compile="off")
    session.add_input("z", dtype, ["N", None])
    assert session.get_inputs()[1].type == "tensor(float)"
    assert session.get_inputs()[1].shape == ["N", None]


def test_weights_are_set(session: Session) -> None:
    new = np.array([3, 2, 1], np.float32)
    session.set_weight("b", new)
    new[:] = 0
    same(run(session), relu(H + np.array([3, 2, 1], np.float32)))
    session.update_weights({"b": [1, 1, 1], "w": 2 * W})
    same(run(session), relu(2 * H + 1))


@pytest.mark.parametrize(("entries", "fits"), [([7, 0], True), ([300, 0], False), ([0.5, 0], False), ([-1, 0], False)])
def test_a_list_for_a_weight_of_integers_fits_or_is_refused(entries: list[float], fits: bool) -> None:
    session = Session(parsed("c (uint8[2] x) => (uint8[2] y) <uint8[2] c = {1, 2}> { y = Max(x, c) }"), compile="off")
    x = np.array([5, 5], np.uint8)
    if fits:
        session.set_weight("c", entries)
    else:
        with pytest.raises(TypeMismatchError, match="UINT8"):
            session.set_weight("c", entries)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], [7, 5] if fits else [5, 5])


def test_a_weight_of_another_shape(session: Session) -> None:
    with session.edit() as g:
        g.set_weight("w", np.ones((4, 5), np.float32))
        g.set_weight("b", np.ones(5, np.float32))
    assert session.get_outputs()[0].shape == ["N", 5]
    same(run(session), relu(X @ np.ones((4, 5)) + 1))


def test_a_constant_is_a_weight() -> None:
    session = Session(
        parsed("c (float[N, 2] x) => (float[N, 2] y) { c = Constant<value = float {3}>() y = Mul(x, c) }"),
        compile="wait",
    )
    session.set_weight("c", np.float32(5))
    same(session.run(None, {"x": X[:, :2]})[0], 5 * X[:, :2])


def test_a_weight_is_added(session: Session) -> None:
    with session.edit() as g:
        g.add_weight("v", np.full((3, 2), 2, np.float32))
        g.add_node(Node("MatMul", inputs=["y", "v"], outputs=["z"]))
        g.add_output("z")
    same(run(session)[1], relu(H + B) @ np.full((3, 2), 2))


def test_a_node_with_bodies_reads_what_is_around_it(session: Session) -> None:
    def branch(name: str, op: str) -> onnx.GraphProto:
        out = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        return onnx.helper.make_graph([onnx.helper.make_node(op, ["s"], [name])], name, [], [out])

    with session.edit() as g:
        g.add_input("which", bool, [])
        g.add_node(
            Node(
                "If",
                inputs=["which"],
                outputs=["chosen"],
                then_branch=branch("p", "Neg"),
                else_branch=branch("q", "Exp"),
            )
        )
        g.add_output("chosen")
    for which, expected in ((True, -(H + B)), (False, np.exp(H + B))):
        same(run(session, which=np.array(which))[1], expected)
    session.insert_after("s", "Neg", name="minus")
    same(run(session, which=np.array(True))[1], H + B)
    session.remove_node("minus")
    same(run(session, which=np.array(True))[1], -(H + B))


def test_a_model_is_attached_and_detached(session: Session) -> None:
    name = session.attach(parsed(HEAD), at="s")
    outputs = [output.name for output in session.get_outputs()]
    assert outputs[0] == "y" and len(outputs) == 2
    same(run(session)[1], np.exp(H + B).sum(1))
    session.detach(name)
    assert [output.name for output in session.get_outputs()] == ["y"]
    assert [value.name for value in session.model.graph.initializers.values()] == ["w", "b"]


def test_a_head_is_swapped(session: Session) -> None:
    with session.edit() as g:
        g.attach(parsed(HEAD), at={"h": "s"}, name="new")
        g.detach("y")  # Nothing is computed from it.
        g.remove_output("y")
        g.remove_node("relu")
    same(run(session), np.exp(H + B).sum(1))


def test_a_head_is_cut_off_before_the_next_is_there(session: Session) -> None:
    with session.edit() as g:
        g.detach("s")
        g.attach(parsed(HEAD), at="s", name="y")
    assert len(session.get_outputs()) == 1
    same(run(session), np.exp(H + B).sum(1))


def test_all_that_is_computed_from_a_tensor_is_cut_off(session: Session) -> None:
    with session.edit() as g:
        g.add_output("h")
        g.detach("h")
    assert [node.name for node in session.model.graph] == ["mm"]
    same(run(session), H)


def test_attached_models_come_from_other_operator_sets(session: Session) -> None:
    older = parsed("head (float[M, 3] h) => (float[M] z) { z = ReduceSum<axes = [1], keepdims = 0>(h) }", opset=11)
    session.attach(older, at="s")
    same(run(session)[1], (H + B).sum(1))


def test_a_head_with_functions_inputs_and_like_names_is_attached(session: Session) -> None:
    head = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17, "own": 1]>
        net (float[M, 3] x, float s) => (float[M, 3] y) { h = own.twice(x) y = Mul(h, s) }
        <domain: "own", opset_import: ["": 17]> twice (a) => (r) { r = Add(a, a) }"""
    )
    session.attach(head, at={"x": "s"}, name="top")
    scale = session.get_inputs()[1].name
    same(run(session, **{scale: np.array(3, np.float32)})[1], 6 * (H + B))


def test_names_of_a_node_are_lists() -> None:
    with pytest.raises(EditError, match="list"):
        Node("Relu", inputs="hidden")
    with pytest.raises(EditError, match="list"):
        Node("Relu", ["h"], "hidden")


Change = Callable[[Session], object]
REFUSED: list[tuple[Change, type[SardonyxError], str]] = [
    (lambda s: s.add_node(Node("Nope", inputs=["s"])), UnsupportedError, "Nope"),
    (lambda s: s.add_node(Node("Relu", inputs=["nothing"])), InvalidModelError, "nothing"),
    (lambda s: s.add_node(Node("Relu", inputs=["s"], outputs=["h"])), EditError, "taken"),
    (lambda s: s.add_node(Node("Relu", inputs=["s"], name="mm")), EditError, "mm"),
    (lambda s: s.add_node(Node("Relu", inputs=["s", "s"])), SardonyxError, "Relu"),
    (lambda s: s.add_node(Node("Relu", inputs=["s"], wrong=1)), SardonyxError, "wrong"),
    (lambda s: s.add_node(Node("Relu", inputs=["s"], wrong=object())), EditError, "attribute"),
    (lambda s: s.rewire("mm", 0, "y"), InvalidModelError, "cycle"),
    (lambda s: s.rewire("mm", 7, "y"), EditError, "7"),
    (lambda s: s.rewire("mm", 0, "nothing"), EditError, "nothing"),
    (lambda s: s.remove_node("mm"), EditError, r"\[N, 4\].*\[N, 3\]"),
    (lambda s: s.remove_node("nothing"), EditError, "nothing"),
    (lambda s: s.replace_node("mm", Node("Concat", axis=1)), ShapeError, "broadcast"),
    (lambda s: s.replace_node("mm", Node("MatMul", outputs=["other"])), EditError, "read"),
    (lambda s: s.insert_after("h", "Transpose", perm=[0, 1, 2]), ShapeError, "Transpose"),
    (lambda s: s.insert_after("h", "Not"), TypeMismatchError, "Not"),
    (lambda s: s.insert_after("nothing", "Neg"), EditError, "nothing"),
    (lambda s: s.add_output("nothing"), EditError, "nothing"),
    (lambda s: s.add_output("y"), EditError, "already"),
    (lambda s: s.remove_output("y"), EditError, "no outputs"),
    (lambda s: s.remove_output("h"), EditError, "y"),
    (lambda s: s.add_input("x"), EditError, "taken"),
    (lambda s: s.add_input("z", "complex7"), EditError, "complex7"),
    (lambda s: s.add_input("z", "float32", [2, -3]), EditError, "-3"),
    (lambda s: s.remove_input("x"), EditError, "read"),
    (lambda s: s.remove_input("w"), EditError, "w"),
    (lambda s: s.set_weight("b", np.zeros(5, np.float32)), ShapeError, "broadcast"),
    (lambda s: s.set_weight("b", np.zeros(3)), TypeMismatchError, "DOUBLE"),
    (lambda s: s.set_weight("h", np.zeros(3, np.float32)), EditError, "computed"),
    (lambda s: s.set_weight("b", None), EditError, "NoneType"),
    (lambda s: s.set_weight("b", "text"), TypeMismatchError, "FLOAT"),
    (lambda s: s.set_weight("b", [[1], [2, 3]]), EditError, "expected an array"),
    (lambda s: s.set_weight("b", [1j, 2, 3]), TypeMismatchError, "FLOAT"),
    (lambda s: s.add_weight("v", object()), EditError, "object"),
    (lambda s: s.update_weights({"b": np.zeros(3, np.float32), "nothing": B}), EditError, "nothing"),
    (lambda s: s.attach(parsed(HEAD), at="nothing"), EditError, "nothing"),
    (lambda s: s.attach(parsed(HEAD), at={"wrong": "s"}), EditError, "wrong"),
    (
        lambda s: s.attach(parsed(HEAD), at="x"),
        SardonyxError,
        r"expected a tensor of type float\[M, 3\], got float\[N, 4\]",
    ),
    (lambda s: s.detach("nothing"), EditError, "nothing"),
    (lambda s: s.detach("x"), EditError, "no outputs"),
    (lambda s: s.reload("nothing.onnx"), ModelFileError, "nothing.onnx"),
    (lambda s: s.undo(), EditError, "history is empty"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_is_refused_changes_nothing(number: int) -> None:
    change, error, words = REFUSED[number]
    session = Session(net(), compile="off")
    model = session.model
    with pytest.raises(error, match=words):
        change(session)
    assert session.model is model
    assert session.history == ()
    same(run(session), relu(H + B))
    session.insert_after("h", "Neg")
    same(run(session), relu(-H + B))


def test_an_exception_in_the_block_takes_all_of_it_back(session: Session) -> None:
    with pytest.raises(KeyError), session.edit() as g:
        g.insert_after("h", "Neg")
        raise KeyError
    same(run(session), relu(H + B))
    session.insert_after("h", "Neg")


def test_an_edit_is_seen_as_a_whole(session: Session) -> None:
    with session.edit() as g:
        g.insert_after("h", "Neg")
        same(run(session), relu(H + B))
        g.insert_after("y", "Neg")
        same(run(session), relu(H + B))
    same(run(session), -relu(-H + B))
    assert len(session.history) == 1


def test_an_edit_in_an_edit_is_refused(session: Session) -> None:
    with session.edit() as g:
        with pytest.raises(EditError, match="open"):
            session.insert_after("h", "Neg")
        g.insert_after("h", "Neg")
    same(run(session), relu(-H + B))


def test_an_edit_that_is_not_open_changes_nothing(session: Session) -> None:
    edit = session.edit()
    changes: list[Callable[[], object]] = [
        lambda: edit.insert_after("h", "Exp"),
        lambda: edit.set_weight("b", np.zeros(3, np.float32)),
        lambda: edit.add_node(Node("Neg", inputs=["h"])),
        lambda: edit.remove_output("y"),
        lambda: edit.attach(parsed(HEAD), at="s"),
    ]
    for change in changes:
        with pytest.raises(EditError, match="not open"):
            change()
    with edit as g:
        g.insert_after("h", "Neg")
    for change in changes:
        with pytest.raises(EditError, match="not open"):
            change()
    same(run(session), relu(-H + B))
    with edit as g:
        g.insert_after("h", "Neg")
    same(run(session), relu(H + B))


def test_edits_of_threads_wait_for_each_other(session: Session) -> None:
    def change() -> None:
        session.insert_after("h", "Neg")

    threads = [threading.Thread(target=change) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(session.history) == 4
    same(run(session), relu(H + B))


def test_edits_are_taken_back_one_by_one(session: Session, tmp_path: Path) -> None:
    other = parsed("other (float[N, 4] x) => (float[N, 4] z) { z = Neg(x) }")
    onnx.save(other, tmp_path / "other.onnx")
    expected = [run(session)]
    changes: list[Change] = [
        lambda s: s.insert_after("h", "Neg"),
        lambda s: s.set_weight("b", np.zeros(3, np.float32)),
        lambda s: s.reload(tmp_path / "other.onnx"),
        lambda s: s.insert_after("z", "Exp"),
    ]
    for change in changes:
        change(session)
        expected.append(run(session))
    assert [commit.number for commit in session.history] == [1, 2, 3, 4]
    for before in reversed(expected[:-1]):
        session.undo()
        same(run(session), before)
    assert session.history == ()


def test_many_edits_leave_bounded_history() -> None:
    session = Session(net(), compile="off")
    for i in range(40):
        session.set_weight("b", np.full(3, i, np.float32))
    assert len(session.history) == 40
    for _ in range(32):
        session.undo()
    same(run(session), relu(H + 7))
    with pytest.raises(EditError, match="no longer in memory"):
        session.undo()


def test_the_edited_model_is_saved_as_standard_onnx(session: Session, tmp_path: Path) -> None:
    with session.edit() as g:
        g.insert_after("y", "Exp")
        g.add_output("h")
        g.set_weight("b", np.zeros(3, np.float32))
        g.attach(parsed(HEAD), at="s")
    session.save(tmp_path / "edited.onnx")
    onnx.checker.check_model(tmp_path / "edited.onnx", full_check=True)
    again = Session(tmp_path / "edited.onnx", compile="off")
    for actual, expected in zip(run(again), run(session), strict=True):
        same(actual, expected)


def test_a_compiled_file_has_nothing_to_edit(tmp_path: Path) -> None:
    Session(net(), compile="wait").save_compiled(tmp_path / "net.sdx")
    session = Session(tmp_path / "net.sdx", compile="wait")
    with pytest.raises(UnsupportedError, match="expected a model, got a compiled file"):
        session.insert_after("h", "Neg")
    same(run(session), relu(H + B))
    session.reload(net())
    session.insert_after("h", "Neg")
    same(run(session), relu(-H + B))


def test_a_truncated_file_is_no_reload(session: Session, tmp_path: Path) -> None:
    path = tmp_path / "cut.onnx"
    path.write_bytes(net().SerializeToString()[:-20])
    with pytest.raises(SardonyxError):
        session.reload(path)
    same(run(session), relu(H + B))


def test_values_that_nobody_named_are_not_written(session: Session, tmp_path: Path) -> None:
    with session.edit() as g:
        g.add_node(Node("NonZero", inputs=["h"], outputs=["places"]))
        g.add_output("places")
    session.save(tmp_path / "m.onnx")
    saved = onnx.load(tmp_path / "m.onnx")
    dims = [
        d.dim_param for info in (*saved.graph.value_info, *saved.graph.output) for d in info.type.tensor_type.shape.dim
    ]
    assert not [name for name in dims if "?" in name]


def test_an_edit_that_native_code_does_not_take_is_refused_where_that_is_strict() -> None:
    session = Session(net(), providers=["native"], strict=True, compile="wait")
    with pytest.raises(UnsupportedError, match="does not support"), session.edit() as g:
        g.add_node(Node("Unique", inputs=["y"], outputs=["u"]))
        g.add_output("u")
    same(run(session), relu(H + B))
    session.insert_after("h", "Neg")
    same(run(session), relu(-H + B))


def test_providers_that_share_a_model_share_the_edited_one() -> None:
    session = Session(net(), providers=["reference", "native"], pins=[("mm", "reference")], compile="wait")
    session.insert_after("h", "Neg", name="minus")
    session.set_weight("b", np.zeros(3, np.float32))
    same(run(session), relu(-H))
    assert any("minus" in placed.node for placed in session.placement)
