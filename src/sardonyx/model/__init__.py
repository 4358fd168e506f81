"""Models in and out of files: load, save, external data, text forms, checking, opset and IR versions."""

from sardonyx.model.load import Loadable, from_proto, load
from sardonyx.model.save import SKELETON_LOCATION, require_file, require_writable, save, to_proto, write_text
from sardonyx.model.tensors import SparseTensor
from sardonyx.model.types import MapType, OpaqueType
from sardonyx.model.versions import lower_ir_version, lowest_ir_version

__all__ = [
    "SKELETON_LOCATION",
    "Loadable",
    "MapType",
    "OpaqueType",
    "SparseTensor",
    "from_proto",
    "load",
    "lower_ir_version",
    "lowest_ir_version",
    "require_file",
    "require_writable",
    "save",
    "to_proto",
    "write_text",
]
