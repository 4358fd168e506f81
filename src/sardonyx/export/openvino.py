"""The exporter of OpenVINO IR: OpenVINO's own converter writes the files, and OpenVINO answers in the proof."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.errors import EvaluationError
from sardonyx.export.artifact import Artifact, Feeds, Options, Refusal, refuse
from sardonyx.export.decomposition import converted, lacking, notes_of
from sardonyx.export.foreign_converters import input_names

_UNCONVERTED = re.compile(
    r"(?:No conversion rule found for operations|does not support the following ONNX operations): (.*)"
)

_FAILED = re.compile(r"Conversion is failed for: (.*)")

_LINES = 3
"""Lines of OpenVINO's message that a refusal repeats."""


_Result = tuple[bytes, bytes, Mapping[str, int], Any]
"""The two files, the number of operations by type, and the compiled model."""


def refusals(model: ir.Model, options: Options) -> Iterator[Refusal]:
    """Yield the operators that OpenVINO does not convert, node by node, or the operation that it cannot compile."""
    yield from converted(model, _convert)[2]


def _convert(model: ir.Model) -> tuple[_Result | None, list[Refusal], frozenset[str]]:
    """Return the conversion of a model, or the refusals and the operators that OpenVINO names in them."""
    try:
        xml, weights, counts = _files(model)
        return (xml, weights, counts, _compiled(xml, weights)), [], frozenset()
    except Exception as error:  # The binding has a dozen unrelated classes.
        message = str(error)
    return None, list(_refusals(model, message)), _named(message)


def _named(message: str) -> frozenset[str]:
    """Return the operators in OpenVINO's list of what it could not convert."""
    names = (
        name for pattern in (_UNCONVERTED, _FAILED) for part in pattern.findall(message) for name in part.split(",")
    )
    return frozenset(name.strip().rpartition(".")[2].partition("-")[0] for name in names)


def _refusals(model: ir.Model, message: str) -> Iterator[Refusal]:
    named = _named(message) if _UNCONVERTED.search(message) else frozenset()
    refused = lacking(model, named, "OpenVINO has no conversion rule for")
    yield from refused
    if not refused:
        lines = [line.strip() for line in message.splitlines() if line.strip()]
        yield Refusal("model", "", f"OpenVINO refuses: {' '.join(lines[-_LINES:])[:400]}")


def _files(model: ir.Model) -> tuple[bytes, bytes, Mapping[str, int]]:
    """Return the two files, and the number of operations by type."""
    import openvino

    with tempfile.TemporaryDirectory(prefix="sardonyx-openvino-") as folder:
        path = Path(folder) / "model.onnx"
        model_io.save(model, path)
        read = openvino.convert_model(path)
        openvino.save_model(read, Path(folder) / "model.xml", compress_to_fp16=False)
        xml, weights = ((Path(folder) / f"model.{suffix}").read_bytes() for suffix in ("xml", "bin"))
        counts = Counter(operation.get_type_name() for operation in read.get_ops())
    return xml, weights, dict(sorted(counts.items()))


def export(model: ir.Model, options: Options) -> Artifact:
    """Return a model as OpenVINO IR, `.xml` and `.bin`.

    Raises:
        UnsupportedError: OpenVINO does not convert or compile the model; lists nodes and operators.
    """
    model, result, refused, replaced = converted(model, _convert)
    refuse("openvino", refused)
    assert result is not None
    xml, weights, counts, compiled = result

    def write(path: Path) -> None:
        path.write_bytes(xml)
        path.with_suffix(".bin").write_bytes(weights)

    return Artifact(write, _runner(compiled, model), forms=counts, notes=notes_of(replaced), value=xml.decode())


def _compiled(xml: bytes, weights: bytes) -> Any:
    """Return the files as a model that runs on the CPU in full precision."""
    import openvino

    core = openvino.Core()
    tensors = [openvino.Tensor(np.frombuffer(weights, np.uint8))] if weights else []
    return core.compile_model(core.read_model(xml, *tensors), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})


def _runner(compiled: Any, model: ir.Model) -> Callable[[Feeds], Mapping[str, Any]]:
    """Return a function that answers feeds with a compiled model of OpenVINO."""
    names = input_names(model)
    outputs = [(str(value.name), value.dtype) for value in model.graph.outputs]

    def run(feeds: Feeds) -> Mapping[str, Any]:
        try:
            known = {name for port in compiled.inputs for name in port.names}
            results = compiled({name: feeds[name] for name in names if name in known})
        except (RuntimeError, TypeError, ValueError) as error:
            lines = str(error).strip().splitlines()
            raise EvaluationError(f"OpenVINO refuses: {' '.join(lines[-_LINES:])[:400]}", where="openvino") from error
        answers: dict[str, Any] = {}
        for port, (name, kind) in zip(compiled.outputs, outputs, strict=True):
            array = np.array(results[port])
            answers[name] = array if kind is None else array.astype(kind.numpy(), copy=False)
        return answers

    return run
