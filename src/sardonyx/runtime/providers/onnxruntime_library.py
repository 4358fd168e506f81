"""ONNX Runtime by the C library in its package, without importing the package.

The import takes as long as small models take to be loaded and run, and holds Python's lock all the while; what the
library makes ready, it makes ready beside other threads. It is the CPU's alone, and passes arrays of numbers; sessions
on providers go through the package (:mod:`sardonyx.runtime.providers.onnxruntime`).
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import sys
import threading
import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.core.eval.run_context import RunContext
from sardonyx.errors import ExecutionError, ResourceError, UnsupportedError

NAMES = {"win32": "onnxruntime.dll", "darwin": "libonnxruntime*.dylib"}.get(sys.platform, "libonnxruntime.so*")

_VERSION = 14
"""Of the interface: later libraries have it too."""

_PLACES = {
    "GetErrorMessage": 2, "CreateEnv": 3, "CreateSession": 7, "CreateSessionFromArray": 8, "Run": 9,
    "CreateSessionOptions": 10, "SetSessionLogSeverityLevel": 22, "SetSessionGraphOptimizationLevel": 23,
    "SetIntraOpNumThreads": 24, "CreateRunOptions": 39, "RunOptionsSetTerminate": 46,
    "CreateTensorWithDataAsOrtValue": 49, "GetTensorMutableData": 51, "GetTensorElementType": 60,
    "GetDimensionsCount": 61, "GetDimensions": 62, "GetTensorTypeAndShape": 65, "CreateCpuMemoryInfo": 69,
    "ReleaseStatus": 93, "ReleaseSession": 95, "ReleaseValue": 96, "ReleaseRunOptions": 97,
    "ReleaseTensorTypeAndShapeInfo": 99, "ReleaseSessionOptions": 100, "AddSessionConfigEntry": 130,
}  # fmt: skip
"""Where functions stand in the table that is the interface (`OrtApi` in onnxruntime_c_api.h); they never move."""

_LONG = frozenset({"CreateEnv", "CreateSession", "CreateSessionFromArray", "Run"})
"""Functions that take long enough to let go of Python's lock, for which a thread that computes has to be waited for."""

_FATAL = 4
"""The severity from which it logs."""

_ARENA, _DEFAULT_MEMORY = 1, 0
_LEVELS = {"none": 0, "basic": 1, "all": 99}


def library() -> Path | None:
    """The library in the installed package, which is not imported; None where there is none to be opened here."""
    if _is_of_another_process():
        return None
    spec = importlib.util.find_spec("onnxruntime")
    folders = () if spec is None else spec.submodule_search_locations or ()
    found = [path for folder in folders for path in sorted((Path(folder) / "capi").glob(NAMES))]
    return found[0] if found else None


