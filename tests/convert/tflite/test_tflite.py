"""TensorFlow Lite files become models with the same answers; malformed ones are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sardonyx
from sardonyx.convert.imported import Options
from sardonyx.convert.tflite import importer, schema, translate
from sardonyx.errors import InvalidModelError, ModelFileError, OptionError, SardonyxError, UnsupportedError
from tests.convert.tflite.tflite_files import File, answers, convolution, quantized


def one_operator(
    name: str,
    shapes: list[list[int]],
    result: list[int],
    options: Any = None,
    *,
    constants: Any = (),
    dtype: Any = np.float32,
) -> bytes:
    file = File()
    main = file.subgraph()
    inputs = [main.tensor(shape) for shape in shapes]
    extra = [main.constant(constant) for constant in constants]
    output = main.tensor(result, dtype)
    main.operator(name, [*inputs, *extra], [output], options)
    main.inputs, main.outputs = inputs, [output]
    return file.data()


def test_a_convolution_pads_as_the_source_does(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = convolution(np.random.default_rng(0))
    w, b = rng.standard_normal((4, 3, 3, 3)).astype(np.float32), rng.standard_normal(4).astype(np.float32)
    x = rng.standard_normal((2, 5, 6, 3)).astype(np.float32)
    (result,) = answers(data, tmp_path, x)
    padded = np.pad(x, [(0, 0), (1, 1), (0, 1), (0, 0)])
    expected = np.zeros((2, 3, 3, 4))
    for i in range(3):
        for j in range(3):
            window = padded[:, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3]
            expected[:, i, j] = np.einsum("bhwc,ohwc->bo", window, w) + b
    np.testing.assert_allclose(result, np.clip(expected, 0, 6), rtol=1e-5, atol=1e-5)


def test_open_sizes_of_the_signature_are_named() -> None:
    (value,) = translate(convolution(np.random.default_rng(0))).model().graph.inputs
    assert value.shape is not None
    assert [size if isinstance(size, int) else size.value for size in value.shape] == ["batch", 5, 6, 3]


SLICES = [
    ("begin", [1, 0], [3, 4], [1, 1], {}, np.s_[1:3, 0:4]),
    ("negative step", [0, -1], [0, 0], [1, -2], {"begin_mask": 1, "end_mask": 3}, np.s_[:, -1::-2]),
    ("removed axis", [2, 0], [3, 0], [1, 1], {"shrink_axis_mask": 1, "end_mask": 2}, np.s_[2]),
    ("last of an axis", [-1, 0], [0, 0], [1, 1], {"shrink_axis_mask": 1, "end_mask": 2}, np.s_[-1]),
    ("new axis", [0, 1], [0, 3], [1, 1], {"new_axis_mask": 1}, np.s_[np.newaxis, 1:3]),
    ("ellipsis", [0, 2], [0, 4], [1, 1], {"ellipsis_mask": 1}, np.s_[..., 2:4]),
]


@pytest.mark.parametrize("_, begin, end, steps, masks, index", SLICES, ids=[row[0] for row in SLICES])
def test_strided_slices_follow_numpy(
    _: str, begin: list[int], end: list[int], steps: list[int], masks: dict[str, int], index: Any, tmp_path: Path
) -> None:
    x = np.arange(20, dtype=np.float32).reshape(4, 5)
    constants = [np.array(part, np.int32) for part in (begin, end, steps)]
    options = ("StridedSliceOptions", masks)
    data = one_operator("STRIDED_SLICE", [[4, 5]], list(x[index].shape), options, constants=constants)
    np.testing.assert_array_equal(answers(data, tmp_path, x)[0], x[index])


def test_gather_has_batch_axes(tmp_path: Path) -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    indices = np.array([[3, 0], [1, 2]], np.int32)
    options = ("GatherOptions", {"axis": 2, "batch_dims": 1})
    data = one_operator("GATHER", [[2, 3, 4]], [2, 3, 2], options, constants=[indices])
    expected = np.stack([x[i][:, indices[i]] for i in range(2)])
    np.testing.assert_array_equal(answers(data, tmp_path, x)[0], expected)


def test_quantized_tensors_stay_quantized(tmp_path: Path) -> None:
    file = File()
    main = file.subgraph()
    x = main.tensor([1, 4], np.int8, **quantized(0.1, 3))
    weights = np.array([[10, -20, 30, 40], [1, 2, 3, -4]], np.int8)
    w = main.constant(weights, **quantized([0.5, 0.25], [0, 0]))
    b = main.constant(np.array([7, -9], np.int32), **quantized([0.05, 0.025], [0, 0]))
    y = main.tensor([1, 2], np.int8, **quantized(2.0, -5))
    main.operator("FULLY_CONNECTED", [x, w, b], [y], ("FullyConnectedOptions", {}))
    main.inputs, main.outputs = [x], [y]
    data = file.data()
    stored = np.array([[5, -3, 100, 8]], np.int8)
    real = (stored.astype(np.float64) - 3) * 0.1 @ (weights * np.array([[0.5], [0.25]])).T + [7 * 0.05, -9 * 0.025]
    (result,) = answers(data, tmp_path, stored)
    assert result.dtype == np.int8
    np.testing.assert_array_equal(result, np.clip(np.round(real / 2.0) - 5, -128, 127).astype(np.int8))
    types = {node.op_type for node in translate(data).model().graph}
    assert {"QuantizeLinear", "DequantizeLinear"} <= types


def test_loops_and_conditions_run(tmp_path: Path) -> None:
    file = File()
    main, condition, body = (file.subgraph() for _ in range(3))
    i, x = main.constant(np.int32(0)), main.tensor([3])
    end, y = main.tensor([], np.int32), main.tensor([3])
    main.operator("WHILE", [i, x], [end, y], ("WhileOptions", {"cond_subgraph_index": 1, "body_subgraph_index": 2}))
    main.inputs, main.outputs = [x], [end, y]
    ci, cx = condition.tensor([], np.int32), condition.tensor([3])
    limit, less = condition.constant(np.int32(5)), condition.tensor([], np.bool_)
    condition.operator("LESS", [ci, limit], [less])
    condition.inputs, condition.outputs = [ci, cx], [less]
    bi, bx = body.tensor([], np.int32), body.tensor([3])
    one, two = body.constant(np.int32(1)), body.constant(np.float32(2))
    ni, nx = body.tensor([], np.int32), body.tensor([3])
    body.operator("ADD", [bi, one], [ni], ("AddOptions", {}))
    body.operator("MUL", [bx, two], [nx], ("MulOptions", {}))
    body.inputs, body.outputs = [bi, bx], [ni, nx]
    count, result = answers(file.data(), tmp_path, np.array([1, -2, 3], np.float32))
    assert count == 5
    np.testing.assert_array_equal(result, np.array([32, -64, 96], np.float32))


def test_a_custom_operator_is_named() -> None:
    translation = translate(one_operator("MyOperator", [[2]], [2]))
    (node,) = translation.model().graph
    assert (node.domain, node.op_type) == ("tflite", "MyOperator")
    assert [call.outcome for call in translation.results] == ["opaque"]
    assert "MyOperator" in next(iter(translation.notes))


def test_an_operator_without_translation_is_named() -> None:
    with pytest.raises(UnsupportedError, match=r"LSH_PROJECTION 't1': the operator has no translation"):
        translate(one_operator("LSH_PROJECTION", [[2]], [2])).model()


def test_a_cycle_of_subgraphs_is_refused() -> None:
    file = File()
    for _ in range(2):
        subgraph = file.subgraph()
        x, y = subgraph.tensor([2]), subgraph.tensor([2])
        subgraph.operator("CALL", [x], [y], ("CallOptions", {"subgraph": 1}))
        subgraph.inputs, subgraph.outputs = [x], [y]
    with pytest.raises(InvalidModelError, match="nested at most"):
        translate(file.data()).model()


def test_a_tensor_that_is_not_computed_is_refused() -> None:
    file = File()
    main = file.subgraph()
    x, y = main.tensor([2]), main.tensor([2])
    main.operator("ABS", [x], [y])
    main.outputs = [y]
    with pytest.raises(InvalidModelError, match="tensor 't0' is read before it is computed"):
        translate(file.data()).model()


@pytest.mark.parametrize(
    "data, message",
    [
        (b"", "expected identifier TFL3"),
        (b"\0\0\0\0TFL2aaaa", "expected identifier TFL3 at offset 4"),
        (b"\xff\xff\xff\x7fTFL3", "expected a scalar within 8 bytes"),
    ],
)
def test_other_files_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        translate(data)


def test_a_constant_of_another_size_is_refused() -> None:
    file = File()
    main = file.subgraph()
    x, y = main.tensor([2]), main.tensor([2])
    w = main.constant(np.zeros(3, np.float32))
    main.tensors[w]["shape"] = [2]
    main.operator("ADD", [x, w], [y], ("AddOptions", {}))
    main.inputs, main.outputs = [x], [y]
    with pytest.raises(ModelFileError, match="tensor 't2' has 12 bytes, expected 8"):
        translate(file.data()).model()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_files_end_in_named_errors(damage: list[tuple[int, int]]) -> None:
    data = bytearray(convolution(np.random.default_rng(0)))
    for position, value in damage:
        data[position % len(data)] = value
    try:
        model = translate(bytes(data)).model()
    except SardonyxError:
        return
    assert isinstance(model, ir.Model)


def recurrent_parameters(main: Any, rng: np.random.Generator, units: int, features: int, outputs: int) -> list[int]:
    """Add an LSTM's parameters of one direction: no peepholes, a projection if `outputs` differ from `units`."""

    def drawn(*shape: int) -> int:
        return int(main.constant((rng.standard_normal(shape) / 2).astype(np.float32)))

    inner, recurrent = [drawn(units, features) for _ in range(4)], [drawn(units, outputs) for _ in range(4)]
    projection = [drawn(outputs, units), drawn(outputs)] if outputs != units else [-1, -1]
    return [*inner, *recurrent, -1, -1, -1, *(drawn(units) for _ in range(4)), *projection]


