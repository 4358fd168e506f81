"""Functions of users, called with an array or a data frame of the graph in place of their rows.

numpy makes no call of ``asarray``, ``zeros`` or ``c_`` over an array of the graph its own, and scikit-learn checks its
inputs by functions that require numbers: these are replaced while the function runs.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from sardonyx.base.replaced_attributes import replaced
from sardonyx.convert.tabular.array_functions import as_matrix, joined_along
from sardonyx.convert.tabular.arrays import Array, concatenated, lifted
from sardonyx.convert.tabular.frame_functions import cut, frame_of, joined_columns
from sardonyx.convert.tabular.frames import Frame, Rows, Series
from sardonyx.convert.tabular.methods import Table, apply, number_matrix
from sardonyx.errors import UnsupportedError

_LOCK = threading.RLock()
_CHECKS = ("check_array", "validate_data", "as_float_array")
"""Functions of scikit-learn that return their input as an array."""


def traced(function: Any, x: Any, options: Any, names: Sequence[Any] = ()) -> Any:
    """Return the result of a function of numpy over an array of the graph, or of pandas over a frame.

    Args:
        function: The function.
        x: The rows, an array or a table.
        options: Other arguments by name.
        names: Names of the columns, if the function was fitted on a data frame.
    """
    if not names:
        return _traced(function, number_matrix(x).copy(), options)
    try:
        return _traced(function, frame_of_rows(x, names), options)
    except UnsupportedError as refusal:
        if isinstance(x, Table):
            raise
        # A function of arrays may use what a frame of the graph lacks.
        try:
            return _traced(function, number_matrix(x).copy(), options)
        except UnsupportedError:
            raise refusal from None


def traced_method(estimator: Any, name: str, x: Any) -> Any:
    """Return the result of a method that a user's class defines, over an array or a table of the graph.

    The method is called on a copy of the estimator, whose arrays may be indexed by arrays of the graph, and whose parts
    are translated as estimators of their own.
    """
    copied = copy.copy(estimator)
    for key, value in vars(estimator).items():
        vars(copied)[key] = _of_graph(value)
    return traced(getattr(type(estimator), name).__get__(copied), x, {}, x.names)


TRACED = ("transform", "predict", "predict_proba", "decision_function", "score_samples")
"""Methods of users' classes that are called with arrays of the graph."""


class _Indexed(np.ndarray):
    """A fitted array that an array of the graph may index."""

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, Array):
            return key.constant(np.asarray(self), object if self.dtype.kind in "US" else self.dtype).rows(key)
        return super().__getitem__(key)


class _Part:
    """A fitted estimator inside of a user's, which is translated where it is called with an array of the graph."""

    def __init__(self, estimator: Any) -> None:
        self.__dict__["_estimator"] = estimator

    def __getattr__(self, name: str) -> Any:
        estimator = self.__dict__["_estimator"]
        member = getattr(estimator, name)
        return member if name not in TRACED else _translated(member, lambda x: apply(name, estimator, x))


