"""JSON with ``msgspec``: strict types, and names of wrong fields in messages."""

from __future__ import annotations

import functools
import json
import math
import re
from typing import Any

import numpy as np

from sardonyx.errors import MissingDependencyError, RequestError
from sardonyx.serve.protocol import number_lists
from sardonyx.serve.protocol.datatypes import Datatype, all_finite, shortened
from sardonyx.serve.protocol.limits import elements_of
from sardonyx.serve.protocol.unique_names import require_unique_names, require_unique_names_of_head, unique

try:
    import msgspec
except ImportError as error:
    raise MissingDependencyError(
        "serving requires msgspec.", remedy='Install it: pip install "sardonyx[serve]".'
    ) from error

Parameters = dict[str, bool | int | float | str | None]


class InputHead(msgspec.Struct):
    """An input of a request, before its data are read."""

    name: str
    datatype: str
    shape: list[int]
    parameters: Parameters = {}
    data: msgspec.Raw = msgspec.Raw(b"")


class OutputHead(msgspec.Struct):
    """A requested output."""

    name: str
    parameters: Parameters = {}


class RequestHead(msgspec.Struct):
    """The JSON part of a request for inference."""

    inputs: list[InputHead]
    id: str = ""
    parameters: Parameters = {}
    outputs: list[OutputHead] = []


_head_decoder = msgspec.json.Decoder(RequestHead)
_any_decoder = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()
_ELEMENTS: dict[str, type] = {"f": float, "V": float, "i": int, "u": int, "b": bool, "O": str}
_SPACE = b" \t\r\n"

_MOST_LISTS = 1 << 20
"""Lists and objects of a text: each takes 20 times its bytes, and half a microsecond of the event loop."""

_MOST_NAMES = 1 << 16
"""Names of objects in a text: each is an entry of a dictionary, which takes a microsecond of the event loop."""

_SMALLEST_NAME = 5
"""Bytes of a name with its value and what separates them from others, at least."""

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


def parse_head(data: bytes | memoryview, strict: bool) -> RequestHead:
    """Return the JSON part of a request.

    Args:
        data: The text.
        strict: True to refuse the words NaN and Infinity, which JSON lacks.

    Raises:
        RequestError: The text is not JSON, a field is missing or of another type, or an object has a name twice.
    """
    head: RequestHead | None
    if type(data) is bytes and len(data) >= number_lists.LONG:
        head = _head_with_lists(data)
        if head is not None:
            return head
    _require_few_objects(data)
    try:
        head = _head_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        with_words = None if strict else _head_with_words(bytes(data))
        if with_words is None:
            raise RequestError(f"the JSON of the request is malformed: {str(error)[:200]}") from error
        return with_words
    require_unique_names_of_head(data, head)
    return head


def _head_with_lists(data: bytes) -> RequestHead | None:
    """Return the JSON part of a request with long lists as arrays; None if there is none, or for another reader."""
    text, lists = number_lists.without_number_lists(data)
    if not lists:
        return None
    _require_few_objects(text)  # Of the rest alone: a search of the lists takes as long as their parse.
    try:
        head: RequestHead = _head_decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    count = 0
    part: Any  # A field that is decoded as raw text cannot declare the other form.
    for part in head.inputs:
        name = bytes(part.data)
        if name in lists:
            part.data, count = lists[name], count + 1
    if count != len(lists):  # A list of another object, e.g. of parameters, is refused by the reader of the whole text.
        return None
    require_unique_names_of_head(text, head)
    return head


def _head_with_words(text: bytes) -> RequestHead | None:
    """Return the JSON part of a request whose data contain the words NaN and Infinity; None if malformed anyway."""
    value = _with_words(text)
    if not isinstance(value, dict) or not isinstance(value.get("inputs"), list):
        return None
    for part in value["inputs"]:
        if isinstance(part, dict) and "data" in part:
            part["data"] = msgspec.Raw(encode_with_words(part["data"]))
    try:
        head: RequestHead = msgspec.convert(value, RequestHead)
        encode(head)  # Python reads halves of surrogate pairs, which no answer could repeat.
    except (msgspec.ValidationError, UnicodeEncodeError):
        return None
    return head


def parse_json(data: bytes, depth: int) -> Any:
    """Return a JSON value.

    Args:
        data: The text; an empty text is an empty object.
        depth: Limit of nested lists and objects.

    Raises:
        RequestError: The text is not JSON, nested too deep, or an object has a name twice.
    """
    if not data.strip():
        return {}
    _require_few_objects(data)
    try:
        value = _any_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"the JSON of the request is malformed: {str(error)[:200]}") from error
    _require_depth(value, depth)
    require_unique_names(data, value)
    return value


def _require_few_objects(data: bytes | memoryview) -> None:
    """Refuse a text of many lists, objects and names before memory is allocated for each."""
    if len(data) < _SMALLEST_NAME * _MOST_NAMES:
        return
    text = bytes(data)
    if _brackets(text) <= _MOST_LISTS and (text.count(b":") <= _MOST_NAMES or _names(text) <= _MOST_NAMES):
        return
    # Strings are not counted, unless the strings or escapes are so many that the search takes seconds.
    if text.count(b'"') + text.count(b"\\") <= _MOST_LISTS:
        text = _STRING.sub(b"", text)
        if _brackets(text) <= _MOST_LISTS and text.count(b":") <= _MOST_NAMES:
            return
    raise RequestError(
        f"expected at most {_MOST_LISTS} lists and objects, and {_MOST_NAMES} names.", kind="too_large",
        remedy="Send data as flat lists, or as binary data.",
    )  # fmt: skip


