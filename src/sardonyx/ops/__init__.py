"""ONNX operators, defined once over Core and registered in :mod:`.registry`."""

from sardonyx.ops.registry import Operator, all_operators, find, host_operator, operator

__all__ = ["Operator", "all_operators", "find", "host_operator", "operator"]
