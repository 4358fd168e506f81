"""The package that reads and writes safetensors, imported where used."""

from __future__ import annotations

from typing import Any

from sardonyx.errors import MissingDependencyError


def safetensors_module() -> Any:
    """Return ``safetensors.numpy``.

    Raises:
        MissingDependencyError: safetensors is not installed.
    """
    try:
        import safetensors.numpy
    except ImportError as error:
        raise MissingDependencyError(
            "checkpoints and adapters require safetensors.", remedy='Install it: pip install "sardonyx[train]".'
        ) from error
    return safetensors.numpy
