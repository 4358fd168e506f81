"""Latency of models side by side; see ``sardonyx.rewrite.measure``, which the gates of targets use too."""

from sardonyx.rewrite.measure import Latency, measure

__all__ = ["Latency", "measure"]
