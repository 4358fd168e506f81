"""How much memory running a model may take: what its weights and declared sizes explain, and some to spare."""

from __future__ import annotations

import math
import os
import resource
from pathlib import Path

import onnx_ir as ir

from sardonyx.rewrite import facts

SPARE_BYTES = 512 << 20
"""Memory that running a model may take beyond what its weights and the declared sizes of its tensors explain."""

MOST_BYTES = 12 << 30
"""Memory that declared sizes can explain at most."""

OPEN_SIZE = 256
"""What an open size is counted as."""


def limit_memory(model: ir.Model) -> None:
    """Let allocations fail that the model does not explain, as those of a loop whose state doubles in each run.

    A tighter limit that is inherited stays.
    """
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    wanted = _held_bytes() + SPARE_BYTES + 4 * _weight_bytes(model) + min(2 * _tensor_bytes(model), MOST_BYTES)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    bounds = [wanted, max(machine, 4 << 30)] + ([hard] if hard != resource.RLIM_INFINITY else [])
    resource.setrlimit(resource.RLIMIT_DATA, (min(bounds), hard))


def _held_bytes() -> int:
    """The private memory that this process has asked for so far; a guess where the system does not tell."""
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
    """Bytes of all tensors whose rank is known, as if none were ever freed."""
    shapes = [value.shape for node in facts.nodes_of(model.graph) for value in node.outputs if value.shape is not None]
    return sum(8 * math.prod(dim if isinstance(dim, int) else OPEN_SIZE for dim in shape) for shape in shapes)
