"""``OnnxRuntimeBackend``: ONNX's backend interface (``onnx.backend.base``) over sessions."""

from __future__ import annotations

import os
import unittest
from typing import Any

import onnx
from onnx import helper
from onnx.backend.base import Backend
from onnx.checker import check_model

from sardonyx.compat.onnxruntime.backend.backend_rep import OnnxRuntimeBackendRep, set_options
from sardonyx.compat.onnxruntime.options import SessionOptions
from sardonyx.compat.onnxruntime.providers import available_providers
from sardonyx.compat.onnxruntime.session import InferenceSession

_OPTIONS = frozenset(
    {
        "enable_cpu_mem_arena", "enable_mem_pattern", "enable_mem_reuse", "execution_mode", "execution_order",
        "graph_optimization_level", "inter_op_num_threads", "intra_op_num_threads", "log_severity_level",
        "log_verbosity_level", "logid", "use_deterministic_compute", "use_per_session_threads",
    }
)  # fmt: skip


class OnnxRuntimeBackend(Backend):
    """Sessions as a backend of ONNX."""

    allowReleasedOpsetsOnly = os.getenv("ALLOW_RELEASED_ONNX_OPSET_ONLY", "1") == "1"

    @classmethod
    def is_compatible(cls, model: Any, device: str | None = None, **kwargs: Any) -> bool:
        """Return True if the device exists."""
        return device is None or cls.supports_device(device)

    @classmethod
    def is_opset_supported(cls, model: onnx.ModelProto) -> tuple[bool, str]:
        """Return True if all operator sets of a model are released, and a message if not."""
        for opset in model.opset_import if cls.allowReleasedOpsetsOnly else ():
            domain = opset.domain or "ai.onnx"
            if (domain, opset.version) not in helper.OP_SET_ID_VERSION_MAP:
                return False, (
                    "Skipping this test as only released onnx opsets are supported. To run this test set env variable "
                    f"ALLOW_RELEASED_ONNX_OPSET_ONLY to 0. Got Domain '{domain}' version '{opset.version}'."
                )
        return True, ""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return True for the CPU."""
        return device == "CPU"

    @classmethod
    def prepare(cls, model: Any, device: str | None = None, **kwargs: Any) -> OnnxRuntimeBackendRep:
        """Return a prepared model.

        Args:
            model: A path, bytes, an ``onnx.ModelProto``, a session, or a prepared model.
            device: ``CPU``, or None.
            kwargs: Options of the session, except those for files; unknown names are ignored.

        Raises:
            RuntimeError: Forbidden option, or another device.
            unittest.SkipTest: The model imports an unreleased operator set.
        """
        if isinstance(model, OnnxRuntimeBackendRep):
            return model
        if isinstance(model, InferenceSession):
            return OnnxRuntimeBackendRep(model)
        if isinstance(model, onnx.ModelProto):
            serialized = model.SerializeToString()
            check_model(serialized)
            is_supported, message = cls.is_opset_supported(model)
            if not is_supported:
                raise unittest.SkipTest(message)
            model = serialized
        options = SessionOptions()
        set_options(options, kwargs, _OPTIONS)
        excluded = os.getenv("ORT_ONNX_BACKEND_EXCLUDE_PROVIDERS", "").split(",")
        session = InferenceSession(
            model, sess_options=options, providers=[name for name in available_providers() if name not in excluded]
        )
        if device is not None and not cls.supports_device(device):
            raise RuntimeError(f"Incompatible device expected '{device}', got 'CPU'")
        return OnnxRuntimeBackendRep(session)

    @classmethod
    def run_model(cls, model: Any, inputs: Any, device: str | None = None, **kwargs: Any) -> Any:
        """Prepare a model and run it once; ``kwargs`` are options of the session and of the run."""
        return cls.prepare(model, device, **kwargs).run(inputs, **kwargs)

    @classmethod
    def run_node(
        cls, node: Any, inputs: Any, device: str | None = None, outputs_info: Any = None, **kwargs: Any
    ) -> Any:
        """Refuse a single node, as ONNX Runtime does.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError("It is much more efficient to run a whole model than every node independently.")


is_compatible = OnnxRuntimeBackend.is_compatible
prepare = OnnxRuntimeBackend.prepare
run = OnnxRuntimeBackend.run_model
supports_device = OnnxRuntimeBackend.supports_device
