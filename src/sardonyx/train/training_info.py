"""Training steps in ONNX files: ``training_info``, written from a trainer and executed from a file.

Source: ONNX IR specification, *TrainingInfoProto*. The algorithm is a graph of standard operators: it reads a batch,
the numbers of the step, and initializers of the inference graph and of its own; the update binding assigns its results
to the initializers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from sardonyx.base.option_checks import require_instance
from sardonyx.core.export.export import to_model
from sardonyx.errors import InvalidModelError, OptionError, UnsupportedError
from sardonyx.model import Loadable, load, to_proto
from sardonyx.runtime.session import Session
from sardonyx.train.data.batches import as_declared
from sardonyx.train.step.forward import trace_graph
from sardonyx.train.step.state_program import StateProgram
from sardonyx.train.trainer.trainer import Trainer


def with_training_info(trainer: Trainer) -> onnx.ModelProto:
    """Return the inference model with the step of the trainer as ``training_info``.

    The inputs of the algorithm are those of a batch and ``step_numbers``, ``step_numbers_1`` … for each group of
    parameters (:meth:`Trainer.step_numbers` computes them); its first output is the loss.

    Raises:
        UnsupportedError: The trainer accumulates batches, has parameters of 16 bits, or trains other tensors than those
            of the file.
    """
    require_instance(trainer, Trainer, "trainer", "a Trainer")
    step = trainer.plan
    if step.accumulate is not None:
        raise UnsupportedError("expected a step over one batch, got one over several batches.", where="accumulate")
    whole = trainer.whole_step()
    proto = to_proto(trainer.model())
    stored = {tensor.name: tensor for tensor in proto.graph.initializer}
    names = []
    for one in step.state:
        kind, _, name = one.name.partition(":")
        if kind not in ("parameter", "statistic"):
            names.append(one.name)
            continue
        if name not in stored or stored[name].data_type != int(one.type.dtype):
            raise UnsupportedError(
                f"expected an initializer of {one.type} in the saved model.", where=name,
                remedy="Train float32 weights of the file without adapters.",
            )  # fmt: skip
        names.append(name)
    numbers = [f"step_numbers_{i}" if i else "step_numbers" for i in range(len(step.groups))]
    inputs = [*names, *numbers, *trainer.batch_names]
    fresh = [f"{name}_next" for name in names]
    others = len(whole.results) - len(names)
    outputs = ["loss", "gradient_length", *(f"step_output_{i}" for i in range(others - 2)), *fresh]
    exported = to_proto(to_model(whole, input_names=inputs, output_names=outputs))
    info = proto.training_info.add()
    info.algorithm.CopyFrom(exported.graph)
    info.algorithm.name = "training_step"
    state = dict(zip(names, (array for array in trainer.state().values()), strict=True))
    for value in [value for value in info.algorithm.input if value.name in state]:
        info.algorithm.input.remove(value)
    own = [name for name in names if name not in stored]
    info.algorithm.initializer.extend(numpy_helper.from_array(state[name], name) for name in own)
    for name, new in zip(names, fresh, strict=True):
        info.update_binding.add(key=name, value=new)
    known = {entry.domain: entry for entry in proto.opset_import}
    for entry in exported.opset_import:
        if entry.domain not in known:
            proto.opset_import.add().CopyFrom(entry)
        elif known[entry.domain].version != entry.version:
            known[entry.domain].version = max(known[entry.domain].version, entry.version)
    return proto


class TrainingAlgorithm:
    """The training step that a file holds as ``training_info``.

    Args:
        model: A model with ``training_info``.
        threads: Number of threads; None for all processors of the process.

    Attributes:
        inputs: Names of the arrays that a step reads.
        outputs: Names of the results of a step.

    Raises:
        OptionError: The model has no ``training_info``.
        InvalidModelError: A binding names no initializer or no result.

    Example:
        >>> algorithm = TrainingAlgorithm("with_training.onnx")
        >>> algorithm.step({"x": x, "labels": y, "step_numbers": numbers})["loss"]
    """

    def __init__(self, model: Loadable, *, threads: int | None = None) -> None:
        self._proto = to_proto(load(model))
        if not self._proto.training_info:
            raise OptionError("the model has no training_info.", where="model", remedy="Write it: with_training_info.")
        info = self._proto.training_info[0]
        arrays = {
            tensor.name: numpy_helper.to_array(tensor)
            for tensor in (*self._proto.graph.initializer, *info.algorithm.initializer)
        }
        arrays |= self._initialized(info)
        bound = {entry.key: entry.value for entry in info.update_binding}
        results = [value.name for value in info.algorithm.output]
        for name, result in bound.items():
            if name not in arrays or result not in results:
                raise InvalidModelError(
                    f"the update binding {name!r} to {result!r} names no initializer or no result.",
                    where="training_info",
                )
        self._names = list(bound)
        graph = onnx.GraphProto()
        graph.CopyFrom(info.algorithm)
        self.inputs = tuple(value.name for value in info.algorithm.input if value.name not in bound)
        self.outputs = tuple(name for name in results if name not in bound.values())
        declared = {value.name: value for value in info.algorithm.input}
        del graph.input[:], graph.initializer[:]
        for name in self._names:
            kind = onnx.helper.np_dtype_to_tensor_dtype(arrays[name].dtype)
            graph.input.append(onnx.helper.make_tensor_value_info(name, kind, arrays[name].shape))
        graph.input.extend(declared[name] for name in self.inputs)
        graph.initializer.extend(
            numpy_helper.from_array(array, name)
            for name, array in arrays.items()
            if name not in bound and name not in self.inputs
        )
        by_name = {value.name: value for value in info.algorithm.output}
        del graph.output[:]
        graph.output.extend(by_name[name] for name in (*self.outputs, *bound.values()))
        whole = onnx.ModelProto(
            ir_version=self._proto.ir_version, opset_import=self._proto.opset_import, functions=self._proto.functions,
            graph=graph,
        )  # fmt: skip
        function = trace_graph(load(whole))
        types = function.inputs[len(self._names) :]
        self._types = dict(zip(self.inputs, (value.type for value in types), strict=True))
        self._state = [np.array(arrays[name], order="C") for name in self._names]
        self._program = StateProgram(function, self._state, self._state, threads)

    def _initialized(self, info: onnx.TrainingInfoProto) -> dict[str, np.ndarray]:
        """Return the arrays that the initialization graph computes."""
        if not info.initialization.node:
            return {}
        model = onnx.ModelProto(
            ir_version=self._proto.ir_version, opset_import=self._proto.opset_import, graph=info.initialization
        )
        names = [value.name for value in info.initialization.output]
        results = dict(zip(names, Session(model, compile="off").run(names, {}), strict=True))
        for entry in info.initialization_binding:
            if entry.value not in results:
                raise InvalidModelError(
                    f"the initialization binding names no result {entry.value!r}.", where="training_info"
                )
        return {entry.key: results[entry.value] for entry in info.initialization_binding}

    def step(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Take a step and return the other results by name.

        Raises:
            OptionError: An input is missing.
            FeedError: An array does not fit.
        """
        missing = [name for name in self.inputs if name not in feeds]
        if missing:
            raise OptionError(f"missing {', '.join(missing)}.", where="step")
        arrays = [as_declared(feeds[name], type, name) for name, type in self._types.items()]  # type: ignore[arg-type]
        results = [np.array(array) for array in self._program.run(arrays)]
        return dict(zip(self.outputs, results, strict=True))

    @property
    def state(self) -> dict[str, np.ndarray]:
        """Copies of the bound tensors by name."""
        return {name: array.copy() for name, array in zip(self._names, self._state, strict=True)}

    def model(self) -> onnx.ModelProto:
        """Return the file with the tensors of now."""
        result = onnx.ModelProto()
        result.CopyFrom(self._proto)
        state = self.state
        for tensor in (*result.graph.initializer, *result.training_info[0].algorithm.initializer):
            if tensor.name in state:
                tensor.CopyFrom(numpy_helper.from_array(state[tensor.name], tensor.name))
        return result
