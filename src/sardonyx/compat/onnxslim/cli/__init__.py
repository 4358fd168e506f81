"""The function and the command line of onnxslim."""

from sardonyx.compat.onnxslim.cli._main import main as main
from sardonyx.compat.onnxslim.cli._main import slim as slim
