"""Lint of the contents of weights: NaN, infinities, denormals, width, duplicates."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, defs

from sardonyx.model.check.codes import finding
from sardonyx.model.check.commands import Commands
from sardonyx.model.check.findings import Finding, Location
from sardonyx.model.check.scopes import Scope, canonical_domain, scopes
from sardonyx.model.check.source import Source
from sardonyx.model.check.structure import names_used, weight_names
from sardonyx.model.check.tensors import locate_tensors
from sardonyx.model.schemas import get_schema, has_schema

FLOAT16_MAX = 65504.0
"""Largest finite float16."""

_CHUNK = 1 << 22
_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
_SHOWN = 4


@dataclass(slots=True)
class _Counts:
    nan: int = 0
    infinite: int = 0
    denormal: int = 0
    largest: float = 0.0


def lint_weights(source: Source, commands: Commands, broken: frozenset[Location]) -> Iterator[Finding]:
    """Read all weights and constants in chunks, and report contents that cost time or accuracy.

    Args:
        source: The model.
        commands: Builds the command lines of the remedies.
        broken: Locations of tensors whose contents cannot be read.

    Yields:
        The findings.
    """
    alike: dict[tuple[int, tuple[int, ...]], list[tuple[onnx.TensorProto, Location]]] = {}
    for scope in scopes(source.proto):
        narrowable = _find_narrowable_values(scope)
        # A weight that is an output of its body cannot be shared with another graph.
        body = scope.graph if scope.parent is not None and isinstance(scope.graph, onnx.GraphProto) else None
        body_outputs = set() if body is None else {value.name for value in body.output}
        unread = set(weight_names(scope.graph)) - names_used(scope.graph)
        for tensor, where in locate_tensors(scope):
            if where in broken:
                continue
            # Unread weights have a finding of their own.
            if where.tensor and tensor.name not in body_outputs | unread:
                alike.setdefault((tensor.data_type, tuple(tensor.dims)), []).append((tensor, where))
            if tensor.data_type in _FLOATS:
                yield from _lint_floats(source, tensor, where, commands)
            elif tensor.data_type == TensorProto.INT64 and tensor.name in narrowable and where.tensor:
                yield from _lint_int64(source, tensor, where, commands)
    for group in alike.values():
        if len(group) > 1:
            yield from _lint_duplicates(source, group, commands)


def _lint_floats(source: Source, tensor: onnx.TensorProto, where: Location, commands: Commands) -> Iterator[Finding]:
    array = source.read(tensor)
    if array is None:
        return
    counts = _count(array)
    total = array.size
    if counts.nan:
        yield finding("weight-nan", f"{counts.nan:,} of {total:,} elements are NaN.", where)
    if counts.infinite:
        yield finding("weight-inf", f"{counts.infinite:,} of {total:,} elements are infinite.", where)
    if counts.denormal:
        reason = f"{counts.denormal:,} of {total:,} elements are denormal."
        yield finding("weight-denormal", reason, where, command=commands.optimize("flush_denormal_weights"))
    if tensor.data_type == TensorProto.FLOAT and counts.largest >= FLOAT16_MAX:
        reason = f"its largest finite magnitude is {counts.largest:g}; float16 ends at {FLOAT16_MAX:g}."
        yield finding("float16-overflow", reason, where, command=commands.fp16())
    if tensor.data_type == TensorProto.DOUBLE:
        command = commands.optimize("rewrite_float64_to_float32")
        yield finding("float64", f"{total:,} elements are float64.", where, command=command)


def _count(array: np.ndarray) -> _Counts:
    counts = _Counts()
    wide = array.dtype in (np.float32, np.float64)
    for start in range(0, array.size, _CHUNK):
        chunk = array[start : start + _CHUNK]
        if not wide:
            chunk = chunk.astype(np.float32)
        size = np.abs(chunk)
        finite = np.isfinite(size)
        bad = size.size - int(np.count_nonzero(finite))
        if bad:
            nan = int(np.count_nonzero(np.isnan(size)))
            counts.nan += nan
            counts.infinite += bad - nan
            size = size[finite]
        if not size.size:
            continue
        counts.largest = max(counts.largest, float(size.max()))
        if wide:
            counts.denormal += int(np.count_nonzero((size > 0) & (size < np.finfo(array.dtype).tiny)))
    return counts


def _lint_int64(source: Source, tensor: onnx.TensorProto, where: Location, commands: Commands) -> Iterator[Finding]:
    array = source.read(tensor)
    if array is None or not array.size:
        return
    limits = np.iinfo(np.int32)
    if int(array.min()) >= limits.min and int(array.max()) <= limits.max:
        reason = (
            f"its {array.size:,} elements are in {int(array.min())} … {int(array.max())}; its consumers accept int32."
        )
        yield finding("int64-fits-int32", reason, where, command=commands.optimize("narrow_int64_weights"))


def _find_narrowable_values(scope: Scope) -> set[str]:
    """Return the names whose consumers all accept int32 instead of int64, whatever their other inputs."""
    accepted: set[str] = set()
    rejected: set[str] = set()
    for node in scope.graph.node:
        for position, name in enumerate(node.input):
            (accepted if _accepts_int32(scope, node, position) else rejected).add(name)
    if isinstance(scope.graph, onnx.GraphProto):
        rejected.update(value.name for value in scope.graph.output)
    return accepted - rejected


def _accepts_int32(scope: Scope, node: onnx.NodeProto, position: int) -> bool:
    domain = canonical_domain(node.domain)
    version = scope.opsets.get(domain, 0)
    if not has_schema(node.op_type, version, domain):
        return False
    schema = get_schema(node.op_type, version, domain)
    formals = list(schema.inputs)
    if position >= len(formals):
        return False
    formal = formals[position]
    others = [other.type_str for other in (*formals, *schema.outputs) if other is not formal]
    own = formal.option != defs.OpSchema.FormalParameterOption.Variadic and formal.type_str not in others
    return own and {"tensor(int32)", "tensor(int64)"} <= set(formal.types)


def _lint_duplicates(
    source: Source, group: Sequence[tuple[onnx.TensorProto, Location]], commands: Commands
) -> Iterator[Finding]:
    inputs = {value.name for value in source.proto.graph.input}
    equal: dict[bytes, list[Location]] = {}
    for tensor, where in group:
        array = source.read(tensor)
        content = b"\0".join(tensor.string_data) if array is None else np.ascontiguousarray(array).view(np.uint8).data
        if array is None and tensor.data_type != TensorProto.STRING:
            continue
        equal.setdefault(hashlib.blake2b(content).digest(), []).append(where)
    for locations in equal.values():
        if len(locations) > 1:
            frozen = ["freeze_initializers"] if any(location.tensor in inputs for location in locations) else []
            names = ", ".join(repr(location.tensor) for location in locations[1 : _SHOWN + 1])
            more = f" and {len(locations) - 1 - _SHOWN} more" if len(locations) - 1 > _SHOWN else ""
            yield finding(
                "duplicate-weight",
                f"{names}{more} {'have' if len(locations) > 2 else 'has'} equal contents.",
                locations[0],
                command=commands.optimize(*frozen, "eliminate_duplicate_initializer"),
            )
