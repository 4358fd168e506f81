"""Every ONNX operator, written once over Core: see :mod:`.registry` for how, :mod:`.definitions` for what."""

from sardonyx.ops.registry import Operator, all_operators, find, host_operator, operator

__all__ = ["Operator", "all_operators", "find", "host_operator", "operator"]
