"""The command lines recommended by findings, spelled in one module."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Commands:
    """Builder of ``sardonyx`` command lines for one model.

    Attributes:
        source: The path of the model in the user's form; ``MODEL.onnx`` without a path.
    """

    source: str = "MODEL.onnx"

    def _line(self, verb: str, *options: str) -> str:
        path = Path(self.source)
        name = f"{path.stem}.repaired{path.suffix or '.onnx'}"
        # A model in a read-only folder, e.g. of a hub's cache, is repaired into the working directory.
        writable = not path.parent.is_dir() or os.access(path.parent, os.W_OK)
        target = str(path.with_name(name) if writable else name)
        return shlex.join(["sardonyx", verb, self.source, *options, "-o", target])

    def optimize(self, *passes: str, target: str = "", opset: int | None = None) -> str:
        """``sardonyx optimize``, with named passes, for a target, at an opset."""
        options = ["--passes", ",".join(passes)] if passes else []
        options += ["--target", target] if target else []
        options += ["--opset", str(opset)] if opset is not None else []
        return self._line("optimize", *options)

    def freeze_defaults(self) -> str:
        """``sardonyx optimize --freeze-defaults``."""
        return self._line("optimize", "--freeze-defaults")

    def simplify(self) -> str:
        """``sardonyx simplify``."""
        return self._line("simplify")

    def fp16(self) -> str:
        """``sardonyx fp16``."""
        return self._line("fp16")

    def set_shape(self, shapes: Mapping[str, str]) -> str:
        """``sardonyx set-shape``; ``shapes`` maps each input to a comma-separated list of sizes and names."""
        return self._line("set-shape", *(part for name in shapes for part in ("--input", f"{name}:{shapes[name]}")))

    def convert_opset(self, opset: int) -> str:
        """``sardonyx convert-opset --opset``."""
        return self._line("convert-opset", "--opset", str(opset))

    def convert_ir(self, version: int) -> str:
        """``sardonyx convert-opset --ir``, with the opset unchanged."""
        return self._line("convert-opset", "--ir", str(version))

    def rename(self, old: str, new: str) -> str:
        """``sardonyx rename`` of one name."""
        return self._line("rename", f"{old}={new}")

    def extract(self, inputs: list[str], outputs: list[str]) -> str:
        """``sardonyx extract`` between the named inputs and outputs."""
        return self._line("extract", "--inputs", ",".join(inputs), "--outputs", ",".join(outputs))
