"""The table of export targets: name, exporter, packages, file, and the way in which a result is proved."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import Any

from sardonyx.errors import MissingDependencyError, OptionError


@dataclass(frozen=True)
class Target:
    """An export target.

    Attributes:
        name: As ``--to`` names it.
        module: The exporter, a module with ``refusals`` and ``export``; see :mod:`.artifact`.
        suffix: Suffix of the main file or folder.
        writes: The files, in words.
        proof: The engine that answers in the proof, in words.
        requires: Packages of the conversion, by import name.
        extra: The extra of ``pip install sardonyx[…]`` that installs them.
        opens_sizes: True if the target keeps open sizes; otherwise ``--size`` must fix them.
        is_foreign: True if the target's own program converts: what it accepts, it may still convert to another model.
    """

    name: str
    module: str
    suffix: str
    writes: str
    proof: str
    requires: tuple[str, ...] = ()
    extra: str = ""
    opens_sizes: bool = True
    is_foreign: bool = False


TARGETS: tuple[Target, ...] = (
    Target(
        "torch",
        "sardonyx.export.torch.exporter",
        ".py",
        "Python source of an nn.Module, and its weights as .safetensors beside",
        "torch runs the module",
        requires=("torch", "safetensors"),
        extra="torch",
    ),
    Target(
        "stablehlo",
        "sardonyx.export.stablehlo.exporter",
        ".mlir",
        "the text of an MLIR module in StableHLO, weights included",
        "XLA runs the text through jax, where installed (extra: jax)",
    ),
    Target(
        "tflite",
        "sardonyx.export.tflite.exporter",
        ".tflite",
        "a TensorFlow Lite file",
        "ai-edge-litert runs the file",
    ),
    Target(
        "openvino",
        "sardonyx.export.openvino",
        ".xml",
        "OpenVINO IR: .xml, and .bin beside, by OpenVINO's converter",
        "OpenVINO runs the files",
        requires=("openvino",),
        extra="openvino",
        is_foreign=True,
    ),
    Target(
        "coreml",
        "sardonyx.export.coreml",
        ".mlpackage",
        "a Core ML package, through MIL of coremltools",
        "none here: checked by its specification only",
        requires=("coremltools",),
        extra="coreml",
    ),
    Target(
        "ncnn",
        "sardonyx.export.ncnn",
        ".param",
        "ncnn files: .param, and .bin beside, by pnnx",
        "ncnn runs the files",
        requires=("pnnx", "ncnn"),
        extra="ncnn",
        opens_sizes=False,
        is_foreign=True,
    ),
    Target(
        "mnn",
        "sardonyx.export.mnn",
        ".mnn",
        "an MNN file, by MNN's converter",
        "MNN runs the file",
        requires=("MNN",),
        extra="mnn",
        is_foreign=True,
    ),
)
"""All targets, in the order of the documentation."""


def target_of(name: str) -> Target:
    """Return the target of a name.

    Raises:
        OptionError: No target has this name.
    """
    chosen = next((target for target in TARGETS if target.name == name), None)
    if chosen is None:
        names = ", ".join(target.name for target in TARGETS)
        raise OptionError(f"unknown target {name!r}.", where="target", remedy=f"Known are: {names}.")
    return chosen


def target_names() -> tuple[str, ...]:
    """Return the names of all targets."""
    return tuple(target.name for target in TARGETS)


def missing_packages(target: Target) -> list[str]:
    """Return the missing packages of a target."""
    return [package for package in target.requires if importlib.util.find_spec(package) is None]


def exporter_of(target: Target) -> Any:
    """Return the module of a target's exporter.

    Raises:
        MissingDependencyError: A package is not installed; names the extra.
    """
    if missing := missing_packages(target):
        raise MissingDependencyError(
            f"writing {target.name} needs {', '.join(missing)}, which is not installed",
            remedy=f"pip install sardonyx[{target.extra}]" if target.extra else "Install the package.",
        )
    return importlib.import_module(target.module)
