"""The quantizers that ``compress.py`` compares: a program that runs one quantizer.

`python compress_quantizers.py TASK QUANTIZER OUTPUT` is the child process: it prints the processor time (of its child
processes too), the time and the largest memory of the quantizer as JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from compress_tasks import Task, load_task

Quantize = Callable[[Task, Path], None]


def _sardonyx(**options: Any) -> Quantize:
    def run(task: Task, path: Path) -> None:
        import sardonyx

        sardonyx.quantize(task.model, task.calibration, **options).save(path)

    return run


def _onnxruntime(method: str) -> Quantize:
    def run(task: Task, path: Path) -> None:
        from onnxruntime import quantization
        from onnxruntime.quantization.shape_inference import quant_pre_process

        class Reader(quantization.CalibrationDataReader):
            def __init__(self) -> None:
                self._samples: Iterator[Any] = iter(task.calibration)

            def get_next(self) -> Any:
                return next(self._samples, None)

        prepared = path.with_suffix(".prepared.onnx")
        quant_pre_process(task.model, str(prepared), skip_symbolic_shape=True)
        quantization.quantize_static(
            str(prepared), str(path), Reader(), quant_format=quantization.QuantFormat.QDQ, per_channel=True,
            activation_type=quantization.QuantType.QUInt8, weight_type=quantization.QuantType.QInt8,
            calibrate_method=quantization.CalibrationMethod[method],
        )  # fmt: skip

    return run


def _nncf(task: Task, path: Path) -> None:
    import nncf
    import onnx

    kind = nncf.ModelType.TRANSFORMER if task.name == "lm" or not task.unit else None
    result = nncf.quantize(onnx.load(task.model), nncf.Dataset(list(task.calibration)), model_type=kind)
    onnx.save(result, path)


def _onnxsim(task: Task, path: Path) -> None:
    import onnx
    import onnxsim

    samples = list(task.calibration)
    model = onnxsim.quantize_static(onnx.load(task.model), samples, num_calibration_samples=len(samples))
    onnx.save(model, path)


def _onnxruntime_int4(algorithm: str) -> Quantize:
    def run(task: Task, path: Path) -> None:
        import onnx
        from onnxruntime.quantization import QuantFormat, matmul_nbits_quantizer

        options: dict[str, Any] = {"block_size": 32, "is_symmetric": False, "quant_format": QuantFormat.QOperator}
        if algorithm == "k-quant":
            options = {"algo_config": matmul_nbits_quantizer.KQuantWeightOnlyQuantConfig()}
        quantizer = matmul_nbits_quantizer.MatMulNBitsQuantizer(onnx.load(task.model), **options)
        quantizer.process()
        quantizer.model.save_model_to_file(str(path))

    return run


def _nncf_int4(task: Task, path: Path) -> None:
    import nncf
    import onnx

    result = nncf.compress_weights(
        onnx.load(task.model), mode=nncf.CompressWeightsMode.INT4_ASYM, group_size=32, ratio=1.0, all_layers=True
    )
    onnx.save(result, path)


STATIC: Mapping[str, Quantize] = {
    "sardonyx": _sardonyx(),
    "onnxruntime min-max": _onnxruntime("MinMax"),
    "onnxruntime percentile": _onnxruntime("Percentile"),
    "onnxruntime entropy": _onnxruntime("Entropy"),
    "nncf": _nncf,
    "onnxsim": _onnxsim,
}
"""Static int8: ours with the defaults, and the peers."""

METHODS: Mapping[str, Quantize] = {
    f"sardonyx {method}": _sardonyx(method=method)
    for method in ("nearest", "equalization", "smoothquant", "gptq", "adaround", "sequential")
}
"""Static int8: our methods by name."""

INT4: Mapping[str, Quantize] = {
    "sardonyx int4": _sardonyx(weights="int4"),
    **{
        f"sardonyx int4 {method}": _sardonyx(weights="int4", method=method)
        for method in ("nearest", "least-squares", "hqq", "gptq", "awq-gptq", "sequential")
    },
    "onnxruntime int4": _onnxruntime_int4("default"),
    "onnxruntime int4 k-quant": _onnxruntime_int4("k-quant"),
    "nncf int4": _nncf_int4,
}
"""int4 weights in blocks of 32."""

SECTIONS: Mapping[str, Mapping[str, Quantize]] = {"static": STATIC, "methods": METHODS, "int4": INT4}


def _processor_time() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def main() -> None:
    name, quantizer, output = sys.argv[1:4]
    task = load_task(name)
    chosen = {way: quantize for ways in SECTIONS.values() for way, quantize in ways.items()}[quantizer]
    samples = list(task.calibration)
    del samples
    start, wall = _processor_time(), time.perf_counter()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    chosen(task, Path(output))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    figures = {
        "seconds": _processor_time() - start, "wall": time.perf_counter() - wall, "peak": peak / 1024,
        "growth": (peak - before) / 1024,
    }  # fmt: skip
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
