"""Drop-in for the package ``onnxsim`` 0.8.1, implemented by the rewriter."""

from __future__ import annotations

from sardonyx.compat.module_finder import attributes_below
from sardonyx.compat.onnxsim.command_line import main as main
from sardonyx.compat.onnxsim.simplification import FOLDING as FOLDING
from sardonyx.compat.onnxsim.simplification import PARAMETERS as PARAMETERS
from sardonyx.compat.onnxsim.simplification import ArgumentError as ArgumentError
from sardonyx.compat.onnxsim.simplification import InputNameError as InputNameError
from sardonyx.compat.onnxsim.simplification import input_shapes_of as input_shapes_of
from sardonyx.compat.onnxsim.simplification import simplify as simplify
from sardonyx.compat.onnxsim.version import version as __version__

__all__ = ["__version__", "main", "simplify"]

__getattr__ = attributes_below("onnxsim")
