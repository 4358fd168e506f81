"""ONNX Runtime's quantization interface and conventions; Sardonyx's own placement is that of ``sardonyx.quantize``.

``docs/reference/compat.md`` lists the parameters and the differences. Modules that are not here, such as
``onnxruntime.quantization.static_quantize_runner``, are those of the installed package, if there is one.
"""

from __future__ import annotations

from sardonyx.compat.module_finder import attributes_below
from sardonyx.compat.onnxruntime.quantization.calibrate import CalibraterBase as CalibraterBase
from sardonyx.compat.onnxruntime.quantization.calibrate import CalibrationDataReader as CalibrationDataReader
from sardonyx.compat.onnxruntime.quantization.calibrate import CalibrationMethod as CalibrationMethod
from sardonyx.compat.onnxruntime.quantization.calibrate import MinMaxCalibrater as MinMaxCalibrater
from sardonyx.compat.onnxruntime.quantization.calibrate import TensorData as TensorData
from sardonyx.compat.onnxruntime.quantization.calibrate import TensorsData as TensorsData
from sardonyx.compat.onnxruntime.quantization.calibrate import create_calibrator as create_calibrator
from sardonyx.compat.onnxruntime.quantization.calibrate import load_tensors_data as load_tensors_data
from sardonyx.compat.onnxruntime.quantization.calibrate import save_tensors_data as save_tensors_data
from sardonyx.compat.onnxruntime.quantization.calibration_table import (
    write_calibration_table as write_calibration_table,
)
from sardonyx.compat.onnxruntime.quantization.qdq_quantizer import QDQQuantizer as QDQQuantizer
from sardonyx.compat.onnxruntime.quantization.quant_utils import QuantFormat as QuantFormat
from sardonyx.compat.onnxruntime.quantization.quant_utils import QuantizationMode as QuantizationMode
from sardonyx.compat.onnxruntime.quantization.quant_utils import QuantType as QuantType
from sardonyx.compat.onnxruntime.quantization.quantize import DynamicQuantConfig as DynamicQuantConfig
from sardonyx.compat.onnxruntime.quantization.quantize import StaticQuantConfig as StaticQuantConfig
from sardonyx.compat.onnxruntime.quantization.quantize import get_qdq_config as get_qdq_config
from sardonyx.compat.onnxruntime.quantization.quantize import quantize as quantize
from sardonyx.compat.onnxruntime.quantization.quantize import quantize_dynamic as quantize_dynamic
from sardonyx.compat.onnxruntime.quantization.quantize import quantize_static as quantize_static
from sardonyx.compat.onnxruntime.quantization.shape_inference import quant_pre_process as quant_pre_process

__getattr__ = attributes_below("onnxruntime.quantization")
