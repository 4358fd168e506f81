"""Drop-in for the package ``onnxslim`` 0.1.98, implemented by the rewriter."""

from __future__ import annotations

from typing import Any, NoReturn

from sardonyx.compat.module_finder import attributes_below
from sardonyx.compat.onnxslim.slimming import OPTIMIZATIONS as OPTIMIZATIONS
from sardonyx.compat.onnxslim.slimming import PARAMETERS as PARAMETERS
from sardonyx.compat.onnxslim.slimming import PATTERNS as PATTERNS
from sardonyx.compat.onnxslim.slimming import OnnxSlimKwargs as OnnxSlimKwargs
from sardonyx.compat.onnxslim.slimming import UnknownParameterError as UnknownParameterError
from sardonyx.compat.onnxslim.slimming import slim as slim
from sardonyx.compat.onnxslim.version import __version__ as __version__
from sardonyx.errors import UnsupportedError

__all__ = ["OnnxSlimKwargs", "register_fusion_pattern", "slim"]

__getattr__ = attributes_below("onnxslim")


def register_fusion_pattern(fusion_pattern: Any) -> NoReturn:
    """Refuse a pattern of onnxslim.

    Raises:
        UnsupportedError: Always.
    """
    raise UnsupportedError(
        "patterns of onnxslim rewrite its own graphs",
        where="register_fusion_pattern",
        remedy="Write the pattern as a rule (sardonyx.rule).",
    )
