"""Tensors in the ONNX text syntax: small ones as numbers, large ones as base64, or external data."""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from onnx import StringStringEntryProto, TensorProto, TypeProto

from sardonyx.model.text import annotation
from sardonyx.model.text.decimals import NumberError, format_floats, parse_floats, parse_integers
from sardonyx.model.text.lexer import Scanner
from sardonyx.model.text.vocabulary import ELEMENT_NAMES, STORAGE, TYPE_WORDS, Storage
from sardonyx.model.text.words import is_identifier, quote, quoted, quoted_bytes

MAX_READABLE: Final = 1024
"""Limit for writing numbers as decimals; longer data is written as base64 of its bytes."""

_BASE64_LINE: Final = 120
_ENTRY: Final = frozenset({"key", "value"})


def format_tensor(tensor: TensorProto, *, raw: bool, name_unset: bool | None = None) -> str:
    """Format a tensor with its data.

    Args:
        tensor: The tensor.
        raw: Convention of the text: numbers are stored in ``raw_data``.
        name_unset: None for an initializer, which is always named; for a tensor in an attribute, the convention of the
            text: an omitted name is unset, rather than empty.
    """
    words: list[str] = []
    written = {"dims"}
    if tensor.data_type in ELEMENT_NAMES:
        written.add("data_type")
    if not tensor.HasField("data_type"):
        words.append("unset(data_type)")
    text = ELEMENT_NAMES.get(tensor.data_type, "undefined")
    if tensor.dims:
        text += f"[{','.join(map(str, tensor.dims))}]"
    text += _format_name(tensor, name_unset, words, written)
    data = _format_data(tensor, raw, words, written)
    if name_unset is None or not data.startswith("{"):
        data = f"= {data}"
    return f"{text} {data}" + annotation.write(annotation.leftover(tensor, frozenset(written)), words)


def _format_name(tensor: TensorProto, name_unset: bool | None, words: list[str], written: set[str]) -> str:
    if name_unset is None:
        written.add("name")
        if not tensor.HasField("name"):
            words.append("unset(name)")
        return " " + quote(tensor.name)
    if not tensor.HasField("name"):
        if not name_unset:
            words.append("unset(name)")
        return ""
    plain = is_identifier(tensor.name) and tensor.name not in TYPE_WORDS
    if plain or (not tensor.name and not name_unset):
        written.add("name")
    return f" {tensor.name}" if plain else ""


def _format_data(tensor: TensorProto, raw: bool, words: list[str], written: set[str]) -> str:
    if tensor.HasField("data_location") and tensor.data_location == TensorProto.EXTERNAL:
        plain = all(_is_plain(entry) for entry in tensor.external_data)
        written |= {"data_location", "external_data"} if plain else {"data_location"}
        entries = tensor.external_data if plain else []
        return f"[{', '.join(f'{quoted(entry.key)}: {quoted(entry.value)}' for entry in entries)}]"
    if tensor.data_type == TensorProto.STRING and not tensor.HasField("raw_data"):
        written.add("string_data")
        return "{" + ", ".join(map(quoted_bytes, tensor.string_data)) + "}"
    storage = STORAGE.get(tensor.data_type)
    if tensor.HasField("raw_data"):
        written.add("raw_data")
        if not raw and storage is not None:
            words.append("raw")
        return _format_raw(tensor.raw_data, storage)
    if storage is None:
        return "{}"
    if raw:
        words.append("typed")
    values: npt.NDArray[Any] = np.array(getattr(tensor, storage.field), storage.typed)
    if values.dtype.kind == "f" and not _survives(tensor, storage.field, values):
        return "{}"
    written.add(storage.field)
    return _format_numbers(values)


def _is_plain(entry: StringStringEntryProto) -> bool:
    both = entry.HasField("key") and entry.HasField("value")
    return bool(both) and annotation.leftover(entry, _ENTRY) is None


def _survives(tensor: TensorProto, field: str, values: npt.NDArray[Any]) -> bool:
    """Return True if float values pass through Python unchanged; a signalling NaN becomes quiet."""
    if not np.isnan(values).any():
        return True
    original, copy = TensorProto(), TensorProto()
    getattr(original, field).MergeFrom(getattr(tensor, field))
    getattr(copy, field).extend(values.tolist())
    return bool(original.SerializeToString() == copy.SerializeToString())


def _format_raw(data: bytes, storage: Storage | None) -> str:
    if storage is None or len(data) % storage.raw.itemsize:
        return _format_base64(data)
    return _format_numbers(np.frombuffer(data, storage.raw))


def _format_numbers(values: npt.NDArray[Any]) -> str:
    if len(values) > MAX_READABLE:
        return _format_base64(values.tobytes())
    texts = format_floats(values) if values.dtype.kind == "f" else list(map(str, values.tolist()))
    return _format_base64(values.tobytes()) if texts is None else "{" + ", ".join(texts) + "}"


