"""ONNX's backend interface over sessions, with ONNX Runtime's names."""

from sardonyx.compat.onnxruntime.backend.backend import is_compatible as is_compatible
from sardonyx.compat.onnxruntime.backend.backend import prepare as prepare
from sardonyx.compat.onnxruntime.backend.backend import run as run
from sardonyx.compat.onnxruntime.backend.backend import supports_device as supports_device