class Interface:
    """The functions of the library, by name, and what all its sessions share.

    Args:
        path: The library.

    Raises:
        UnsupportedError: It is no such library, or an older one.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._base = ctypes.CDLL(str(path)).OrtGetApiBase
        except (OSError, AttributeError) as error:
            raise UnsupportedError(f"ONNX Runtime's library is not opened: {error}", where=str(path)) from error
        self._base.restype = POINTER(ctypes.CFUNCTYPE(c_void_p, c_uint32))
        table = self._base()[0](_VERSION)
        if not table:
            raise UnsupportedError("ONNX Runtime is too old.", where=str(path))
        addresses = ctypes.cast(table, POINTER(c_void_p))
        self._functions = {name: self._function(name, addresses[place]) for name, place in _PLACES.items()}
        self.environment, self.memory = c_void_p(), c_void_p()
        self("CreateEnv", c_int(_FATAL), b"sardonyx", byref(self.environment))
        self("CreateCpuMemoryInfo", c_int(_ARENA), c_int(_DEFAULT_MEMORY), byref(self.memory))

    @staticmethod
    def _function(name: str, address: Any) -> Any:
        made = ctypes.CFUNCTYPE if name in _LONG else ctypes.PYFUNCTYPE
        result = c_char_p if name == "GetErrorMessage" else None if name.startswith("Release") else c_void_p
        return made(result)(address)

    def __call__(self, name: str, *arguments: Any) -> None:
        """Call a function that returns a status.

        Raises:
            UnsupportedError: It says that something is wrong.
        """
        status = self._functions[name](*arguments)
        if status:
            message = self._functions["GetErrorMessage"](c_void_p(status)).decode(errors="replace")
            self._functions["ReleaseStatus"](c_void_p(status))
            raise UnsupportedError(message)

    def release(self, name: str, made: c_void_p) -> None:
        """Free what was made; ``name`` is its type."""
        self._functions[f"Release{name}"](made)


_opening = threading.Lock()
_opened_by: int | None = None
"""The process that opened the library: one that is forked from it has no threads of its sessions, and perhaps a lock
that nobody will let go of."""


def _is_of_another_process() -> bool:
    return _opened_by not in (None, os.getpid())


def interface(path: Path) -> Interface:
    """The library, opened once in a process.

    Raises:
        UnsupportedError: It is no such library, or an older one; or it was opened before this process was forked.
    """
    global _opened_by
    if _is_of_another_process():
        raise UnsupportedError("ONNX Runtime's library was opened before this process was forked.", where=str(path))
    with _opening:
        _opened_by = os.getpid()
        return _interface(path)


@functools.cache
def _interface(path: Path) -> Interface:
    return Interface(path)


class LibraryRunner:
    """A model as a session of the library; it runs from any thread.

    Args:
        path: The library.
        model: The bytes of the model, or the path of its file.
        inputs: The names of its inputs, tensors of numbers, in the order in which they will be given.
        outputs: The names of what is asked for, tensors of numbers.
        threads: How many threads compute; None for what the library takes.
        optimization: How much it rewrites the model.

    Raises:
        UnsupportedError: ONNX Runtime refuses it, or the library is not to be used.
    """

    def __init__(
        self,
        path: Path,
        model: bytes | bytearray | str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        threads: int | None = None,
        optimization: str = "none",
    ) -> None:
        self._call = call = interface(path)
        self._inputs, self._outputs = _texts(inputs), _texts(outputs)
        self._session = c_void_p()
        with ExitStack() as stack:
            options = c_void_p()
            call("CreateSessionOptions", byref(options))
            stack.callback(call.release, "SessionOptions", options)
            call("SetSessionLogSeverityLevel", options, c_int(_FATAL))
            call("SetSessionGraphOptimizationLevel", options, c_int(_LEVELS[optimization]))
            # Waiting workers would take the processors from compiling.
            call("AddSessionConfigEntry", options, b"session.intra_op.allow_spinning", b"0")
            if threads is not None:
                call("SetIntraOpNumThreads", options, c_int(threads))
            if isinstance(model, str):
                call("CreateSession", call.environment, _path(model), options, byref(self._session))
            else:
                contents = model if isinstance(model, bytes) else (c_char * len(model)).from_buffer(model)
                size = c_size_t(len(model))
                call("CreateSessionFromArray", call.environment, contents, size, options, byref(self._session))
        # Not when the process ends: a thread may be within it.
        weakref.finalize(self, call.release, "Session", self._session).atexit = False

    def run(self, values: Sequence[np.ndarray], context: RunContext) -> list[np.ndarray]:
        """Run once.

        Args:
            values: Arrays in the order of the inputs.
            context: The limits of this run.

        Returns:
            Arrays in the order of the outputs.

        Raises:
            ExecutionError: ONNX Runtime says that something is wrong.
            ResourceError: The time is over, or the run was terminated.
        """
        call = self._call
        arrays = [np.asarray(value, order="C") for value in values]
        given = (c_void_p * len(arrays))()
        found = (c_void_p * len(self._outputs))()
        options = c_void_p()
        ended = threading.Event()

        def end() -> None:
            ended.set()
            call("RunOptionsSetTerminate", options)

        with ExitStack() as stack:
            stack.callback(self._free, (given, found))
            try:
                for number, array in enumerate(arrays):
                    given[number] = self._value(array)
                if context.limited:
                    call("CreateRunOptions", byref(options))
                    stack.callback(call.release, "RunOptions", options)
                    stack.enter_context(context.on_end(end))
                counts = c_size_t(len(given)), c_size_t(len(found))
                call("Run", self._session, options, self._inputs, given, counts[0], self._outputs, counts[1], found)
                return [self._array(c_void_p(value)) for value in found]
            except UnsupportedError as error:
                context.check_time()
                if ended.is_set():
                    raise ResourceError("the run was ended.") from error
                raise ExecutionError(f"ONNX Runtime: {error}") from error

    def _value(self, array: np.ndarray) -> int | None:
        """A tensor over the memory of an array."""
        made = c_void_p()
        self._call(
            "CreateTensorWithDataAsOrtValue", self._call.memory, c_void_p(array.ctypes.data), c_size_t(array.nbytes),
            (c_int64 * array.ndim)(*array.shape), c_size_t(array.ndim),
            c_int(ir.DataType.from_numpy(array.dtype).value), byref(made),
        )  # fmt: skip
        return made.value

    def _array(self, value: c_void_p) -> np.ndarray:
        """What a tensor holds, as an array of its own."""
        call = self._call
        with ExitStack() as stack:
            told, kind, rank, start = c_void_p(), c_int(), c_size_t(), c_void_p()
            call("GetTensorTypeAndShape", value, byref(told))
            stack.callback(call.release, "TensorTypeAndShapeInfo", told)
            call("GetTensorElementType", told, byref(kind))
            call("GetDimensionsCount", told, byref(rank))
            shape = (c_int64 * rank.value)()
            call("GetDimensions", told, shape, rank)
        array = np.empty(tuple(shape), ir.DataType(kind.value).numpy())
        if array.size:
            call("GetTensorMutableData", value, byref(start))
            ctypes.memmove(array.ctypes.data, start, array.nbytes)
        return array

    def _free(self, tensors: Sequence[Any]) -> None:
        for each in tensors:
            for value in each:
                if value:
                    self._call.release("Value", c_void_p(value))


def _texts(names: Sequence[str]) -> Any:
    return (c_char_p * len(names))(*[name.encode() for name in names])


def _path(name: str) -> Any:
    return ctypes.c_wchar_p(name) if sys.platform == "win32" else os.fsencode(name)