def _translated(member: Any, translation: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a method that is translated where its rows are of the graph, without further arguments."""

    def call(*arguments: Any, **options: Any) -> Any:
        others = {f"argument {i}": value for i, value in enumerate(arguments)} | options
        x = others.pop("argument 0" if arguments else "X", None)
        value = x.table() if isinstance(x, Frame) else x
        if not isinstance(value, (Array, Table)):
            return member(*arguments, **options)
        if others:
            raise UnsupportedError(
                f"{member.__qualname__} with {', '.join(others)} has no translation",
                where=type(member.__self__).__name__,
                remedy="Call the method with the rows alone.",
            )
        return translation(value)

    return call


def _of_graph(value: Any) -> Any:
    """Return an attribute of an estimator for methods that are called with arrays of the graph."""
    if type(value) is np.ndarray:
        return value.view(_Indexed)
    if hasattr(value, "fit") and any(hasattr(value, name) for name in TRACED) and not isinstance(value, type):
        return _Part(value)
    if type(value) in (list, tuple):
        return type(value)(map(_of_graph, value))
    if type(value) is dict:
        return {key: _of_graph(one) for key, one in value.items()}
    return value


def frame_of_rows(x: Any, names: Sequence[Any]) -> Frame:
    """Return a table or matrix as a data frame."""
    columns: list[Any] = [x.select([i]) if isinstance(x, Table) else x.columns([i]) for i in range(len(names))]
    return Frame({name: column.reshape(-1) for name, column in zip(names, columns, strict=True)})


def _traced(function: Any, value: Any, options: Any) -> Any:
    inner = inspect.unwrap(function)
    code = getattr(inner, "__code__", None)
    line = f"{code.co_filename}:{code.co_firstlineno}" if code else str(function)
    remedy = "Use functions of numpy on whole arrays."
    try:
        with _functions_of_arrays(getattr(inner, "__globals__", {})), _functions_of_frames(isinstance(value, Frame)):
            result = function(value, **options)
    except UnsupportedError as error:
        raise UnsupportedError(error.problem, where=error.where or line, remedy=error.remedy or remedy) from error
    except Exception as error:  # The user's function may raise any error.
        problem = f"the function does not accept arrays of a graph: {type(error).__name__}: {error}"
        raise UnsupportedError(problem, where=line, remedy=remedy) from error
    if isinstance(result, Frame):
        return result.table()
    if isinstance(result, Series):
        return result.array
    if not isinstance(result, Array):
        raise UnsupportedError(f"the function returns {type(result).__name__}, expected an array", where=str(function))
    return result


@contextlib.contextmanager
def _functions_of_arrays(names: dict[str, Any]) -> Iterator[None]:
    """Replace functions of numpy, and those of scikit-learn among the names of a function's module."""
    functions: dict[str, Any] = {
        name: _conversion(getattr(np, name), copies)
        for name, copies in (("asarray", False), ("asanyarray", False), ("ascontiguousarray", False), ("array", True))
    }
    fills = {"zeros": 0, "ones": 1, "empty": 0}
    functions |= {name: _filling(getattr(np, name), fill) for name, fill in fills.items()}
    functions |= {"full": _full(np.full), "c_": _Columns(np.c_)}
    functions |= {name: _indexed(getattr(np, name)) for name in ("eye", "identity", "arange", "linspace")}
    functions |= {name: _over_list(getattr(np, name)) for name in _OVER_LISTS}
    checks = {
        name: _checked(value)
        for name, value in names.items()
        if name in _CHECKS and getattr(value, "__module__", "").startswith("sklearn.")
    }
    with _LOCK:
        originals = {name: getattr(np, name) for name in functions}
        original_checks = {name: names[name] for name in checks}
        try:
            for name, value in functions.items():
                setattr(np, name, value)
            names.update(checks)
            yield
        finally:
            for name, value in originals.items():
                setattr(np, name, value)
            names.update(original_checks)


@contextlib.contextmanager
def _functions_of_frames(is_needed: bool) -> Iterator[None]:
    """Replace functions of pandas by those of frames of the graph."""
    if not is_needed:
        yield
        return
    import pandas

    translations: dict[str, Any] = {
        "concat": _dispatched(pandas.concat, joined_columns),
        "cut": _dispatched(pandas.cut, cut),
        "DataFrame": _class_of(pandas.DataFrame, Frame, frame_of),
        "Series": _class_of(pandas.Series, Series, lambda data, index=None, name=None: Series(data, name)),
        "to_numeric": _dispatched(pandas.to_numeric, lambda x, **_: x.astype(np.float64)),
    }
    for name, method in (("isna", "isna"), ("isnull", "isna"), ("notna", "notna"), ("notnull", "notna")):
        translations[name] = _dispatched(getattr(pandas, name), lambda x, method=method: getattr(x, method)())
    with _LOCK, contextlib.ExitStack() as stack:
        for name, value in translations.items():
            stack.enter_context(replaced(pandas, name, value))
        yield


def _is_of_graph(value: Any, depth: int = 2) -> bool:
    if isinstance(value, (Array, Series, Frame, Rows)):
        return True
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return depth > 0 and any(_is_of_graph(one, depth - 1) for one in inner)


def _dispatched(original: Callable[..., Any], translation: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        is_of_graph = any(_is_of_graph(one) for one in (*arguments, *options.values()))
        return (translation if is_of_graph else original)(*arguments, **options)

    return call


def _class_of(original: type, traced_class: type, translation: Callable[..., Any]) -> type:
    """Return a class that makes objects of pandas or of the graph, and that both are instances of."""

    class Kind(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, (original, traced_class))

        def __call__(cls, *arguments: Any, **options: Any) -> Any:
            return _dispatched(original, translation)(*arguments, **options)

    return Kind(original.__name__, (), {})


def _conversion(original: Callable[..., Any], copies: bool) -> Callable[..., Any]:
    def convert(value: Any, dtype: Any = None, *rest: Any, **options: Any) -> Any:
        if isinstance(value, Series):
            value = value.array
        if isinstance(value, Frame):
            value = value.matrix()
        if isinstance(value, (list, tuple)) and any(isinstance(one, (Array, Series)) for one in value):
            value = [one.array if isinstance(one, Series) else one for one in value]
            value = joined_along(0, *value)
        if not isinstance(value, Array):
            return _of_graph(original(value, dtype, *rest, **options))
        result = value if dtype is None else value.cast(dtype)
        return result.copy() if copies or result is not value else result

    return convert


_OVER_LISTS = (
    "mean",
    "sum",
    "prod",
    "max",
    "min",
    "amax",
    "amin",
    "any",
    "all",
    "argmax",
    "argmin",
    "average",
    "std",
    "var",
)
"""Functions of numpy that accept a list of arrays as one array, and then find none that overrides them."""


def _over_list(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(value: Any, *rest: Any, **options: Any) -> Any:
        is_of_graph = isinstance(value, (list, tuple)) and any(isinstance(one, (Array, Series)) for one in value)
        return original(np.asarray(value) if is_of_graph else value, *rest, **options)

    return call


def _indexed(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose result an array of the graph may index."""

    def call(*arguments: Any, **options: Any) -> Any:
        return _of_graph(original(*arguments, **options))

    return call


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
        parts = tuple(
            part.array if isinstance(part, Series) else part.matrix() if isinstance(part, Frame) else part
            for part in parts
        )
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
