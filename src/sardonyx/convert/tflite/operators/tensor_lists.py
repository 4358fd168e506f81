"""Lists of tensors (`FlexTensorList…`), which TensorFlow writes for recurrent layers of open batch size.

A list is one tensor with its elements along a first axis. Sizes of elements that are not known when a list is reserved
are 1, and become those of the first element that is written: the list is expanded.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.convert.tflite.operators.tensorflow import flex
from sardonyx.convert.tflite.translation import Call

_TYPES = {
    1: ir.DataType.FLOAT,
    2: ir.DataType.DOUBLE,
    3: ir.DataType.INT32,
    4: ir.DataType.UINT8,
    6: ir.DataType.INT8,
    9: ir.DataType.INT64,
    10: ir.DataType.BOOL,
    19: ir.DataType.FLOAT16,
}
"""Element types by TensorFlow's number (tensorflow/core/framework/types.proto)."""


def _element_type(c: Call) -> ir.DataType:
    number = c.option("element_dtype")
    if number not in _TYPES:
        raise c.unsupported(f"a list of elements of type {number}, expected one of {sorted(_TYPES)}")
    return _TYPES[number]


def _define(c: Call, value: ir.Value) -> None:
    value.type = ir.TensorType(_element_type(c))
    c.scope.define_stored(c.record.outputs[0], value)


@flex("TensorListReserve")
def reserve(c: Call) -> None:
    """Translate a list of a number of elements that are not written yet."""
    if c.rank(0) != 1:
        raise c.unsupported("a list of elements of unknown rank")
    c.within(c.sizes(0)[0], 8, "the rank of elements of a list")
    sizes = c.node("Max", c.int64(0), c.constant(-1, np.int64))
    open_size, one = c.constant(-1, np.int64), c.constant(1, np.int64)
    sizes = c.node("Where", c.node("Equal", sizes, open_size), one, sizes)
    count = c.node("Reshape", c.int64(1), c.constant([1], np.int64))
    zero = ir.tensor(np.zeros(1, _element_type(c).numpy()))
    _define(c, c.node("ConstantOfShape", c.node("Concat", count, sizes, axis=0), value=zero))


@flex("TensorListFromTensor")
def from_tensor(c: Call) -> None:
    """Translate the list of the rows of a tensor."""
    _define(c, c.node("Identity", c.input(0)))


@flex("TensorListSetItem")
def set_item(c: Call) -> None:
    """Translate a list with another element at an index."""
    elements, item = c.stored(0), c.input(2)
    count = c.node("Shape", elements, start=0, end=1)
    sizes = c.node("Concat", count, c.node("Shape", item), axis=0)
    index = c.node("Reshape", c.int64(1), c.constant([1, 1], np.int64))
    rows = c.node("Unsqueeze", item, c.constant([0], np.int64))
    _define(c, c.node("ScatterND", c.node("Expand", elements, sizes), index, rows))


@flex("TensorListGetItem")
def get_item(c: Call) -> ir.Value:
    """Translate the element at an index."""
    return c.node("Gather", c.stored(0), c.int64(1), axis=0)


@flex("TensorListStack")
def stack(c: Call) -> ir.Value:
    """Translate the tensor of all elements."""
    return c.node("Identity", c.stored(0))


@flex("TensorListLength")
def length(c: Call) -> ir.Value:
    """Translate the number of elements."""
    count = c.node("Shape", c.stored(0), start=0, end=1)
    return c.cast(c.node("Squeeze", count, c.constant([0], np.int64)), c.output_type())
