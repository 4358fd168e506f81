"""Functions of users, called with an array of the graph in place of their rows.

numpy makes no call of ``asarray``, ``zeros`` or ``c_`` over an array of the graph its own, and scikit-learn checks its
inputs by functions that require numbers: these are replaced while the function runs.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from sardonyx.convert.tabular.array_functions import as_matrix, joined_along
from sardonyx.convert.tabular.arrays import Array, concatenated, lifted
from sardonyx.convert.tabular.methods import number_matrix
from sardonyx.errors import UnsupportedError

_LOCK = threading.RLock()
_CHECKS = ("check_array", "validate_data", "as_float_array")
"""Functions of scikit-learn that return their input as an array."""


def traced(function: Any, x: Any, options: Any) -> Array:
    """Return the result of a function of numpy over an array of the graph."""
    value = number_matrix(x).copy()
    inner = inspect.unwrap(function)
    code = getattr(inner, "__code__", None)
    line = f"{code.co_filename}:{code.co_firstlineno}" if code else str(function)
    remedy = "Use functions of numpy on whole arrays."
    try:
        with _functions_of_arrays(getattr(inner, "__globals__", {})):
            result = function(value, **options)
    except UnsupportedError as error:
        raise UnsupportedError(error.problem, where=error.where or line, remedy=error.remedy or remedy) from error
    except Exception as error:  # The user's function may raise any error.
        problem = f"the function does not accept arrays of a graph: {type(error).__name__}: {error}"
        raise UnsupportedError(problem, where=line, remedy=remedy) from error
    if not isinstance(result, Array):
        raise UnsupportedError(f"the function returns {type(result).__name__}, expected an array", where=str(function))
    return result


@contextlib.contextmanager
def _functions_of_arrays(names: dict[str, Any]) -> Iterator[None]:
    """Replace functions of numpy, and those of scikit-learn among the names of a function's module."""
    replaced: dict[str, Any] = {
        name: _conversion(getattr(np, name), copies)
        for name, copies in (("asarray", False), ("asanyarray", False), ("ascontiguousarray", False), ("array", True))
    }
    fills = {"zeros": 0, "ones": 1, "empty": 0}
    replaced |= {name: _filling(getattr(np, name), fill) for name, fill in fills.items()}
    replaced |= {"full": _full(np.full), "c_": _Columns(np.c_)}
    checks = {
        name: _checked(value)
        for name, value in names.items()
        if name in _CHECKS and getattr(value, "__module__", "").startswith("sklearn.")
    }
    with _LOCK:
        originals = {name: getattr(np, name) for name in replaced}
        original_checks = {name: names[name] for name in checks}
        try:
            for name, value in replaced.items():
                setattr(np, name, value)
            names.update(checks)
            yield
        finally:
            for name, value in originals.items():
                setattr(np, name, value)
            names.update(original_checks)


def _conversion(original: Callable[..., Any], copies: bool) -> Callable[..., Any]:
    def convert(value: Any, dtype: Any = None, *rest: Any, **options: Any) -> Any:
        if isinstance(value, (list, tuple)) and any(isinstance(one, Array) for one in value):
            value = joined_along(0, *value)
        if not isinstance(value, Array):
            return original(value, dtype, *rest, **options)
        result = value if dtype is None else value.cast(dtype)
        return result.copy() if copies or result is not value else result

    return convert


def _expanded(shape: Any, fill: Any, dtype: Any) -> Any:
    """Return an array of a shape with sizes of the graph; None if all are numbers."""
    sizes = list(shape) if isinstance(shape, (tuple, list)) else [shape]
    first = next((size for size in sizes if isinstance(size, Array)), None)
    if first is None:
        return None
    parts = [lifted(first.builder, size, np.dtype(np.int64)).node("Unsqueeze", [0]) for size in sizes]
    value = lifted(first.builder, fill, np.dtype(float if dtype is None else dtype))
    return value.node("Expand", concatenated(parts)).sized(sizes)


def _filling(original: Callable[..., Any], fill: int) -> Callable[..., Any]:
    def call(shape: Any, dtype: Any = None, *rest: Any, **options: Any) -> Any:
        result = _expanded(shape, fill, dtype)
        return original(shape, float if dtype is None else dtype, *rest, **options) if result is None else result

    return call


def _full(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(shape: Any, fill_value: Any, dtype: Any = None, *rest: Any, **options: Any) -> Any:
        kind = np.asarray(fill_value).dtype if dtype is None and not isinstance(fill_value, Array) else dtype
        result = _expanded(shape, fill_value, kind)
        return original(shape, fill_value, dtype, *rest, **options) if result is None else result

    return call


class _Columns:
    """``np.c_`` over arrays of the graph too."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __getitem__(self, key: Any) -> Any:
        parts = key if isinstance(key, tuple) else (key,)
        if not any(isinstance(part, Array) for part in parts):
            return self._original[key]
        return concatenated([as_matrix(part) for part in parts], axis=-1)


def _checked(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a check of scikit-learn that accepts an array of the graph as it is."""

    def check(*arguments: Any, **options: Any) -> Any:
        candidates = [*arguments, options.get("X"), options.get("array")]
        array = next((one for one in candidates if isinstance(one, Array)), None)
        if array is None:
            return original(*arguments, **options)
        dtype = options.get("dtype", "numeric")
        kinds = dtype if isinstance(dtype, (list, tuple)) else [] if dtype in (None, "numeric") else [dtype]
        kinds = [np.dtype(kind) for kind in kinds]
        return array if not kinds or array.dtype in kinds else array.astype(kinds[0])

    return check
