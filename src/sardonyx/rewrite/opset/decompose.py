"""``decompose``: a model without some operators, at its own operator set."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from sardonyx.rewrite.opset.convert import Walk


def decompose(model: ir.Model, op_types: Collection[str]) -> ir.Model:
    """Rewrites every node of the given operators as older ones, at the model's own operator set.

    Args:
        model: The Model; it is not changed.
        op_types: Operators of the default domain to remove.

    Returns:
        A new Model that shares its tensors with ``model`` and has none of these operators.

    Raises:
        OpsetConversionError: A node has no decomposition; names it.
    """
    return Walk(model, "").decompose(frozenset(op_types))
