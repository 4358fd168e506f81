"""Objects of JSON with a name twice: refused, because readers disagree about the value that counts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from sardonyx.errors import MissingDependencyError, RequestError
from sardonyx.serve.protocol.datatypes import shortened

try:
    import msgspec
except ImportError as error:
    raise MissingDependencyError(
        "serving requires msgspec.", remedy='Install it: pip install "sardonyx[serve]".'
    ) from error

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_parts = msgspec.json.Decoder(list[msgspec.Raw]).decode


def require_unique_names_of_head(text: bytes | memoryview, head: Any) -> None:
    """Refuse the head of a request with a name twice in any object that is read.

    Data of inputs and unknown fields are not read here: they hold no names that count.

    Args:
        text: The text of the head.
        head: The head; a text with a colon for each of its names has none twice.

    Raises:
        RequestError: An object has a name twice.
    """
    text = bytes(text)
    names = 1 + bool(head.id) + _names_of(head.parameters) + bool(head.outputs)
    for part in head.inputs:
        has_data = type(part.data) is not msgspec.Raw or memoryview(part.data).nbytes > 0
        names += 3 + has_data + _names_of(part.parameters)
    for part in head.outputs:
        names += 1 + _names_of(part.parameters)
    if text.count(b":") != names:
        _search_head(text)


def _names_of(parameters: Mapping[str, Any]) -> int:
    return 1 + len(parameters) if parameters else 0


def _search_head(text: bytes) -> None:
    """Refuse a head with a name twice where colons do not tell: with empty or unknown fields, or colons in texts."""
    try:
        for name, value in _unique_fields(text).items():
            if name in ("inputs", "outputs"):
                for part in _parts(value):
                    fields = _unique_fields(bytes(part))
                    if "parameters" in fields:
                        _unique_fields(bytes(fields["parameters"]))
            elif name == "parameters":
                _unique_fields(bytes(value))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:  # The names of unknown fields are read here first.
        raise _malformed(error) from error


def _unique_fields(text: bytes) -> dict[str, Any]:
    """Return the fields of an object: every name has a colon, and so have its value and those of a name before."""
    fields: dict[str, Any] = _fields(text)
    colons = text.count(b":")
    if colons != len(fields) and colons != len(fields) + sum([bytes(value).count(b":") for value in fields.values()]):
        _search(text)  # Colons in names, or a name twice.
    return fields


def require_unique_names(text: bytes, value: Any) -> None:
    """Refuse a text with a name twice in any object.

    Args:
        text: The text.
        value: The value of the text.

    Raises:
        RequestError: An object has a name twice.
    """
    if text.count(b":") != _names(value):
        _search(text)  # Colons in texts, or a name twice.


def _names(value: Any) -> int:
    """Return the number of names in a value, but for those in lists that begin with another kind of value."""
    if isinstance(value, dict):
        return len(value) + sum([_names(part) for part in value.values() if isinstance(part, (dict, list))])
    if isinstance(value, list) and value and isinstance(value[0], (dict, list)):
        return sum([_names(part) for part in value])
    return 0


def _search(text: bytes) -> None:
    """Refuse a text with a name twice, slowly."""
    try:
        json.loads(text, object_pairs_hook=unique, parse_int=len, parse_float=len)
    except (ValueError, RecursionError) as error:
        raise _malformed(error) from error


def _malformed(error: Exception) -> RequestError:
    return RequestError(f"the JSON of the request is malformed: {str(error)[:200]}")


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of some names with their values.

    Raises:
        RequestError: A name is there twice.
    """
    value = dict(pairs)
    if len(value) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise RequestError(f"the JSON of the request has the name {shortened(twice)} twice in an object.")
    return value
