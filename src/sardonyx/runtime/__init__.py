"""Running models: sessions over providers."""

from sardonyx.runtime.session import Session, ValueInfo

__all__ = ["Session", "ValueInfo"]
