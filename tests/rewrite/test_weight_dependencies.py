"""What a rewriting sees of weights' elements: made of them, asked of them, compared, or read."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from sardonyx.model import load
from sardonyx.rewrite.weight_dependencies import Record, Weight, derive, is_watched, query
from sardonyx.rewrite.weight_digest import Contents
from sardonyx.rewrite.weight_update import Rewriting, watch


def weights(*arrays: Any) -> tuple[Record, list[Weight]]:
    record = Record()
    return record, [Weight(ir.Tensor(np.array(array, np.float32)), record) for array in arrays]


def net() -> tuple[ir.Model, Record, list[ir.TensorProtocol]]:
    """A watched sum of an input and two weights."""
    text = "net (float[2] x) => (float[2] y) <float[2] a = {1, 2}, float[2] b = {3, 4}> { s = Add(x, a) y = Add(s, b) }"
    model = load(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}'))
    twin, record = watch(model, [v.const_value for v in model.graph.initializers.values() if v.const_value])
    found = [value.const_value for value in twin.graph.initializers.values() if value.const_value is not None]
    return twin, record, found


def over(rewriting: Rewriting, *arrays: list[float]) -> list[list[float]] | None:
    """The weights of the rewritten model over others."""
    with rewriting.over([ir.Tensor(np.array(array, np.float32)) for array in arrays]) as model:
        if model is None:
            return None
        return [v.const_value.numpy().tolist() for v in model.graph.initializers.values() if v.const_value]


def test_a_look_at_elements_is_seen_and_one_at_the_form_is_not() -> None:
    record, (a, b) = weights([1, 2], [3])
    assert (a.dtype, tuple(a.shape), a.size, a.nbytes) == (ir.DataType.FLOAT, (2,), 2, 8)
    assert not record.read
    assert b.tobytes() == np.float32(3).tobytes()
    assert np.asarray(a).tolist() == [1, 2]
    assert list(record.read) == [b, a]


def test_what_is_made_asked_and_compared_is_not_read() -> None:
    record, (a, b) = weights([1, 2], [3, 4])
    (total,) = derive(lambda x, y: [x + y], a, b)
    assert query(lambda x: bool(x.all()), total)
    assert not Contents().equal(a, b)
    assert not record.read
    assert total.numpy().tolist() == [4, 6]
    assert list(record.read) == [total]


def test_tensors_that_nobody_watches_are_plain() -> None:
    tensor = ir.Tensor(np.array([1.0]))
    (twice,) = derive(lambda x: [2 * x], tensor)
    assert not is_watched([tensor, twice])
    assert query(lambda x: x.item(), twice) == 2


def test_what_has_no_answer_is_read() -> None:
    record, (a,) = weights([0])
    with pytest.raises(ZeroDivisionError):
        query(lambda x: 1 / x.item(), a)
    assert list(record.read) == [a]


def test_texts_that_are_made_of_a_weight_have_read_it() -> None:
    record, (a,) = weights([1])
    (text,) = derive(lambda x: [x.astype(str).astype(object)], a)
    assert text.dtype == ir.DataType.STRING
    assert list(record.read) == [a]


def test_other_weights_take_their_places() -> None:
    model, record, found = net()
    assert over(Rewriting(model, found, record), [5, 6], [7, 8]) == [[5, 6], [7, 8]]


def test_what_was_made_is_made_of_other_weights() -> None:
    model, record, found = net()
    a = model.graph.initializers["a"]
    (a.const_value,) = derive(lambda x, y: [x * y], *found)
    rewriting = Rewriting(model, found, record)
    assert over(rewriting, [5, 6], [7, 8]) == [[35, 48], [7, 8]]
    assert over(rewriting, [1, 1], [2, 2]) == [[2, 2], [2, 2]]


def test_another_answer_is_another_model() -> None:
    model, record, found = net()
    query(lambda x: bool((x > 0).all()), found[0])
    rewriting = Rewriting(model, found, record)
    assert over(rewriting, [5, 6], [7, 8]) is not None
    assert over(rewriting, [5, -6], [7, 8]) is None


def test_an_answer_that_cannot_be_given_is_another_model() -> None:
    model, record, found = net()
    query(lambda x: 1 / x[0].item() > 0, found[0])
    assert over(Rewriting(model, found, record), [0, 1], [7, 8]) is None


def test_other_elements_of_what_was_read_are_another_model() -> None:
    model, record, found = net()
    found[0].numpy()
    rewriting = Rewriting(model, found, record)
    assert over(rewriting, [1, 2], [7, 8]) is not None
    assert over(rewriting, [1, 2.5], [7, 8]) is None


def test_weights_that_were_compared_stay_equal_or_unequal() -> None:
    for b, wanted in (([3, 4], False), ([1, 2], True)):
        model, record, found = net()
        contents = Contents()
        found[1].elements = ir.Tensor(np.array(b, np.float32))  # type: ignore[attr-defined]
        assert contents.equal(*found) is wanted
        rewriting = Rewriting(model, found, record)
        assert (over(rewriting, [5, 6], [5, 6]) is not None) is wanted
        assert (over(rewriting, [5, 6], [5, 7]) is None) is wanted


def test_what_is_made_in_another_shape_is_another_model() -> None:
    model, record, found = net()
    (model.graph.initializers["a"].const_value,) = derive(lambda x: [x[x > 1.5]], found[0])
    rewriting = Rewriting(model, found, record)
    assert over(rewriting, [0, 7], [1, 1]) == [[7], [1, 1]]
    assert over(rewriting, [7, 7], [1, 1]) is None
