"""What answers while a model is compiled for the first time: ONNX Runtime in numpy's place, where that is sooner.

It answers only where its package is installed, and where nobody could tell but by rounding (see
:mod:`sardonyx.runtime.warmup.ort_equivalence`). Calls that ask for more than the outputs, arrays that are not
as they are declared, and calls that it fails on are numpy's, which says what is wrong as it always does.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sardonyx.base import background_threads
from sardonyx.base.cpu_count import thread_count
from sardonyx.base.gc_pause import collector_paused
from sardonyx.core.eval.run_context import RunContext
from sardonyx.core.ir.types import TensorType
from sardonyx.errors import ExecutionError, SardonyxError, UnsupportedError
from sardonyx.ops.graph import declared_type
from sardonyx.runtime.compiled.program_cache import ModelSource, is_standard
from sardonyx.runtime.options import SessionOptions
from sardonyx.runtime.providers.onnxruntime import OnnxRuntimeProvider, OnnxRuntimeRunner, serialized
from sardonyx.runtime.providers.onnxruntime_library import LibraryRunner, interface, library
from sardonyx.runtime.providers.protocol import Runner, Settings
from sardonyx.runtime.warmup.ort_equivalence import Meaning, meaning, watching
from sardonyx.runtime.warmup.warmup_cost import NAME, Work, work

_LIKELY_BYTES = 1 << 17
"""Of a model that is rarely numpy's: smaller ones are read first."""

_AT_ONCE_BYTES = 1 << 25
"""Of weights that ONNX Runtime copies in a moment."""


