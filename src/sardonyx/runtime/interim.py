"""What answers while a model is compiled for the first time: ONNX Runtime in numpy's place, where that is sooner.

It answers only where its package is installed, and where nobody could tell but by rounding (see
:mod:`sardonyx.runtime.providers.onnxruntime_meaning`). Calls that ask for more than the outputs, arrays that are not
as they are declared, and calls that it fails on are numpy's, which says what is wrong as it always does.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.core.run_context import RunContext
from sardonyx.core.types import TensorType
from sardonyx.errors import ExecutionError, SardonyxError
from sardonyx.model.reader import collector_paused
from sardonyx.ops.graph import declared_type
from sardonyx.runtime.kept import ModelSource, is_standard
from sardonyx.runtime.options import SessionOptions
from sardonyx.runtime.providers.onnxruntime import OnnxRuntimeProvider, OnnxRuntimeRunner, serialized
from sardonyx.runtime.providers.onnxruntime_meaning import other_meaning
from sardonyx.runtime.providers.protocol import Settings

NAME = "onnxruntime"


class Interim:
    """A model on ONNX Runtime, loaded by the first call that it is worth it for.

    Args:
        source: The model, as the session was given it.
        options: What is asked of the session.
    """

    def __init__(self, source: ModelSource, options: SessionOptions) -> None:
        self._source = source
        self._options = options
        self._lock = threading.Lock()
        self._is_decided = False
        self._runner: OnnxRuntimeRunner | None = None
        graph = source.model.graph
        self._outputs = [str(value.name) for value in graph.outputs]
        types = {str(value.name): declared_type(value) for value in graph.inputs if not value.is_initializer()}
        self._declared = {name: declared for name, declared in types.items() if isinstance(declared, TensorType)}

    @property
    def answers(self) -> bool:
        """Whether it has the model, so that calls go to it."""
        return self._runner is not None

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
        if context.recorder is not None or not self._takes(output_names, feeds):
            return None
        runner = self._loaded(feeds)
        if runner is None:
            return None
        try:
            found = runner.run([feeds[name] for name in self._declared], context)
        except ExecutionError as error:
            self._options.log(logging.INFO, "numpy computes a call: %s", error)
            return None
        if output_names is None:
            return list(found)
        by_name = dict(zip(self._outputs, found, strict=True))
        return [by_name[name] for name in output_names]

    def _takes(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> bool:
        """Whether a call is a plain one: outputs alone, of arrays that are what is declared."""
        if output_names is not None and not set(output_names) <= set(self._outputs):
            return False
        sizes: dict[str, int] = {}
        return feeds.keys() == self._declared.keys() and all(
            _is_declared(feeds[name], declared, sizes) for name, declared in self._declared.items()
        )

    def _loaded(self, feeds: Mapping[str, np.ndarray]) -> OnnxRuntimeRunner | None:
        """The model, if it is there or worth loading for such a call."""
        with self._lock:
            if not self._is_decided:
                self._is_decided = True
                with collector_paused():
                    self._runner = self._load(feeds)
            return self._runner

    def _load(self, feeds: Mapping[str, np.ndarray]) -> OnnxRuntimeRunner | None:
        model = self._source.model
        if not is_worth_loading(model, feeds):
            return None
        if refused := other_meaning(model):
            self._options.log(logging.INFO, "numpy answers while the model is compiled: %s", refused)
            return None
        try:
            provider = OnnxRuntimeProvider(Settings(threads=self._options.threads, optimization="none"))
            file = self._source.plain()
            if file is None:
                file = serialized(model)
            return OnnxRuntimeRunner(file, list(self._declared), self._outputs, provider)
        except (SardonyxError, OSError) as error:  # Of a model that cannot be read numpy says what is wrong.
            self._options.log(logging.INFO, "numpy answers while the model is compiled: %s", error)
            return None


def interim(source: ModelSource, options: SessionOptions) -> Interim | None:
    """What may answer in numpy's place; None where that is not asked for, or could not be.

    Args:
        source: The model.
        options: What is asked of the session.
    """
    # Limits of values and of loops only we keep, and whoever asks for the same bits from run to run gets one engine.
    bounded = options.max_memory is not None or options.max_loop_iterations is not None or options.deterministic
    if options.interim_provider != NAME or bounded or not _is_installed() or not is_standard():
        return None
    return Interim(source, options)


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


# What is sooner: about, since only the order counts.

_IMPORT_SECONDS = 0.05
_SESSION_SECONDS = 2e-3
_NODE_SECONDS = {NAME: 60e-6, "reference": 250e-6}
"""Of a node: to make it ready, and to begin it once."""

_STEP_SECONDS = {NAME: 10e-6, "reference": 1e-3}
"""Of a step of a recurrent layer."""

_RECURRENT = frozenset({"LSTM", "GRU", "RNN"})

_MACS_PER_SECOND = {NAME: 4e10, "reference": 5e9}
_LOADED_BYTES_PER_SECOND = 5e8
_WINDOWED = frozenset({"Conv", "ConvTranspose", "ConvInteger", "QLinearConv"})


def is_worth_loading(model: ir.Model, feeds: Mapping[str, np.ndarray]) -> bool:
    """Whether ONNX Runtime answers a first call sooner than numpy, what has to be imported for it counted in."""
    nodes, steps, macs, held = _work(model, feeds)
    theirs = _SESSION_SECONDS + held / _LOADED_BYTES_PER_SECOND + (0.0 if NAME in sys.modules else _IMPORT_SECONDS)
    seconds = {
        name: nodes * _NODE_SECONDS[name] + steps * _STEP_SECONDS[name] + macs / _MACS_PER_SECOND[name]
        for name in _NODE_SECONDS
    }
    return theirs + seconds[NAME] < seconds["reference"]


def _work(model: ir.Model, feeds: Mapping[str, np.ndarray]) -> tuple[int, int, float, int]:
    """Nodes, steps, multiplications and bytes of weights, by what can be seen without knowing sizes inside.

    Filters count as if images kept their size, other weights as if each were multiplied by every row of the inputs,
    which are as many steps of each recurrent layer.
    """
    rows = max((_rows(each) for each in feeds.values()), default=1)
    pixels = max((math.prod(each.shape[2:]) * len(each) for each in feeds.values() if each.ndim > 2), default=1)
    macs = float(0)
    held = 0
    for value, tensor in _weights(model.graph):
        held += tensor.nbytes
        if len(tensor.shape) > 1:
            windowed = any(node.op_type in _WINDOWED for node in value.consumers())
            macs += tensor.size * (pixels if windowed else rows)
    operators = [node.op_type for node in model.graph.all_nodes()]
    return len(operators), rows * sum(each in _RECURRENT for each in operators), macs, held


def _weights(graph: ir.Graph) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    for value in graph.initializers.values():
        if value.const_value is not None:
            yield value, value.const_value
    for node in graph:
        if node.op_type == "Constant" and (told := node.attributes.get("value")) is not None:
            # As it is: `as_tensor` looks whether it is one, which takes longer than all else here.
            yield node.outputs[0], told.value


def _rows(fed: np.ndarray) -> int:
    return max(1, fed.size // fed.shape[-1] if fed.ndim and fed.dtype.kind == "f" else fed.size)
