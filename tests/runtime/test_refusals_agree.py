"""Compiled code refuses what the interpreter refuses, by the same class of error, and answers what it answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

from sardonyx import Session, optimize
from sardonyx.errors import (
    ExecutionError,
    InvalidModelError,
    ResourceError,
    SardonyxError,
    ShapeError,
)

F = np.float32


def model_of(text: str, opset: int = 18) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}, "com.microsoft": 1]> {text}')


def outcomes(model: onnx.ModelProto, feeds: dict[str, Any], **options: Any) -> list[Any]:
    """Return the answers, or the classes of errors, of the interpreter and of compiled code."""
    results: list[Any] = []
    for compile_ in ("off", "wait"):
        try:
            results.append(Session(model, compile=compile_, threads=1, **options).run(None, feeds))
        except SardonyxError as error:
            results.append(type(error))
    return results


SQUEEZE = "g (float[A, B] x) => (float y) <int64[1] axes = {0}> { y = Squeeze (x, axes) }"
THIRDS = (
    "g (float[A, B, C] x, float[D, E] w, float[F] b) => (float y)"
    "{ y = com.microsoft.Attention <num_heads = 2> (x, w, b) }"
)
BEAMS = (
    "g (float[1, 1, 5] q, float[1, 1, C, 5] cache, int32[1] length, int32[1] width, int32[1, D, 1] beams) => (float y)"
    "{ y, k, v = com.microsoft.DecoderMaskedMultiHeadAttention <num_heads = 1, past_present_share_buffer = 1>"
    " (q, q, q, , , cache, cache, length, width, beams) }"
)
FRAMES = "g (float[1, N, 1] x, int64 step, int64 length) => (float y) { y = STFT (x, step, , length) }"
WINDOW = "g (float[1, N, 1] x, int64 step, float[M] w) => (float y) { y = STFT (x, step, w) }"
AXIS = "g (float[A, B] x) => (float y, float z) { y, z = Split <axis = 2, num_outputs = 2> (x) }"
UNPOOL = (
    "g (float[1, 1, N] x, int64[1, 1, N] i, int64[3] shape) => (float y)"
    "{ y = MaxUnpool <kernel_shape = [2], strides = [2]> (x, i, shape) }"
)
LSTM = (
    "g (float[S, B, 2] x, float[1, 4, 2] w, float[1, 4, 1] r, float[D, E, 1] h) => (float y)"
    "{ y = LSTM <hidden_size = 1> (x, w, r, , , h) }"
)
SCANNED = """g (float[A] x, float[B] z) => (float y)
    { y = Scan <num_scan_inputs = 2, body = body (float a, float b) => (float c) { c = Add (a, b) }> (x, z) }"""

REGIONS = (
    "g (float[R, C] rois) => (float y) <float[1, 1, 1, 1] x = {1}, int64[1] image = {0}>"
    "{ y = RoiAlign (x, rois, image) }"
)
INFERRED = "g (int64[2] shape) => (float y) <float[0, 3] x = {}> { y = Reshape <allowzero = 1> (x, shape) }"

IMAGELESS = "g (float[0, 1, 8, 7] x, float[2, 5] r) => (float y) { y = MaxRoiPool <pooled_shape = [3, 2]> (x, r) }"
PADDED = "g (float[2] x, int64[1] axes) => (float y) <int64[2] p = {0, 0}> { y = Pad (x, p, , axes) }"
PARTS = "g (int64[N] parts) => (float y) <float[2, 0, 1] x = {}> { y = Split <axis = -1> (x, parts) }"
BLOCKS = (
    "g (uint8[2, 4] x, int64[1] i, float[A, B] s) => (float y)"
    "{ y = com.microsoft.GatherBlockQuantized <block_size = 1099511627776> (x, i, s) }"
)
POOLED = (
    "g (float[1, 1, N, 4] x) => (float y)"
    "{ y = MaxPool <kernel_shape = [1099511627776, 1], pads = [1099511627776, 0, 0, 0]> (x) }"
)
STRIDES = "g (float[1, 1, N] x, float[1, 1, 3] w) => (float y) { y = ConvTranspose <strides = [1099511627776]> (x, w) }"
NUMBERS = "g (string[N] x) => (uint64 y) { y = Cast <to = 13> (x) }"

CONDITIONED = """g (int64 n, bool c, float[A] x) => (float y, float z) {{
    y, z = Loop <body = body (int64 i, bool go, float[A] s) => (bool again, float[A] t, float[A] row) {{
        {unread} again = {condition} t = Neg (s) row = Identity (s) }}> (n, {c}, x) }}"""

UNREAD = "g (float[A] x, int64[1] s, int64[1] e, int64[B] axes) => (float y) { y = Slice (x, s, e, axes) }"

REFUSED = {
    "squeeze of an axis that is not 1, in an empty tensor": (SQUEEZE, {"x": np.zeros((3, 0), F)}, ShapeError),
    "a projection that is not divisible by 3, in an empty tensor": (
        THIRDS, {"x": np.zeros((1, 0, 4), F), "w": np.zeros((4, 13), F), "b": np.zeros(13, F)}, ShapeError,
    ),
    "a projection that is not divisible by 3": (
        THIRDS, {"x": np.zeros((1, 1, 4), F), "w": np.zeros((4, 13), F), "b": np.zeros(13, F)}, ShapeError,
    ),
    "no beam": (
        BEAMS,
        {"q": np.ones((1, 1, 5), F), "cache": np.ones((1, 1, 1, 5), F), "length": np.zeros(1, np.int32),
         "width": np.ones(1, np.int32), "beams": np.zeros((1, 0, 1), np.int32)},
        ExecutionError,
    ),
    "a frame that is longer than the signal": (
        FRAMES, {"x": np.ones((1, 12, 1), F), "step": np.int64(3), "length": np.int64(13)}, ShapeError,
    ),
    "a window that is longer than the signal": (
        WINDOW, {"x": np.ones((1, 12, 1), F), "step": np.int64(30), "w": np.ones(13, F)}, ShapeError,
    ),
    "a frame step of 0": (
        FRAMES, {"x": np.ones((1, 12, 1), F), "step": np.int64(0), "length": np.int64(4)}, ExecutionError,
    ),
    "a split along an axis out of range": (AXIS, {"x": np.ones((2, 2), F)}, ShapeError),
    "an output shape that does not hold the unpooled elements": (
        UNPOOL,
        {"x": np.ones((1, 1, 3), F), "i": np.zeros((1, 1, 3), np.int64), "shape": np.array([1, 1, 5])},
        ShapeError,
    ),
    "an initial state of another batch, without steps": (
        LSTM,
        {"x": np.ones((0, 2, 2), F), "w": np.ones((1, 4, 2), F), "r": np.ones((1, 4, 1), F),
         "h": np.ones((1, 3, 1), F)},
        ShapeError,
    ),
    "regions of more images than there are": (REGIONS, {"rois": np.ones((17, 4), F)}, ShapeError),
    "a size to infer beside an empty axis": (INFERRED, {"shape": np.array([0, -1])}, ShapeError),
    "positions of no axis, which no result reads": (
        UNREAD,
        {"x": np.ones(17, F), "s": np.array([1]), "e": np.array([2]), "axes": np.zeros(0, np.int64)},
        ShapeError,
    ),
    "regions of images of which there are none": (
        IMAGELESS, {"x": np.ones((0, 1, 8, 7), F), "r": np.ones((2, 5), F)}, ExecutionError,
    ),
    "paddings of 0 along an axis out of range": (PADDED, {"x": np.ones(2, F), "axes": np.array([1])}, ShapeError),
    "parts of an empty constant": (PARTS, {"parts": np.array([2])}, ShapeError),
    "a negative text as a natural number": (NUMBERS, {"x": np.array(["-12"], object)}, ExecutionError),
    "scales of other blocks than the table has": (
        BLOCKS, {"x": np.ones((2, 4), np.uint8), "i": np.array([0]), "s": np.ones((2, 2), F)}, ShapeError,
    ),
    "a window without end in the padding": (POOLED, {"x": np.ones((1, 1, 4, 4), F)}, ResourceError),
    "a stride without end": (STRIDES, {"x": np.ones((1, 1, 4), F), "w": np.ones((1, 1, 3), F)}, ResourceError),
    "scanned sequences of two lengths": (SCANNED, {"x": np.ones(2, F), "z": np.ones(3, F)}, ShapeError),
    "a condition of several elements, in a loop that collects rows": (
        CONDITIONED.format(c="c", unread="", condition="Cast <to = 9> (s)"),
        {"n": np.int64(4), "c": np.array(True), "x": np.ones(2, F)}, ShapeError,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_both_engines_refuse(case: str) -> None:
    text, feeds, error = REFUSED[case]
    assert outcomes(model_of(text), feeds) == [error, error]


def test_operands_that_may_not_broadcast_are_refused() -> None:
    model = model_of("g (float[A] x, float[B] z) => (float y) { y = Add (x, z) }", opset=6)
    assert outcomes(model, {"x": np.ones(3, F), "z": np.ones(1, F)}) == [ShapeError, ShapeError]


def test_scales_of_other_blocks_are_refused() -> None:
    model = model_of(
        "g (int8[N] x, float[M] s) => (float y) { y = DequantizeLinear <axis = 0, block_size = 2> (x, s) }", opset=21
    )
    feeds = {"x": np.ones(4, np.int8), "s": np.ones(3, F)}
    assert outcomes(model, feeds) == [ShapeError, ShapeError]
    assert np.array_equal(*(y for (y,) in outcomes(model, {**feeds, "s": np.ones(2, F)})))


RESHAPE = """g (float[A, 3] x) => (float y) <int64[1] begin = {0}, int64[1] one = {1}, int64[1] four = {4}> {
    shape = Shape (x)  rows = Slice (shape, begin, one)  target = Concat <axis = 0> (rows, four)
    y = Reshape <allowzero = 1> (x, target) }"""
NO_ROWS = """g (float[A, 3] state, float[2, N, 3] x) => (float y, float rows) {
    y, rows = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1],
        body = body (float[?] s, float[?] e) => (float[?] new, float[?] row) { new = Add (s, e)  row = Identity (new) }>
        (state, x) }"""
EMPTY_IMAGE = "g (float[1, 1, N] x, float[1, 1, 3] w) => (float y) { y = ConvTranspose <strides = [2]> (x, w) }"
RANGE = "g (int64 a, int64 b, int64 d) => (int64 y) { y = Range (a, b, d) }"

REDUCED = "g (int64[A] axes) => (int64 y) <int64[4] x = {1, 2, 3, 4}> { y = ReduceMax <keepdims = 0> (x, axes) }"
SQUEEZED = "g (int64[A] axes) => (int64 y) <int64[1] x = {1}> { y = Squeeze (x, axes) }"

ANSWERED = {
    "a reshape of no elements": (RESHAPE, {"x": np.zeros((0, 3), F)}, (0, 4)),
    "the rows of no iteration": (NO_ROWS, {"state": np.ones((1, 3), F), "x": np.ones((2, 0, 3), F)}, (1, 3)),
    "a transposed convolution of an empty axis": (
        EMPTY_IMAGE, {"x": np.ones((1, 1, 0), F), "w": np.ones((1, 1, 3), F)}, (1, 1, 1),
    ),
    "a range whose distance exceeds 63 bits": (
        RANGE, {"a": np.int64(2**63 - 1), "b": np.int64(-(2**20)), "d": np.int64(2**40)}, (0,),
    ),
    "a long range with a long step": (
        RANGE, {"a": np.int64(-(2**63)), "b": np.int64(2**63 - 1), "d": np.int64(2**61)}, (8,),
    ),
    "a sum over axes of a call": (REDUCED, {"axes": np.array([0])}, ()),
    "no axis to squeeze": (SQUEEZED, {"axes": np.zeros(0, np.int64)}, (1,)),
    "index vectors without elements, in a batch": (
        "g (float[A, 2] x, int64[B, 3, 0] i) => (float y) { y = GatherND <batch_dims = 1> (x, i) }",
        {"x": np.ones((1, 2), F), "i": np.zeros((1, 3, 0), np.int64)},
        (1, 3, 2),
    ),
    "a declared output shape that the result breaks": (
        "g (float[A, B] x) => (float[3, 5] y) { y = Neg (x) }", {"x": np.ones((3, 4), F)}, (3, 4),
    ),
    "a condition of several elements that a loop ignores": (
        CONDITIONED.format(c="", unread="", condition="Cast <to = 9> (s)"),
        {"n": np.int64(4), "c": np.array(True), "x": np.ones(2, F)}, (2,),
    ),
    "a node of a body that nothing reads": (
        CONDITIONED.format(
            c="c", unread="three = Constant <value_ints = [3]> () u = Reshape (s, three)", condition="Identity (go)"
        ),
        {"n": np.int64(4), "c": np.array(True), "x": np.ones(2, F)}, (2,),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ANSWERED)
def test_both_engines_answer_alike(case: str) -> None:
    text, feeds, shape = ANSWERED[case]
    expected, actual = outcomes(model_of(text), feeds)
    assert expected[0].shape == shape
    for x, y in zip(expected, actual, strict=True):
        np.testing.assert_array_equal(x, y, strict=True)


def test_a_body_that_does_not_run_may_have_other_types() -> None:
    model = model_of(
        """g (int64 n, bool c, float[A] x) => (y) { y = Loop (n, c, x) <body = body (int64 i, bool go, float[?] s)
        => (bool again, int64 t) { again = Identity (go)  t = Identity (i) }> }"""
    )
    expected, actual = outcomes(model, {"n": np.int64(0), "c": np.array(True), "x": np.ones(3, F)})
    assert np.array_equal(expected, actual)


@pytest.mark.parametrize("target", ["portable", "native", "onnxruntime"])
def test_a_constant_that_is_not_utf8_is_refused_by_name(target: str) -> None:
    node = onnx.helper.make_node("Constant", [], ["y"], value_string=b"\xff\xfe")
    y = onnx.helper.make_tensor_value_info("y", 8, [])
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "g", [], [y]), ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 13)]
    )
    with pytest.raises(InvalidModelError, match="not valid UTF-8"):
        optimize(model, target=target, verify=False)
    assert outcomes(model, {}) == [InvalidModelError, InvalidModelError]


def test_sizes_of_two_axes_are_refused() -> None:
    model = model_of("g (float[A] x, int64[B, C] shape) => (y) { y = Expand (x, shape) }")
    feeds = {"x": np.ones(3, F), "shape": np.ones((1, 1), np.int64)}
    assert outcomes(model, feeds) == [ShapeError, ShapeError]


def test_too_little_memory_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("g (float[N] x) => (float[N] y) { y = Neg (x) }")
    session = Session(model, compile="wait", threads=1)
    assert session.native is not None

    def fail(*arguments: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(type(session.native), "call", property(lambda native: fail))
    with pytest.raises(ResourceError, match="too little memory"):
        session.run(None, {"x": np.ones(3, F)})


@pytest.mark.parametrize("value", [1.5, [1], "x"])
def test_an_attribute_of_another_kind_is_an_invalid_model(value: Any) -> None:
    node = onnx.helper.make_node("ArgMax", ["x"], ["y"], axis=value)
    x = onnx.helper.make_tensor_value_info("x", 1, [2, 3])
    y = onnx.helper.make_tensor_value_info("y", 7, None)
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "g", [x], [y]), ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 13)]
    )
    assert outcomes(model, {"x": np.ones((2, 3), F)}) == [InvalidModelError, InvalidModelError]


def test_padding_beyond_all_memory_is_refused_at_once() -> None:
    most = 2**31 - 1
    model = model_of(
        "g (float[1, 2, 5, 5] x, float[3, 2, 3, 3] w) => (float[N, C, H, W] y) "
        f"{{ y = Conv <pads = [{most}, {most}, {most}, {most}]> (x, w) }}"
    )
    feeds = {"x": np.ones((1, 2, 5, 5), F), "w": np.ones((3, 2, 3, 3), F)}
    assert outcomes(model, feeds) == [ResourceError, ResourceError]


def test_a_run_of_tokens_longer_than_any_sequence_blocks_nothing() -> None:
    node = onnx.helper.make_node("NGramRepeatBlock", ["ids", "x"], ["y"], domain="com.microsoft", ngram_size=2**40)
    ids = onnx.helper.make_tensor_value_info("ids", 7, ["N", "L"])
    x = onnx.helper.make_tensor_value_info("x", 1, ["N", 7])
    y = onnx.helper.make_tensor_value_info("y", 1, None)
    opsets = [onnx.helper.make_opsetid("", 13), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "g", [ids, x], [y]), ir_version=8, opset_imports=opsets
    )
    scores = np.ones((2, 7), F)
    (y,) = Session(model, compile="wait").run(None, {"ids": np.ones((2, 2000), np.int64), "x": scores})
    np.testing.assert_array_equal(y, scores)


def test_an_image_is_resized_to_nothing() -> None:
    model = model_of(
        "g (float[2, 1, 3, 3] x, int64[4] sizes) => (float[A, B, C, D] y) "
        '{ y = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric"> (x, , , sizes) }',
        opset=18,
    )
    feeds = {"x": np.ones((2, 1, 3, 3), F), "sizes": np.array([2, 1, 5, 0])}
    for options in ({"providers": ["reference"]}, {"compile": "wait"}):
        (y,) = Session(model, **options).run(None, feeds)
        assert y.shape == (2, 1, 5, 0)


EMPTY = "g (float[0] x, int64[1] start, int64[1] axis) => (float y) <int64[1] end = {5}, int64[1] step = {1}>"
NOTHING = "g (float[A] x, float[N] u) => (float y) <int64[0, 1] i = {}> { y = ScatterND (x, i, u) }"
TEXTS = "g (string[A, B, C] x, int64[1] axis) => (string y) { y = Squeeze (x, axis) }"


@pytest.mark.parametrize(
    ("text", "good", "bad"),
    [
        (f"{EMPTY} {{ y = Slice (x, start, end, axis, step) }}", {"x": np.zeros(0, F), "axis": 0}, {"axis": 1}),
        (NOTHING, {"x": np.zeros(3, F), "u": np.zeros(0, F)}, {"u": np.zeros(1, F)}),
        (TEXTS, {"x": np.zeros((2, 0, 1), object), "axis": 2}, {"x": np.zeros((2, 0, 3), object)}),
    ],
    ids=["slice", "scatter", "texts"],
)
def test_operators_without_work_refuse_what_does_not_fit(text: str, good: dict[str, Any], bad: dict[str, Any]) -> None:
    model = model_of(text)
    for changes in ({}, bad):
        feeds = {**good, **changes}
        if "axis" in feeds:
            feeds["axis"] = np.array([feeds["axis"]])
        if "start" in [value.name for value in model.graph.input]:
            feeds["start"] = np.zeros(1, np.int64)
        results = outcomes(model, feeds)
        if changes:
            assert results == [ShapeError, ShapeError]
        else:
            np.testing.assert_array_equal(*(answers[0] for answers in results))


@pytest.mark.parametrize("mode", ["half_pixel", "pytorch_half_pixel", "asymmetric"])
@pytest.mark.parametrize(("size", "resized"), [(3, 5), (3, 7), (6, 14), (7, 3)])
def test_positions_on_the_border_of_two_pixels_read_the_same_pixel(mode: str, size: int, resized: int) -> None:
    text = (
        f"g (float[1, 1, 1, {size}] x, int64[4] sizes) => (float y) {{ y = Resize <mode = "
        f'"nearest", nearest_mode = "floor", coordinate_transformation_mode = "{mode}"> (x, , , sizes) }}'
    )
    feeds = {"x": np.arange(size, dtype=F).reshape(1, 1, 1, size), "sizes": np.array([1, 1, 1, resized])}
    interpreted, compiled = outcomes(model_of(text), feeds)
    np.testing.assert_array_equal(interpreted[0], compiled[0])


SIZES = "g (float[3, A] x, float[B] z) => (float y) { s = Shape (z)  t = Concat <axis = 0> (s, s)  y = Reshape (x, t) }"
SECOND = """g (float[A, B, 4] x) => (float y) <int64[1] rest = {-1}, int64[1] at = {1}>
    { s = Shape (x)  d = Gather (s, at)  t = Concat <axis = 0> (d, rest)  y = Reshape (x, t) }"""
GIVEN = "g (float[A, B] x, int64[3] t) => (float y) { y = Reshape (x, t) }"
LATER = """g (float[4, A] x) => (float y) <int64[2] known = {2, 2}, int64[1] at = {1}>
    { s = Shape (x)  d = Gather (s, at)  t = Concat <axis = 0> (known, d)  y = Reshape (x, t) }"""
COUNTED = """g (float[4, 6] x, bool[6] some) => (float y) <int64[2] known = {2, 1}, int64[1] at = {1}>
    { c = Compress <axis = 1> (x, some)  s = Shape (c)  d = Gather (s, at)
      t = Concat <axis = 0> (known, d, known)  y = Reshape (c, t) }"""


@pytest.mark.parametrize(
    ("text", "shape", "other", "expected"),
    [
        (SIZES, (3, 0), {"z": np.zeros(0, F)}, (3, 0)),
        (SIZES, (3, 3), {"z": np.zeros(3, F)}, (3, 3)),
        (SECOND, (2, 0, 4), {}, (2, 0)),
        (SECOND, (0, 3, 4), {}, (3, 0)),
        (GIVEN, (0, 3), {"t": np.array([0, -1, 1])}, (0, 3, 1)),
        (GIVEN, (2, 0), {"t": np.array([0, 0, 4])}, (2, 0, 4)),
        (GIVEN, (2, 0), {"t": np.array([1, 2, 0])}, None),
        (LATER, (4, 3), {}, (2, 2, 3)),
        (LATER, (4, 0), {}, None),
        (COUNTED, (4, 6), {"some": np.array([0, 1, 1, 0, 0, 0], bool)}, (2, 1, 2, 2, 1)),
        (COUNTED, (4, 6), {"some": np.zeros(6, bool)}, None),
    ],
)
def test_a_size_of_0_in_a_new_shape_copies(
    text: str, shape: tuple[int, ...], other: dict[str, Any], expected: tuple[int, ...] | None
) -> None:
    """Also one that is computed from the shapes of empty tensors."""
    results = outcomes(model_of(text), {"x": np.zeros(shape, F), **other})
    if expected is None:
        assert results == [ShapeError, ShapeError]
    else:
        assert [answers[0].shape for answers in results] == [expected, expected]


TWICE_COUNTED = """g (float[8, 2] x, bool[2] some) => (float y)
    <int64[3] a = {1, 2, -1}, int64[3] b = {1, 1, -1}, int64[1] c = {-1}, int64[1] at = {2}, int64[1] first = {0}>
    { u = Compress <axis = 1> (x, some)  v = Reshape (u, a)  w = Unique (v)  r = Reshape (w, b)  n = Neg (r)
      s = Shape (n)  d = Gather (s, at)  t = Concat <axis = 0> (c, d)  m = Reshape (n, t)  y = Squeeze (m, first) }"""
MERGED = "g (float[N] x, int64[2] t) => (float y) <int64[1] flat = {-1}> { u = Reshape (x, t)  y = Reshape (u, flat) }"
HALVES = (
    "g (float[N] x) => (float y) <int64[2] t = {2, -1}, int64[1] f = {-1}> { u = Reshape (x, t)  y = Reshape (u, f) }"
)
DROPPED = """g (float[A] x) => (float y)
    <int64[1] rest = {-1}, int64[1] at = {2}, int64[1] first = {0}, int64[3] row = {1, 1, -1}>
    { u = Reshape (x, row)  s = Shape (u)  n = Gather (s, at)  t = Concat <axis = 0> (rest, n)  v = Reshape (u, t)
      w = Squeeze (v, first)  y = Neg (w) }"""


@pytest.mark.parametrize(
    ("text", "feeds"),
    [
        (MERGED, {"x": np.zeros(6, F), "t": np.array([5, 5])}),
        (HALVES, {"x": np.zeros(3, F)}),
        (DROPPED, {"x": np.zeros(0, F)}),
        (TWICE_COUNTED, {"x": np.ones((8, 2), F), "some": np.zeros(2, bool)}),
    ],
)
def test_a_shape_that_does_not_fit_is_refused_before_another_shape(text: str, feeds: dict[str, Any]) -> None:
    assert outcomes(model_of(text), feeds) == [ShapeError, ShapeError]


EMPTY = "g (float[N, 3] x) => (float y) <int64[1] none = {0}, int64[1] one = {1}, int64[1] three = {3}> "
COUNTS = EMPTY + "{ n = Shape <start = 0, end = 1> (x)  "
ROWS = COUNTS + "m = Max (n, one)  t = Concat <axis = 0> (m, three)  "


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (COUNTS + "is = Equal (n, none)  y = Cast <to = 1> (is) }", [1]),
        (COUNTS + "is = Greater (n, none)  y = Cast <to = 1> (is) }", [0]),
        (COUNTS + "is = LessOrEqual (one, n)  y = Where (is, one, three) }", [3]),
        (COUNTS + "m = Max (n, one)  is = Equal (m, n)  y = Cast <to = 1> (is) }", [0]),
        (ROWS + "y = ConstantOfShape (t) }", [[0, 0, 0]]),
        (ROWS + "y = Expand (x, t) }", np.zeros((0, 3))),
        (ROWS + "y = Reshape (x, t) }", None),
        (EMPTY + "{ a = Slice (x, none, one, none)  s = Shape (a)  y = Cast <to = 1> (s) }", [0, 3]),
        (EMPTY + "{ a = Slice (x, none, one, none)  y = Squeeze (a, none) }", None),
        (EMPTY + "{ a = Slice (x, one, three, none)  b = Concat <axis = 0> (a, a)  y = Add (b, x) }", np.zeros((0, 3))),
    ],
)
def test_a_size_of_0_is_a_size(text: str, expected: Any) -> None:
    """Shape arithmetic decides nothing that holds for other sizes alone."""
    model, feeds = model_of(text), {"x": np.zeros((0, 3), F)}
    results = outcomes(model, feeds)
    if expected is None:
        assert results == [ShapeError, ShapeError]
        return
    results.append(Session(optimize(model, verify=False).model, compile="off").run(None, feeds))
    for (answer,) in results:
        np.testing.assert_array_equal(answer, expected)
        assert answer.shape == np.shape(expected)


def test_no_size_is_inferred_beside_a_0_that_copies_nothing() -> None:
    """With ``allowzero``, a second Reshape does not hide the error."""
    text = """g (float[M, K] x) => (float y) <int64[1] rest = {-1}, int64[1] at = {0}>
      { s = Shape (x)  m = Gather (s, at)
        t = Concat <axis = 0> (rest, m)  u = Reshape <allowzero = 1> (x, t)  y = Reshape (u, rest) }"""
    assert outcomes(model_of(text), {"x": np.zeros((0, 3), F)}) == [ShapeError, ShapeError]


@pytest.mark.parametrize("tap", range(3))
def test_byte_products_that_saturate_are_corrected_in_images_of_width_1(tap: int) -> None:
    """The corrections of a window of one column read the rows of the image."""
    weights = np.full((2, 6, 3, 1), 20, np.uint8)
    weights[0, 4:, tap] = 90
    model = model_of("g (uint8[2, 6, 8, 1] x) => (int32 y) { y = ConvInteger <strides = [2, 1]> (x, w) }")
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    x = np.random.default_rng(0).integers(0, 255, (2, 6, 8, 1)).astype(np.uint8)
    interpreted, compiled = outcomes(model, {"x": x})
    np.testing.assert_array_equal(compiled[0], interpreted[0])


@pytest.mark.parametrize("perm", ["[-1, 0]", "[1, -2]", "[0, 0]"])
def test_axes_that_are_no_permutation_are_refused(perm: str) -> None:
    model = model_of(f"g (float[N, M] x) => (float[A, B] y) {{ y = Transpose <perm = {perm}> (x) }}")
    assert outcomes(model, {"x": np.ones((1, 3), F)}) == [ShapeError, ShapeError]
