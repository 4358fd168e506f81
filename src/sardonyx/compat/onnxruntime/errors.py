"""ONNX Runtime's exceptions, and which of them stands for which error of ours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import ClassVar

from sardonyx.errors import (
    ExecutionError,
    FeedError,
    InvalidModelError,
    ModelFileError,
    OptionError,
    ResourceError,
    SardonyxError,
    ShapeError,
    UnsupportedError,
)


class _Status(SardonyxError):
    """An error with the number and the name that ONNX Runtime's messages begin with."""

    code: ClassVar[int]
    status: ClassVar[str]

    def __init__(self, message: str = "") -> None:
        super().__init__(f"[ONNXRuntimeError] : {self.code} : {self.status} : {message}")


class Fail(_Status):
    """A failure without a class of its own."""

    code, status = 1, "FAIL"


class InvalidArgument(_Status):
    """A feed, an option or a model is not what is needed."""

    code, status = 2, "INVALID_ARGUMENT"


class NoSuchFile(_Status):
    """There is no such file."""

    code, status = 3, "NO_SUCHFILE"


class NoModel(_Status):
    """There is no model."""

    code, status = 4, "NO_MODEL"


class EngineError(_Status):
    """An engine failed."""

    code, status = 5, "ENGINE_ERROR"


class RuntimeException(_Status):
    """A node has no result for its inputs."""

    code, status = 6, "RUNTIME_EXCEPTION"


class InvalidProtobuf(_Status):
    """What was given is no model's file."""

    code, status = 7, "INVALID_PROTOBUF"


class ModelLoaded(_Status):
    """The session has a model already."""

    code, status = 8, "MODEL_LOADED"


class NotImplemented(_Status):
    """Something has no implementation here."""

    code, status = 9, "NOT_IMPLEMENTED"


class InvalidGraph(_Status):
    """The model breaks the standard, or an operator of it does not exist."""

    code, status = 10, "INVALID_GRAPH"


class EPFail(_Status):
    """An execution provider failed."""

    code, status = 11, "EP_FAIL"


class ModelLoadCanceled(_Status):
    """Loading was given up."""

    code, status = 12, "MODEL_LOAD_CANCELED"


class ModelRequiresCompilation(_Status):
    """The model must be compiled first."""

    code, status = 13, "MODEL_REQUIRES_COMPILATION"


class NotFound(_Status):
    """Something was not found."""

    code, status = 14, "NOT_FOUND"


class DeviceReset(_Status):
    """A device was reset."""

    code, status = 15, "DEVICE_RESET"


_NotImplemented = NotImplemented
"""By a name that is not Python's own."""

EXCEPTIONS: tuple[type[_Status], ...] = (
    Fail, InvalidArgument, NoSuchFile, NoModel, EngineError, RuntimeException, InvalidProtobuf, ModelLoaded,
    NotImplemented, InvalidGraph, EPFail, ModelLoadCanceled, ModelRequiresCompilation, NotFound, DeviceReset,
)  # fmt: skip
"""All of them, by number."""


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Raise ONNX Runtime's exceptions for what is wrong with a model or an option."""
    try:
        yield
    except _Status:
        raise
    except ModelFileError as error:
        missing = isinstance(error.__cause__, FileNotFoundError) or "no such file" in error.problem.lower()
        raise (NoSuchFile if missing else InvalidProtobuf)(f"Load model failed: {error}") from error
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
def running() -> Iterator[None]:
    """Raise ONNX Runtime's exceptions for what is wrong with a run."""
    try:
        yield
    except _Status:
        raise
    except (FeedError, ShapeError, OptionError) as error:
        raise InvalidArgument(str(error)) from error
    except ResourceError as error:
        ended = "Exiting due to terminate flag being set to true." if "terminated" in error.problem else str(error)
        raise Fail(ended) from error
    except ExecutionError as error:
        of = InvalidArgument if "out of range" in error.problem or "index" in error.problem else RuntimeException
        raise of(f"Non-zero status code returned while running the model. {error}") from error
    except SardonyxError as error:
        raise Fail(str(error)) from error
