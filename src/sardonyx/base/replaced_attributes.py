"""Attributes of other packages' objects that have another value for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_MISSING = object()


@contextmanager
def replaced(target: Any, name: str, value: Any, *, is_new: bool = False) -> Iterator[None]:
    """Give an attribute another value within the context, for all threads.

    Args:
        target: A module, a class or an object.
        name: The attribute; an inherited one is inherited again afterwards.
        value: The value.
        is_new: True if the target may have no such attribute, e.g. a builtin function that a module calls.

    Raises:
        AttributeError: The target has no such attribute.
    """
    # The dictionary has descriptors as such: a static method stays one.
    own = getattr(target, "__dict__", {}).get(name, _MISSING)
    former = getattr(target, name) if own is _MISSING and not is_new else own
    setattr(target, name, value)
    try:
        yield
    finally:
        if own is not _MISSING:
            setattr(target, name, own)
        else:
            delattr(target, name)
            if not is_new and not hasattr(target, name):
                setattr(target, name, former)  # Attributes in slots are in no dictionary.
