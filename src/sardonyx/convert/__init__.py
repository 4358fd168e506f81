"""Conversion: a program of another framework in, a proved Model out; and a Model in, a file of another framework out.

The package is also a function, :func:`sardonyx.convert.conversion.convert`:
``sardonyx.convert(source, example_inputs, …)``.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import inspect

    from sardonyx.convert.conversion import Converted


class _Package(ModuleType):
    """A package that can be called, because ``sardonyx.convert`` names the package and its main function."""

    def __call__(self, *arguments: Any, **options: Any) -> Converted:
        """Return the model of a source, proved against the source; see :func:`.conversion.convert`."""
        from sardonyx.convert.conversion import convert

        return convert(*arguments, **options)

    @property
    def __signature__(self) -> inspect.Signature:
        import inspect

        from sardonyx.convert.conversion import convert

        return inspect.signature(convert)


sys.modules[__name__].__class__ = _Package
