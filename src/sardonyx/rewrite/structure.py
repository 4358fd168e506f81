"""What must hold of a model before anything walks it: names, order, nesting, and functions that end.

It is the structural part of ``sardonyx.model.check``, which no hostile model can hurt; recursive walks and
the C++ of onnx come after it.
"""

from __future__ import annotations

import onnx

from sardonyx.errors import InvalidModelError
from sardonyx.model.check.functions import check_functions
from sardonyx.model.check.structure import check_values

FATAL = frozenset(
    {
        "function-depth", "function-duplicate", "function-expansion", "function-recursive", "graph-cycle",
        "nesting-too-deep", "output-undefined", "value-undefined",
    }
)  # fmt: skip
"""Findings after which a rewrite means nothing, or does not end."""


def require_structure(model: onnx.ModelProto) -> None:
    """Refuse a model that cannot be rewritten.

    Args:
        model: The message, with or without its weights; it is not changed.

    Raises:
        InvalidModelError: a cycle, an undefined value, a recursive or exploding function,
            or bodies nested too deep; names the place.
    """
    for check in (check_functions, check_values):
        for finding in check(model):
            if finding.severity == "error" and finding.code in FATAL:
                raise InvalidModelError(finding.reason, where=str(finding.where), remedy=finding.remedy)