class Interim:
    """A model on ONNX Runtime, loaded behind the making of the session or by the first call, where it is worth it.

    Args:
        source: The model, as the session was given it.
        options: What is asked of the session.
    """

    def __init__(self, source: ModelSource, options: SessionOptions) -> None:
        self._source = source
        self._options = options
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._loading: Future[Runner | None] | None = None
        graph = source.model.graph
        self._outputs = [str(value.name) for value in graph.outputs]
        types = {str(value.name): declared_type(value) for value in graph.inputs if not value.is_initializer()}
        self._declared = {name: declared for name, declared in types.items() if isinstance(declared, TensorType)}

    def begin(self) -> None:
        """Load the model in another thread, if that is worth it whatever sizes it is called with."""
        least = work(self._source.model, {name: _least(declared) for name, declared in self._declared.items()})
        # What takes longer is left to a call: nobody may make one.
        if least.held <= _AT_ONCE_BYTES and thread_count(None) > 1:
            self._decide(least, lambda load: background_threads.start("sardonyx-interim", load))

    @property
    def answers(self) -> bool:
        """Whether it has the model, so that calls go to it."""
        loading = self._loading
        if loading is None or not loading.done() or self._is_of_another_process():
            return False
        return not loading.exception() and loading.result() is not None

    def _is_of_another_process(self) -> bool:
        """Whether this one was forked since: it has no threads of what its parent loaded."""
        return self._process != os.getpid()

    def run(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], context: RunContext
    ) -> list[Any] | None:
        """Run once.

        Args:
            output_names: What is asked for; None for all outputs.
            feeds: Arrays by input name.
            context: The limits of this run.

        Returns:
            What is asked for; None where numpy is to compute it.

        Raises:
            ResourceError: The time is over, or the run was terminated.
        """
        if context.recorder is not None or self._is_of_another_process() or not self._takes(output_names, feeds):
            return None
        runner = self._loaded(feeds)
        if runner is None:
            return None
        try:
            found = runner.run([feeds[name] for name in self._declared], context)
        except ExecutionError as error:
            self._options.log(logging.INFO, "numpy computes a call: %s", error)
            return None
        count = len(self._outputs)
        if not all(np.isfinite(each) for each in found[count:]):
            # Of such inputs there may be more: each would be computed twice.
            self._refused(UnsupportedError("it passes over numbers that are not finite, where some have to be"))
            self._loading = _nothing()
            return None
        if output_names is None:
            return list(found[:count])
        by_name = dict(zip(self._outputs, found, strict=False))
        return [by_name[name] for name in output_names]

    def _takes(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> bool:
        """Whether a call is a plain one: outputs alone, of arrays that are what is declared."""
        if output_names is not None and not set(output_names) <= set(self._outputs):
            return False
        sizes: dict[str, int] = {}
        return feeds.keys() == self._declared.keys() and all(
            _is_declared(feeds[name], declared, sizes) for name, declared in self._declared.items()
        )

    def _loaded(self, feeds: Mapping[str, np.ndarray]) -> Runner | None:
        """The model, if it is there or worth loading for such a call."""
        with self._lock:
            if self._loading is None:
                self._decide(work(self._source.model, {name: fed.shape for name, fed in feeds.items()}), _at_once)
            loading = self._loading
            if loading is None:
                loading = self._loading = _nothing()
        return loading.result()

    def _decide(self, found: Work, begin: Callable[[Callable[[], None]], object]) -> None:
        """Begin to load the model, if that is worth it and it may be."""
        if not found.is_worth_loading:
            return
        loading: Future[Runner | None] = Future()
        self._loading = loading
        try:
            meant = meaning(self._source.model)
            if meant.other:
                raise UnsupportedError(meant.other)
            # All that holds Python's lock is done here: a thread that wants it while another computes has to wait.
            load = self._loader(meant, found.optimization)
        except (SardonyxError, OSError) as error:
            self._refused(error)
            loading.set_result(None)
            return

        def behind() -> None:
            try:
                loading.set_result(load())
            except SardonyxError as error:
                self._refused(error)
                loading.set_result(None)
            except Exception as error:  # Calls that wait for it raise it.
                loading.set_exception(error)
            except BaseException:  # The end of the process, or Ctrl-C.
                loading.set_result(None)
                raise

        begin(behind)

    def _loader(self, meant: Meaning, optimization: Literal["none", "all"]) -> Callable[[], Runner]:
        """What loads the model, with an output more for each value that is watched."""
        names, outputs, threads = list(self._declared), self._outputs, self._options.threads
        given = self._source.plain()
        if given is None:
            given = serialized(self._source.model)
        file: bytes | bytearray | str = given
        if meant.watched:
            file, sums = watching(given, meant.watched)
            outputs = [*outputs, *sums]
        path = None if NAME in sys.modules else library()
        if path is not None:
            return lambda: LibraryRunner(path, file, names, outputs, threads, optimization)

        def by_package() -> Runner:
            with collector_paused():
                provider = OnnxRuntimeProvider(Settings(threads=threads, optimization=optimization))
                return OnnxRuntimeRunner(file if isinstance(file, str) else bytes(file), names, outputs, provider)

        return by_package

    def _refused(self, reason: Exception) -> None:
        """Say why numpy answers; of a model that cannot be read it says what is wrong."""
        self._options.log(logging.INFO, "numpy answers while the model is compiled: %s", reason)


def foresee(source: ModelSource, options: SessionOptions) -> None:
    """Open the library of ONNX Runtime in another thread, where a model will likely be loaded with it.

    Args:
        source: The model, which was not read yet.
        options: What is asked of the session.
    """
    if source.size < _LIKELY_BYTES or thread_count(None) < 2 or NAME in sys.modules or not _is_asked_for(options):
        return
    path = library()
    if path is not None:
        background_threads.start("sardonyx-interim", _open, path)


def _open(path: Path) -> None:
    with contextlib.suppress(UnsupportedError):  # Whoever needs it says why.
        interface(path)


def interim(source: ModelSource, options: SessionOptions) -> Interim | None:
    """What may answer in numpy's place; None where that is not asked for, or could not be.

    Args:
        source: The model.
        options: What is asked of the session.
    """
    return Interim(source, options) if _is_asked_for(options) else None


def _is_asked_for(options: SessionOptions) -> bool:
    # Limits of values and of loops only we keep, and whoever asks for the same bits from run to run gets one engine.
    bounded = options.max_memory is not None or options.max_loop_iterations is not None or options.deterministic
    return options.interim_provider == NAME and not bounded and _is_installed() and is_standard()


def _nothing() -> Future[Runner | None]:
    """What was loaded, where calls are numpy's."""
    nothing: Future[Runner | None] = Future()
    nothing.set_result(None)
    return nothing


def _at_once(load: Callable[[], None]) -> None:
    load()


def _least(declared: TensorType) -> list[int]:
    return [size if isinstance(size, int) else 1 for size in declared.shape or ()]


def _is_installed() -> bool:
    return NAME in sys.modules or importlib.util.find_spec(NAME) is not None


def _is_declared(fed: Any, declared: TensorType, sizes: dict[str, int]) -> bool:
    """Whether an array is of the declared type and sizes, and has elements; names of sizes are noted."""
    if not isinstance(fed, np.ndarray) or fed.dtype != declared.dtype.numpy() or not fed.size:
        return False
    if declared.shape is None or len(declared.shape) != fed.ndim:
        return False
    return all(
        size == wanted if isinstance(wanted, int) else sizes.setdefault(str(wanted), size) == size
        for size, wanted in zip(fed.shape, declared.shape, strict=True)
    )
