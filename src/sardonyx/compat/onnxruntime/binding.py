"""``IOBinding``: values bound to the names of inputs and outputs before a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from sardonyx.compat.onnxruntime.devices import require_cpu
from sardonyx.compat.onnxruntime.values import OrtValue, at_address, dtype_of, numpy_of


class Bindable(Protocol):
    """A session, as far as a binding knows it."""

    def get_inputs(self) -> Sequence[Any]:
        """What must be fed, each with a ``name``."""

    def get_overridable_initializers(self) -> Sequence[Any]:
        """What may be fed, each with a ``name``."""


class IOBinding:
    """What a run reads and writes, by name.

    Args:
        session: The session that runs.
    """

    def __init__(self, session: Bindable) -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, np.ndarray | None] = {}
        self._results: list[OrtValue] = []

    def _require_input(self, name: str) -> None:
        known = [*self._session.get_inputs(), *self._session.get_overridable_initializers()]
        if all(name != each.name for each in known):
            raise RuntimeError(f"Failed to find NodeArg with name: {name} in the def list")

    # Inputs.

    def bind_cpu_input(self, name: str, arr_on_cpu: np.ndarray) -> None:
        """Let a run read an array."""
        self._require_input(name)
        self._inputs[name] = arr_on_cpu

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Let a run read a value."""
        self._require_input(name)
        self._inputs[name] = numpy_of(ortvalue)

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Let a run read what lies at an address.

        Raises:
            RuntimeError: There is no such input, or the device is not the processor.
        """
        require_cpu(device_type, device_id)
        self._require_input(name)
        self._inputs[name] = at_address(buffer_ptr, shape, element_type)

    def synchronize_inputs(self) -> None:
        """Wait for copies to devices; there are none."""

    def clear_binding_inputs(self) -> None:
        """Forget the inputs."""
        self._inputs.clear()

    # Outputs.

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Let a run give an output, into memory at an address or of its own.

        Raises:
            RuntimeError: The device is not the processor.
            ValueError: Nothing tells the sizes or the type of what lies at the address.
        """
        require_cpu(device_type, device_id)
        self._outputs[name] = None
        if buffer_ptr is not None:
            if shape is None or element_type is None:
                raise ValueError("`element_type` and `shape` are to be provided if pre-allocated memory is provided")
            self._outputs[name] = at_address(buffer_ptr, shape, element_type)
        elif shape is not None and element_type is not None:
            self._outputs[name] = np.empty(tuple(shape), dtype_of(element_type))

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Let a run write into a value."""
        self._outputs[name] = ortvalue.numpy()

    def synchronize_outputs(self) -> None:
        """Wait for copies from devices; there are none."""

    def clear_binding_outputs(self) -> None:
        """Forget the outputs."""
        self._outputs.clear()
        self._results.clear()

    def get_outputs(self) -> list[OrtValue]:
        """What the last run gave, in the order in which outputs were bound."""
        return list(self._results)

    def get_outputs_as_ortvaluevector(self) -> list[OrtValue]:
        """As :meth:`get_outputs`."""
        return list(self._results)

    def copy_outputs_to_cpu(self) -> list[Any]:
        """What the last run gave, as arrays."""
        return [numpy_of(value) for value in self._results]

    def _run(self, run: Any) -> None:
        """Run once from what is bound into what is bound."""
        if not self._outputs:
            self._results = []
            return
        found = run(list(self._outputs), dict(self._inputs))
        self._results = []
        for (name, given), value in zip(self._outputs.items(), found, strict=True):
            if given is None:
                self._results.append(OrtValue(value))
                continue
            if given.shape != value.shape or given.dtype != value.dtype:
                raise RuntimeError(
                    f"Error in execution: the memory bound to {name} is {given.dtype}{list(given.shape)}, "
                    f"and the output is {value.dtype}{list(value.shape)}."
                )
            given[...] = value
            self._results.append(OrtValue(given))
