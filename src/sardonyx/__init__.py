"""Sardonyx: one package that takes an ONNX model from file to answer."""

from sardonyx.model import load, save
from sardonyx.rewrite.language import Refusal, rule
from sardonyx.rewrite.optimize import Optimized, optimize

__version__ = "0.1.0"

__all__ = ["Optimized", "Refusal", "load", "optimize", "rule", "save"]
