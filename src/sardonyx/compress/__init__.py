"""Compression: fewer bits per number, a Model in and a Model out.

The package is also a function, :func:`sardonyx.compress.search.compression.compress`:
``sardonyx.compress(model, data, …)``.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import inspect

    from sardonyx.compress.search import Compressed


class _Package(ModuleType):
    """A package that can be called, because ``sardonyx.compress`` names the package and its main function."""

    def __call__(self, *arguments: Any, **options: Any) -> Compressed:
        """Return the smallest and fastest model that keeps a budget; see :func:`.search.compression.compress`."""
        from sardonyx.compress.search import compress

        return compress(*arguments, **options)

    @property
    def __signature__(self) -> inspect.Signature:
        import inspect

        from sardonyx.compress.search import compress

        return inspect.signature(compress)


sys.modules[__name__].__class__ = _Package
