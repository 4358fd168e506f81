"""Small TensorFlow Lite files for tests, written from records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx import model as model_io
from sardonyx.convert.tflite import schema, translate
from sardonyx.convert.tflite.flatbuffer_writer import flatbuffer
from sardonyx.rewrite.evaluate import ReferenceRunner

_TYPES = {"float32": "FLOAT32", "int32": "INT32", "int64": "INT64", "int8": "INT8", "uint8": "UINT8", "bool": "BOOL"}


def type_number(dtype: Any) -> int:
    return schema.ELEMENT_TYPES.index(_TYPES[np.dtype(dtype).name])


@dataclass
class Subgraph:
    """A subgraph under construction; tensors are referred to by index."""

    file: File
    tensors: list[dict[str, Any]] = field(default_factory=list)
    operators: list[dict[str, Any]] = field(default_factory=list)
    inputs: Sequence[int] = ()
    outputs: Sequence[int] = ()

    def tensor(self, shape: Sequence[int], dtype: Any = np.float32, **fields: Any) -> int:
        sizes = {"shape": [max(n, 1) for n in shape]}
        if min(shape, default=0) < 0:
            sizes["shape_signature"] = list(shape)
        name = f"t{len(self.tensors)}"
        self.tensors.append({"name": name, "type": type_number(dtype), **sizes, **fields})
        return len(self.tensors) - 1

    def constant(self, array: Any, **fields: Any) -> int:
        array = np.asarray(array)
        self.file.buffers.append({"data": np.frombuffer(array.tobytes(), np.uint8)})
        return self.tensor(array.shape, array.dtype, buffer=len(self.file.buffers) - 1, **fields)

    def operator(
        self,
        name: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        options: tuple[str, Mapping[str, Any]] | None = None,
        **fields: Any,
    ) -> None:
        self.operators.append(
            {
                "opcode_index": self.file.code(name),
                "inputs": list(inputs),
                "outputs": list(outputs),
                "builtin_options": options,
                **fields,
            }
        )

    def record(self) -> dict[str, Any]:
        return {
            "tensors": self.tensors,
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "operators": self.operators,
        }


@dataclass
class File:
    """A file under construction."""

    buffers: list[dict[str, Any]] = field(default_factory=lambda: [{}])
    codes: list[dict[str, Any]] = field(default_factory=list)
    subgraphs: list[Subgraph] = field(default_factory=list)

    def subgraph(self) -> Subgraph:
        self.subgraphs.append(Subgraph(self))
        return self.subgraphs[-1]

    def code(self, name: str) -> int:
        is_builtin = name in schema.OPERATORS
        number = schema.OPERATORS.index(name if is_builtin else "CUSTOM")
        custom = {} if is_builtin else {"custom_code": name}
        record = {"deprecated_builtin_code": min(number, 127), "builtin_code": number, **custom}
        if record not in self.codes:
            self.codes.append(record)
        return self.codes.index(record)

    def data(self, **fields: Any) -> bytes:
        record = {
            "version": 3,
            "operator_codes": self.codes,
            "subgraphs": [subgraph.record() for subgraph in self.subgraphs],
            "buffers": self.buffers,
            **fields,
        }
        return flatbuffer("Model", record, b"TFL3")


def quantized(scale: float | Sequence[float], zero: int | Sequence[int] = 0, axis: int = 0) -> dict[str, Any]:
    scales, zeros = np.atleast_1d(scale), np.atleast_1d(zero)
    return {"quantization": {"scale": scales, "zero_point": zeros, "quantized_dimension": axis}}


def convolution(rng: np.random.Generator) -> bytes:
    """Return a file: CONV_2D with SAME padding, stride 2 and RELU6, with an open batch size."""
    file = File()
    main = file.subgraph()
    x = main.tensor([-1, 5, 6, 3])
    w = main.constant(rng.standard_normal((4, 3, 3, 3)).astype(np.float32))
    b = main.constant(rng.standard_normal(4).astype(np.float32))
    y = main.tensor([-1, 3, 3, 4])
    options = {"padding": 0, "stride_w": 2, "stride_h": 2, "fused_activation_function": 3}
    main.operator("CONV_2D", [x, w, b], [y], ("Conv2DOptions", options))
    main.inputs, main.outputs = [x], [y]
    return file.data()


def answers(data: bytes, folder: Path, *arrays: Any) -> list[Any]:
    """Return the answers of the model of a file, by the definitions of its operators."""
    model = translate(data).model()
    model_io.save(model, folder / "model.onnx")
    names = [str(value.name) for value in model.graph.inputs]
    results = ReferenceRunner(folder / "model.onnx").run(dict(zip(names, arrays, strict=True)))
    return [results[str(value.name)] for value in model.graph.outputs]
