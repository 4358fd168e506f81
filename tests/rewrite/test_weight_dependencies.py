"""Recorded accesses to elements of weights: derivations, queries, comparisons and reads."""

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
    """Return a watched sum of an input and two weights, its record and the weights."""
    text = "net (float[2] x) => (float[2] y) <float[2] a = {1, 2}, float[2] b = {3, 4}> { s = Add(x, a) y = Add(s, b) }"
    model = load(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}'))
    twin, record = watch(model, [v.const_value for v in model.graph.initializers.values() if v.const_value])
    originals = [value.const_value for value in twin.graph.initializers.values() if value.const_value is not None]
    return twin, record, originals


def over(rewriting: Rewriting, *arrays: list[float]) -> list[list[float]] | None:
    """Return the weights of the rewritten model over other weights; None if the rewriting differs."""
    with rewriting.over([ir.Tensor(np.array(array, np.float32)) for array in arrays]) as model:
        if model is None:
            return None
        return [v.const_value.numpy().tolist() for v in model.graph.initializers.values() if v.const_value]


def test_reading_elements_is_recorded_and_reading_the_shape_is_not() -> None:
    record, (a, b) = weights([1, 2], [3])
    assert (a.dtype, tuple(a.shape), a.size, a.nbytes) == (ir.DataType.FLOAT, (2,), 2, 8)
    assert not record.read
    assert b.tobytes() == np.float32(3).tobytes()
    assert np.asarray(a).tolist() == [1, 2]
    assert list(record.read) == [b, a]


def test_derived_queried_and_compared_tensors_are_not_read() -> None:
    record, (a, b) = weights([1, 2], [3, 4])
    (total,) = derive(lambda x, y: [x + y], a, b)
    assert query(lambda x: bool(x.all()), total)
    assert not Contents().equal(a, b)
    assert not record.read
    assert total.numpy().tolist() == [4, 6]
    assert list(record.read) == [total]


def test_unwatched_tensors_are_not_recorded() -> None:
    tensor = ir.Tensor(np.array([1.0]))
    (twice,) = derive(lambda x: [2 * x], tensor)
    assert not is_watched([tensor, twice])
    assert query(lambda x: x.item(), twice) == 2


def test_a_query_that_raises_is_a_read() -> None:
    record, (a,) = weights([0])
    with pytest.raises(ZeroDivisionError):
        query(lambda x: 1 / x.item(), a)
    assert list(record.read) == [a]


def test_deriving_strings_from_a_weight_is_a_read() -> None:
    record, (a,) = weights([1])
    (text,) = derive(lambda x: [x.astype(str).astype(object)], a)
    assert text.dtype == ir.DataType.STRING
    assert list(record.read) == [a]


def test_other_weights_replace_the_originals() -> None:
    model, record, originals = net()
    assert over(Rewriting(model, originals, record), [5, 6], [7, 8]) == [[5, 6], [7, 8]]


def test_derived_tensors_are_computed_from_other_weights() -> None:
    model, record, originals = net()
    a = model.graph.initializers["a"]
    (a.const_value,) = derive(lambda x, y: [x * y], *originals)
    rewriting = Rewriting(model, originals, record)
    assert over(rewriting, [5, 6], [7, 8]) == [[35, 48], [7, 8]]
    assert over(rewriting, [1, 1], [2, 2]) == [[2, 2], [2, 2]]


def test_a_different_answer_prevents_reuse() -> None:
    model, record, originals = net()
    query(lambda x: bool((x > 0).all()), originals[0])
    rewriting = Rewriting(model, originals, record)
    assert over(rewriting, [5, 6], [7, 8]) is not None
    assert over(rewriting, [5, -6], [7, 8]) is None


def test_a_query_that_raises_prevents_reuse() -> None:
    model, record, originals = net()
    query(lambda x: 1 / x[0].item() > 0, originals[0])
    assert over(Rewriting(model, originals, record), [0, 1], [7, 8]) is None


def test_different_elements_of_a_read_weight_prevent_reuse() -> None:
    model, record, originals = net()
    originals[0].numpy()
    rewriting = Rewriting(model, originals, record)
    assert over(rewriting, [1, 2], [7, 8]) is not None
    assert over(rewriting, [1, 2.5], [7, 8]) is None


def test_a_changed_comparison_of_weights_prevents_reuse() -> None:
    for b, expected in (([3, 4], False), ([1, 2], True)):
        model, record, originals = net()
        contents = Contents()
        originals[1].elements = ir.Tensor(np.array(b, np.float32))  # type: ignore[attr-defined]
        assert contents.equal(*originals) is expected
        rewriting = Rewriting(model, originals, record)
        assert (over(rewriting, [5, 6], [5, 6]) is not None) is expected
        assert (over(rewriting, [5, 6], [5, 7]) is None) is expected


def test_a_derived_tensor_of_another_shape_prevents_reuse() -> None:
    model, record, originals = net()
    (model.graph.initializers["a"].const_value,) = derive(lambda x: [x[x > 1.5]], originals[0])
    rewriting = Rewriting(model, originals, record)
    assert over(rewriting, [0, 7], [1, 1]) == [[7], [1, 1]]
    assert over(rewriting, [7, 7], [1, 1]) is None
