"""Lowering of calls of tree ensembles."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from sardonyx.compiler.analysis.control_flow import results_of
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.analysis.tree_ensembles import TABLES, tree_sum
from sardonyx.compiler.kernels.tree_traversal import Forest
from sardonyx.compiler.kernels.trees import leaves_bytes, leaves_of_few, scratch_bytes, tree_sums
from sardonyx.compiler.lower.context import FunctionContext, KernelWriter
from sardonyx.compiler.lower.launch import Launch, Prepared, Scratch, Stage
from sardonyx.compiler.schedule.groups import Group
from sardonyx.compiler.tiling.choice import Choice
from sardonyx.compiler.tiling.trees import TreeProblem, TreeSchedule, choose_trees
from sardonyx.core.dim import Size
from sardonyx.core.ir.graph import Value

_ORDER = ("nodes", "roots", "steps", "top_nodes", "top_starts", "ends", "rests", "columns", "weights")
"""The tables in the order of the kernel's arguments."""


def lower_trees(context: FunctionContext, group: Group) -> list[Launch]:
    """Emit the kernel of a tree ensemble; with few rows and many trees, a kernel before finds the leaves.

    Raises:
        Unfusable: The rows must be written to memory first.
    """
    x = group.root.operands[0]
    if not x.is_constant:  # A constant of equal elements is in memory for this kernel alone.
        context.require_memory(x)
    (total,) = results_of(group.root)
    rows, launches = shape_of(x)[0], []
    choice = choose_trees(_describe(group.root, rows, context.threads), context.target)
    w = KernelWriter(context, group, 1)
    forest = _forest(w, group.root, choice)
    leaves = Stage(group.root, leaves_bytes(forest, rows)) if choice.schedule.shares_trees else None
    if leaves is not None:
        scratch = w.pointer(Scratch(forest.row_stride))
        items = leaves_of_few(w.kernel, forest, w.pointer(x), w.pointer(leaves), scratch, rows)
        launches.append(w.launch(items, "leaves", total))
        w = KernelWriter(context, group, 1)
        forest = _forest(w, group.root, choice)
    scratch = w.pointer(Scratch(scratch_bytes(forest, rows, context.threads)))
    items = tree_sums(
        w.kernel, forest, w.pointer(x), w.pointer(total), scratch, rows, context.threads,
        None if leaves is None else w.pointer(leaves),
    )  # fmt: skip
    return [*launches, w.launch(items, "trees", total)]


def _describe(call: Value, rows: Size, threads: int) -> TreeProblem:
    ensemble = tree_sum(call)
    assert ensemble is not None
    return TreeProblem(
        rows, ensemble.trees, len(ensemble.columns), ensemble.targets, ensemble.table_bytes, ensemble.shallow, threads
    )


def _forest(w: KernelWriter, call: Value, choice: Choice[TreeSchedule]) -> Forest:
    """Return the buffers of an ensemble in a kernel, and note the schedule."""
    ensemble, schedule, problem = tree_sum(call), choice.schedule, choice.problem
    assert ensemble is not None and isinstance(problem, TreeProblem)
    w.choice = choice
    row_ways, row_steps = schedule.row_ways, schedule.row_steps
    group_ways, group_steps = schedule.group_ways, schedule.group_steps
    forms: dict[str, tuple[str, Callable[[], np.ndarray]]] = {
        name: (name, functools.partial(getattr, ensemble, name)) for name in TABLES
    }
    forms["roots"] = f"roots for {row_ways} ways", lambda: ensemble.pad_roots(row_ways)
    forms["steps"] = (
        f"steps for {row_ways} ways, {row_steps} steps", lambda: ensemble.row_tests(row_ways, row_steps)
    )  # fmt: skip
    forms["rests"] = (
        f"rests for {group_ways} ways, {group_steps} steps", lambda: ensemble.group_tests(group_ways, group_steps)
    )  # fmt: skip
    tables = {
        name: w.pointer(Prepared(call, form, lambda _, make=make: make()))  # type: ignore[misc]
        for name, (form, make) in ((name, forms[name]) for name in _ORDER)
    }
    return Forest(
        **tables, trees=ensemble.trees, features=ensemble.features, column_count=len(ensemble.columns),
        targets=ensemble.targets, shallow=ensemble.shallow, problem=problem, schedule=schedule,
    )  # fmt: skip
