"""Look-ups in onnx's table of operators, for any version that a file claims."""

from __future__ import annotations

from onnx import defs
from onnx.defs import OpSchema

LARGEST_VERSION = 2**31 - 1
"""The largest version that ``onnx.defs`` accepts; a file may claim any 64-bit integer."""


def representable(version: int) -> int:
    """Return the nearest version that ``onnx.defs`` accepts."""
    return max(min(version, LARGEST_VERSION), 0)


def get_schema(op_type: str, version: int, domain: str) -> OpSchema:
    """Return the newest definition of an operator in a version of a domain.

    Raises:
        onnx.defs.SchemaError: The version has no such operator.
    """
    return defs.get_schema(op_type, representable(version), domain)


def has_schema(op_type: str, version: int, domain: str) -> bool:
    """Return True if a version of a domain has an operator."""
    return bool(defs.has(op_type, max_inclusive_version=representable(version), domain=domain))
