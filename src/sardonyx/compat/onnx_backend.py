"""ONNX's backend interface (``onnx.backend.base``) over a session, as ONNX's own test suite and other tools call it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx.backend.base import Backend, BackendRep

from sardonyx.errors import UnsupportedError
from sardonyx.runtime import Session


class SardonyxBackendRep(BackendRep):
    """A model ready to run.

    Args:
        session: What runs it.
    """

    def __init__(self, session: Session) -> None:
        self.session = session

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run once.

        Args:
            inputs: Values by name, or in order: of the inputs that must be fed, or of all that are declared.
            **kwargs: None are taken.

        Returns:
            The outputs, in order.

        Raises:
            UnsupportedError: There is an option.
        """
        if kwargs:
            raise UnsupportedError(f"there is no option {', '.join(kwargs)}.", where="run")
        if not isinstance(inputs, Mapping):
            values: Sequence[Any] = inputs if isinstance(inputs, (list, tuple)) else [inputs]
            needed = [info.name for info in self.session.get_inputs()]
            declared = [str(value.name) for value in self.session.model.graph.inputs]
            inputs = dict(zip(needed if len(values) <= len(needed) else declared, values, strict=False))
        return tuple(self.session.run(None, inputs))


class SardonyxBackend(Backend):
    """The reference provider as an ONNX backend."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Return whether every operator of the model has a definition."""
        try:
            Session(model, compile="off")
        except UnsupportedError:
            return False
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> SardonyxBackendRep:
        """Make a model ready to run; ``kwargs`` are options of :class:`sardonyx.Session`."""
        return SardonyxBackendRep(Session(model, **kwargs))

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether models run on the device: ``CPU``."""
        return device.split(":")[0] == "CPU"


prepare = SardonyxBackend.prepare
run_model = SardonyxBackend.run_model
supports_device = SardonyxBackend.supports_device
