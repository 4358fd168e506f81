"""ONNX Runtime's compiled session class, which some programs use as ``_sess``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sardonyx.compat.onnxruntime.binding import IOBinding
from sardonyx.compat.onnxruntime.options import RunOptions, SessionOptions
from sardonyx.compat.onnxruntime.value_vector import OrtValueVector
from sardonyx.compat.onnxruntime.values import OrtValue


class RawSession:
    """A view of a session with the names and the order of arguments of ONNX Runtime's compiled class.

    Args:
        session: The ``InferenceSession``.
    """

    def __init__(self, session: Any) -> None:
        self._session = session

    @property
    def inputs_meta(self) -> Any:
        """The required inputs."""
        return self._session.get_inputs()

    @property
    def outputs_meta(self) -> Any:
        """The outputs."""
        return self._session.get_outputs()

    @property
    def overridable_initializers(self) -> Any:
        """The optional inputs."""
        return self._session.get_overridable_initializers()

    @property
    def model_meta(self) -> Any:
        """The model's metadata."""
        return self._session.get_modelmeta()

    @property
    def session_options(self) -> SessionOptions:
        """The session's options."""
        options: SessionOptions = self._session.get_session_options()
        return options

    def get_inputs(self) -> Any:
        """Return the required inputs."""
        return self._session.get_inputs()

    def get_overridable_initializers(self) -> Any:
        """Return the optional inputs."""
        return self._session.get_overridable_initializers()

    def get_providers(self) -> Any:
        """Return the execution providers, in order of preference."""
        return self._session.get_providers()

    def get_provider_options(self) -> Any:
        """Return the options of the execution providers."""
        return self._session.get_provider_options()

    def run(self, output_names: Sequence[str], input_feed: Mapping[str, Any], run_options: Any = None) -> Any:
        """Run the model once."""
        return self._session.run(output_names, input_feed, run_options)

    def run_with_ort_values(
        self, feeds: Mapping[str, OrtValue], output_names: Sequence[str], run_options: RunOptions | None = None
    ) -> OrtValueVector:
        """Run as :meth:`run` does, with values as inputs and outputs."""
        return OrtValueVector(self._session.run_with_ort_values(output_names, feeds, run_options))

    def run_with_ortvaluevector(self, *arguments: Any) -> None:
        """Run with values in order, and append the requested outputs to the last vector."""
        self._session.run_with_ortvaluevector(*arguments)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Run from the bound inputs to the bound outputs."""
        self._session.run_with_iobinding(iobinding, run_options)

    def end_profiling(self) -> Any:
        """Write the trace of the runs."""
        return self._session.end_profiling()

    @property
    def get_profiling_start_time_ns(self) -> Any:
        """The start time of recording; 0 if the session does not record."""
        return self._session.get_profiling_start_time_ns()