def steps_of(x: Any, arrays: Any, norms: Any = None, clip: float = np.inf) -> Any:
    """Return an LSTM's outputs [batch, time, outputs] by its definition."""
    w, r, b, (p, q) = arrays[0:4], arrays[4:8], arrays[11:15], arrays[15:17]
    h, cell, results = np.zeros((len(x), r[0].shape[1])), np.zeros((len(x), len(b[0]))), []
    for t in range(x.shape[1]):
        gates = [x[:, t] @ w[i].T + h @ r[i].T for i in range(4)]
        if norms is not None:
            gates = [
                (g - g.mean(-1, keepdims=True)) / np.sqrt(g.var(-1, keepdims=True) + 1e-8) * n
                for g, n in zip(gates, norms, strict=True)
            ]
        write, forget, update, show = (g + summand for g, summand in zip(gates, b, strict=True))
        sigmoid = [1 / (1 + np.exp(-g)) for g in (write, forget, show)]
        cell = np.clip(sigmoid[1] * cell + sigmoid[0] * np.tanh(update), -clip, clip)
        h = sigmoid[2] * np.tanh(cell)
        h = h if p is None else h @ p.T + q
        results.append(h)
    return np.stack(results, 1)


@pytest.mark.parametrize("clip", [0.0, 0.25])
@pytest.mark.parametrize("is_normalized", [False, True])
def test_an_lstm_with_a_projection_runs_step_by_step(is_normalized: bool, clip: float, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    file = File()
    main = file.subgraph()
    x = main.tensor([2, 4, 3])
    parameters = recurrent_parameters(main, rng, 5, 3, 2)
    norms = [rng.standard_normal(5).astype(np.float32) for _ in range(4)] if is_normalized else []
    states = [main.tensor([2, 2], is_variable=True), main.tensor([2, 5], is_variable=True)]
    coefficients = [main.constant(norm) for norm in norms]
    y = main.tensor([2, 4, 2])
    options = ("UnidirectionalSequenceLSTMOptions", {"fused_activation_function": 4, "cell_clip": clip})
    main.operator("UNIDIRECTIONAL_SEQUENCE_LSTM", [x, *parameters, *states, *coefficients], [y], options)
    main.inputs, main.outputs = [x], [y]
    sequence = rng.standard_normal((2, 4, 3)).astype(np.float32)
    expected = steps_of(sequence, stored_arrays(file, parameters), norms or None, clip or np.inf)
    np.testing.assert_allclose(answers(file.data(), tmp_path, sequence)[0], expected, rtol=1e-4, atol=1e-5)


def stored_arrays(file: File, indices: Any) -> list[Any]:
    """Return the constants of a file by their tensors; None for absent ones."""
    arrays: list[Any] = []
    for index in indices:
        tensor = file.subgraphs[0].tensors[index]
        data = None if index < 0 else file.buffers[tensor["buffer"]]["data"]
        arrays.append(None if data is None else data.view(np.float32).reshape(tensor["shape"]))
    return arrays


@pytest.mark.parametrize("is_merged", [False, True])
def test_a_bidirectional_lstm_reads_the_sequence_from_both_ends(is_merged: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    file = File()
    main = file.subgraph()
    x = main.tensor([2, 4, 3])
    forward, backward = (recurrent_parameters(main, rng, 5, 3, 5) for _ in range(2))
    states = [main.tensor([2, 5], is_variable=True) for _ in range(4)]
    outputs = [main.tensor([2, 4, 10])] if is_merged else [main.tensor([2, 4, 5]) for _ in range(2)]
    fields = {"fused_activation_function": 4, "time_major": False, "merge_outputs": is_merged}
    options = ("BidirectionalSequenceLSTMOptions", fields)
    inputs = [x, *forward, *backward, *states, *[-1] * 9]
    main.operator("BIDIRECTIONAL_SEQUENCE_LSTM", inputs, outputs, options)
    main.inputs, main.outputs = [x], outputs
    sequence = rng.standard_normal((2, 4, 3)).astype(np.float32)
    first = steps_of(sequence, stored_arrays(file, forward))
    last = steps_of(sequence[:, ::-1], stored_arrays(file, backward))[:, ::-1]
    result = np.concatenate(answers(file.data(), tmp_path, sequence), -1)
    np.testing.assert_allclose(result, np.concatenate([first, last], -1), rtol=1e-4, atol=1e-5)


def test_filters_over_time_begin_with_an_empty_memory(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    features, times = (rng.standard_normal(shape).astype(np.float32) for shape in ((8, 3), (8, 6)))
    file = File()
    main = file.subgraph()
    x, y, memory = main.tensor([2, 3]), main.tensor([2, 4]), main.tensor([2, 48], is_variable=True)
    inputs = [x, main.constant(features), main.constant(times), -1, memory]
    main.operator("SVDF", inputs, [y], ("SVDFOptions", {"rank": 2}))
    main.inputs, main.outputs = [x], [y]
    rows = rng.standard_normal((2, 3)).astype(np.float32)
    expected = (rows @ features.T * times[:, -1]).reshape(2, 4, 2).sum(-1)
    np.testing.assert_allclose(answers(file.data(), tmp_path, rows)[0], expected, rtol=1e-5, atol=1e-6)


def test_variables_of_a_small_file_are_bounded_together() -> None:
    """Every variable is within the limit, and all of them are not."""
    file = File()
    main = file.subgraph()
    x = main.tensor([1])
    total = x
    for _ in range(3):
        state, following = main.tensor([1 << 27], is_variable=True), main.tensor([1 << 27])
        main.operator("ADD", [total, state], [following])
        total = following
    main.inputs, main.outputs = [x], [total]
    with pytest.raises(InvalidModelError, match="elements of variables and sparse constants"):
        translate(file.data()).model()


@pytest.mark.parametrize(
    ("operator", "fields"),
    [
        ("REAL", {"type": schema.ELEMENT_TYPES.index("COMPLEX64")}),
        (
            "EXP",
            {"type": schema.ELEMENT_TYPES.index("FLOAT64"), "sparsity": {"traversal_order": [0], "dim_metadata": [{}]}},
        ),
    ],
    ids=["complex numbers", "sparse elements"],
)
def test_constants_of_the_wrong_length_are_named(operator: str, fields: dict[str, Any]) -> None:
    file = File()
    main = file.subgraph()
    y = main.tensor([3])
    main.operator(operator, [main.constant(np.zeros(3, np.float32), **fields)], [y])
    main.outputs = [y]
    with pytest.raises(ModelFileError, match=r"has 12 bytes, expected"):
        translate(file.data()).model()


@pytest.mark.parametrize(
    ("examples", "text"),
    [
        ({"nothing": np.zeros(3, np.float32)}, "unknown input nothing"),
        ([np.zeros((1, 2), np.float32)], "for 't0', got float32"),
        ([np.zeros(3, np.float32)] * 2, "expected 1 example inputs, got 2"),
    ],
)
def test_examples_that_do_not_fit_are_refused(examples: Any, text: str) -> None:
    data = convolution(np.random.default_rng(0))
    with pytest.raises(OptionError, match=text):
        sardonyx.convert(data, examples, framework="tflite")


def test_the_examples_of_the_caller_are_the_first_of_the_proof() -> None:
    data = convolution(np.random.default_rng(0))
    (value,) = translate(data).model().graph.inputs
    assert value.shape is not None
    example = np.full([size if isinstance(size, int) else 2 for size in value.shape], 7, np.float32)
    (way,) = importer.ways(data, Options([example]))
    (feeds,) = way.read().examples
    assert feeds[str(value.name)] is not None and (feeds[str(value.name)] == 7).all()


def test_complex_results_are_compared_as_pairs() -> None:
    pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed")
    file = File()
    main = file.subgraph()
    number = schema.ELEMENT_TYPES.index("COMPLEX64")
    x, y = main.tensor([2, 1, 8]), main.tensor([2, 1, 5], type=number)
    main.operator("RFFT2D", [x, main.constant(np.array([1, 8], np.int32))], [y])
    main.inputs, main.outputs = [x], [y]
    report = sardonyx.convert(file.data(), framework="tflite").report
    assert report.verdict.status == "proved", report.verdict.reason
