"""Names of inputs and outputs, and open sizes, of an exported program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sardonyx.convert.imported import Size


def input_names(exported: torch.export.ExportedProgram) -> list[str]:
    """Return the names of the user's inputs, in order, constants included."""
    kinds = torch.export.graph_signature.InputKind
    return [spec.arg.name for spec in exported.graph_signature.input_specs if spec.kind == kinds.USER_INPUT]


def output_names(exported: torch.export.ExportedProgram) -> list[str]:
    """Return names for the user's tensor outputs, in order: distinct, and distinct from the inputs."""
    kinds = torch.export.graph_signature.OutputKind
    names: list[str] = []
    inputs = set(input_names(exported))
    for spec in exported.graph_signature.output_specs:
        if spec.kind != kinds.USER_OUTPUT or not isinstance(spec.arg, torch.export.graph_signature.TensorArgument):
            continue
        base = spec.arg.name
        name, number = base, 1
        while name in names or name in inputs:
            number += 1
            name = f"{base}_{number}"
        names.append(name)
    return names


def open_sizes(exported: torch.export.ExportedProgram, examples: Sequence[Any] = ()) -> dict[str, Size]:
    """Return the symbols among the sizes of the inputs, with examples and bounds.

    Args:
        exported: The program.
        examples: The inputs whose sizes are the examples; those with which torch captured the program if empty.
    """
    sizes: dict[str, Size] = {}
    leaves = dict(zip(input_names(exported), examples, strict=bool(examples)))
    names = set(input_names(exported))
    for node in exported.graph.nodes:
        if node.op != "placeholder" or node.name not in names:
            continue
        value = node.meta.get("val")
        for axis, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if not isinstance(size, torch.SymInt):
                continue
            for symbol in size.node.expr.free_symbols:
                bounds = exported.range_constraints.get(symbol)
                low = _bound(bounds.lower) or 1 if bounds is not None else 1
                high = _bound(bounds.upper) if bounds is not None else None
                hint = size.node.shape_env.backed_var_to_val.get(symbol, 0) if size.node.shape_env else 0
                if size.node.expr == symbol and node.name in leaves:
                    hint = leaves[node.name].shape[axis]
                # torch assumes that an open size is neither 0 nor 1; the model makes no such assumption.
                sizes[str(symbol)] = Size(int(hint), low if low > 2 else 1, high)
    return sizes


def _bound(bound: Any) -> int | None:
    """Return a bound of a size as a number; None for one that is no smaller than any memory."""
    return int(bound) if bound.is_Integer and abs(int(bound)) < 1 << 30 else None


def constant_inputs(exported: torch.export.ExportedProgram) -> set[str]:
    """Return the names of the user's inputs that are no tensors, whose values are part of the program."""
    kinds = torch.export.graph_signature
    return {
        spec.arg.name
        for spec in exported.graph_signature.input_specs
        if spec.kind == kinds.InputKind.USER_INPUT and isinstance(spec.arg, kinds.ConstantArgument)
    }
