"""ONNX's backend interface (``onnx.backend.base``) over a session, for ONNX's tests and other tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx.backend.base import Backend, BackendRep

from sardonyx.errors import UnsupportedError
from sardonyx.runtime import Session


class SardonyxBackendRep(BackendRep):
    """A prepared model.

    Args:
        session: The session of the model.
    """

    def __init__(self, session: Session) -> None:
        self.session = session

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run once.

        Args:
            inputs: Values by name, or in order: of the required inputs, or of all declared inputs.
            **kwargs: Refused.

        Returns:
            The outputs, in order.

        Raises:
            UnsupportedError: An option is present.
        """
        if kwargs:
            raise UnsupportedError(f"unknown option {', '.join(kwargs)}", where="run")
        if not isinstance(inputs, Mapping):
            values: Sequence[Any] = inputs if isinstance(inputs, (list, tuple)) else [inputs]
            required = [info.name for info in self.session.get_inputs()]
            declared = [str(value.name) for value in self.session.model.graph.inputs]
            inputs = dict(zip(required if len(values) <= len(required) else declared, values, strict=False))
        return tuple(self.session.run(None, inputs))


class SardonyxBackend(Backend):
    """The reference provider as an ONNX backend."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Return True if every operator of the model has a definition."""
        try:
            Session(model, compile="off")
        except UnsupportedError:
            return False
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> SardonyxBackendRep:
        """Return a model ready to run; ``kwargs`` are options of :class:`sardonyx.Session`."""
        return SardonyxBackendRep(Session(model, **kwargs))

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return True if models run on the device: ``CPU``."""
        return device.split(":")[0] == "CPU"


prepare = SardonyxBackend.prepare
run_model = SardonyxBackend.run_model
supports_device = SardonyxBackend.supports_device
