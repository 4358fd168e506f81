"""Drop-in for the float16 converter of ``onnxconverter_common``.

Other names are those of the installed package.
"""

from __future__ import annotations

import importlib
from typing import Any

from sardonyx.compat.module_finder import attributes_below
from sardonyx.compat.onnxconverter_common.float16 import (
    convert_float_to_float16 as convert_float_to_float16,
)
from sardonyx.compat.onnxconverter_common.float16 import (
    convert_float_to_float16_model_path as convert_float_to_float16_model_path,
)
from sardonyx.compat.onnxconverter_common.float16 import (
    convert_tensor_float_to_float16 as convert_tensor_float_to_float16,
)

__version__ = "1.16.0"
__author__ = "Sardonyx"
__producer__ = "OnnxMLTools"
__producer_version__ = __version__
__domain__ = "onnxconverter-common"
__model_version__ = 0

_EXPORTED = (
    "data_types", "onnx_ops", "container", "registration", "topology", "interface", "shape_calculator",
    "tree_ensemble", "utils", "case_insensitive_dict", "metadata_props", "optimizer", "auto_mixed_precision",
    "auto_mixed_precision_model_path",
)  # fmt: skip
"""Modules of the original whose names are names of the package too."""

_module = attributes_below("onnxconverter_common")


def __getattr__(name: str) -> Any:
    try:
        return _module(name)
    except AttributeError:
        for module in _EXPORTED:
            if not name.startswith("_") and importlib.util.find_spec(f"onnxconverter_common.{module}") is not None:
                exported = importlib.import_module(f"onnxconverter_common.{module}")
                if hasattr(exported, name):
                    return getattr(exported, name)
        raise
