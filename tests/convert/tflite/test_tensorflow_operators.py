"""Operators of TensorFlow in TensorFlow Lite files have the meaning that TensorFlow gives them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sardonyx
from sardonyx.convert.tflite import translate
from sardonyx.convert.tflite.node_definition import attributes
from sardonyx.errors import ModelFileError, SardonyxError, UnsupportedError
from tests.convert.tflite.node_definitions import flex_options, flexbuffer_of_texts
from tests.convert.tflite.tflite_files import File, answers

ROWS = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
IMAGES = np.random.default_rng(1).standard_normal((2, 4, 5, 3)).astype(np.float32)

CORNERS, PATCHES = IMAGES[:, :2, :2], (2, 2, 2, 12)
RAISED = np.concatenate([ROWS[:1], np.maximum(ROWS[:1], ROWS[1:2]), ROWS[2:]])
BITS = np.array([1, -3, 5], np.int32), np.array([4, 1, 0], np.int32)
BOXES = [[np.zeros(3, np.int32)], [np.array([2, 2], np.int32)]]


def file_of(operator: str, inputs: Any, results: Any, **options: Any) -> bytes:
    """Return a file of one operator; the first inputs are arrays, constants are in lists of one."""
    file = File()
    main = file.subgraph()
    indices = [
        main.constant(item[0]) if isinstance(item, list) else main.tensor(item.shape, item.dtype) for item in inputs
    ]
    outputs = [main.tensor(np.shape(result), np.asarray(result).dtype) for result in results]
    main.operator(f"Flex{operator}", indices, outputs, custom_options=_bytes(flex_options(operator, **options)))
    main.inputs = [index for index, item in zip(indices, inputs, strict=True) if not isinstance(item, list)]
    main.outputs = outputs
    return file.data()


def _bytes(data: bytes) -> Any:
    return np.frombuffer(data, np.uint8)


CASES: list[tuple[str, list[Any], list[Any], dict[str, Any]]] = [
    ("Tan", [ROWS], [np.tan(ROWS)], {}),
    ("Erf", [ROWS], [np.vectorize(math.erf)(ROWS).astype(np.float32)], {}),
    ("Log1p", [ROWS * ROWS * 1e-6], [np.log1p(ROWS * ROWS * 1e-6)], {}),
    ("Expm1", [ROWS * 1e-5], [np.expm1(ROWS * 1e-5)], {}),
    ("IsFinite", [np.array([1, np.inf, np.nan], np.float32)], [np.array([True, False, False])], {}),
    ("DivNoNan", [ROWS, np.where(ROWS > 0, 2, 0).astype(np.float32)], [np.where(ROWS > 0, ROWS / 2, 0)], {}),
    ("LeftShift", [*BITS], [np.array([16, -6, 5], np.int32)], {}),
    ("FloorMod", [np.array([-7, 7], np.int64), np.array([3, -3], np.int64)], [np.array([2, -2], np.int64)], {}),
    ("ArgMax", [ROWS, [np.int32(1)]], [ROWS.argmax(1)], {}),
    ("Any", [ROWS > 1, [np.array([1], np.int32)]], [(ROWS > 1).any(1, keepdims=True)], {"keep_dims": True}),
    ("MatMul", [ROWS, ROWS], [ROWS @ ROWS.T], {"transpose_b": True}),
    ("Einsum", [ROWS, ROWS], [np.einsum("ij,ij->i", ROWS, ROWS)], {"equation": "ij,ij->i"}),
    ("Cumprod", [ROWS, [np.int32(-1)]], [np.cumprod(ROWS, 1)], {}),
    (
        "Cumprod",
        [ROWS, [np.int32(0)]],
        [np.array([ROWS[1] * ROWS[2], ROWS[2], np.ones(4)], np.float32)],
        {"exclusive": True, "reverse": True},
    ),
    ("Roll", [ROWS, [np.array([3], np.int32)], [np.array([1], np.int32)]], [np.roll(ROWS, 3, 1)], {}),
    ("MatrixBandPart", [ROWS, [np.int64(1)], [np.int64(0)]], [np.tril(np.triu(ROWS, -1))], {}),
    ("MatrixDiagPartV3", [ROWS, [np.int32(0)], [np.float32(0)]], [np.diag(ROWS)], {}),
    (
        "DenseBincount",
        [np.array([0, 2, 2, 9], np.int32), [np.int32(4)], [np.array([1, 1, 3, 5], np.float32)]],
        [np.array([1, 0, 4, 0], np.float32)],
        {},
    ),
    ("TensorScatterMax", [ROWS, [np.array([[1]], np.int32)], ROWS[:1]], [RAISED], {}),
    (
        "MaxPoolWithArgmax",
        [CORNERS],
        [CORNERS.max((1, 2), keepdims=True), CORNERS.reshape(2, 4, 3).argmax(1)[:, None, None] * 3 + np.arange(3)],
        {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"},
    ),
    (
        "ExtractImagePatches",
        [IMAGES],
        [
            np.stack([IMAGES[:, y : y + 2, x : x + 2].reshape(2, 12) for y in (0, 2) for x in (0, 2)], 1).reshape(
                PATCHES
            )
        ],
        {"ksizes": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "rates": [1, 1, 1, 1], "padding": "VALID"},
    ),
    (
        "CropAndResize",
        [IMAGES, np.array([[0, 0, 1, 1]], np.float32), [np.array([1], np.int32)], [np.array([4, 5], np.int32)]],
        [IMAGES[1:]],
        {"method": "bilinear", "extrapolation_value": 0.0},
    ),
    (
        "StridedSlice",
        [ROWS, [np.array([0, 1], np.int32)], [np.array([0, 3], np.int32)], [np.array([1, 1], np.int32)]],
        [ROWS[:, 1:3]],
        {"begin_mask": 1, "end_mask": 1, "ellipsis_mask": 0, "new_axis_mask": 0, "shrink_axis_mask": 0},
    ),
]


@pytest.mark.parametrize("operator, inputs, expected, options", CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)])
def test_an_operator_of_tensorflow_has_its_meaning(
    operator: str, inputs: list[Any], expected: list[Any], options: dict[str, Any], tmp_path: Path
) -> None:
    data = file_of(operator, inputs, expected, **options)
    got = answers(data, tmp_path, *(item for item in inputs if not isinstance(item, list)))
    for result, right in zip(got, expected, strict=True):
        assert result.dtype == np.asarray(right).dtype
        np.testing.assert_allclose(result, right, rtol=2e-6, atol=1e-6 if operator not in ("Expm1", "Log1p") else 0)


def test_lists_of_tensors_are_loops_of_any_batch(tmp_path: Path) -> None:
    file = File()
    main, condition, body = (file.subgraph() for _ in range(3))
    i, x = main.constant(np.int32(0)), main.tensor([-1, 2])
    size, count = main.constant(np.array([-1, 2], np.int32)), main.constant(np.int32(3))
    options = _bytes(flex_options("TensorListReserve", element_dtype=1, shape_type=3))
    rows, last, end, result = main.tensor([]), main.tensor([]), main.tensor([], np.int32), main.tensor([3, -1, 2])
    main.operator("FlexTensorListReserve", [size, count], [rows], custom_options=options)
    loop = ("WhileOptions", {"cond_subgraph_index": 1, "body_subgraph_index": 2})
    main.operator("WHILE", [i, rows, x], [end, last, main.tensor([-1, 2])], loop)
    main.operator("FlexTensorListStack", [last, size], [result], custom_options=options)
    main.inputs, main.outputs = [x], [result]
    ci, cr, cx = condition.tensor([], np.int32), condition.tensor([]), condition.tensor([-1, 2])
    less = condition.tensor([], np.bool_)
    condition.operator("LESS", [ci, condition.constant(np.int32(3))], [less])
    condition.inputs, condition.outputs = [ci, cr, cx], [less]
    bi, br, bx = body.tensor([], np.int32), body.tensor([]), body.tensor([-1, 2])
    ni, nr, nx = body.tensor([], np.int32), body.tensor([]), body.tensor([-1, 2])
    body.operator("FlexTensorListSetItem", [br, bi, bx], [nr], custom_options=options)
    body.operator("MUL", [bx, body.constant(np.float32(2))], [nx], ("MulOptions", {}))
    body.operator("ADD", [bi, body.constant(np.int32(1))], [ni], ("AddOptions", {}))
    body.inputs, body.outputs = [bi, br, bx], [ni, nr, nx]
    for subgraph, tensors in ((main, (rows, last)), (condition, (cr,)), (body, (br, nr))):
        for tensor in tensors:
            subgraph.tensors[tensor]["type"] = 14  # VARIANT
    for batch in (1, 4):
        rows_of_batch = np.random.default_rng(2).standard_normal((batch, 2)).astype(np.float32)
        (stacked,) = answers(file.data(), tmp_path, rows_of_batch)
        np.testing.assert_array_equal(stacked, np.stack([rows_of_batch, 2 * rows_of_batch, 4 * rows_of_batch]))


def test_the_verdict_names_operators_that_no_interpreter_runs() -> None:
    report = sardonyx.convert(file_of("Tan", [ROWS], [ROWS]), framework="tflite").report
    assert report.verdict.status == "not proved"
    assert "FlexTan" in report.verdict.reason


@pytest.mark.parametrize(
    "operator, inputs, options, message",
    [
        ("MatrixDiagPartV3", [ROWS, [np.int32(1)], [np.float32(0)]], {}, "a diagonal other than the main one"),
        ("CropAndResize", [IMAGES, ROWS, *BOXES], {"method": "nearest"}, "method 'nearest'"),
    ],
)
def test_other_forms_are_refused(operator: str, inputs: Any, options: Any, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        translate(file_of(operator, inputs, [ROWS], **options)).model()


@pytest.mark.parametrize(
    "options, message",
    [
        (b"", "expected a flexbuffer"),
        (flexbuffer_of_texts(b"Tan"), "expected a name and a NodeDef"),
        (flexbuffer_of_texts(b"Tan", b"\x2a\xff\xff\xff\xff\x0f"), "malformed options: "),
        (flexbuffer_of_texts(b"Tan", b"\x2f"), "malformed options: "),
        (flexbuffer_of_texts(b"Tan", b"\xff" * 12), "malformed options: "),
    ],
)
def test_malformed_options_are_refused(options: bytes, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        attributes(options, "model.tflite")


def test_damaged_options_end_in_named_errors() -> None:
    whole = flex_options("Cumprod", exclusive=True, reverse=False, ksize=[1, -2, 3], rate=0.5, padding="SAME")
    assert attributes(whole, "model.tflite").ksize == [1, -2, 3]
    generator = np.random.default_rng(3)
    for _ in range(3000):
        damaged = bytearray(whole)
        for position in generator.integers(0, len(damaged), 3):
            damaged[position] = int(generator.integers(0, 256))
        try:
            attributes(bytes(damaged[: int(generator.integers(1, len(damaged) + 1))]), "model.tflite")
        except SardonyxError as error:
            assert error.where == "model.tflite"
