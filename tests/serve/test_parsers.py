"""Parsers on damaged requests: a named refusal or an answer; never a defect, a hang, or a difference by pieces."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

pytest.importorskip("hpack", reason="hpack is not installed (extra: grpc)")

pytest.importorskip("msgspec", reason="msgspec is not installed (extra: serve)")
pytest.importorskip("httptools", reason="httptools is not installed (extra: serve)")

from sardonyx.errors import RequestError
from sardonyx.serve.http.infer_requests import encode_answer
from sardonyx.serve.protocol import json_codec
from sardonyx.serve.protocol.datatypes import DATATYPES
from sardonyx.serve.protocol.requests import Answer, Output
from sardonyx.serve.protocol.strings import parse_strings, string_array, write_strings
from tests.random_cases import cases
from tests.serve.parser_inputs import SEEDS, Machine, damaged, pieces

DEFECTS = (b"HTTP/1.1 500", b"grpc-status\x0213", b"internal error")


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    running = Machine()
    yield running
    running.close()


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("wire", SEEDS)
def test_damaged_requests_have_no_defect(machine: Machine, wire: str) -> None:
    seeds = SEEDS[wire]()
    for number in range(cases(30_000) // 10):
        rng = random.Random(number)
        data = damaged(rng, rng.choice(seeds))
        sent, _ = machine.feed(wire, pieces(rng, data))
        assert not any(defect in sent for defect in DEFECTS), data


@pytest.mark.parametrize("wire", SEEDS)
def test_the_answer_does_not_depend_on_the_pieces_of_a_request(machine: Machine, wire: str) -> None:
    for number in range(cases(90)):
        rng = random.Random(number)
        data = rng.choice(SEEDS[wire]())
        whole = machine.feed(wire, [data])
        assert machine.feed(wire, pieces(rng, data)) == whole
        assert whole[0]


NUMBERS = ("FP32", "FP64", "INT8", "UINT8", "INT16", "INT32", "INT64", "UINT32", "UINT64", "BOOL")


@given(st.sampled_from(NUMBERS), arrays.array_shapes(min_dims=1, max_dims=3, max_side=4), st.data())
def test_json_data_are_read_as_they_are_written(name: str, shape: tuple[int, ...], data: st.DataObject) -> None:
    datatype = DATATYPES[name]
    finite: dict[str, Any] = {"allow_nan": False, "allow_infinity": False} if datatype.dtype.kind == "f" else {}
    array = data.draw(arrays.arrays(datatype.dtype, shape, elements=arrays.from_dtype(datatype.dtype, **finite)))
    head, buffers = encode_answer(Answer("m", "1", "", [Output("y", array)], 0), binary=False, strict=True)
    text = re.search(rb'"data":(\[[^\]]*\])', head)
    assert text is not None and not buffers
    np.testing.assert_array_equal(json_codec.parse_data(text[1], datatype, list(shape), "y", strict=True), array)


@given(st.lists(st.text(), max_size=6))
def test_strings_are_read_as_they_are_written(texts: list[str]) -> None:
    texts = [text.encode("utf-8", "ignore").decode() for text in texts]
    assert parse_strings(write_strings(string_array(texts, [len(texts)])), len(texts), "x") == texts


@given(st.binary(max_size=40), st.integers(0, 8))
def test_damaged_strings_are_refused_by_name(data: bytes, count: int) -> None:
    try:
        assert len(parse_strings(data, count, "x")) == count
    except RequestError as error:
        assert error.kind == "invalid"
