"""Compression when a session loads a model, within a tolerance that is measured."""

from sardonyx.compress.at_load.compression import compress_at_load

__all__ = ["compress_at_load"]
