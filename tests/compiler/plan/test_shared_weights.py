"""Packed weights of equal bytes are one array in memory, and arrays that differ in a single byte are not."""

from __future__ import annotations

import gc
import weakref

import numpy as np

from sardonyx.compiler.lower.launch import Prepared
from sardonyx.compiler.plan.shared_weights import prepare_weight
from sardonyx.core.eval.tensor import constant


def prepared(array: np.ndarray, form: str = "as it is") -> np.ndarray:
    source = constant(array)
    return prepare_weight(Prepared(source, form, lambda read: read(source)))


def test_equal_weights_are_one_array() -> None:
    elements = np.arange(100_003, dtype=np.float32)
    first, second = prepared(elements.copy()), prepared(elements.copy())
    assert first is second
    assert np.array_equal(first, elements)


def test_a_difference_outside_of_the_sample_is_seen() -> None:
    elements = np.zeros(100_003, np.float32)
    arrays = [prepared(elements.copy())]
    for position in (1, 50_001, 100_001):
        other = elements.copy()
        other[position] = 1
        arrays.append(prepared(other))
        assert np.array_equal(arrays[-1], other)
    assert len({id(array) for array in arrays}) == 4
    assert prepared(elements.copy()) is arrays[0]


def test_form_type_and_sizes_tell_arrays_apart() -> None:
    elements = np.zeros((6, 4), np.float32)
    arrays = [
        prepared(elements.copy()),
        prepared(elements.copy(), "transposed"),
        prepared(elements.reshape(4, 6).copy()),
        prepared(np.zeros((6, 4), np.int32)),
        prepared(np.zeros((0, 4), np.float32)),
    ]
    assert len({id(array) for array in arrays}) == 5


def test_arrays_without_a_program_are_freed() -> None:
    array = weakref.ref(prepared(np.full(1000, 3, np.float32)))
    gc.collect()
    assert array() is None
