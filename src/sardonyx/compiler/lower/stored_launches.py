"""Launches as data for the store: a head of plain values, and the text of each kernel.

Values are numbers in the order of a canonical form; size symbols have names that depend on their order in the form
alone. Schedules, problems and packings are frozen dataclasses of the compiler, written by class and fields. Entries are
read by the revision that wrote them (:mod:`.kernel_store`), so no field has a version.
"""

from __future__ import annotations

import functools
import importlib
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from sardonyx.compiler.lower.launch import Buffer, Choices, Launch
from sardonyx.compiler.schedule.groups import Group
from sardonyx.compiler.target.description import Target
from sardonyx.core.dim import Dim, substitute
from sardonyx.core.dim.record import from_record, record
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value

_COMPILER = "sardonyx.compiler."
_LENGTH_BYTES = 4
_DTYPES = {dtype.name: dtype for dtype in t.ALL_DTYPES}
_FAST = 1
"""Level of zlib that takes a third of the time of its default for a tenth more bytes; texts are rarely read."""


class UnstorableError(Exception):
    """A launch refers to something that has no stored form."""


class Symbols:
    """Names of the size symbols of a form that do not depend on the model: their order in the form.

    Args:
        names: The symbols, in the order of the form.
    """

    def __init__(self, names: Sequence[str]) -> None:
        general = [f"s{number:03}" for number in range(len(names))]
        self._general = {name: Dim.symbol(other) for name, other in zip(names, general, strict=True)}
        self._special = {other: Dim.symbol(name) for name, other in zip(names, general, strict=True)}

    def general(self, size: Dim) -> Any:
        """Return the record of a size, with general names.

        Raises:
            UnstorableError: The size has a symbol that the form has not.
        """
        if not size.symbols() <= self._general.keys():
            raise UnstorableError(f"the size {size} has a symbol that the form has not")
        return record(substitute(size, self._general))

    def special(self, general: Any) -> Any:
        """Return the size of a record of :meth:`general`, with the names of this form."""
        return substitute(from_record(general), self._special)


def written(launches: Sequence[Launch], values: Sequence[Value], symbols: Symbols, target: Target) -> bytes:
    """Return launches as data.

    Args:
        launches: The launches of one group.
        values: The values of the group's canonical form.
        symbols: The size symbols of the form.
        target: The processor.

    Raises:
        UnstorableError: A launch has no stored form.
    """
    if any(launch.bodies for launch in launches):
        raise UnstorableError("control flow has no stored form")
    encode = _Encoder({value: number for number, value in enumerate(values)}, symbols, target)
    heads = [
        {
            "declarations": launch.declarations,
            "buffers": [*map(encode, launch.buffers)],
            "sizes": [*map(encode, launch.sizes)],
            "items": encode(launch.items),
            "writes": encode(launch.writes),
            "title": launch.title,
            "others": [*map(encode, launch.other_writes)],
            "work": launch.work,
            "length": len(launch.text),
            # A text of its own: choices are read for explanations alone.
            "choices": json.dumps(encode(launch.choices())),
        }
        for launch in launches
    ]
    head = json.dumps(heads, separators=(",", ":")).encode()
    texts = zlib.compress("".join(launch.text for launch in launches).encode(), _FAST)
    return len(head).to_bytes(_LENGTH_BYTES, "little") + head + texts


def read(data: bytes, values: Sequence[Value], symbols: Symbols, target: Target, group: Group) -> list[Launch]:
    """Return the launches of :func:`written` for a group of the same form.

    Args:
        data: The data.
        values: The values of the group's canonical form.
        symbols: The size symbols of the form.
        target: The processor.
        group: The group.

    Raises:
        ValueError: The data are not those of launches. Further errors of lookups are possible for the same reason.
    """
    decode = _Decoder(values, symbols, target)
    end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    text = zlib.decompress(data[end:]).decode()
    launches, start = [], 0
    for head in json.loads(data[_LENGTH_BYTES:end]):
        launches.append(
            Launch(
                text=text[start : start + head["length"]],
                declarations=tuple(head["declarations"]),
                buffers=tuple(map(decode, head["buffers"])),
                sizes=tuple(map(decode, head["sizes"])),
                items=decode(head["items"]),
                writes=decode(head["writes"]),
                title=head["title"],
                group=group,
                other_writes=tuple(map(decode, head["others"])),
                work=head["work"],
                choices=functools.cache(functools.partial(_choices, decode, head["choices"])),
            )
        )
        start += head["length"]
    if not launches or start != len(text):
        raise ValueError("the texts are not those of the launches")
    return launches


def _choices(decode: Callable[[Any], Any], text: str) -> Choices:
    schedule, fusion = decode(json.loads(text))
    return schedule, fusion


class _Encoder:
    """Encodes the parts of launches as JSON data: scalars as themselves, all else as an object with one key."""

    def __init__(self, numbers: Mapping[Value, int], symbols: Symbols, target: Target) -> None:
        self._numbers = numbers
        self._symbols = symbols
        self._target = target

    def __call__(self, part: Any) -> Any:
        match part:
            case t.DType():
                return {"dtype": part.name}
            case None | bool() | int() | str():
                return part
            case float():
                return {"float": part.hex()}
            case Dim():
                return {"size": self._symbols.general(part)}
            case Value() if part in self._numbers:
                return {"value": self._numbers[part]}
            case Target() if part == self._target:
                return {"target": 0}
            case tuple() if type(part) is tuple:
                return {"tuple": [*map(self, part)]}
        if is_dataclass(part) and not isinstance(part, type) and type(part).__module__.startswith(_COMPILER):
            parts = {field.name: self(getattr(part, field.name)) for field in fields(part) if field.init}
            return {"record": [type(part).__module__, type(part).__qualname__, parts]}
        raise UnstorableError(f"a {type(part).__name__} has no stored form")


class _Decoder:
    """Returns the parts that :class:`_Encoder` has encoded."""

    def __init__(self, values: Sequence[Value], symbols: Symbols, target: Target) -> None:
        self._values = values
        self._symbols = symbols
        self._target = target

    def __call__(self, part: Any) -> Any:
        if not isinstance(part, dict):
            return part
        ((kind, data),) = part.items()
        match kind:
            case "dtype":
                return _DTYPES[data]
            case "float":
                return float.fromhex(data)
            case "size":
                return self._symbols.special(data)
            case "value":
                return self._values[data]
            case "target":
                return self._target
            case "tuple":
                return tuple(map(self, data))
            case "record":
                module, name, parts = data
                return _class(module, name)(**{field: self(value) for field, value in parts.items()})
        raise ValueError(f"unknown kind of part {kind!r}")


@functools.cache
def _class(module: str, name: str) -> Any:
    """Return a dataclass of the compiler by name."""
    named = getattr(importlib.import_module(module), name) if module.startswith(_COMPILER) else None
    if not (isinstance(named, type) and is_dataclass(named)):
        raise ValueError(f"{module}.{name} is not a dataclass of the compiler")
    return named


def is_stored_alike(launch: Launch, other: Launch) -> bool:
    """Return True if two launches of one group are the same, but for the functions that compute prepared data."""
    return _plain(launch) == _plain(other)


def _plain(launch: Launch) -> tuple[Any, ...]:
    buffers: tuple[Buffer, ...] = launch.buffers
    return (
        launch.text, launch.declarations, buffers, launch.sizes, launch.items, launch.writes, launch.title,
        launch.other_writes, launch.work, launch.choices(), [getattr(buffer, "make", None) for buffer in buffers],
    )  # fmt: skip
