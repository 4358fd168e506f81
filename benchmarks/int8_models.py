"""Quantized versions of the measured models, by Sardonyx's quantizer and by the peers' quantizers.

Each form is a way in which int8 models are written. All are of the same samples: the model's own calibration data, its
stored inputs, or seeded numbers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import suites

SAMPLES = 4
"""Number of samples; the times of a model do not depend on the ranges."""

TIMEOUT_SECONDS = 900.0


@dataclass(frozen=True)
class Float:
    """A model in float32, with the samples that its quantizers read; the first is the measured input."""

    name: str
    path: Path
    samples: Path

    def feeds(self) -> list[suites.Feeds]:
        """Return the samples."""
        with np.load(self.samples) as arrays:
            names = sorted({key.partition("::")[2] for key in arrays.files})
            count = len(arrays.files) // len(names)
            return [{name: arrays[f"{number}::{name}"] for name in names} for number in range(count)]


def float_models(work: Path, patterns: Sequence[str]) -> Iterator[Float]:
    """Return the models of the suites, and the trained models, that match the patterns."""
    folder = work / "models"
    for case in suites.cases(folder, patterns):
        if not case.name.endswith(".dyn") and case.name not in ALREADY_QUANTIZED:
            yield Float(case.name, case.path, stored(work, case.name, sample_feeds(case)))
    for name in TASKS:
        if suites.matches(suites.Case(name, "compress", Path()), patterns):
            from compress_tasks import load_task

            task = load_task(name)
            yield Float(f"{name} (trained)", Path(task.model), stored(work, f"task.{name}", task.calibration[:SAMPLES]))


ALREADY_QUANTIZED = ("mobilenet_qdq",)
TASKS = ("kws", "vww", "resnet8", "resnet20", "mobilenetv2", "lm")


def sample_feeds(case: suites.Case) -> list[suites.Feeds]:
    """Return the stored inputs of a model, or seeded inputs."""
    if case.path.with_suffix(".npz").exists():
        return [case.feeds()]
    return [suites.drawn_feeds(case.path, suites.LATENCY_SIZES, seed) for seed in range(SAMPLES)]


def stored(work: Path, name: str, feeds: Sequence[suites.Feeds]) -> Path:
    path = work / "samples" / f"{name}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{f"{i}::{key}": array for i, sample in enumerate(feeds) for key, array in sample.items()})
    return path


def quantized(work: Path, model: Float, form: str) -> Path:
    """Return the file of a form of a model, written by a child process unless the file exists.

    Raises:
        RuntimeError: The quantizer failed; the message is the last line of its error.
    """
    path = work / "int8" / f"{model.name.replace(' (trained)', '.task')}.{form}.onnx"
    refusal = path.with_suffix(".txt")
    if not path.exists() and not refusal.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        arguments = json.dumps([str(model.path), str(model.samples), form, str(path)])
        child = subprocess.run(
            [sys.executable, __file__, arguments], capture_output=True, text=True, errors="replace",
            timeout=TIMEOUT_SECONDS,
        )  # fmt: skip
        if child.returncode:
            path.unlink(missing_ok=True)
            refusal.write_text((child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1][:300])
    if refusal.exists():
        raise RuntimeError(refusal.read_text())
    return path


# Quantizers: functions of the model, its samples and the file to write.


def of_sardonyx(source: Path, feeds: list[suites.Feeds], path: Path, **options: Any) -> None:
    import sardonyx

    data = None if options.get("mode") == "dynamic" else feeds
    sardonyx.quantize(str(source), data, **options).save(path)


def of_onnxruntime(
    source: Path, feeds: list[suites.Feeds], path: Path, activations: str, form: str, *, per_channel: bool = True,
    reduce_range: bool = False,
) -> None:  # fmt: skip
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rest = iter(feeds)

        def get_next(self) -> Any:
            return next(self.rest, None)

    prepared = path.with_suffix(".prepared")
    quant_pre_process(str(opset13(source, prepared)), str(prepared), skip_symbolic_shape=True)
    quantization.quantize_static(
        str(prepared), str(path), Reader(), quant_format=getattr(quantization.QuantFormat, form),
        per_channel=per_channel, reduce_range=reduce_range,
        activation_type=getattr(quantization.QuantType, activations), weight_type=quantization.QuantType.QInt8,
    )  # fmt: skip
    prepared.unlink()


def opset13(source: Path, scratch: Path) -> Path:
    """Return a model of an operator set that has scales per channel."""
    import onnx

    import sardonyx
    from sardonyx.rewrite.opset import convert_opset

    version = max(entry.version for entry in onnx.load(source, load_external_data=False).opset_import)
    if version >= 13:
        return source
    target = scratch.with_suffix(".opset13.onnx")
    sardonyx.save(convert_opset(sardonyx.load(source), 13), target)
    return target


def dynamic_of_onnxruntime(source: Path, feeds: list[suites.Feeds], path: Path) -> None:
    from onnxruntime import quantization

    quantization.quantize_dynamic(
        str(opset13(source, path.with_suffix(".prepared"))), str(path), weight_type=quantization.QuantType.QInt8
    )


def of_nncf(source: Path, feeds: list[suites.Feeds], path: Path) -> None:
    import nncf
    import onnx

    model = onnx.load(opset13(source, path.with_suffix(".prepared")))
    onnx.save(nncf.quantize(model, nncf.Dataset(feeds)), path)


FORMS: dict[str, Callable[[Path, list[suites.Feeds], Path], None]] = {
    "sardonyx": lambda *p: of_sardonyx(*p, calibration="minmax"),
    "sardonyx-dynamic": lambda *p: of_sardonyx(*p, mode="dynamic", target="native"),
    "ort-u8s8": lambda *p: of_onnxruntime(*p, "QUInt8", "QDQ"),
    "ort-s8s8": lambda *p: of_onnxruntime(*p, "QInt8", "QDQ"),
    "ort-qoperator": lambda *p: of_onnxruntime(*p, "QUInt8", "QOperator"),
    "ort-tensor": lambda *p: of_onnxruntime(*p, "QUInt8", "QDQ", per_channel=False),
    "ort-reduced": lambda *p: of_onnxruntime(*p, "QUInt8", "QDQ", reduce_range=True),
    "ort-qoperator-tensor": lambda *p: of_onnxruntime(*p, "QInt8", "QOperator", per_channel=False),
    "ort-dynamic": dynamic_of_onnxruntime,
    "nncf": of_nncf,
}

if __name__ == "__main__":
    source, samples, form, path = json.loads(sys.argv[1])
    FORMS[form](Path(source), Float("", Path(source), Path(samples)).feeds(), Path(path))
