"""Registry of ATen operators: each is one Python function over Core.

Arguments are those of the operator's schema: tensors of Core, sizes (``int`` or ``Dim``), numbers, lists, element
types of torch. A function that a pure ONNX operator equals calls this operator (:mod:`sardonyx.ops.nodes`), so that the
model has its node.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from sardonyx.core.eval.tensor import Tensor
from sardonyx.core.ir import types as t

Translation = Callable[..., Any]
F = TypeVar("F", bound=Translation)

_translations: dict[str, Translation] = {}
_of_complex: dict[str, Translation] = {}
_loaded = False

IGNORED = frozenset(("layout", "device", "pin_memory", "memory_format", "non_blocking", "generator", "copy"))
"""Parameters of schemas that change no value."""


@dataclass(frozen=True)
class Site:
    """The call that is being translated.

    Attributes:
        result: The example result of torch: a fake tensor, a size, or a sequence of these.
        name: Unique name of the call.
    """

    result: Any
    name: str


site: ContextVar[Site] = ContextVar("sardonyx_torch_site")
"""The call that is being translated."""


def aten(*names: str) -> Callable[[F], F]:
    """Register the translation of operators, by names as in ``aten.add.Tensor``; ``aten.`` may be left out."""

    def register(function: F) -> F:
        for name in names:
            full = name if name.count(".") > 1 else f"aten.{name}"
            assert full not in _translations, f"{full} is registered twice"
            _translations[full] = function
        return function

    return register


def of_complex(*names: str) -> Callable[[F], F]:
    """Register the translation of operators with an operand of complex numbers, where it is another."""

    def register(function: F) -> F:
        for name in names:
            full = f"aten.{name}"
            assert full not in _of_complex, f"{full} is registered twice for complex numbers"
            _of_complex[full] = function
        return function

    return register


def _dispatching(function: Translation, special: Translation) -> Translation:
    """Return a translation by the element types of its operands."""

    @functools.wraps(function)
    def translation(*args: Any, **kwargs: Any) -> Any:
        is_complex = any(isinstance(x, Tensor) and t.kind(x.dtype) == "complex" for x in args)
        return (special if is_complex else function)(*args, **kwargs)

    return translation


def translation_of(name: str) -> Translation | None:
    """Return the translation of an operator, ``aten.add.Tensor``; None if there is none."""
    global _loaded
    if not _loaded:
        package = importlib.import_module(__package__ or "")
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
        for other, special in _of_complex.items():
            if other in _translations:
                _translations[other] = _dispatching(_translations[other], special)
        _loaded = True
    return _translations.get(name)
