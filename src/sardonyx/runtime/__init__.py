"""Running models: sessions over providers."""

from sardonyx.runtime.node import Node
from sardonyx.runtime.session import Session
from sardonyx.runtime.value_info import ValueInfo

__all__ = ["Node", "Session", "ValueInfo"]
