"""The importer of Keras: by the capture of the backend at hand, or by a process of its own with the backend torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from sardonyx.convert.imported import Imported, Options, Way
from sardonyx.convert.keras.loading import imported_keras, load_file
from sardonyx.convert.keras.signature import Signature, signature_of
from sardonyx.errors import MissingDependencyError, OptionError

EXPORTERS = ("auto", "sardonyx", "torch.onnx")
"""Values of ``exporter`` for this framework."""


def ways(source: Any, options: Options) -> Sequence[Way]:
    """Return the ways to read a model of Keras.

    Args:
        source: A model or a layer, or the path of a file.
        options: See :class:`Options`; examples are necessary if the model declares no inputs.

    Raises:
        OptionError: The source or an option is not accepted.
        ModelFileError: The file cannot be read, or holds code.
        MissingDependencyError: No backend that can be captured is installed.
    """
    if options.exporter not in EXPORTERS:
        problem = f"unknown exporter '{options.exporter}' for Keras"
        raise OptionError(problem, where="exporter", remedy=f"Known are: {', '.join(EXPORTERS)}.")
    keras = imported_keras()
    if isinstance(source, (str, os.PathLike)):
        source = load_file(source, trust=options.trust)
    if not isinstance(source, keras.layers.Layer):
        raise OptionError(f"expected a model of Keras, got {type(source).__name__}", where="source")
    signature = signature_of(source, options)
    known = _ways_of_backend(keras.config.backend(), signature, options)
    return [way for way in known if options.exporter in ("auto", way.name)]


def _ways_of_backend(backend: str, signature: Signature, options: Options) -> list[Way]:
    if backend == "torch":
        from sardonyx.convert.keras import torch_backend

        def by(exporter: str) -> Way:
            return Way(exporter, lambda: torch_backend.read(signature, options, exporter))

        return [by("sardonyx"), by("torch.onnx")]
    known: list[Way] = []
    if backend == "jax":
        from sardonyx.convert.keras import jax_backend

        known.append(Way("sardonyx", lambda: jax_backend.read(signature, options)))

    def by_process() -> Imported:
        from sardonyx.convert.keras import other_process

        return other_process.read(signature, options)

    if find_spec("torch") is not None:
        known.append(Way("sardonyx", by_process))
    if not known:
        raise MissingDependencyError(
            f"a model of Keras on the backend {backend} is read through torch, which is not installed",
            remedy="pip install sardonyx[keras]",
        )
    return known
