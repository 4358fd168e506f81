"""The node data of older onnx wheels: downloaded, unpacked, and read case by case."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

WHEELS = {
    "1.5.0": "36", "1.7.0": "36", "1.8.1": "36", "1.10.2": "36", "1.12.0": "310", "1.14.1": "310", "1.16.2": "310",
    "1.18.0": "310", "1.20.1": "310", "1.22.0": "310",
}  # fmt: skip
"""Versions of onnx, and a version of Python that each has a wheel for."""

_DATA = "onnx/backend/test/data/node/"
_PLATFORMS = ("manylinux1_x86_64", "manylinux2010_x86_64", "manylinux2014_x86_64", "manylinux_2_28_x86_64")


def node_data(version: str, cache: Path) -> Path:
    """The folder of a version's node cases, downloaded into ``cache`` and unpacked there when first asked for."""
    folder = cache / f"onnx-{version}"
    if not folder.exists():
        with zipfile.ZipFile(_downloaded(version, cache)) as wheel:
            wheel.extractall(folder, [name for name in wheel.namelist() if name.startswith(_DATA)])
    return folder / _DATA


def _downloaded(version: str, cache: Path) -> Path:
    python = WHEELS[version]
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"),
        *("--implementation", "cp", "--python-version", python, "--abi", f"cp{python}" + "m" * (python == "36")),
        *(part for platform in _PLATFORMS for part in ("--platform", platform)),
        *("--dest", str(cache), f"onnx=={version}"),
    ]
    subprocess.run(command, check=True)
    return next(cache.glob(f"onnx-{version}-*.whl"))


def cases_in(folder: Path) -> list[Path]:
    """The folders of the cases."""
    return sorted(model.parent for model in folder.glob("*/model.onnx"))


def data_sets(case: Path, model: onnx.ModelProto) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    """The feeds and the expected outputs of every data set of a case."""
    for data in sorted(case.glob("test_data_set_*")):
        feeds = {
            value.name: _read(path, value.type)
            for i, value in enumerate(model.graph.input)
            if (path := data / f"input_{i}.pb").exists()
        }
        yield feeds, [_read(data / f"output_{i}.pb", value.type) for i, value in enumerate(model.graph.output)]


def _read(path: Path, declared: onnx.TypeProto) -> Any:
    content = path.read_bytes()
    if declared.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(content))
    if declared.HasField("optional_type"):
        optional = onnx.OptionalProto.FromString(content)
        return numpy_helper.to_optional(optional) if len(optional.ListFields()) > 1 + bool(optional.name) else None
    array = numpy_helper.to_array(onnx.TensorProto.FromString(content))
    if declared.tensor_type.elem_type == onnx.TensorProto.BFLOAT16 and array.dtype == np.uint16:
        # Before numpy knew bfloat16, data of it were written as their bits.
        array = array.view(onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16))
    return array
