"""The contract of an importer: options in, one or several ways to a model out.

An importer is a package with a function ``ways(source, options) -> Sequence[Way]``. Each way reads the source as an
:class:`Imported`; the conversion takes the first whose model proves. Importers never judge their own results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import onnx_ir as ir

Feeds = Mapping[str, Any]
"""Arrays by the names of the model's inputs."""

Answers = Mapping[str, Any]
"""Arrays by the names of the model's outputs."""

NOT_NEEDED = "not needed: "
"""Begin of the refusal of a way that could not lead to another model than those before it."""

Outcome = Literal["converted", "decomposed", "opaque", "removed"]
"""The result of one call of the source: nodes; nodes of its decomposition; a custom node; nothing, without effect."""


@dataclass(frozen=True)
class Options:
    """The caller's requests, as an importer sees them.

    Attributes:
        examples: Positional or named example inputs; empty if there are none.
        dynamic: ``"auto"``: find the open sizes. False: all sizes are those of the examples. A mapping from an input's
            name to names of sizes by axis: exactly these are open.
        exporter: ``"auto"``, ``"sardonyx"``, or the name of another program that writes the model.
        trust: True if files may execute code when they are read (pickles).
        opset: Version of ``ai.onnx`` to write; None for the importer's choice.
        opaque: Names of a user's operators that become nodes without a definition, ``my_ops::scale``, or of libraries.
    """

    examples: Sequence[Any] | Mapping[str, Any] = ()
    dynamic: Literal["auto"] | bool | Mapping[str, Mapping[int, str]] = "auto"
    exporter: str = "auto"
    trust: bool = False
    opset: int | None = None
    opaque: Sequence[str] = ()


@dataclass(frozen=True)
class Call:
    """One call of the source and its result in the model.

    Attributes:
        operator: Name of the called function, in the words of the source: ``aten.conv2d.default``, ``CONV_2D``.
        outcome: See :data:`Outcome`.
        where: The module or layer, and the user's source line if known.
        count: Number of calls with this outcome.
    """

    operator: str
    outcome: Outcome
    where: str = ""
    count: int = 1


@dataclass(frozen=True)
class Size:
    """An open size of the inputs.

    Attributes:
        example: The size in the examples; 0 if there are none.
        low: The smallest size that the source admits.
        high: The largest; None without a bound.
    """

    example: int = 0
    low: int = 1
    high: int | None = None


@dataclass(frozen=True)
class Imported:
    """A source as a model, before proof.

    Attributes:
        model: The model.
        run: Answers feeds with the source framework; raises ``EvaluationError`` for feeds that the source refuses. None
            if the framework cannot run the source here.
        reason: The reason if ``run`` is None.
        sizes: The open sizes by name; empty if all are fixed or unknown.
        examples: Feeds on which the source is known to run, the caller's first.
        calls: Every call of the source with its result.
        inner: Yields inner values of the source for feeds in the order of computation, as (name of the model's tensor,
            description of the layer with its source line, array): the proof finds the first that differs.
        notes: Remarks for the reader of the report.
        beside: Files that belong to the model and are copied to its folder: tokenizers, vocabularies.
        refused: Returns feeds that the source answers and the model has to refuse: guards of recorded branches fail.
        outside: Values of the open sizes at which a condition does not hold under which the source was captured; the
            source need not run there.
        differs: Receives the feeds at which the model differed from the source in the proof.
        first: The answers that the source gave for the first example when it was first called; None if unknown.
        code_bits: Width of the integers with which a quantized source computes; 0 for a source in floating point.
        code_steps: The value of one code of outputs that are rounded to codes, by name.
        shaken: Answers feeds with the source's weights changed in the last bits, by a seed: a part of the source's
            noise, which a program with other rounding errors in each layer has too; None if unknown.
        rounded: Answers feeds with the source's 16-bit weights changed by one unit in the last place, by a seed; None
            without such weights.
    """

    model: ir.Model
    run: Callable[[Feeds], Answers] | None
    reason: str = ""
    sizes: Mapping[str, Size] = field(default_factory=dict)
    examples: Sequence[Feeds] = ()
    calls: Sequence[Call] = ()
    inner: Callable[[Feeds], Iterator[tuple[str, str, Any]]] | None = None
    notes: Sequence[str] = ()
    beside: Sequence[Path] = ()
    refused: Callable[[], Sequence[Feeds]] | None = None
    outside: Sequence[Mapping[str, int]] = ()
    differs: Callable[[Sequence[Feeds]], None] | None = None
    first: Answers | None = None
    code_bits: int = 0
    code_steps: Mapping[str, float] = field(default_factory=dict)
    shaken: Callable[[Feeds, int], Answers] | None = None
    rounded: Callable[[Feeds, int], Answers] | None = None


@dataclass(frozen=True)
class Way:
    """One way to read a source.

    Attributes:
        name: ``"sardonyx"`` for an importer of ours, else the name of the program that writes the model.
        read: Reads the source; raises ``ConversionError`` or ``UnsupportedError`` with the operator and the line.
    """

    name: str
    read: Callable[[], Imported]


def summarized(calls: Sequence[Call]) -> tuple[Call, ...]:
    """Return calls of equal operator and outcome as one, with their number, in order of the first."""
    counts: dict[tuple[str, Outcome], tuple[Call, int]] = {}
    for call in calls:
        first, count = counts.get((call.operator, call.outcome), (call, 0))
        counts[call.operator, call.outcome] = (first, count + call.count)
    return tuple(Call(first.operator, first.outcome, first.where, count) for first, count in counts.values())
