"""Finds and repairs what is baked into a model from sizes of its inputs."""

from sardonyx.rewrite.baked.repair import repair

__all__ = ["repair"]
