"""Classes of the interface, in the module where ONNX Runtime defines them."""

from __future__ import annotations

from sardonyx.compat.onnxruntime.binding import IOBinding as IOBinding
from sardonyx.compat.onnxruntime.devices import OrtDevice as OrtDevice
from sardonyx.compat.onnxruntime.providers import (
    check_and_normalize_provider_args as check_and_normalize_provider_args,
)
from sardonyx.compat.onnxruntime.session import InferenceSession as InferenceSession
from sardonyx.compat.onnxruntime.values import OrtValue as OrtValue
from sardonyx.compat.onnxruntime.values import SparseTensor as SparseTensor

Session = InferenceSession
