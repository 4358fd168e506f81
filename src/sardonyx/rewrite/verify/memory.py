"""Memory limit for running a model: the memory explained by weights and declared sizes, and a margin."""

from __future__ import annotations

import math
import os
import resource
from pathlib import Path

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts

SPARE_BYTES = 512 << 20
"""Memory margin beyond the weights and the declared sizes of tensors."""

MOST_BYTES = 12 << 30
"""Maximum memory attributed to declared sizes."""

OPEN_SIZE = 256
"""Value assumed for an open size."""


def limit_memory(model: ir.Model) -> None:
    """Limit allocations to the model's explained memory, e.g. against loop states doubling in each run.

    A tighter inherited limit is preserved.
    """
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    explained = _held_bytes() + SPARE_BYTES + 4 * _weight_bytes(model) + min(2 * _tensor_bytes(model), MOST_BYTES)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    bounds = [explained, max(machine, 4 << 30)] + ([hard] if hard != resource.RLIM_INFINITY else [])
    resource.setrlimit(resource.RLIMIT_DATA, (min(bounds), hard))


def _held_bytes() -> int:
    """Return the private memory allocated by this process; a guess if the system does not report it."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 1 << 30
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmData")) * 1024


def _weight_bytes(model: ir.Model) -> int:
    return sum(
        value.const_value.nbytes
        for graph in facts.graphs_of(model.graph)
        for value in graph.initializers.values()
        if value.const_value is not None and value.const_value.dtype != ir.DataType.STRING
    )


def _tensor_bytes(model: ir.Model) -> int:
    """Return the bytes of all tensors of known rank, as if none were freed."""
    shapes = [value.shape for node in facts.nodes_of(model.graph) for value in node.outputs if value.shape is not None]
    return sum(8 * math.prod(dim if isinstance(dim, int) else OPEN_SIZE for dim in shape) for shape in shapes)
