"""The end of a native call without a result; a file of its own, which sessions import before any code is compiled."""

from __future__ import annotations


class Fault(Exception):
    """Data or sizes have no result, or a loop passed its limit; the interpreter raises the error."""
