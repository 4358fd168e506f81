"""The module ``float16`` of ``onnxconverter_common``."""

from __future__ import annotations

import onnx

from sardonyx.compat import onnxoptimizer
from sardonyx.compat.float16_converter import DEFAULT_OP_BLOCK_LIST as DEFAULT_OP_BLOCK_LIST
from sardonyx.compat.float16_converter import check_if_fp16_ready as check_if_fp16_ready
from sardonyx.compat.float16_converter import convert_float_to_float16 as convert_float_to_float16
from sardonyx.compat.float16_converter import (
    convert_float_to_float16_model_path as convert_float_to_float16_model_path,
)
from sardonyx.compat.float16_converter import convert_np_to_float16 as convert_np_to_float16
from sardonyx.compat.float16_converter import convert_tensor_float_to_float16 as convert_tensor_float_to_float16
from sardonyx.compat.float16_converter import make_value_info_from_tensor as make_value_info_from_tensor


def remove_identity_node_from_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without Identity nodes, except where an Identity connects an input to an output."""
    result: onnx.ModelProto = onnxoptimizer.optimize(model, ["eliminate_identity"])  # type: ignore[no-untyped-call]
    return result
