"""The element types of ONNX, without the import of ``onnx_ir``.

``onnx_ir`` imports ``sympy`` and takes most of a second; its enumerations alone are a file of a few milliseconds. The
file is imported under its own name, so that the classes here are those of ``onnx_ir`` in any order of imports.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx_ir import DataType
else:

    def _import_enums() -> type:
        name = "onnx_ir._enums"
        if name in sys.modules or "onnx_ir" in sys.modules:
            return importlib.import_module(name).DataType
        package = importlib.util.find_spec("onnx_ir")
        path = None if package is None or package.origin is None else Path(package.origin).with_name("_enums.py")
        spec = None if path is None else importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None or not path.is_file():
            return importlib.import_module("onnx_ir").DataType
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module.DataType

    DataType = _import_enums()

__all__ = ["DataType"]
