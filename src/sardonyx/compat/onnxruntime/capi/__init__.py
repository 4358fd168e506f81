"""Modules below ONNX Runtime's interface from which programs import exceptions and classes."""

from sardonyx.compat.module_finder import attributes_below
from sardonyx.compat.onnxruntime.capi import onnxruntime_pybind11_state as onnxruntime_pybind11_state

__getattr__ = attributes_below("onnxruntime.capi")