def _names(text: bytes) -> int:
    """Return the number of names in a text, and of texts in strings that look like the end of a name."""
    return text.translate(None, _SPACE).count(b'":')


def _brackets(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{")


def _require_depth(value: Any, depth: int) -> None:
    if isinstance(value, (dict, list)):
        if depth <= 0:
            raise RequestError("the JSON of the request is nested too deep.")
        for part in value.values() if isinstance(value, dict) else value:
            if isinstance(part, (dict, list)):
                _require_depth(part, depth - 1)


@functools.lru_cache(maxsize=64)
def _data_decoder(element: type, depth: int) -> Any:
    type: Any = element
    for _ in range(depth):
        type = list[type]
    return msgspec.json.Decoder(type)


def parse_data(raw: Any, datatype: Datatype, shape: list[int], where: str, strict: bool) -> np.ndarray:
    """Return the elements of an input, from a flat or nested list.

    Args:
        raw: The JSON text of the list, or the list if it was read already.
        datatype: The element type.
        shape: The declared sizes.
        where: The name of the input.
        strict: True to refuse the words NaN and Infinity, which JSON lacks.

    Raises:
        RequestError: The elements differ from type or shape.
    """
    if not datatype.has_json:
        raise RequestError(f"{datatype.name} has no JSON form.", where=where, remedy="Send the input as binary data.")
    count = elements_of(shape, where)
    if isinstance(raw, number_lists.NumberList):
        if len(raw.array) != count:
            raise _wrong_count(count, shape, len(raw.array), where)
        if datatype.name == "FP32" and all_finite(raw.array):
            return raw.array.reshape(shape)
        raw = raw.text
    text = bytes(raw)
    kind = datatype.dtype.kind
    depth = _depth(text, len(shape), where)
    words = False
    try:
        data = _data_decoder(_ELEMENTS[kind], depth).decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        data = None if strict or kind not in "fV" else _with_words(text)
        words = _are_numbers(data)
        if not words:
            raise RequestError(
                f"expected a list of {datatype.name} elements: {str(error)[:200]}", where=where
            ) from error
    if depth == 1 and len(data) != count:
        raise _wrong_count(count, shape, len(data), where)
    array = _array(data, datatype, where)
    if depth > 1 and list(array.shape) != shape:
        raise RequestError(f"expected the shape {shape}, got nested lists of {list(array.shape)}.", where=where)
    if kind == "f" and not words and not all_finite(array):
        raise RequestError(f"a number is beyond the range of {datatype.name}.", where=where)
    return array.reshape(shape)


def _wrong_count(count: int, shape: list[int], actual: int, where: str) -> RequestError:
    return RequestError(f"expected {count} elements for shape {shape}, got {actual}.", where=where)


def _are_numbers(data: Any) -> bool:
    if isinstance(data, list):
        return all(type(item) in (int, float) or (isinstance(item, list) and _are_numbers(item)) for item in data)
    return False


def _depth(text: bytes, rank: int, where: str) -> int:
    """Return the number of nested lists with which a text begins: 1, or the rank."""
    depth, index = 0, 0
    while index < len(text) and (text[index] == 91 or text[index] in _SPACE):
        depth += text[index] == 91
        index += 1
        if depth > max(rank, 1):
            raise RequestError("the lists are nested deeper than the shape.", where=where)
    if depth == 0:
        raise RequestError(f"expected a list, got {shortened(text[:20])}.", where=where)
    if depth not in (1, rank) and text[index : index + 1] != b"]":
        raise RequestError("expected a flat list, or lists nested as the shape.", where=where)
    return depth


def _array(data: Any, datatype: Datatype, where: str) -> np.ndarray:
    kind = datatype.dtype.kind
    try:
        if kind not in "iu":
            with np.errstate(over="ignore"):  # The caller refuses infinite elements.
                return np.array(data, datatype.dtype)
        wide = np.array(data, np.uint64 if kind == "u" and datatype.size == 8 else np.int64)
        if datatype.size < 8 and wide.size:
            bounds = np.iinfo(datatype.dtype)
            if wide.min() < bounds.min or wide.max() > bounds.max:
                raise OverflowError
        return wide.astype(datatype.dtype, copy=False)
    except (OverflowError, ValueError, TypeError) as error:
        raise RequestError(
            f"an element is beyond the range of {datatype.name}, or lists differ.", where=where
        ) from error


def _with_words(text: bytes) -> Any:
    """Return JSON with the words NaN and Infinity, as Python writes them; None if the text is malformed anyway."""
    if b"NaN" not in text and b"Infinity" not in text:
        return None
    try:
        return json.loads(text, parse_float=_finite, object_pairs_hook=unique)
    except (ValueError, RecursionError):
        return None


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("a number such as 1e999 is beyond the range")
    return value


def encode(value: Any) -> bytes:
    """Return a value as JSON."""
    text: bytes = _encoder.encode(value)
    return text


def encode_with_words(value: Any) -> bytes:
    """Return a value as JSON with the words NaN and Infinity, which Python's readers accept."""
    return json.dumps(value, separators=(",", ":")).encode()
