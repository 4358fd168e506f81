"""The quality of an optimized model: nodes, standard operators, validity, equality of outputs."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import suites

TOLERANCE = 1e-4
"""Relative to the largest magnitude of an output."""
STANDARD_DOMAINS = {"ai.onnx", "ai.onnx.ml"}


@dataclass
class Verdict:
    """The properties of one model, compared with its original.

    Attributes:
        nodes: Number of nodes, including bodies, functions and Constant nodes.
        ops: Number of nodes by operator.
        bytes: Size of the file and of its external data.
        foreign: Operators outside of the standard domains that the original does not have.
        worst_error: Largest difference from the reference outputs, relative to the largest element of each.
        signature: Changes of the declared inputs and outputs that are not wrong (an open size that is known now, or has
            another name).
        inherited: Findings of the checker that the original has too.
        faults: The reasons why the model is wrong.
    """

    nodes: int = 0
    ops: dict[str, int] = field(default_factory=dict)
    bytes: int = 0
    foreign: dict[str, int] = field(default_factory=dict)
    worst_error: float | None = None
    signature: list[str] = field(default_factory=list)
    inherited: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def countable(self) -> bool:
        """True if the number of nodes can be compared: the model is correct and standard ONNX."""
        return not self.faults and not self.foreign

    @property
    def reason(self) -> str:
        """The reasons why the number of nodes cannot be compared."""
        foreign = [f"not standard ONNX: {count} {name}" for name, count in self.foreign.items()]
        return "; ".join(self.faults + foreign)


def judge(path: Path, case: suites.Case, samples: Sequence[suites.Sample]) -> Verdict:
    """Compare the model at `path` with its original on `samples`."""
    model, original = onnx.load(path), onnx.load(case.path)
    verdict = census(model, path)
    known = census(original, case.path).foreign
    verdict.foreign = {name: count for name, count in verdict.foreign.items() if name not in known}
    wrong, verdict.signature = signature_changes(model, original)
    findings = [] if verdict.foreign else checker_findings(path)
    verdict.inherited = [finding for finding in findings if finding in checker_findings(case.path)]
    verdict.worst_error, differences = output_faults(path, samples)
    invalid = [finding for finding in findings if finding not in verdict.inherited]
    verdict.faults = wrong + opset_faults(model, original) + invalid + differences
    return verdict


def census(model: onnx.ModelProto, path: Path) -> Verdict:
    """Count nodes by operator, including bodies and functions, and nodes outside of the standard domains."""
    counts = collections.Counter(qualified(node, model) for node in all_nodes(model))
    foreign = {name: count for name, count in counts.items() if ":" in name}
    data = path.with_suffix(path.suffix + ".data")
    size = path.stat().st_size + (data.stat().st_size if data.exists() else 0)
    return Verdict(nodes=counts.total(), ops=dict(counts.most_common()), bytes=size, foreign=foreign)


def qualified(node: onnx.NodeProto, model: onnx.ModelProto) -> str:
    """Return the operator's name, with its domain unless standard or a domain of the model's functions."""
    domain = node.domain or "ai.onnx"
    own = {function.domain for function in model.functions}
    return node.op_type if domain in STANDARD_DOMAINS | own else f"{domain}:{node.op_type}"


def all_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    yield from nodes_within(model.graph.node)
    for function in model.functions:
        yield from nodes_within(function.node)


def nodes_within(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from nodes_within(attribute.g.node)
            for graph in attribute.graphs:
                yield from nodes_within(graph.node)


def signature_changes(model: onnx.ModelProto, original: onnx.ModelProto) -> tuple[list[str], list[str]]:
    """Return faults (name, order, type, rank or fixed size) and other changes of inputs and outputs."""
    faults, changes = [], []
    for side in ("input", "output"):
        before, after = values(original, side), values(model, side)
        if [value.name for value in before] != [value.name for value in after]:
            faults.append(f"{side} names {[v.name for v in before]} became {[v.name for v in after]}"[:200])
            continue
        for old, new in zip(before, after, strict=True):
            if old.type == new.type:
                continue
            messages = faults if contradicts(old.type, new.type) else changes
            messages.append(f"{side} {old.name}: {type_text(old.type)} became {type_text(new.type)}")
    return faults, changes


def values(model: onnx.ModelProto, side: str) -> list[onnx.ValueInfoProto]:
    """Return the graph's inputs without initializers, or its outputs."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return [value for value in getattr(model.graph, side) if side == "output" or value.name not in weights]


def contradicts(old: onnx.TypeProto, new: onnx.TypeProto) -> bool:
    """Return True if the new type excludes values of the old type, or leaves a fixed size open."""
    if not (old.HasField("tensor_type") and new.HasField("tensor_type")):
        return without_shapes(old) != without_shapes(new)
    if old.tensor_type.elem_type != new.tensor_type.elem_type:
        return True
    if not old.tensor_type.HasField("shape"):
        return False
    before, after = old.tensor_type.shape.dim, new.tensor_type.shape.dim
    return len(before) != len(after) or any(
        first.HasField("dim_value") and first != second for first, second in zip(before, after, strict=True)
    )


