"""Optional packages: an error that names the extra, before the first import of a missing package."""

from __future__ import annotations

import importlib.util

from sardonyx.errors import MissingDependencyError


def require(package: str, extra: str, purpose: str) -> None:
    """Refuse to go on without an optional package.

    Args:
        package: The name to import, or to import first.
        extra: The extra of Sardonyx that installs the package.
        purpose: The subject of the message, e.g. ``"encryption"``.

    Raises:
        MissingDependencyError: The package is not installed.
    """
    try:
        is_installed = importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # A parent package is missing.
        is_installed = False
    if not is_installed:
        raise MissingDependencyError(
            f"{purpose} needs the package {package}, which is not installed.",
            remedy=f"Install it: pip install 'sardonyx[{extra}]'",
        )
