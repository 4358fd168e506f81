"""Running models: sessions over providers."""

from sardonyx.base.gc_pause import imports_frozen

with imports_frozen():
    from sardonyx.runtime.dlpack_value import Value
    from sardonyx.runtime.model_info import ValueInfo
    from sardonyx.runtime.node import Node
    from sardonyx.runtime.options import SessionOptions
    from sardonyx.runtime.placement import Placement
    from sardonyx.runtime.run_options import RunOptions
    from sardonyx.runtime.session import Session
    from sardonyx.runtime.shortcuts import compile, explain, profile

__all__ = [
    "Node", "Placement", "RunOptions", "Session", "SessionOptions", "Value", "ValueInfo", "compile", "explain",
    "profile",
]  # fmt: skip
