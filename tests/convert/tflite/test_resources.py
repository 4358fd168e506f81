"""Variables and tables of TensorFlow Lite files: values flow from assignment to reading."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sardonyx.convert.tflite import translate
from sardonyx.errors import InvalidModelError, UnsupportedError
from tests.convert.tflite.tflite_files import File, Subgraph, answers

RESOURCE = 13


def handle(subgraph: Subgraph, name: str = "v") -> int:
    """Return the handle of a variable."""
    index = subgraph.tensor([])
    subgraph.tensors[index]["type"] = RESOURCE
    subgraph.operator("VAR_HANDLE", [], [index], ("VarHandleOptions", {"shared_name": name}))
    return index


def assign(subgraph: Subgraph, name: str, value: int) -> None:
    subgraph.operator("ASSIGN_VARIABLE", [handle(subgraph, name), value], [], None)


def read(subgraph: Subgraph, name: str = "v") -> int:
    value = subgraph.tensor([3])
    subgraph.operator("READ_VARIABLE", [handle(subgraph, name)], [value])
    return value


def initialized() -> tuple[File, Subgraph, int]:
    """Return a file whose variable starts at 1, 2, 3, with an input of three elements."""
    file = File()
    main, start = file.subgraph(), file.subgraph()
    main.operator("CALL_ONCE", [], [], ("CallOnceOptions", {"init_subgraph_index": 1}))
    assign(start, "v", start.constant(np.array([1, 2, 3], np.float32)))
    x = main.tensor([3])
    main.inputs = [x]
    return file, main, x


def test_a_variable_has_its_first_value_at_each_call(tmp_path: Path) -> None:
    file, main, x = initialized()
    before, total = read(main), main.tensor([3])
    main.operator("ADD", [before, x], [total], ("AddOptions", {}))
    assign(main, "v", total)
    main.outputs = [before, read(main)]
    row = np.array([10, 20, 30], np.float32)
    for _ in range(2):
        first, last = answers(file.data(), tmp_path, row)
        np.testing.assert_array_equal(first, [1, 2, 3])
        np.testing.assert_array_equal(last, [11, 22, 33])
    translation = translate(file.data())
    translation.model()
    assert list(translation.notes) == ["variable 'v' has its first value again at the beginning of each call"]


def test_loops_and_branches_assign_variables(tmp_path: Path) -> None:
    file, main, x = initialized()
    condition, body, then, other = (file.subgraph() for _ in range(4))
    i, end = main.constant(np.int32(0)), main.tensor([], np.int32)
    loop = ("WhileOptions", {"cond_subgraph_index": 2, "body_subgraph_index": 3})
    main.operator("WHILE", [i, x], [end, main.tensor([3])], loop)
    main.outputs = [read(main)]
    ci, less = condition.tensor([], np.int32), condition.tensor([], np.bool_)
    condition.operator("LESS", [ci, condition.constant(np.int32(4))], [less])
    condition.inputs, condition.outputs = [ci, condition.tensor([3])], [less]
    bi, bx = body.tensor([], np.int32), body.tensor([3])
    is_late, ni, chosen = body.tensor([], np.bool_), body.tensor([], np.int32), body.tensor([3])
    body.operator("GREATER", [bi, body.constant(np.int32(1))], [is_late])
    branch = ("IfOptions", {"then_subgraph_index": 4, "else_subgraph_index": 5})
    body.operator("IF", [is_late, bx], [chosen], branch)
    body.operator("ADD", [bi, body.constant(np.int32(1))], [ni], ("AddOptions", {}))
    body.inputs, body.outputs = [bi, bx], [ni, bx]
    tx, total = then.tensor([3]), then.tensor([3])
    then.operator("ADD", [read(then), tx], [total], ("AddOptions", {}))
    assign(then, "v", total)
    then.inputs, then.outputs = [tx], [tx]
    ox = other.tensor([3])
    other.inputs, other.outputs = [ox], [ox]
    (value,) = answers(file.data(), tmp_path, np.array([10, 20, 30], np.float32))
    np.testing.assert_array_equal(value, [21, 42, 63])  # assigned by iterations 2 and 3


def test_a_handle_is_a_state_of_a_loop(tmp_path: Path) -> None:
    file, main, x = initialized()
    condition, body = file.subgraph(), file.subgraph()
    variable, i = handle(main), main.constant(np.int32(0))
    ends = [main.tensor([], np.int32), main.tensor([]), main.tensor([3])]
    loop = ("WhileOptions", {"cond_subgraph_index": 2, "body_subgraph_index": 3})
    main.operator("WHILE", [i, variable, x], ends, loop)
    main.outputs = [ends[2]]
    ci, less = condition.tensor([], np.int32), condition.tensor([], np.bool_)
    condition.operator("LESS", [ci, condition.constant(np.int32(2))], [less])
    condition.inputs, condition.outputs = [ci, condition.tensor([]), condition.tensor([3])], [less]
    bi, bv, bx = body.tensor([], np.int32), body.tensor([]), body.tensor([3])
    value, ni, nx = body.tensor([3]), body.tensor([], np.int32), body.tensor([3])
    body.operator("READ_VARIABLE", [bv], [value])
    body.operator("ADD", [bx, value], [nx], ("AddOptions", {}))
    body.operator("ADD", [bi, body.constant(np.int32(1))], [ni], ("AddOptions", {}))
    body.inputs, body.outputs = [bi, bv, bx], [ni, bv, nx]
    for subgraph, index in ((main, ends[1]), (condition, condition.inputs[1]), (body, bv)):
        subgraph.tensors[index]["type"] = RESOURCE
    (result,) = answers(file.data(), tmp_path, np.zeros(3, np.float32))
    np.testing.assert_array_equal(result, [2, 4, 6])


def test_a_table_of_numbers_has_a_default(tmp_path: Path) -> None:
    file = File()
    main = file.subgraph()
    x = main.tensor([3], np.int64)
    table, values_of_keys = main.tensor([]), main.tensor([3], np.int64)
    main.tensors[table]["type"] = RESOURCE
    main.operator("HASHTABLE", [], [table], ("HashtableOptions", {"table_id": 4}))
    keys, values = main.constant(np.array([2, 7], np.int64)), main.constant(np.array([20, 70], np.int64))
    main.operator("HASHTABLE_IMPORT", [table, keys, values], [])
    main.operator("HASHTABLE_FIND", [table, x, main.constant(np.array([-1], np.int64))], [values_of_keys])
    main.inputs, main.outputs = [x], [values_of_keys]
    (result,) = answers(file.data(), tmp_path, np.array([7, 3, 2], np.int64))
    np.testing.assert_array_equal(result, [70, -1, 20])


def test_a_variable_without_value_is_named() -> None:
    file = File()
    main = file.subgraph()
    main.outputs = [read(main, "counter")]
    with pytest.raises(InvalidModelError, match="variable 'counter' is read before a value is assigned"):
        translate(file.data()).model()


def test_a_handle_from_the_caller_is_refused() -> None:
    file = File()
    main = file.subgraph()
    x, y = main.tensor([3]), main.tensor([3])
    main.operator("READ_VARIABLE", [x], [y])
    main.inputs, main.outputs = [x], [y]
    with pytest.raises(UnsupportedError, match="a handle that is an input of the file"):
        translate(file.data()).model()


def test_uses_of_subgraphs_are_limited() -> None:
    file = File()
    subgraphs = [file.subgraph() for _ in range(9)]
    for number, subgraph in enumerate(subgraphs):
        x, y = subgraph.tensor([2]), subgraph.tensor([2])
        for _ in range(20):
            if number + 1 < len(subgraphs):
                subgraph.operator("CALL", [x], [y], ("CallOptions", {"subgraph": number + 1}))
            else:
                subgraph.operator("ABS", [x], [y])
        subgraph.inputs, subgraph.outputs = [x], [y]
    with pytest.raises(InvalidModelError, match="operators, with those of subgraphs once for each use"):
        translate(file.data()).model()
