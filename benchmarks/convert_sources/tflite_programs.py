"""TensorFlow Lite files that TensorFlow writes: programs, state, networks in floats and integers."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from convert_sources.tensorflow_networks import NETWORKS, STATEFUL
from convert_sources.tensorflow_programs import PROGRAMS, Program, tf

Case = Callable[[], tuple[str, None]]
KINDS = ("float16", "dynamic", "int8", "int8-inputs", "int16x8", "uint8-inputs")

WITHOUT_INTEGERS = ("long-short", "long-short-open", "gated", "gated-open")
"""Networks whose calibration ends TensorFlow 2.21 in a segmentation fault."""


def cases() -> dict[str, Case]:
    """Return paths of files, which are written when a case is called, by name."""
    result: dict[str, Case] = {name: _case(name, _of_program(program)) for name, program in PROGRAMS.items()}
    for name, make in STATEFUL.items():
        result[name] = _case(name, _of_module(make))
    for name, make in NETWORKS.items():
        result[name] = _case(name, _of_network(make, "float32"))
        kinds = KINDS[:2] if name in WITHOUT_INTEGERS else KINDS
        result |= {f"{name}-{kind}": _case(f"{name}-{kind}", _of_network(make, kind)) for kind in kinds}
    return result


def _case(name: str, write: Callable[[], bytes]) -> Case:
    def build() -> tuple[str, None]:
        folder = Path(os.environ.get("SARDONYX_TFLITE") or tempfile.mkdtemp())
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}.tflite"
        path.write_bytes(write())
        return str(path), None

    return build


def _of_program(program: Program) -> Callable[[], bytes]:
    def write() -> bytes:
        tf.random.set_seed(0)
        holder = tf.Module()
        holder.call = tf.function(program.function, input_signature=program.signature())
        converter = tf.lite.TFLiteConverter.from_concrete_functions([holder.call.get_concrete_function()], holder)
        return _written(converter)

    return write


def _of_module(make: Callable[[], Any]) -> Callable[[], bytes]:
    def write() -> bytes:
        module = make()
        folder = tempfile.mkdtemp()
        signatures = {function._python_function.__name__: function for function in module.functions()}
        tf.saved_model.save(module, folder, signatures)
        converter = tf.lite.TFLiteConverter.from_saved_model(folder, list(signatures))
        converter.experimental_enable_resource_variables = True
        return _written(converter)

    return write


def _of_network(make: Callable[[], Any], kind: str) -> Callable[[], bytes]:
    def write() -> bytes:
        tf.keras.utils.set_random_seed(0)
        model = make()
        converter = tf.lite.TFLiteConverter.from_keras_model(model)
        _quantized(converter, kind, [[size or 1 for size in value.shape] for value in model.inputs])
        return _written(converter)

    return write


def _quantized(converter: Any, kind: str, shapes: list[list[int]]) -> None:
    """Set the options of a kind of numbers."""
    if kind == "float32":
        return
    lite = tf.lite
    converter.optimizations = [lite.Optimize.DEFAULT]
    if kind == "float16":
        converter.target_spec.supported_types = [tf.float16]
    if kind in ("float16", "dynamic"):
        return

    def samples() -> Iterator[list[Any]]:
        generator = np.random.default_rng(0)
        for _ in range(30):
            yield [generator.standard_normal(shape).astype(np.float32) for shape in shapes]

    converter.representative_dataset = samples
    if kind == "int16x8":
        special = lite.OpsSet.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8
        converter.target_spec.supported_ops = [special, lite.OpsSet.TFLITE_BUILTINS]
    if kind in ("int8-inputs", "uint8-inputs"):
        converter.target_spec.supported_ops = [lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = converter.inference_output_type = (
            tf.int8 if kind == "int8-inputs" else tf.uint8
        )


def _written(converter: Any) -> bytes:
    """Return the file, with operators of TensorFlow where the format has none."""
    if not getattr(converter.target_spec, "supported_ops", None) or converter.representative_dataset is None:
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS, tf.lite.OpsSet.SELECT_TF_OPS]
    content: bytes = converter.convert()
    return content
