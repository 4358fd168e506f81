"""Lowering of calls of tree ensembles."""

from __future__ import annotations

from sardonyx.compiler.analysis.control_flow import results_of
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.analysis.tree_ensembles import TABLES, tree_sum
from sardonyx.compiler.kernels.trees import Forest, leaves_bytes, leaves_of_few, scratch_bytes, tree_sums
from sardonyx.compiler.lower.context import FunctionContext, KernelWriter
from sardonyx.compiler.lower.launch import Launch, Prepared, Scratch, Stage
from sardonyx.compiler.schedule.groups import Group
from sardonyx.core.ir.graph import Value


def lower_trees(context: FunctionContext, group: Group) -> list[Launch]:
    """Emit the kernel of a tree ensemble; with few rows and many trees, a kernel before finds the leaves.

    Raises:
        Unfusable: The rows must be written to memory first.
    """
    x = group.root.operands[0]
    context.require_memory(x)
    (total,) = results_of(group.root)
    rows, launches = shape_of(x)[0], []
    w = KernelWriter(context, group, 1)
    forest = _forest(w, group.root)
    leaves = Stage(group.root, leaves_bytes(forest, rows)) if forest.is_shared else None
    if leaves is not None:
        scratch = w.pointer(Scratch(forest.row_stride))
        items = leaves_of_few(w.kernel, forest, w.pointer(x), w.pointer(leaves), scratch, rows)
        launches.append(w.launch(items, "leaves", total))
        w = KernelWriter(context, group, 1)
        forest = _forest(w, group.root)
    scratch = w.pointer(Scratch(scratch_bytes(w.kernel, forest, rows, context.threads)))
    items = tree_sums(
        w.kernel, forest, w.pointer(x), w.pointer(total), scratch, rows, context.threads,
        None if leaves is None else w.pointer(leaves),
    )  # fmt: skip
    return [*launches, w.launch(items, "trees", total)]


def _forest(w: KernelWriter, call: Value) -> Forest:
    ensemble = tree_sum(call)
    assert ensemble is not None
    arrays = {name: getattr(ensemble, name) for name in TABLES}
    tables = {
        name: w.pointer(Prepared(call, name, lambda _, array=array: array))  # type: ignore[misc]
        for name, array in arrays.items()
    }
    return Forest(
        **tables, trees=ensemble.trees, tile=ensemble.tile(w.context.target), features=ensemble.features,
        column_count=len(ensemble.columns), targets=ensemble.targets, shallow=ensemble.shallow,
    )  # fmt: skip