def without_shapes(kind: onnx.TypeProto) -> onnx.TypeProto:
    """Return the type without the shapes of the tensors inside."""
    bare = onnx.TypeProto()
    bare.CopyFrom(kind)
    case = bare.WhichOneof("value")
    inner = getattr(bare, case) if case else bare
    if case in ("tensor_type", "sparse_tensor_type"):
        inner.ClearField("shape")
    elif case in ("sequence_type", "optional_type"):
        inner.elem_type.CopyFrom(without_shapes(inner.elem_type))
    elif case == "map_type":
        inner.value_type.CopyFrom(without_shapes(inner.value_type))
    return bare


def type_text(kind: onnx.TypeProto) -> str:
    if not kind.HasField("tensor_type"):
        return str(kind.WhichOneof("value"))
    sizes = [str(getattr(dim, dim.WhichOneof("value") or "", "?")) for dim in kind.tensor_type.shape.dim]
    return f"{onnx.TensorProto.DataType.Name(kind.tensor_type.elem_type).lower()}[{', '.join(sizes)}]"


def opset_faults(model: onnx.ModelProto, original: onnx.ModelProto) -> list[str]:
    """Return changes of the operator sets: tools are compared at the original's operator set."""
    before = {entry.domain or "ai.onnx": entry.version for entry in original.opset_import}
    after = {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}
    return [
        f"opset of {domain}: {version} became {after[domain]}"
        for domain, version in before.items()
        if domain in STANDARD_DOMAINS and after.get(domain, version) != version
    ]


def checker_findings(path: Path) -> list[str]:
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except Exception as error:  # the checker's errors have no base class of their own
        return [f"checker: {reason(error, path)}"]
    return []


def output_faults(path: Path, samples: Sequence[suites.Sample]) -> tuple[float | None, list[str]]:
    """Return the worst relative error over `samples`, and the faults of the outputs."""
    worst = 0.0
    for feeds, expected in samples:
        try:
            _, outputs = suites.unoptimized_outputs(path, feeds)
        except Exception as error:  # nor have the engine's
            return None, [f"ONNX Runtime: {reason(error, path)}"]
        if len(outputs) != len(expected):
            return None, [f"{len(outputs)} outputs instead of {len(expected)}"]
        for index, (new, old) in enumerate(zip(outputs, expected, strict=True)):
            error, fault = difference(new, old)
            worst = max(worst, error)
            if fault:
                return worst, [f"output {index}: {fault}"]
    return worst, []


def difference(new: Any, old: Any, tolerance: float = TOLERANCE) -> tuple[float, str | None]:
    """Return the relative error of one output, and a fault if the error exceeds the tolerance."""
    if isinstance(old, (list, tuple)):
        if len(new) != len(old):
            return 0.0, f"{len(new)} elements instead of {len(old)}"
        return worst_of(zip(new, old, strict=True), tolerance)
    if isinstance(old, dict):
        if list(new) != list(old):
            return 0.0, "other keys"
        return worst_of(((new[key], old[key]) for key in old), tolerance)
    new, old = np.asarray(new), np.asarray(old)
    if new.shape != old.shape or new.dtype != old.dtype:
        return 0.0, f"{new.dtype}{list(new.shape)} instead of {old.dtype}{list(old.shape)}"
    if not np.issubdtype(old.dtype, np.floating):
        return 0.0, None if np.array_equal(new, old) else "other values"
    if not np.array_equal(np.isfinite(new), np.isfinite(old)):
        return 0.0, "other non-finite values"
    finite = np.isfinite(old)
    if not finite.any():
        return 0.0, None
    largest = float(np.abs(old[finite]).max())
    error = float(np.abs(new[finite].astype(np.float64) - old[finite]).max()) / (largest or 1.0)
    return error, None if error <= tolerance else f"difference {error:.1e} of the largest element"


def worst_of(pairs: Iterable[tuple[Any, Any]], tolerance: float) -> tuple[float, str | None]:
    worst = 0.0
    for new, old in pairs:
        error, fault = difference(new, old, tolerance)
        if fault:
            return error, fault
        worst = max(worst, error)
    return worst, None


def reason(error: BaseException, path: Path) -> str:
    """Return the first line of the message, without the folder of the model."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return line.replace(f"{path.parent}/", "")[:300]


def changes(first: Path, second: Path) -> str:
    """Return the difference of two model files, by operators if these differ."""
    before, after = (census(onnx.load(path), path) for path in (first, second))
    differing = [
        f"{name} {before.ops.get(name, 0)} → {after.ops.get(name, 0)}"
        for name in sorted({*before.ops, *after.ops})
        if before.ops.get(name) != after.ops.get(name)
    ]
    return ", ".join(differing) or "same operators, other bytes"
