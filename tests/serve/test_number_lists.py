"""Long JSON lists: the machine code reads what the JSON parser reads, to the bit, and refuses everything else."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("msgspec", reason="msgspec is not installed (extra: serve)")

from sardonyx.errors import RequestError
from sardonyx.serve.protocol import json_codec
from sardonyx.serve.protocol.datatypes import DATATYPES
from sardonyx.serve.protocol.number_lists import NumberList, parse_float32
from tests.random_cases import cases

_DIGITS = st.text("0123456789", min_size=1, max_size=30)
_WHOLE = st.one_of(st.just("0"), st.builds(lambda first, rest: first + rest, st.sampled_from("123456789"), _DIGITS))
_NUMBERS = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr),
    st.floats(allow_nan=False, allow_infinity=False, min_value=-3e38, max_value=3e38).map(repr),
    st.integers(-(2**70), 2**70).map(str),
    st.builds(
        lambda sign, whole, part, exponent: f"{sign}{whole}{part}{exponent}", st.sampled_from(["", "-"]), _WHOLE,
        st.one_of(st.just(""), _DIGITS.map(".{}".format)),
        st.one_of(st.just(""), st.integers(-60, 15).map("e{}".format), st.integers(0, 9).map("E+{}".format)),
    ),
)  # fmt: skip
_SPACES = st.sampled_from(["", "", " ", "\n\t", "\r "])


def expected(text: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.array([float(item) for item in json.loads(text, parse_int=float)]).astype(np.float32)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(_SPACES, _NUMBERS, _SPACES), min_size=1, max_size=40))
def test_numbers_are_read_as_float64_rounded_to_float32(items: list[tuple[str, str, str]]) -> None:
    text = "[" + ",".join("".join(item) for item in items) + "]"
    parsed = parse_float32(text.encode())
    assert parsed is not None
    array, end = parsed
    assert end == len(text)
    assert array.tobytes() == expected(text).tobytes()


@settings(max_examples=400, deadline=None)
@given(
    st.lists(_NUMBERS, min_size=1, max_size=6).map(",".join).map("[{}]".format), st.integers(0, 200),
    st.sampled_from(["", ",", "]", "[", "0", ".", "e", "-", "+", "\0", "x", "\x80", '"']), st.booleans(),
)  # fmt: skip
def test_texts_that_json_refuses_are_refused(text: str, at: int, piece: str, replaces: bool) -> None:
    at %= len(text) + 1
    changed = text[:at] + piece + text[at + replaces :]
    try:
        reference = expected(changed)
    except (ValueError, TypeError):
        reference = None
    encoded = changed.encode()
    parsed = parse_float32(encoded)
    if parsed is not None and parsed[1] == len(encoded):
        assert reference is not None
        assert parsed[0].tobytes() == reference.tobytes()


@pytest.mark.parametrize("text", ["0.5000000298023224", "16777217", "33554434.999999999999", "1.00000005960464477539"])
def test_middles_of_two_floats_are_rounded_through_float64(text: str) -> None:
    parsed = parse_float32(f"[{text}]".encode())
    assert parsed is not None
    assert parsed[0][0] == np.float32(float(text))


@pytest.mark.parametrize("digits", range(1, 11))
def test_a_digit_a_point_and_digits_are_read_as_float64_rounded_to_float32(digits: int) -> None:
    rng = np.random.default_rng(digits)
    parts = rng.integers(0, 10**digits, cases(20_000))
    texts = [f"{'-' * (part % 2)}{part % 10}.{part:0{digits}}" for part in parts.tolist()]
    values = np.array([float(text) for text in texts]).astype(np.float32)
    for separator in (",", " ,\n"):
        parsed = parse_float32(f"[{separator.join(texts)}]".encode())
        assert parsed is not None
        np.testing.assert_array_equal(parsed[0].view(np.int32), values.view(np.int32))


@pytest.mark.parametrize("end", ["", "e1", "E-2", "x", ".", ".5", "-", "e", "\0", "\xb1", "/", ":"])
@pytest.mark.parametrize("begin", ["0.", "-7.1", "7.1234567", "7.12345678", "3.123456789012345"])
def test_what_follows_brief_numbers_counts(begin: str, end: str) -> None:
    for rest in ("", " " * 20):
        text = f"[{begin}{end}]{rest}".encode("latin-1")
        try:
            value = np.float32(json.loads(text.decode("latin-1"))[0])
        except ValueError:
            assert parse_float32(text) is None
        else:
            parsed = parse_float32(text)
            assert parsed is not None and parsed[0].tolist() == [value] and parsed[1] == len(text) - len(rest)


@pytest.mark.parametrize("zeros", [30, 9990, 9997, 9998, 9999, 10_000, 10_037, 20_000])
def test_an_exponent_makes_up_for_any_number_of_zeros(zeros: int) -> None:
    texts = [f"0.{'0' * zeros}15e{zeros + 1}", f"15{'0' * 16}e-16", f"-0.{'0' * zeros}15E+{zeros + 9}"]
    texts += [f"1e-{zeros}", f"0e{zeros}", "0.1e-99999999999999999999999", f"0e{'9' * 400}"]
    parsed = parse_float32(f"[{','.join(texts)}]".encode())
    assert parsed is not None
    assert parsed[0].tobytes() == np.array([float(text) for text in texts]).astype(np.float32).tobytes()


OTHER = (
    *("[]", "[1,]", "[,1]", "[1 2]", "[01]", "[.5]", "[5.]", "[1e]", "[--1]", "[NaN]", "[1", "1]"),
    *("[[1]]", '["1"]', "[true]", ""),
)


@pytest.mark.parametrize("text", OTHER)
def test_other_texts_are_left_to_the_json_parser(text: str) -> None:
    assert parse_float32(text.encode()) is None


def body(values: list[float], datatype: str = "FP32", shape: list[int] | None = None, **parts: Any) -> bytes:
    tensor = {"name": "x", "shape": shape or [len(values)], "datatype": datatype, "data": values}
    return json.dumps({"id": "7", "inputs": [tensor], **parts}, separators=(",", ":")).encode()


def parsed_input(text: bytes) -> np.ndarray:
    part = json_codec.parse_head(text, True).inputs[0]
    return json_codec.parse_data(part.data, DATATYPES[part.datatype], part.shape, "x", True)


VALUES = np.random.default_rng(0).standard_normal(2000).astype(np.float32)


def test_a_long_list_is_read_ahead_of_the_json_around_it() -> None:
    text = body(VALUES.tolist(), shape=[20, 100], outputs=[{"name": "y"}])
    head = json_codec.parse_head(text, True)
    assert isinstance(head.inputs[0].data, NumberList)
    assert (head.id, head.inputs[0].shape, head.outputs[0].name) == ("7", [20, 100], "y")
    assert parsed_input(text).tobytes() == VALUES.tobytes()
    spaced = json.dumps(json.loads(text), indent=1).encode()
    assert isinstance(json_codec.parse_head(spaced, True).inputs[0].data, NumberList)
    assert parsed_input(spaced).tobytes() == VALUES.tobytes()


def test_a_long_list_of_another_type_is_read_in_its_own_type() -> None:
    text = body([2**62 + 1] * 2000, "INT64", note='"FP32"')
    assert parsed_input(text[:-1] + b"}").tolist() == [2**62 + 1] * 2000
    doubles = body([0.1] * 2000, "FP64").replace(b'"id":"7"', b'"id":"\\"FP32\\""')
    assert parsed_input(doubles).tolist() == [0.1] * 2000


@pytest.mark.filterwarnings("error")
def test_wrong_long_lists_are_refused_with_the_messages_of_short_ones() -> None:
    text = body(VALUES.tolist())
    for changed, message in (
        (body(VALUES.tolist(), shape=[1999]), "expected 1999 elements for shape"),
        (text.replace(b"]}]}", b",1e300]}]}").replace(b"[2000]", b"[2001]"), "beyond the range of FP32"),
        (text.replace(b"]}]}", b",true]}]}"), "expected a list of FP32 elements"),
        (text[:-1], "malformed"),
        (text.replace(b'"data":', b"data:"), "malformed"),
        (
            text.replace(b'"name"', b'"parameters":{"data":' + json.dumps(VALUES.tolist()).encode() + b'},"name"'),
            "malformed",
        ),
        (text.replace(b'{"id"', b'{"id":"a"data":[1],"id"'), "malformed"),
    ):
        assert changed != text
        with pytest.raises(RequestError, match=message):
            parsed_input(changed)


def test_a_string_that_looks_like_a_list_stays_a_string() -> None:
    text = body(VALUES.tolist()).replace(b'"7"', json.dumps('"FP32","data":[1,2,3]').encode())
    head = json_codec.parse_head(text, True)
    assert head.id == '"FP32","data":[1,2,3]'
    assert parsed_input(text).tobytes() == VALUES.tobytes()
