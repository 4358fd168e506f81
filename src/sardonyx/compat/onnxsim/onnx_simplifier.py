"""The function and the command line of onnxsim, in the module where onnxsim defines them."""

from sardonyx.compat.onnxsim.command_line import main as main
from sardonyx.compat.onnxsim.simplification import simplify as simplify