def _format_base64(data: bytes) -> str:
    digits = base64.b64encode(data).decode()
    if len(digits) <= _BASE64_LINE:
        return f'base64"{digits}"'
    lines = [digits[start : start + _BASE64_LINE] for start in range(0, len(digits), _BASE64_LINE)]
    return 'base64"\n' + "\n".join(lines) + '"'


def start_tensor(scanner: Scanner, tensor: TensorProto, kind: TypeProto, at: int) -> None:
    """Set element type and sizes of a tensor from its parsed type.

    Raises:
        TextFormatError: The type is not a tensor type, or a size is not a number.
    """
    inner = kind.tensor_type
    if not kind.HasField("tensor_type") or not inner.HasField("shape"):
        raise scanner.error("expected a tensor type with all sizes before the data", at=at)
    if kind.HasField("denotation") or any(dim.HasField("denotation") for dim in inner.shape.dim):
        raise scanner.error("a tensor with data cannot have a denotation in its type", at=at)
    tensor.data_type = inner.elem_type
    for dim in inner.shape.dim:
        if not dim.HasField("dim_value"):
            raise scanner.error("expected numbers as sizes of a tensor with data", at=at)
        tensor.dims.append(dim.dim_value)


def parse_data(scanner: Scanner, tensor: TensorProto, *, raw: bool) -> None:
    """Parse the data of a tensor of known type, and the following annotation.

    Args:
        scanner: Positioned after the ``=``, if present.
        tensor: The tensor with its element type and sizes; receives the data.
        raw: Convention of the text: numbers are stored in ``raw_data``.
    """
    scanner.skip_space()
    start = scanner.position
    store: Callable[[bool], None] | None = None
    if scanner.accept("["):
        _parse_entries(scanner, tensor)
    elif scanner.peek_base64():
        store = partial(_store_bytes, scanner, tensor, scanner.base64(), start)
    elif scanner.accept("{"):
        if tensor.data_type == TensorProto.STRING:
            _parse_strings(scanner, tensor)
        else:
            store = partial(_store_numbers, scanner, tensor, _parse_numbers(scanner, tensor, start), start)
    notes = annotation.read(scanner, tensor)
    if store is not None:
        store(raw if not notes.storage else notes.storage == "raw")
    notes.finish(tensor)


def _parse_entries(scanner: Scanner, tensor: TensorProto) -> None:
    tensor.data_location = TensorProto.EXTERNAL
    while not scanner.accept("]"):
        if tensor.external_data:
            scanner.expect(",", where="or ']' after an entry of external data")
        key = scanner.string("a key of external data")
        scanner.expect(":", where="after the key")
        tensor.external_data.add(key=key, value=scanner.string("a value of external data"))


def _parse_strings(scanner: Scanner, tensor: TensorProto) -> None:
    while not scanner.accept("}"):
        if tensor.string_data:
            scanner.expect(",", where="or '}' after a string")
        value = scanner.literal("a string")
        tensor.string_data.append(value.encode() if isinstance(value, str) else value)


def _parse_numbers(scanner: Scanner, tensor: TensorProto, start: int) -> list[str]:
    """Return the texts of the numbers up to the closing brace."""
    if scanner.accept("}"):
        return []
    storage = STORAGE.get(tensor.data_type)
    if storage is None:
        name = ELEMENT_NAMES.get(tensor.data_type, str(tensor.data_type))
        raise scanner.error(f"element type {name} cannot have numbers as data", at=start)
    integers = storage.raw.kind != "f"
    plain = scanner.plain_numbers("}", integers=integers)
    if plain is not None:
        return plain
    texts = []
    while True:
        texts.append(
            str(scanner.integer("an integer", -(2**63), 2**64 - 1)) if integers else scanner.number("a number")
        )
        if not scanner.accept(","):
            break
    scanner.expect("}", where="or ',' after a number")
    return texts


def _store_numbers(scanner: Scanner, tensor: TensorProto, texts: list[str], at: int, raw: bool) -> None:
    storage = STORAGE.get(tensor.data_type)
    if storage is None or (not texts and not raw):
        return
    dtype = storage.raw if raw else storage.typed
    try:
        values = parse_floats(texts, dtype) if dtype.kind == "f" else parse_integers(texts, dtype)
    except NumberError as error:
        raise scanner.error(f"data of {ELEMENT_NAMES[tensor.data_type]} {tensor.name!r}: {error}", at=at) from None
    if raw:
        tensor.raw_data = values.tobytes()
    else:
        getattr(tensor, storage.field).extend(values.tolist())


def _store_bytes(scanner: Scanner, tensor: TensorProto, block: bytes, at: int, raw: bool) -> None:
    storage = STORAGE.get(tensor.data_type)
    if raw or storage is None:
        tensor.raw_data = block
        return
    if len(block) % storage.typed.itemsize:
        raise scanner.error(f"expected whole entries of {storage.field}, got {len(block)} bytes", at=at)
    getattr(tensor, storage.field).extend(np.frombuffer(block, storage.typed).tolist())
