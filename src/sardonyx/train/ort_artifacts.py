"""Artifacts of ONNX Runtime's on-device training: training, evaluation and optimizer models, and a checkpoint.

Source: ONNX Runtime 1.19, ``onnxruntime.training.artifacts`` and the schema of its checkpoints (FlatBuffers, identifier
``ODTC``, version 2). The gradients are standard operators; accumulation and the optimizer are operators of
``com.microsoft`` that the training builds of ONNX Runtime have.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from sardonyx.base.artifact_store import write_whole
from sardonyx.base.option_checks import require_instance
from sardonyx.core.eval.trace import inline, trace
from sardonyx.core.export.export import to_model
from sardonyx.core.ir.graph import Function, Value
from sardonyx.core.transform.differentiation import gradient
from sardonyx.core.transform.simplify import simplify
from sardonyx.errors import MissingDependencyError, ModelFileError, UnsupportedError
from sardonyx.model import to_proto
from sardonyx.rewrite.opset import convert_opset
from sardonyx.train.optimizers import SGD, AdamW
from sardonyx.train.step.forward import LOSS, Forward
from sardonyx.train.trainer.trainer import Trainer

_OPSET = 17
_DOMAIN = "com.microsoft"
_VERSION = 2
"""Version of checkpoints."""


def generate_artifacts(trainer: Trainer, folder: str | os.PathLike[str], *, prefix: str = "") -> list[Path]:
    """Write ``training_model.onnx``, ``eval_model.onnx``, ``optimizer_model.onnx`` and ``checkpoint``.

    Args:
        trainer: A trainer with AdamW, or with SGD without momentum; its current parameters are those of the checkpoint.
        folder: The folder, which is created.
        prefix: Prefix of the file names.

    Returns:
        The written files, in the order above.

    Raises:
        EncryptionError: The model was loaded from an encrypted file; nothing is written.
        UnsupportedError: The trainer has running statistics, dropout, parameters of another type than float32, or
            another optimizer.
        MissingDependencyError: flatbuffers is not installed.
        ModelFileError: A file cannot be written.
    """
    require_instance(trainer, Trainer, "trainer", "a Trainer")
    trainer.require_plain()
    training, evaluation = trainer.forward_passes()
    if training.statistics or training.has_key:
        raise UnsupportedError(
            "expected a step without running statistics and random numbers.", where="trainer",
            remedy="Use batch_norm='frozen' and dropout={'*': 0}.",
        )  # fmt: skip
    state = trainer.state()
    parameters = {name: state[f"parameter:{name}"] for name in training.parameters}
    other = [name for name, array in parameters.items() if array.dtype != np.float32]
    if other:
        raise UnsupportedError("expected float32 parameters.", where=other[0], remedy="Train a float32 model.")
    files = {
        "training_model.onnx": _training_model(training).SerializeToString(),
        "eval_model.onnx": _model(_loss_first(evaluation), evaluation, [LOSS]).SerializeToString(),
        "optimizer_model.onnx": _optimizer_model(trainer.optimizer).SerializeToString(),
        "checkpoint": _checkpoint(parameters),
    }
    target = Path(folder)
    written = []
    for name, data in files.items():
        path = target / f"{prefix}{name}"
        try:
            target.mkdir(parents=True, exist_ok=True)
            write_whole(path, data)
        except OSError as error:
            raise ModelFileError(f"cannot be written: {error.strerror}.", where=str(path)) from error
        written.append(path)
    return written


def _loss_first(forward: Forward) -> Function:
    """Return the function of parameters, inputs and labels for the mean loss."""
    inner = forward.function

    def body(*values: Value) -> list[Value]:
        total, weight = inline(inner, values)[:2]
        return [total / weight]  # type: ignore[operator]

    return trace("loss", body, [value.type for value in inner.inputs])


def _model(function: Function, forward: Forward, outputs: Sequence[str]) -> onnx.ModelProto:
    """Return a function as a model whose inputs are those of a batch, then the parameters."""
    names = [*forward.parameters, *forward.statistics, *forward.inputs, *forward.labels]
    model: ir.Model = to_model(simplify(function), input_names=names, output_names=list(outputs))
    if model.graph.opset_imports.get("", 0) != _OPSET:
        model = convert_opset(model, _OPSET)
    proto = to_proto(model)
    count = len(forward.parameters) + len(forward.statistics)
    inputs = list(proto.graph.input)
    del proto.graph.input[:]
    proto.graph.input.extend([*inputs[count:], *inputs[:count]])
    proto.ir_version = 8
    return proto


def _training_model(forward: Forward) -> onnx.ModelProto:
    derived = gradient(_loss_first(forward), range(len(forward.parameters)))
    names = [f"{name}_grad" for name in forward.parameters]
    proto = _model(derived, forward, [LOSS, *names])
    shapes = {value.name: value.type for value in proto.graph.output}
    del proto.graph.output[1:]
    # The shape of the loss is that of ONNX Runtime's artifacts: a scalar.
    for name, own in zip(names, forward.parameters, strict=True):
        buffer, out = f"{own}_grad.accumulation.buffer", f"{own}_grad.accumulation.out"
        proto.graph.input.add(name=buffer).type.CopyFrom(shapes[name])
        proto.graph.node.append(
            helper.make_node(
                "InPlaceAccumulatorV2", [buffer, name, "lazy_reset_grad"], [out], f"{own}_accumulator", domain=_DOMAIN
            )
        )
        proto.graph.output.append(helper.make_tensor_value_info(out, TensorProto.BOOL, [1]))
    proto.graph.input.append(helper.make_tensor_value_info("lazy_reset_grad", TensorProto.BOOL, [1]))
    proto.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    return proto


def _optimizer_model(optimizer: object) -> onnx.ModelProto:
    rate = helper.make_tensor_value_info("learning_rate", TensorProto.FLOAT, [1])
    step = helper.make_tensor_value_info("step", TensorProto.INT64, [1])

    def sequence(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_sequence_value_info(name, TensorProto.FLOAT, None)

    if isinstance(optimizer, AdamW) and not optimizer.amsgrad:
        names = ["params", "gradients", "first_order_moments", "second_order_moments"]
        inputs = [rate, step, *map(sequence, names)]
        attributes: dict[str, Any] = {
            "alpha": optimizer.beta1, "beta": optimizer.beta2, "epsilon": optimizer.epsilon,
            "weight_decay": optimizer.weight_decay, "correct_bias": 1, "adam_mode": 0,
        }  # fmt: skip
        kind = "AdamWOptimizer"
    elif isinstance(optimizer, SGD) and not optimizer.momentum and not optimizer.weight_decay:
        # ONNX Runtime requires the inputs of the step and of moments, which the operator does not read.
        inputs = [rate, step, *map(sequence, ("params", "gradients", "first_order_moments"))]
        attributes, kind = {}, "SGDOptimizerV2"
    else:
        raise UnsupportedError(
            f"expected AdamW, or SGD without momentum and decay, got {type(optimizer).__name__}.", where="optimizer"
        )
    done = helper.make_tensor_value_info("updated_flag", TensorProto.BOOL, [1])
    read = [value.name for value in inputs]
    if kind == "SGDOptimizerV2":
        read = ["learning_rate", "params", "gradients"]
    node = helper.make_node(kind, read, ["updated_flag"], "optimizer", domain=_DOMAIN, **attributes)
    graph = helper.make_graph([node], "optimizer", inputs, [done])
    imports = [helper.make_opsetid(_DOMAIN, 1), helper.make_opsetid("", _OPSET)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def _checkpoint(parameters: Mapping[str, np.ndarray]) -> bytes:
    try:
        import flatbuffers
    except ImportError as error:
        raise MissingDependencyError(
            "checkpoints of ONNX Runtime require flatbuffers.", remedy="Install it: pip install flatbuffers."
        ) from error
    builder = flatbuffers.Builder(sum(array.nbytes for array in parameters.values()) + 4096)
    tensors = [_tensor(builder, name, array) for name, array in parameters.items()]
    trained = _vector(builder, tensors)
    frozen = _vector(builder, [])
    builder.StartObject(2)
    builder.PrependUOffsetTRelativeSlot(0, trained, 0)
    builder.PrependUOffsetTRelativeSlot(1, frozen, 0)
    module = builder.EndObject()
    groups = _vector(builder, [])
    builder.StartObject(4)
    builder.PrependInt32Slot(0, _VERSION, 0)
    builder.PrependUOffsetTRelativeSlot(1, module, 0)
    builder.PrependUOffsetTRelativeSlot(2, groups, 0)
    builder.Finish(builder.EndObject(), file_identifier=b"ODTC")
    return bytes(builder.Output())


def _vector(builder: Any, offsets: Sequence[int]) -> int:
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return int(builder.EndVector())


def _tensor(builder: Any, name: str, array: np.ndarray) -> int:
    """Write a tensor: its name, sizes, element type and bytes in the fields 0, 2, 3 and 4."""
    raw = builder.CreateByteVector(np.ascontiguousarray(array).tobytes())
    builder.StartVector(8, array.ndim, 8)
    for size in reversed(array.shape):
        builder.PrependInt64(size)
    sizes = builder.EndVector()
    text = builder.CreateString(name)
    builder.StartObject(7)
    builder.PrependUOffsetTRelativeSlot(0, text, 0)
    builder.PrependUOffsetTRelativeSlot(2, sizes, 0)
    builder.PrependInt32Slot(3, int(TensorProto.FLOAT), 0)
    builder.PrependUOffsetTRelativeSlot(4, raw, 0)
    return int(builder.EndObject())
