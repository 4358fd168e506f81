"""Limits of each target: the tables in ``targets/*.json``.

A table contains, for each version, its ``source``, the range of opsets by domain, the range of IR versions (null if the
source names no limit), and for each operator a list of entries: a range of opsets, the accepted element types (one
list, or one for each type variable of the operator's schema; absent if the source does not state types) and a
restriction in words. ``cast`` names the types that the target converts automatically, ``fallback`` the runtime that
executes nodes which the target cannot run.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from sardonyx.errors import OptionError

Range = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class Entry:
    """Support of a target for one operator, for a range of opsets.

    Attributes:
        first: First supported version of the operator's schema; None without limit.
        last: Last supported version; None without limit.
        types: Element types by type variable of the schema; by ``*`` for all inputs; empty if unknown.
        restriction: A condition in words.
    """

    first: int | None
    last: int | None
    types: Mapping[str, frozenset[str]]
    restriction: str


@dataclass(frozen=True, slots=True)
class Target:
    """A target in one version.

    Attributes:
        name: As in ``sardonyx check --target``.
        version: As in ``--version``.
        source: Source of the table.
        opsets: The range of opset versions, by domain.
        ir: The range of IR versions.
        operators: The entries of each operator, by its qualified name.
        casts: Element types converted automatically by the target, with the resulting types.
        narrowed: A sentence about conversions with a possible loss of values; empty if there are none.
        fallback: The runtime for nodes beyond the target; empty if none.
    """

    name: str
    version: str
    source: str
    opsets: Mapping[str, Range]
    ir: Range
    operators: Mapping[str, tuple[Entry, ...]]
    casts: Mapping[str, str]
    narrowed: str
    fallback: str


def known_targets() -> dict[str, list[str]]:
    """Return the names of all targets, each with its known versions, oldest first."""
    return {name: list(_table(name)["versions"]) for name in _names()}


def find_target(name: str | None, version: str | None = None) -> Target | None:
    """Return the table of a target.

    Args:
        name: The target's name; None returns None.
        version: The target's version, which may have more parts than the known one (``10.15.1`` matches ``10.15``);
            None for the newest known.

    Returns:
        The target.

    Raises:
        OptionError: The name or the version is unknown, or there is a version and no name.
    """
    if name is None:
        if version is not None:
            raise OptionError("expected a target with the version.", where="version", remedy="Pass the target too.")
        return None
    names = _names()
    if name not in names:
        raise OptionError(f"unknown target {name!r}; expected one of {', '.join(names)}.", where="target")
    versions = list(_table(name)["versions"])
    chosen = versions[-1] if version is None else next((v for v in reversed(versions) if _is_same(v, version)), None)
    if chosen is None:
        raise OptionError(
            f"unknown version {version!r} of {name}; expected one of {', '.join(versions)}.", where="version"
        )
    return _target(name, chosen)


def _is_same(known: str, version: str) -> bool:
    return version == known or version.startswith(f"{known}.")


@functools.cache
def _names() -> tuple[str, ...]:
    files = (resources.files(__package__) / "targets").iterdir()
    return tuple(sorted(file.name.removesuffix(".json") for file in files if file.name.endswith(".json")))


@functools.cache
def _table(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((resources.files(__package__) / "targets" / f"{name}.json").read_text("utf-8"))
    return content


@functools.cache
def _target(name: str, version: str) -> Target:
    row = _table(name)["versions"][version]
    return Target(
        name=name,
        version=version,
        source=row["source"],
        opsets={domain: (low, high) for domain, (low, high) in row["opset"].items()},
        ir=(row["ir"][0], row["ir"][1]),
        operators={
            operator: tuple(_entry(entry) for entry in entries) for operator, entries in row["operators"].items()
        },
        casts=row.get("cast", {}),
        narrowed=row.get("narrowed", ""),
        fallback=row.get("fallback", ""),
    )


def _entry(row: dict[str, Any]) -> Entry:
    types = row.get("types", {})
    lists = {"*": types} if isinstance(types, str) else types
    return Entry(
        first=row["opsets"][0],
        last=row["opsets"][1],
        types={variable: frozenset(text.split(" ")) for variable, text in lists.items()},
        restriction=row.get("restriction", ""),
    )
