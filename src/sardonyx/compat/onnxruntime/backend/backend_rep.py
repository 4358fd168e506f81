"""``OnnxRuntimeBackendRep``: a session as a prepared model of ONNX's backend interface."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from onnx.backend.base import BackendRep

from sardonyx.compat.onnxruntime.options import RunOptions
from sardonyx.compat.onnxruntime.session import InferenceSession

_OPTIONS = frozenset({"log_severity_level", "log_verbosity_level", "logid", "only_execute_path_to_fetches"})


class OnnxRuntimeBackendRep(BackendRep):
    """A prepared model.

    Args:
        session: The session.
    """

    def __init__(self, session: InferenceSession) -> None:
        self._session = session

    def run(self, inputs: Any, **kwargs: Any) -> Any:
        """Run once.

        Args:
            inputs: A list with a value per input, or the value of the only input.
            kwargs: Options of the run; unknown names are ignored.

        Returns:
            The outputs, in order.

        Raises:
            RuntimeError: Forbidden option, or one value for several inputs.
        """
        options = RunOptions()
        set_options(options, kwargs, _OPTIONS)
        names = [info.name for info in self._session.get_inputs()]
        values = inputs if isinstance(inputs, list) else [inputs]
        if not isinstance(inputs, list) and len(names) != 1:
            raise RuntimeError(f"Model expect {len(names)} inputs")
        feeds = {
            name: np.asarray(value) if isinstance(value, np.generic) else value
            for name, value in zip(names, values, strict=True)
        }
        return self._session.run(None, feeds, options)


def set_options(options: Any, values: Mapping[str, Any], permitted: Collection[str]) -> None:
    """Set permitted attributes of options.

    Raises:
        RuntimeError: Forbidden attribute.
    """
    for name, value in values.items():
        if name in permitted:
            setattr(options, name, value)
        elif hasattr(options, name):
            raise RuntimeError(
                f"{type(options).__name__} attribute '{name}' is not permitted via the backend API. "
                f"Allowed attributes: {', '.join(sorted(permitted))}"
            )
