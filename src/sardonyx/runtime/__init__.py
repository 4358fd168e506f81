"""Running models: sessions over providers."""

from typing import TYPE_CHECKING

from sardonyx.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from sardonyx.runtime.dlpack_value import Value
    from sardonyx.runtime.model_info import ValueInfo
    from sardonyx.runtime.node import Node
    from sardonyx.runtime.options import SessionOptions
    from sardonyx.runtime.placement import Placement
    from sardonyx.runtime.run_options import RunOptions
    from sardonyx.runtime.session import Session
    from sardonyx.runtime.shortcuts import compile, explain, profile, run
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "sardonyx.runtime.dlpack_value": ["Value"],
            "sardonyx.runtime.model_info": ["ValueInfo"],
            "sardonyx.runtime.node": ["Node"],
            "sardonyx.runtime.options": ["SessionOptions"],
            "sardonyx.runtime.placement": ["Placement"],
            "sardonyx.runtime.run_options": ["RunOptions"],
            "sardonyx.runtime.session": ["Session"],
            "sardonyx.runtime.shortcuts": ["compile", "explain", "profile", "run"],
        },
    )

__all__ = [
    "Node", "Placement", "RunOptions", "Session", "SessionOptions", "Value", "ValueInfo", "compile", "explain",
    "profile", "run",
]  # fmt: skip
