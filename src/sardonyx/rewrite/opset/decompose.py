"""``decompose``: removal of some operators at the model's own operator set."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from sardonyx.rewrite.opset.convert import Conversion


def decompose(model: ir.Model, op_types: Collection[str]) -> ir.Model:
    """Rewrite every node of some operators by older ones, at the model's own operator set.

    Args:
        model: The Model; unchanged.
        op_types: Operators of the default domain to remove.

    Returns:
        A new Model without these operators, sharing its tensors with ``model``.

    Raises:
        OpsetConversionError: A node has no decomposition; names the node.
    """
    return Conversion(model, "").decompose(frozenset(op_types))
