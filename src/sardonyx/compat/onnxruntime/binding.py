"""``IOBinding``: values bound to the names of inputs and outputs before a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from sardonyx.compat.onnxruntime.devices import OrtDevice, require_cpu
from sardonyx.compat.onnxruntime.value_vector import OrtValueVector
from sardonyx.compat.onnxruntime.values import OrtValue, at_address, dtype_of, numpy_of


class Bindable(Protocol):
    """The methods of a session that a binding uses."""

    def get_inputs(self) -> Sequence[Any]:
        """Return the required inputs, each with a ``name``."""

    def get_overridable_initializers(self) -> Sequence[Any]:
        """Return the optional inputs, each with a ``name``."""


class IOBinding:
    """Inputs and outputs of a run, by name.

    Args:
        session: The session.
    """

    def __init__(self, session: Bindable) -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, np.ndarray | None] = {}
        self._results: list[OrtValue] = []

    def _require_input(self, name: str) -> None:
        # Optional inputs come second, because a session from the cache loads its model for them.
        if any(name == info.name for info in self._session.get_inputs()):
            return
        if all(name != info.name for info in self._session.get_overridable_initializers()):
            raise RuntimeError(f"Failed to find NodeArg with name: {name} in the def list")

    # Inputs.

    def bind_cpu_input(self, name: str, arr_on_cpu: np.ndarray) -> None:
        """Bind an array to an input."""
        self._require_input(name)
        self._inputs[name] = arr_on_cpu

    @property
    def _iobinding(self) -> IOBinding:
        """The binding itself: ONNX Runtime has a compiled class behind this one."""
        return self

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Bind a value to an input."""
        self._require_input(name)
        self._inputs[name] = numpy_of(ortvalue)

    def bind_input(
        self,
        name: str,
        device_type: str | OrtDevice,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Bind memory at an address to an input.

        Raises:
            RuntimeError: Unknown input, the device is not the CPU, or the elements are strings.
        """
        require_cpu(device_type, device_id)
        if dtype_of(element_type).kind in "OSU":
            raise RuntimeError("Only binding non-string Tensors is currently supported")
        self._require_input(name)
        self._inputs[name] = at_address(buffer_ptr, shape, element_type)

    def synchronize_inputs(self) -> None:
        """Do nothing: no copy to a device is pending."""

    def clear_binding_inputs(self) -> None:
        """Remove all input bindings."""
        self._inputs.clear()

    # Outputs.

    def bind_output(
        self,
        name: str,
        device_type: str | OrtDevice = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Bind an output, to memory at an address or to new memory.

        Raises:
            RuntimeError: The device is not the CPU.
            ValueError: An address without element type and shape.
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
        """Bind a value to an output."""
        self._outputs[name] = ortvalue.numpy()

    def synchronize_outputs(self) -> None:
        """Do nothing: no copy from a device is pending."""

    def clear_binding_outputs(self) -> None:
        """Remove all output bindings."""
        self._outputs.clear()
        self._results.clear()

    def get_outputs(self) -> Sequence[OrtValue]:
        """Return the results of the last run, in the order of binding."""
        return list(self._results)

    def get_outputs_as_ortvaluevector(self) -> OrtValueVector:
        """Return the same as :meth:`get_outputs`, as a vector."""
        return OrtValueVector(self._results)

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Return the results of the last run as arrays."""
        return [numpy_of(value) for value in self._results]

    def _run(self, run: Any) -> None:
        """Run once from the bound inputs to the bound outputs."""
        if not self._outputs:
            self._results = []
            return
        results = run(list(self._outputs), dict(self._inputs))
        self._results = []
        for (name, array), value in zip(self._outputs.items(), results, strict=True):
            if array is None:
                self._results.append(OrtValue(value))
                continue
            if array.shape != value.shape or array.dtype != value.dtype:
                raise RuntimeError(
                    f"Error in execution: the memory bound to {name} is {array.dtype}{list(array.shape)}, "
                    f"and the output is {value.dtype}{list(value.shape)}."
                )
            array[...] = value
            self._results.append(OrtValue(array))


class SessionIOBinding(IOBinding):
    """Inputs and outputs of a run, with the order of arguments of ONNX Runtime's compiled class."""

    def bind_input(self, name: str, *memory: Any) -> None:
        """Bind an array, or memory: a device, an element type, sizes and an address."""
        if len(memory) == 1:
            self.bind_cpu_input(name, memory[0])
            return
        device, element_type, shape, buffer_ptr = memory
        super().bind_input(name, device, 0, element_type, shape, buffer_ptr)

    def bind_output(self, name: str, device: Any = "cpu", *memory: Any) -> None:
        """Bind an output, to memory (an element type, sizes and an address) or to new memory."""
        super().bind_output(name, device, 0, *memory)

    def get_outputs(self) -> OrtValueVector:
        """Return the results of the last run, in the order of binding."""
        return self.get_outputs_as_ortvaluevector()
