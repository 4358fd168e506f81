"""Sardonyx: one package that takes an ONNX model from file to answer."""

__version__ = "0.1.0"
