"""Repeated runs on the same inputs: outputs that differ from the first run's, and the first node that differs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.report.accuracy import BUDGET, Side, slices
from sardonyx.report.node_matching import operator
from sardonyx.rewrite.analysis import inference
from sardonyx.rewrite.analysis.facts import is_random
from sardonyx.rewrite.analysis.names import node_label
from sardonyx.rewrite.surgery.extraction import extract

ATTEMPTS = 3
"""Runs of each part of the model in the search for a node: a rare difference may be absent from two of them."""


@dataclass(frozen=True)
class Repetition:
    """Runs on the same inputs.

    Attributes:
        runs: Number of runs, with the first.
        differing: Numbers of the runs with another output than the first, counted from 1.
        outputs: Names of the outputs that differed.
        tensor: The first value, in the order of the model, that differs between runs; empty if none was found.
        node: Its node.
        operator: The operator of the node.
        is_random: True if the node draws random numbers.
    """

    runs: int
    differing: tuple[int, ...]
    outputs: tuple[str, ...]
    tensor: str = ""
    node: str = ""
    operator: str = ""
    is_random: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        if not self.differing:
            return f"Equal bits in {self.runs} runs"
        which = f"run {self.differing[0]}" + (f" and {len(self.differing) - 1} more" if self.differing[1:] else "")
        text = f"{', '.join(self.outputs)} differ from the first run in {which} of {self.runs}"
        if not self.tensor:
            return f"{text}; no node differs when values are computed one by one"
        drawn = ", which draws random numbers" if self.is_random else ""
        return f"{text}: first in '{self.tensor}' of {self.operator} {self.node}{drawn}"


def repeat(
    call: Callable[[], Mapping[str, Any]], first: Mapping[str, Any], runs: int, model: ir.Model | None,
    feeds: Mapping[str, Any], *, provider: str = "native",
) -> Repetition:  # fmt: skip
    """Run again, compare all outputs with the first run's by their bits, and search for the node that differs.

    Args:
        call: Runs the model, and returns the outputs by name.
        first: The outputs of the first run.
        runs: Number of runs, with the first.
        model: The model, for the search; None for no search.
        feeds: Inputs by name.
        provider: The provider of the search.
    """
    differing, names = [], dict[str, None]()
    for number in range(2, runs + 1):
        outputs = call()
        other = [name for name, value in first.items() if not _has_same_bits(value, outputs[name])]
        names |= dict.fromkeys(other)
        differing += [number] if other else []
    result = Repetition(runs, tuple(differing), tuple(names))
    return result if not differing or model is None else _locate(result, Side(model.clone(), provider), feeds)


def _locate(result: Repetition, side: Side, feeds: Mapping[str, Any]) -> Repetition:
    inference.infer_shapes(side.model, strict=False)
    values = [(v, v) for node in side.model.graph for v in node.outputs if v.name]
    for part in slices(values, feeds, BUDGET):
        session = side.session(extract(side.model, [str(value.name) for value, _ in part]))
        fed = {info.name: feeds[info.name] for info in session.get_inputs()}
        names = [info.name for info in session.get_outputs()]
        first, *others = (dict(zip(names, session.run(None, fed), strict=True)) for _ in range(1 + ATTEMPTS))
        for value, _ in part:
            name = str(value.name)
            if any(not _has_same_bits(first[name], other[name]) for other in others):
                node = value.producer()
                assert node is not None
                opset = side.model.graph.opset_imports.get("")
                return Repetition(
                    result.runs, result.differing, result.outputs, name, node_label(node), operator(node),
                    is_random(node, opset),
                )  # fmt: skip
    return result


def _has_same_bits(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        return a.tolist() == b.tolist() if a.dtype == object else a.tobytes() == b.tobytes()
    if isinstance(a, Sequence) and isinstance(b, Sequence) and not isinstance(a, str):
        return len(a) == len(b) and all(map(_has_same_bits, a, b))
    return bool(a == b)
