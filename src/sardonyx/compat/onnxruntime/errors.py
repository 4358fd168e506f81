"""ONNX Runtime's exceptions, and the translation of Sardonyx's errors."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import ClassVar

from sardonyx.errors import (
    ExecutionError,
    ExternalDataError,
    FeedError,
    InvalidModelError,
    ModelFileError,
    OptionError,
    ResourceError,
    SardonyxError,
    ShapeError,
    TypeMismatchError,
    UnsupportedError,
)


class _Status(SardonyxError):
    """An error with the number and name at the start of ONNX Runtime's messages."""

    code: ClassVar[int]
    status: ClassVar[str]

    def __init__(self, message: str = "") -> None:
        super().__init__(f"[ONNXRuntimeError] : {self.code} : {self.status} : {message}")


class Fail(_Status):
    """Failure without a class of its own."""

    code, status = 1, "FAIL"


class InvalidArgument(_Status):
    """Invalid feed, option or model."""

    code, status = 2, "INVALID_ARGUMENT"


class NoSuchFile(_Status):
    """File not found."""

    code, status = 3, "NO_SUCHFILE"


class NoModel(_Status):
    """No model."""

    code, status = 4, "NO_MODEL"


class EngineError(_Status):
    """Failure of an engine."""

    code, status = 5, "ENGINE_ERROR"


class RuntimeException(_Status):
    """Undefined result of a node for its inputs."""

    code, status = 6, "RUNTIME_EXCEPTION"


class InvalidProtobuf(_Status):
    """Malformed model file."""

    code, status = 7, "INVALID_PROTOBUF"


class ModelLoaded(_Status):
    """The session already has a model."""

    code, status = 8, "MODEL_LOADED"


class NotImplemented(_Status):
    """Missing implementation."""

    code, status = 9, "NOT_IMPLEMENTED"


class InvalidGraph(_Status):
    """The model breaks the standard, or uses an unknown operator."""

    code, status = 10, "INVALID_GRAPH"


class EPFail(_Status):
    """Failure of an execution provider."""

    code, status = 11, "EP_FAIL"


class ModelLoadCanceled(_Status):
    """Loading was cancelled."""

    code, status = 12, "MODEL_LOAD_CANCELED"


class ModelRequiresCompilation(_Status):
    """The model must be compiled first."""

    code, status = 13, "MODEL_REQUIRES_COMPILATION"


class NotFound(_Status):
    """Missing entry."""

    code, status = 14, "NOT_FOUND"


class DeviceReset(_Status):
    """Reset of a device."""

    code, status = 15, "DEVICE_RESET"


_NotImplemented = NotImplemented
"""Alias that does not shadow Python's built-in name."""

EXCEPTIONS: tuple[type[_Status], ...] = (
    Fail, InvalidArgument, NoSuchFile, NoModel, EngineError, RuntimeException, InvalidProtobuf, ModelLoaded,
    NotImplemented, InvalidGraph, EPFail, ModelLoadCanceled, ModelRequiresCompilation, NotFound, DeviceReset,
)  # fmt: skip
"""All exceptions, by number."""


_NOT_ACCEPTED = re.compile(r"([\w.]+) does not accept (.+) as its input '([^']+)'")
_DIFFERENT = re.compile(r"([\w.]+) expects inputs '[^']+' and '[^']+' of one type, got (.+) and (.+?)\.")


def _type_error(error: TypeMismatchError) -> _Status:
    """Return ONNX Runtime's exception for a wrong type, with the words that programs search in messages."""
    if match := _DIFFERENT.search(error.problem):
        types = f"bound to different types ({match[2]} and {match[3]})"
        return Fail(f"Type Error: Type parameter of Optype ({match[1]}) {types}. {error}")
    words = ""
    if match := _NOT_ACCEPTED.search(error.problem):
        words = (
            f"Type Error: Type '{match[2]}' of input parameter ({_tensor_of(error, match[2]) or match[3]}) of operator "
        )
        words += f"({match[1]}) is invalid. "
    return InvalidGraph(f"This is an invalid model. {words}{error}")


def _tensor_of(error: TypeMismatchError, text: str) -> str:
    """Return the name of the node's first input of a type, which ONNX Runtime's message has; empty if unknown."""
    inputs = (error.where or "").partition(", given ")[2]
    kind = re.escape(text.removeprefix("tensor(").removesuffix(")"))
    match = re.search(rf"(?:^|, )([^,:]+): {kind}\[", inputs)
    return match[1] if match else ""


@contextlib.contextmanager
def translate_load_errors() -> Iterator[None]:
    """Translate errors of models and options to ONNX Runtime's exceptions."""
    try:
        yield
    except _Status:
        raise
    except ExternalDataError as error:
        is_path = "does not exist" not in error.problem
        prefix = "External data path validation failed: " if is_path else ""
        raise InvalidProtobuf(f"Load model failed: {prefix}{error}") from error
    except ModelFileError as error:
        missing = isinstance(error.__cause__, FileNotFoundError) or "no such file" in error.problem.lower()
        raise (NoSuchFile if missing else InvalidProtobuf)(f"Load model failed: {error}") from error
    except TypeMismatchError as error:
        raise _type_error(error) from error
    except InvalidModelError as error:
        raise InvalidGraph(f"This is an invalid model. {error}") from error
    except ShapeError as error:
        raise InvalidGraph(f"This is an invalid model. {error}") from error
    except OptionError as error:
        raise InvalidArgument(str(error)) from error
    except UnsupportedError as error:
        raise _NotImplemented(str(error)) from error
    except SardonyxError as error:
        raise Fail(str(error)) from error


@contextlib.contextmanager
def translate_run_errors() -> Iterator[None]:
    """Translate errors of a run to ONNX Runtime's exceptions."""
    try:
        yield
    except _Status:
        raise
    except (FeedError, ShapeError, OptionError) as error:
        raise InvalidArgument(str(error)) from error
    except ResourceError as error:
        is_terminated = "terminated" in error.problem
        raise Fail("Exiting due to terminate flag being set to true." if is_terminated else str(error)) from error
    except ExecutionError as error:
        kind = InvalidArgument if "out of range" in error.problem or "index" in error.problem else RuntimeException
        raise kind(f"Non-zero status code returned while running the model. {error}") from error
    except SardonyxError as error:
        raise Fail(str(error)) from error
